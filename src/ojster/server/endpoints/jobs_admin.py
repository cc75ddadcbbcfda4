"""Endpoints for operators about jobs and dead letters.

Spec: ojs-admin-api 7; ojs-dead-letter 6
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.core.access import Operation
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.wire import Json
from ojster.jobs.answer_wire import (
    CancelledAnswer,
    ItemPageAnswer,
    JobDetailAnswer,
    show_times,
)
from ojster.jobs.bulk import Action
from ojster.jobs.bulk_wire import SweepAnswer, show_sweep
from ojster.jobs.calls import JobCalls
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.filters import filter_of, narrowing_filter_of
from ojster.jobs.job_json import retry_policy, to_json
from ojster.jobs.policy_wire import show_retry_policy
from ojster.jobs.queries import Page
from ojster.jobs.sweeps import Sweep
from ojster.jobs.wire import CONFIRMED_FILTER, DEAD_LETTERS, ConfirmedFilterBody, DeadLetterRetryBody, DeadLettersBody
from ojster.server.admin import ADMIN, TAG
from ojster.server.answer import Answer, UnchangedAnswer, encode
from ojster.server.declared import arguments_of
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import Handler, HttpRequest
from ojster.server.route import BASE, NUMBERED_PAGE, Route

JOB_FILTER_PARAMETERS: Final = ("queue", "state", "type", "error_type", "cron_name", "since", "until", "internal")
"""Query parameters of the job search."""

_SORTS: Final = ("created_at", "scheduled_at", "priority")


async def search_jobs(request: HttpRequest) -> Answer:
    """Search jobs, sorted by ``sort``.

    By ``queue``, ``state``, ``type``, ``error_type``, ``cron_name``, ``since`` and ``until``; jobs of the server's own
    work with ``internal=true`` alone.
    """
    return await _job_list(request, {})


async def _job_list(request: HttpRequest, more: Mapping[str, Any]) -> Answer:
    query = request.query
    page = numbered_page(query)
    sort, order = query.get("sort", "created_at"), query.get("order", "desc")
    if sort not in _SORTS or order not in ("asc", "desc"):
        raise InvalidRequest(f"Invalid sort: use {', '.join(_SORTS)} and 'asc' or 'desc'.", field="sort")
    chosen = filter_of({name: query.get(name) for name in JOB_FILTER_PARAMETERS})
    if more:
        chosen = msgspec.structs.replace(chosen, **more)
    wanted = Page(page.size, page.offset, sort=sort, ascending=order == "asc")
    listed = await request.service.jobs.select(chosen, wanted)
    items = [summary(job) for job in listed.jobs]
    return Answer(encode(ItemPageAnswer(items, numbered_pagination(page, listed.total))))


_SUMMARY: Final = frozenset(
    (
        "id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "enqueued_at",
        "started_at", "completed_at", "cancelled_at", "discarded_at", "scheduled_at", "next_attempt_at", "error",
        "worker_id", "tags", "workflow_id",
    )
)  # fmt: skip


def _members(job: Job) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(to_json(job), type=dict[str, msgspec.Raw])


def summary(job: Job) -> dict[str, msgspec.Raw]:
    """Return what a list shows of a job."""
    return {name: value for name, value in _members(job).items() if name in _SUMMARY}


async def inspect_job(request: HttpRequest) -> Answer:
    """Show a job with its envelope, errors and timestamps."""
    return Answer(encode(_detail(await request.service.jobs.find(request.path["id"]))))


def _detail(job: Job) -> dict[str, Json]:
    shown: dict[str, Json] = dict(_members(job))
    shown["retry_policy"] = msgspec.to_builtins(show_retry_policy(retry_policy(job)))
    shown.setdefault("errors", [])
    shown.setdefault("result", None)
    shown["dead_letter"] = bool(job.dead)
    shown["metadata"] = show_times(job)
    return shown


async def cancel_admin_job(request: HttpRequest) -> Answer:
    """Cancel an unfinished job."""
    steered = await request.service.jobs.cancel(request.path["id"])
    return Answer(encode(CancelledAnswer(steered.job.id, steered.job.state, steered.before)))


def _sweep_endpoint(action: Action, doc: str) -> Handler:
    async def sweep(request: HttpRequest) -> Answer:
        body = await request.read(CONFIRMED_FILTER)
        check_confirmed(body.confirm or body.dry_run)
        return _swept(await request.service.bulk.sweep(action, narrowing_filter_of(body.filter), dry_run=body.dry_run))

    sweep.__name__ = f"{action}_admin_jobs"
    sweep.__doc__ = doc
    return sweep


def _swept(sweep: Sweep) -> Answer:
    shown = encode(show_sweep(sweep))
    return Answer(shown) if sweep.as_of is None else UnchangedAnswer(shown)


def check_confirmed(confirm: bool) -> None:
    """Raise ``InvalidRequest`` unless the request confirms what it asks for."""
    if confirm is not True:
        raise InvalidRequest('"confirm" is not true. Send "confirm": true, as this cannot be undone.', field="confirm")


async def list_admin_dead_letters(request: HttpRequest) -> Answer:
    """List the dead letters, with the same filters as the job search."""
    return await _job_list(request, {"dead": True})


async def show_dead_letter(request: HttpRequest) -> Answer:
    """Show a dead letter with its envelope and errors."""
    job = await request.service.jobs.find(request.path["id"])
    if not job.dead:
        raise NotFound(f"Job {job.id} is not a dead letter.", resource_type="dead_letter_job", resource_id=job.id)
    return Answer(encode(_detail(job)))


async def retry_dead_letters(request: HttpRequest) -> Answer:
    """Run all dead letters that match a filter again, with attempts and errors reset."""
    chosen, dry_run = await _dead_letters(request)
    return _swept(await request.service.bulk.sweep(Action.RETRY, chosen, dry_run=dry_run))


async def purge_dead_letters(request: HttpRequest) -> Answer:
    """Delete dead letters permanently: all, those that match ``filter``, or those ``older_than`` a time."""
    chosen, dry_run = await _dead_letters(request)
    sweep = await request.service.bulk.sweep(Action.DELETE, chosen, dry_run=dry_run)
    if dry_run:
        return _swept(sweep)
    shown = show_sweep(sweep)
    shown.purged_count = sweep.succeeded
    return Answer(encode(shown))


async def _dead_letters(request: HttpRequest) -> tuple[JobFilter, bool]:
    """Return the filter of a request about dead letters, and whether it is a dry run."""
    body = await request.read(DEAD_LETTERS)
    check_confirmed(body.confirm or body.dry_run)
    conditions = dict(body.filter or {})
    if body.older_than is not None:
        conditions["older_than"] = body.older_than
    chosen = filter_of(conditions)
    return msgspec.structs.replace(chosen, dead=True, states=(JobState.DISCARDED.value,)), body.dry_run


async def delete_admin_dead_letter(request: HttpRequest) -> Answer:
    """Delete a discarded job permanently."""
    await request.service.jobs.delete_dead(request.path["id"])
    return Answer(b"", 204)


async def retry_admin_dead_letter(request: HttpRequest) -> Answer:
    """Run a discarded job again, with attempts and errors reset."""
    job = await request.service.jobs.retry_dead(**await arguments_of(request, JobCalls.retry_dead))
    return Answer(encode(_detail(job)))


_RETRY_ALL: Final = _sweep_endpoint(
    Action.RETRY, "Run all jobs that match a filter again: discarded, or waiting for a retry."
)

_CANCEL_ALL: Final = _sweep_endpoint(Action.CANCEL, "Cancel all jobs that match a filter.")

_DELETE_ALL: Final = _sweep_endpoint(Action.DELETE, "Delete all finished jobs that match a filter permanently.")

_SEARCH: Final = (*JOB_FILTER_PARAMETERS, "sort", "order", *NUMBERED_PAGE)

ROUTES: Final = (
    Route("GET", f"{ADMIN}/jobs", search_jobs, TAG, answer=ItemPageAnswer, query=_SEARCH),
    Route("GET", f"{ADMIN}/jobs/{{id}}", inspect_job, TAG, answer=JobDetailAnswer),
    Route("POST", f"{ADMIN}/jobs/{{id}}/cancel", cancel_admin_job, TAG, answer=CancelledAnswer),
    Route("POST", f"{ADMIN}/jobs/bulk/retry", _RETRY_ALL, TAG, ConfirmedFilterBody, SweepAnswer),
    Route("POST", f"{ADMIN}/jobs/bulk/cancel", _CANCEL_ALL, TAG, ConfirmedFilterBody, SweepAnswer),
    Route("POST", f"{ADMIN}/jobs/bulk/delete", _DELETE_ALL, TAG, ConfirmedFilterBody, SweepAnswer),
    Route("GET", f"{ADMIN}/dead-letter", list_admin_dead_letters, TAG, answer=ItemPageAnswer, query=_SEARCH),
    Route(
        "POST",
        f"{ADMIN}/dead-letter/{{id}}/retry",
        retry_admin_dead_letter,
        TAG,
        DeadLetterRetryBody,
        JobDetailAnswer,
        may_be_empty=True,
    ),
    Route("DELETE", f"{ADMIN}/dead-letter/{{id}}", delete_admin_dead_letter, TAG, status=204),
    *(
        route
        for base, retries in ((ADMIN, Operation.ADMIN), (BASE, Operation.CANCEL))
        for route in (
            Route("GET", f"{base}/dead-letter/{{id}}", show_dead_letter, TAG, answer=JobDetailAnswer),
            Route(
                "POST",
                f"{base}/dead-letter/retry",
                retry_dead_letters,
                TAG,
                DeadLettersBody,
                SweepAnswer,
                needs=(retries,),
            ),
            Route("DELETE", f"{base}/dead-letter", purge_dead_letters, TAG, DeadLettersBody, SweepAnswer),
        )
    ),
)

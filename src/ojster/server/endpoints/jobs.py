"""Endpoints for jobs: enqueue, show, list and control them.

Spec: ojs-http-binding 7, 9
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from email.utils import formatdate
from typing import Final

import msgspec

from ojster.core.access import CANCEL, CANCEL_OR_DEQUEUE, DEQUEUE, ENQUEUE
from ojster.core.durations import SECOND
from ojster.core.errors import Conflict, InvalidRequest, WaitTimedOut
from ojster.core.ids import is_job_id
from ojster.core.job import Job
from ojster.core.job_flags import RESULT_PRUNED
from ojster.core.json_objects import check_depth
from ojster.core.parsing import read_value
from ojster.core.refusals import JobDropped, ResultExpired
from ojster.core.states import FINISHED, JobState
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.jobs import answer_wire
from ojster.jobs.answer_wire import (
    CancelledJobAnswer,
    CheckpointAnswer,
    DeletedCheckpointAnswer,
    EnqueuedAnswer,
    JobAnswer,
    JobPageAnswer,
    ProgressAnswer,
    ResultAnswer,
    show_cancelled,
)
from ojster.jobs.calls import JobCalls
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.filters import filter_of
from ojster.jobs.job_json import to_json
from ojster.jobs.messages import Progress
from ojster.jobs.queries import SORTS, Page
from ojster.jobs.wire import (
    CHECKPOINT,
    PROGRESS,
    WORKER_PROGRESS,
    CheckpointBody,
    EnqueueBody,
    ProgressBody,
    WorkerProgressBody,
)
from ojster.server import cloud_events
from ojster.server.answer import Answer, encode, number_that_fits
from ojster.server.declared import endpoints_of
from ojster.server.endpoints.bulk import key_of
from ojster.server.pages import flag, page_of, pagination, wait_ms, whole
from ojster.server.pushes import DROPPED, answer_once, headers_of, push_or_block, reply_of
from ojster.server.request import HttpRequest
from ojster.server.result_values import answer_with_value
from ojster.server.route import BASE, PAGE, Route


async def enqueue(request: HttpRequest) -> Answer:
    """Enqueue a job, or return the existing one with 200 if the uniqueness policy finds a duplicate.

    With the header ``Idempotency-Key``, a repeated request gets the first answer again, for a day.

    A CloudEvent, with the content type ``application/cloudevents+json`` or with headers ``ce-…``, becomes a job by the
    triggers of the server. It is enqueued once for its ``source`` and ``id``.
    """
    if cloud_events.form_of(request) is not None:
        return await cloud_events.enqueue_event(request)
    service = request.service
    try:
        job = await service.jobs.prepare_body(await request.body())
    except JobDropped:
        return Answer(DROPPED)
    if (key := key_of(request, "push", request.known_body)) is not None:
        return await answer_once(request, job, key)
    (pushed,) = await push_or_block(request, job, lambda: service.jobs.push((job,)))
    reply = reply_of(job, pushed)
    if pushed.existing:
        return Answer(reply.body)
    return Answer(reply.body, reply.status, await headers_of(request, job, job.id))


async def show_job(request: HttpRequest) -> Answer:
    """Show a job. With ``wait_ms``, answer when the job is finished or the time has passed.

    A result that is a file is shown as a reference; to requests with ``OJS-Version``, its value up to 16 MiB.

    Spec: ojs-results 8.1
    """
    wait = wait_ms(request.query)
    jobs, id = request.service.jobs, request.path["id"]
    if wait and not is_job_id(id):
        id = (await jobs.find(id)).id
    job = await jobs.wait_for(id, wait) if wait else await jobs.find(id)
    answer = await answer_with_value(request, job) if request.is_from_sdk else Answer(b'{"job":%b}' % to_json(job))
    if not wait and job.state not in FINISHED:
        answer.headers = _POLL_AGAIN
    return answer


async def show_result(request: HttpRequest) -> Answer:
    """Show the result of a job. With ``wait=true``, wait ``timeout`` seconds (30) for it; answers 408 if there is none.

    Spec: ojs-results 8
    """
    query, service, job_id = request.query, request.service, request.path["id"]
    seconds = min(whole(query, "timeout", 30, 0), 60)
    waits = flag(query, "wait")
    job = await service.jobs.wait_for(job_id, seconds) if waits else await service.jobs.find(job_id)
    is_finished = job.state in FINISHED
    if waits and not is_finished:
        raise WaitTimedOut(f"Job {job_id} is still {job.state} after {seconds} s. Wait again.", current_state=job.state)
    if job.flags & RESULT_PRUNED:
        raise ResultExpired(
            f"The result of the job {job_id} was deleted after its 'result_ttl'.", resource_type="result"
        )
    shown = answer_wire.show_result(job)
    headers = () if is_finished else _POLL_AGAIN
    return Answer(encode(ResultAnswer(job_id=job_id, **msgspec.structs.asdict(shown))), headers=headers)


_POLL_AGAIN: Final = ((b"retry-after", b"1"),)


async def cancel_job(request: HttpRequest) -> Answer:
    """Cancel an unfinished job."""
    changed = await request.service.jobs.cancel(request.path["id"])
    return Answer(show_cancelled(changed))


async def report_progress(request: HttpRequest) -> Answer:
    """Report the progress of a job, and extend its lease. For a job that is not active, nothing changes."""
    return await _report(request, request.path["id"], await request.read(PROGRESS))


async def report_worker_progress(request: HttpRequest) -> Answer:
    """Report the progress of the job ``job_id``, as the official SDKs do."""
    body = await request.read(WORKER_PROGRESS)
    return await _report(request, body.job_id, body)


async def _report(request: HttpRequest, job_id: str, body: ProgressBody) -> Answer:
    fraction = body.progress if body.percentage is None else body.percentage / 100
    if fraction is None and body.data is None:
        raise InvalidRequest("The report has neither 'progress' nor 'data'. Send one of them.", field="progress")
    clamped = None if fraction is None else min(1.0, max(0.0, fraction))
    data = None if body.data is None else encode(body.data)
    if data is not None:
        check_depth(data, "'data'")
    item = Progress(job_id, clamped, body.message, body.worker_id, body.attempt, data)
    job = await request.service.jobs.report(item)
    if job.state == JobState.ACTIVE and body.checkpoint is not msgspec.UNSET and bytes(body.checkpoint) != b"null":
        read_value(body.checkpoint, "checkpoint")
        checkpoint = NewCheckpoint(job_id, bytes(body.checkpoint), job.worker_id, job.attempt)
        with contextlib.suppress(Conflict):  # the job has ended meanwhile
            await request.service.jobs.save_checkpoint(checkpoint)
    return _progress(job)


async def show_progress(request: HttpRequest) -> Answer:
    """Show the progress of a job."""
    return _progress(await request.service.jobs.find(request.path["id"]))


def _progress(job: Job) -> Answer:
    """Return the progress of a job, as its last report has it. Spec: ojs-progress 7.1, 10.3"""
    shown = msgspec.json.decode(job.progress) if job.progress else {}
    headers = [(b"cache-control", b"no-cache")]
    if "updated_at" in shown:
        reported_at = formatdate(parse_timestamp(shown["updated_at"]) / SECOND, usegmt=True)
        headers.append((b"last-modified", reported_at.encode()))
    if shown.get("progress") is not None:
        headers.append((b"x-ojs-progress", str(shown["progress"]).encode()))
    changed_at = job.finished_at or job.started_at or job.enqueued_at or job.created_at
    shown.setdefault("updated_at", format_timestamp(changed_at))
    return Answer(encode(ProgressAnswer(job_id=job.id, state=job.state, **shown)), headers=headers)


async def save_checkpoint(request: HttpRequest) -> Answer:
    """Save a checkpoint for the job's next attempt, at most 1 MiB, in place of the previous one."""
    body = await request.read(CHECKPOINT)
    read_value(body.state, "state")
    item = NewCheckpoint(request.path["id"], bytes(body.state), body.worker_id, body.attempt)
    return Answer(encode(CheckpointAnswer.of(await request.service.jobs.save_checkpoint(item))))


async def clear_checkpoint(request: HttpRequest) -> Answer:
    """Delete the checkpoint of a job."""
    existed = await request.service.jobs.clear_checkpoint(request.path["id"])
    return Answer(encode(DeletedCheckpointAnswer(request.path["id"], existed)))


async def list_jobs(request: HttpRequest) -> Answer:
    r"""List jobs that match all conditions, newest first unless ``sort`` says otherwise.

    ``state``, ``queue``, ``type``, ``error_type``, ``cron_name``, ``worker``, ``workflow`` and ``tag`` take several
    values with commas between them, of which a job must have one; in a value, ``\,`` is a comma and ``\\`` a
    backslash. A type may end in ``*``. ``where`` takes members of arguments and metadata with their values, such as
    ``args.order_id=42,meta.customer=17``, which a job must have all; encoded arguments cannot be searched.
    ``error_text`` is a part of the last error, ``id`` the beginning or the end of an id. ``since`` and ``until`` bound
    the time at which jobs were created. Jobs of the server's own work, such as deliveries, are left out unless
    ``internal=true`` or ``queue`` asks for them.

    ``sort`` is ``newest``, ``oldest``, ``priority``, ``changed`` or ``attempts``. Conditions and orders without an
    index examine the newest 50,000 jobs: ``is_complete`` is then false, and ``examined`` says how many they were.
    """
    query = request.query
    chosen = filter_of({name: query.get(name) for name in LIST_FILTERS})
    return await job_page(request, chosen)


async def job_page(request: HttpRequest, chosen: JobFilter) -> Answer:
    """Return the page of matching jobs that the query parameters select."""
    query = request.query
    limit, offset, before = page_of(query)
    is_bounded = query.keys().isdisjoint(_NUMBERED)
    if not (is_bounded or chosen.has_index):
        raise InvalidRequest("A search has no offset. Go on with its 'next_cursor'.", field="offset")
    sort, ascending = _order(query)
    wanted = Page(limit, offset, before, sort, ascending, is_bounded)
    if not wanted.is_by_arrival:  # its cursors are offsets, and all jobs would have to be sorted
        place = offset if before is None else before
        wanted = msgspec.structs.replace(wanted, offset=place, before=None, is_bounded=True)
    page = await request.service.jobs.select(chosen, wanted)
    shown = [to_json(job) for job in page.jobs]
    fitting = number_that_fits(shown)
    following = page.next_before if fitting == len(shown) else page.jobs[fitting - 1].seq
    if not wanted.is_by_arrival:
        end = wanted.offset + fitting
        following = end if end < page.total and fitting else None
    described = pagination(page.total, limit, wanted.offset, following, is_complete=page.is_complete)
    described.examined = msgspec.UNSET if page.examined is None else page.examined
    return Answer(b'{"jobs":[%b],"pagination":%b}' % (b",".join(shown[:fitting]), encode(described)))


def _order(query: Mapping[str, str]) -> tuple[str, bool]:
    """Return what a list is sorted by, and whether the smallest comes first."""
    sort = query.get("sort", "newest")
    if sort not in SORTS:
        raise InvalidRequest(f"Unknown order {sort[:40]!r}. Use {', '.join(SORTS)}.", field="sort")
    return SORTS[sort]


_NUMBERED: Final = frozenset({"page", "offset"})
"""Query parameters of pages that are asked for by their place: each needs all matches, and so does the first."""

SEARCHES: Final = ("error_text", "worker", "workflow", "tag", "where", "id")
"""Query parameters that search in what jobs contain, or that few jobs have."""

LIST_FILTERS: Final = (*("state", "queue", "type", "error_type", "cron_name", *SEARCHES, "since", "until", "internal"),)
"""Query parameters that select jobs of a list, and of its facets."""

ROUTES: Final = (
    *endpoints_of(JobCalls, lambda service: service.jobs),
    Route("POST", f"{BASE}/jobs", enqueue, "Jobs", EnqueueBody, EnqueuedAnswer, 201, (200,), needs=ENQUEUE),
    Route(
        "GET",
        f"{BASE}/jobs",
        list_jobs,
        "Jobs",
        None,
        JobPageAnswer,
        query=(*LIST_FILTERS, "sort", *PAGE),
        recent=True,
    ),
    Route("GET", f"{BASE}/jobs/{{id}}", show_job, "Jobs", None, JobAnswer, query=("wait_ms",)),
    Route(
        "GET",
        f"{BASE}/jobs/{{id}}/result",
        show_result,
        "Jobs",
        answer=ResultAnswer,
        more=(410,),
        query=("wait", "timeout"),
    ),
    Route("DELETE", f"{BASE}/jobs/{{id}}", cancel_job, "Jobs", answer=CancelledJobAnswer, needs=CANCEL),
    Route("POST", f"{BASE}/jobs/{{id}}/cancel", cancel_job, "Jobs", answer=CancelledJobAnswer, needs=CANCEL),
    Route("PUT", f"{BASE}/jobs/{{id}}/progress", report_progress, "Jobs", ProgressBody, ProgressAnswer, needs=DEQUEUE),
    Route(
        "POST",
        f"{BASE}/workers/progress",
        report_worker_progress,
        "Workers",
        WorkerProgressBody,
        ProgressAnswer,
        needs=DEQUEUE,
    ),
    Route("GET", f"{BASE}/jobs/{{id}}/progress", show_progress, "Jobs", answer=ProgressAnswer),
    *(
        Route(
            method,
            f"{BASE}/jobs/{{id}}/checkpoint",
            save_checkpoint,
            "Jobs",
            CheckpointBody,
            CheckpointAnswer,
            large=True,
            needs=DEQUEUE,
        )
        for method in ("PUT", "POST")
    ),
    Route(
        "DELETE",
        f"{BASE}/jobs/{{id}}/checkpoint",
        clear_checkpoint,
        "Jobs",
        answer=DeletedCheckpointAnswer,
        needs=CANCEL_OR_DEQUEUE,
    ),
)

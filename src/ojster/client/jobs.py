"""Calls about jobs, made to a server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Raw

from ojster.client.connection import (
    Connection,
    RemoteCapability,
    job_of,
    list_of,
    log_warnings,
    outcome_of,
    paging,
    readable_jobs,
)
from ojster.client.merged_pushes import MergedPushes
from ojster.core.errors import Duplicate, InvalidRequest, OjsterError
from ojster.core.ids import canonical_job_id, new_id
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.shown_errors import error_of
from ojster.core.timestamps import format_optional, parse_timestamp
from ojster.core.wire import Json, changes_body
from ojster.jobs.bulk import Action
from ojster.jobs.bulk_wire import BatchAnswer
from ojster.jobs.calls import JobCalls
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.filters import filter_members, shown_value
from ojster.jobs.history import Entry
from ojster.jobs.history_wire import HistoryAnswer, read_entry
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.middleware import EnqueueMiddleware, MiddlewareChain, through_middleware
from ojster.jobs.push import Pushed
from ojster.jobs.queries import SORTS, JobPage, Page
from ojster.jobs.sweeps import MAX_SWEEP_SECONDS, Sweep
from ojster.jobs.transitions import ChangedJob
from ojster.jobs.wire import (
    AckBody,
    BulkSteeringBody,
    CheckpointBody,
    FetchBody,
    NackBody,
    ProgressBody,
    ReleaseBody,
)

log = logging.getLogger(__name__)

_encode: Final = msgspec.json.Encoder().encode


class RemoteJobs(RemoteCapability, JobCalls):
    """Calls about jobs.

    Attributes
    ----------
    middleware:
        The enqueue middleware of the application, through which each job passes before it is sent.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.middleware = MiddlewareChain[EnqueueMiddleware]()
        self._merged = MergedPushes(connection)

    async def enqueue(self, requests: Sequence[Members]) -> list[Pushed]:
        """Push jobs, all or none."""
        requests = [await through_middleware(self.middleware, members) for members in requests]
        for members in requests:
            members.setdefault("id", msgspec.Raw(_encode(new_id())))
        try:
            if len(requests) == 1:
                return [await self._merged.push(requests[0])]
            answer = await self._connection.call("POST", "/jobs/batch", {"jobs": requests})
        except Duplicate as refusal:
            ids = [msgspec.json.decode(members["id"], type=str) for members in requests]
            if refusal.details.get("existing_job_id") != ids[refusal.details.get("index", 0)]:
                raise
            # The answer to an earlier try was lost: the jobs exist already.
            return [Pushed(await self.find(id)) for id in ids]
        log_warnings(answer)
        ids = [canonical_job_id(msgspec.json.decode(members["id"], type=str)) for members in requests]
        jobs = [job_of(raw) for raw in list_of(answer["jobs"])]
        return [Pushed(job, existing=job.id != id) for job, id in zip(jobs, ids, strict=True)]

    async def find(self, job_id: str) -> Job:
        """Return a job."""
        return job_of((await self._connection.call("GET", f"/jobs/{quote(job_id, safe='')}"))["job"])

    async def wait_for(self, job_id: str, wait: float) -> Job:
        """Return a job when it is finished, or its current state after ``wait`` seconds (at most 60)."""
        path = f"/jobs/{quote(job_id, safe='')}?wait_ms={int(min(wait, 60) * 1000)}"
        return job_of((await self._connection.call("GET", path, wait=wait))["job"])

    async def cancel(self, job_id: str) -> ChangedJob:
        """Cancel an unfinished job."""
        return _steered((await self._connection.call("DELETE", f"/jobs/{quote(job_id, safe='')}"))["job"])

    async def select(self, chosen: JobFilter = JobFilter(), page: Page = Page()) -> JobPage:  # noqa: B008  (frozen)
        """Return a page of jobs.

        Raises
        ------
        InvalidRequest
            The filter has a condition, or the page an order, that lists of servers do not have.
        """
        of_dead = bool(chosen.dead)
        listed = {name: getattr(chosen, name) for name in (_LISTED_DEAD if of_dead else _LISTED)}
        if chosen != JobFilter(dead=of_dead or None, **listed):
            names = ", ".join(sorted(_LISTED_DEAD if of_dead else _LISTED))
            raise InvalidRequest(f"A server lists {'dead letters' if of_dead else 'jobs'} by these alone: {names}.")
        sort = next((name for name, order in SORTS.items() if order == (page.sort, page.ascending)), None)
        if sort is None or (of_dead and sort != "newest"):
            raise InvalidRequest(f"A server does not sort this list by {page.sort!r} so. Jobs: {', '.join(SORTS)}.")
        place = paging(page)
        if page.is_bounded or not chosen.has_index:  # an offset asks for a list that is examined as a whole
            if page.offset and page.is_by_arrival:
                raise InvalidRequest("A search has no offset. Go on with the 'next_before' of a page.", field="offset")
            place |= {"offset": None} if page.is_by_arrival else {"offset": None, "cursor": page.offset or None}
        query = place | {_QUERY_NAMES.get(name, name): shown_value(name, value) for name, value in listed.items()}
        query |= {"internal": "true" if chosen.internal else None, "sort": sort if sort != "newest" else None}
        answer, total, before = await self._connection.list_page("/dead-letter" if of_dead else "/jobs", query)
        more = msgspec.json.decode(answer["pagination"])
        if not page.is_by_arrival:
            before = None  # its pages have offsets
        jobs = [job_of(raw) for raw in list_of(answer["jobs"])]
        return JobPage(jobs, total, before, more.get("is_complete", True), more.get("examined"))

    async def history(self, job_id: str) -> list[Entry]:
        """Return the events of a job, oldest first."""
        path = f"/jobs/{quote(job_id, safe='')}/history?limit=1000"
        return [read_entry(shown) for shown in (await self._connection.ask(HistoryAnswer, "GET", path)).events]

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Claim jobs; wait up to ``wait`` seconds for the first one.

        Not retried, because the caller fetches again anyway.
        """
        body = _fetch_body(request, wait)
        answer = await self._connection.call("POST", "/workers/fetch", body, wait=wait, patience=0.0)
        return await self._readable(list_of(answer["jobs"]))

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
        """Complete jobs."""
        return await self._connection.batch("/workers/ack/batch", "acks", _acks(items))

    async def acknowledge_and_fetch(
        self, items: Sequence[Acknowledgement], request: Claim
    ) -> tuple[list[Job | OjsterError], list[Job] | OjsterError]:
        """Complete jobs, and claim further ones in the same call.

        Not retried: each try would claim more.
        """
        body = {"acks": _acks(items), "fetch": _fetch_body(request)}
        answer = await self._connection.call("POST", "/workers/ack/batch", body, patience=0.0)
        outcomes = [outcome_of(raw) for raw in list_of(answer["results"])]
        if (error := answer.get("fetch_error")) is not None:
            return outcomes, error_of(msgspec.json.decode(error))
        return outcomes, await self._readable(list_of(answer["jobs"])) if "jobs" in answer else []

    async def _readable(self, raws: Sequence[Raw]) -> list[Job]:
        """Return the fetched jobs that this client can read, and report the others as failed."""
        jobs, failures = readable_jobs(raws)
        if failures:
            try:
                await self.fail(failures)
            except OjsterError as error:  # their leases end, then
                log.warning("cannot report %d jobs that cannot be read: %s", len(failures), error)
        return jobs

    async def fail(self, items: Sequence[FailureReport]) -> list[Job | OjsterError]:
        """Report failed attempts."""
        nacks = [
            NackBody(
                job_id=item.job_id,
                error=msgspec.to_builtins(item.failure),
                worker_id=item.worker_id,
                attempt=item.attempt,
                properties=changes_body(item.changes),
                started_at=format_optional(item.started_at),
            )
            for item in items
        ]
        return await self._connection.batch("/workers/nack/batch", "nacks", nacks)

    async def release(self, items: Sequence[Release]) -> list[Job | OjsterError]:
        """Hand back unfinished jobs."""
        releases = [
            ReleaseBody(
                job_id=item.job_id,
                then=item.then,
                delay_ms=item.delay // 1000,
                not_before=format_optional(item.not_before),
                again=item.again,
                deadline=format_optional(item.deadline),
                wait_ms=None if item.wait is None else item.wait // 1000,
                result=UNSET if item.result is None else Raw(item.result),
                properties=changes_body(item.changes),
                worker_id=item.worker_id,
                attempt=item.attempt,
                started_at=format_optional(item.started_at),
            )
            for item in items
        ]
        return await self._connection.batch("/workers/release/batch", "releases", releases)

    async def report(self, item: Progress) -> None:
        """Report a job's progress."""
        data = None if item.data is None else msgspec.json.decode(item.data)
        body = ProgressBody(item.fraction, item.message, item.worker_id, item.attempt, data)
        await self._connection.call("PUT", f"/jobs/{quote(item.job_id, safe='')}/progress", body)

    async def save_checkpoint(self, item: NewCheckpoint) -> None:
        """Save a job's checkpoint."""
        body = CheckpointBody(Raw(item.state), item.worker_id, item.attempt)
        await self._connection.call("PUT", f"/jobs/{quote(item.job_id, safe='')}/checkpoint", body)


_LISTED_DEAD: Final = ("queue", "type", "error_type", "created_after", "created_before", "internal")
"""Conditions of lists of dead letters."""

_LISTED: Final = (
    *("states", "cron_name", "error_text", "worker", "workflow", "tag", "where", "id"),
    *_LISTED_DEAD,
)
"""Conditions of lists of jobs."""

_QUERY_NAMES: Final = {"states": "state", "created_after": "since", "created_before": "until"}
"""Names of query parameters that are called otherwise than the conditions."""


def _fetch_body(request: Claim, wait: float = 0.0) -> FetchBody:
    """Return the request for a claim.

    Raises
    ------
    InvalidRequest
        The claim shares queues in a way that only a database knows.
    """
    if request.sharing is not None and (request.sharing.least_share or request.sharing.rotation is not None):
        raise InvalidRequest(
            "'least_share' and 'rotation' of Sharing have no effect on a server. Configure a pool with "
            "'starvation_prevention', and let the worker join it."
        )
    body = FetchBody(
        list(request.queues),
        request.count,
        request.worker_id,
        None if request.lease is None else request.lease // 1000,
        job_types=None if request.types is None else list(request.types),
        wait_ms=int(wait * 1000),
    )
    if request.sharing is not None and not request.sharing.is_plain:
        body.strategy, body.weights = request.sharing.strategy, dict(request.sharing.weights)
    return body


def _acks(items: Sequence[Acknowledgement]) -> list[AckBody]:
    return [
        AckBody(
            job_id=item.job_id,
            result=UNSET if item.result is None else Raw(item.result),
            worker_id=item.worker_id,
            attempt=item.attempt,
            append=[Raw(step) for step in item.append],
            properties=changes_body(item.changes),
            result_file=item.result_file,
            started_at=format_optional(item.started_at),
        )
        for item in items
    ]


def _steered(raw: msgspec.Raw) -> ChangedJob:
    return ChangedJob(job_of(raw), msgspec.json.decode(raw).get("previous_state", ""))


class RemoteBulk(RemoteCapability):
    """Calls about many jobs at once."""

    async def sweep(self, action: Action, chosen: JobFilter, *, dry_run: bool = False) -> Sweep:
        """Apply an action to all jobs that match. An idempotency key makes retried requests safe.

        ``dry_run``: change nothing, and return what would be done.
        """
        body = BulkSteeringBody(filter=filter_members(chosen), dry_run=dry_run, idempotency_key=new_id())
        path = f"/jobs/batch/{action}"
        raw = await self._connection.request("POST", path, body, wait=MAX_SWEEP_SECONDS, also=422)
        try:
            answer = msgspec.json.decode(raw, type=BatchAnswer)
        except msgspec.ValidationError:
            raise error_of(msgspec.json.decode(raw, type=dict[str, dict[str, Json]]).get("error", {})) from None
        sweep = Sweep(action, None if answer.as_of is UNSET else parse_timestamp(answer.as_of))
        sweep.matched, sweep.succeeded = answer.summary.total, answer.summary.succeeded
        for result in answer.results:
            sweep.items.append((result.job_id or "", None if result.error is UNSET else error_of(result.error)))
        return sweep

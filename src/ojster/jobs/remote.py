"""Calls about jobs, made to a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ojster.client.connection import (
    RemoteCapability,
    error_of,
    job_of,
    list_of,
    paging,
)
from ojster.core.errors import Duplicate, OjsterError
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.jobs.admission import Pushed
from ojster.jobs.bulk import Action
from ojster.jobs.bulk_service import Sweep
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.history import Entry
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.transitions import ChangedJob

MAX_SWEEP_SECONDS: Final = 3_600.0
"""Read timeout for a sweep or a prune, in seconds, in addition to the usual 30."""

_encode: Final = msgspec.json.Encoder().encode


class RemoteJobs(RemoteCapability):
    """Calls about jobs."""

    async def enqueue(self, requests: Sequence[Members]) -> list[Pushed]:
        """Push jobs, all or none."""
        for members in requests:
            members.setdefault("id", msgspec.Raw(_encode(new_id())))
        try:
            if len(requests) == 1:
                answer = await self._connection.call("POST", "/jobs", requests[0])
                return [Pushed(job_of(answer["job"]), existing="deduplicated" in answer)]
            answer = await self._connection.call("POST", "/jobs/batch", {"jobs": requests})
        except Duplicate as refusal:
            ids = [msgspec.json.decode(members["id"], type=str) for members in requests]
            if refusal.details.get("existing_job_id") != ids[refusal.details.get("index", 0)]:
                raise
            # The answer to an earlier try was lost: the jobs exist already.
            return [Pushed(await self.find(id)) for id in ids]
        return [Pushed(job_of(raw)) for raw in list_of(answer["jobs"])]

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

    async def adjust_priority(self, job_id: str, by: int) -> Job:
        """Set the priority of an unfinished job to the priority of its push plus ``by``."""
        answer = await self._connection.call("PATCH", f"/jobs/{quote(job_id, safe='')}", {"priority_adjustment": by})
        return job_of(answer["job"])

    async def select(self, chosen: JobFilter = JobFilter(), page: Page = Page()) -> JobPage:  # noqa: B008  (frozen)
        """Return a page of jobs, filtered by states, queue, type and dead letters."""
        query = paging(page) | {"state": ",".join(chosen.states), "queue": chosen.queue, "type": chosen.type}
        path = "/dead-letter" if chosen.dead else "/jobs"
        answer, total, before = await self._connection.list_page(path, query)
        return JobPage([job_of(raw) for raw in list_of(answer["jobs"])], total, before)

    async def history(self, job_id: str) -> list[Entry]:
        """Return the events of a job, oldest first."""
        answer = await self._connection.call("GET", f"/jobs/{quote(job_id, safe='')}/history?limit=1000")
        return [
            Entry(
                shown["event_type"],
                parse_timestamp(shown["timestamp"]),
                shown["data"],
                shown["actor"],
                "metadata" in shown,
            )
            for shown in msgspec.json.decode(answer["events"])
        ]

    async def retry_dead(self, job_id: str) -> Job:
        """Retry a discarded job."""
        return job_of((await self._connection.call("POST", f"/dead-letter/{quote(job_id, safe='')}/retry"))["job"])

    async def delete_dead(self, job_id: str) -> None:
        """Delete a discarded job."""
        await self._connection.call("DELETE", f"/dead-letter/{quote(job_id, safe='')}")

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Claim jobs; wait up to ``wait`` seconds for the first one.

        Not retried, because the caller fetches again anyway.
        """
        body: dict[str, Any] = {"queues": request.queues, "count": request.count, "wait_ms": int(wait * 1000)}
        if request.worker_id is not None:
            body["worker_id"] = request.worker_id
        if request.lease is not None:
            body["visibility_timeout_ms"] = request.lease // 1000
        if request.sharing is not None and not request.sharing.is_plain:
            body["strategy"], body["weights"] = request.sharing.strategy, dict(request.sharing.weights)
        answer = await self._connection.call("POST", "/workers/fetch", body, wait=wait, patience=0.0)
        return [job_of(raw) for raw in list_of(answer["jobs"])]

    async def acknowledge(self, items: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
        """Complete jobs."""
        acks = []
        for item in items:
            ack: dict[str, Any] = {"job_id": item.job_id, "worker_id": item.worker_id, "attempt": item.attempt}
            if item.result is not None:
                ack["result"] = msgspec.Raw(item.result)
            if item.append:
                ack["append"] = [msgspec.Raw(step) for step in item.append]
            if item.changes is not None:
                ack["properties"] = item.changes
            if item.result_file is not None:
                ack["result_file"] = item.result_file
            acks.append(ack)
        return await self._connection.batch("/workers/ack/batch", "acks", acks)

    async def fail(self, items: Sequence[FailureReport]) -> list[Job | OjsterError]:
        """Report failed attempts."""
        nacks = [
            {
                "job_id": item.job_id,
                "worker_id": item.worker_id,
                "attempt": item.attempt,
                "error": item.failure,
                "properties": item.changes,
            }
            for item in items
        ]
        return await self._connection.batch("/workers/nack/batch", "nacks", nacks)

    async def release(self, items: Sequence[Release]) -> list[Job | OjsterError]:
        """Hand back unfinished jobs."""
        releases = []
        for item in items:
            shown: dict[str, Any] = {
                "job_id": item.job_id,
                "worker_id": item.worker_id,
                "attempt": item.attempt,
                "then": item.then,
                "delay_ms": item.delay // 1000,
                "not_before": None if item.not_before is None else format_timestamp(item.not_before),
                "again": item.again,
                "deadline": None if item.deadline is None else format_timestamp(item.deadline),
                "wait_ms": None if item.wait is None else item.wait // 1000,
                "properties": item.changes,
            }
            if item.result is not None:
                shown["result"] = msgspec.Raw(item.result)
            releases.append(shown)
        return await self._connection.batch("/workers/release/batch", "releases", releases)

    async def report(self, item: Progress) -> None:
        """Report a job's progress."""
        body = {
            "progress": item.fraction,
            "message": item.message,
            "worker_id": item.worker_id,
            "attempt": item.attempt,
        }
        await self._connection.call("PUT", f"/jobs/{quote(item.job_id, safe='')}/progress", body)

    async def save_checkpoint(self, item: NewCheckpoint) -> None:
        """Save a job's checkpoint."""
        body = {"state": msgspec.Raw(item.state), "worker_id": item.worker_id, "attempt": item.attempt}
        await self._connection.call("PUT", f"/jobs/{quote(item.job_id, safe='')}/checkpoint", body)


def _filter(chosen: JobFilter) -> dict[str, Any]:
    """Return a filter in the server's request format."""
    given = msgspec.structs.asdict(chosen)
    given["states"] = list(chosen.states) or None
    for name, value in given.items():
        if name.endswith(("_after", "_before")) and value is not None:
            given[name] = format_timestamp(value)
    return {name: value for name, value in given.items() if value not in (None, {}, ()) and name != "tenant"}


def _steered(raw: msgspec.Raw) -> ChangedJob:
    return ChangedJob(job_of(raw), msgspec.json.decode(raw).get("previous_state", ""))


class RemoteBulk(RemoteCapability):
    """Calls about many jobs at once."""

    async def sweep(self, action: Action, chosen: JobFilter) -> Sweep:
        """Apply an action to all jobs that match. An idempotency key makes retried requests safe."""
        body = {"filter": _filter(chosen), "idempotency_key": new_id()}
        answer = await self._connection.call("POST", f"/jobs/batch/{action}", body, wait=MAX_SWEEP_SECONDS, also=422)
        if "summary" not in answer:
            raise error_of(msgspec.json.decode(answer.get("error", b"{}")))
        summary = msgspec.json.decode(answer["summary"])
        found = Sweep(action)
        found.matched, found.succeeded = summary["total"], summary["succeeded"]
        for one in msgspec.json.decode(answer["results"]):
            found.items.append((one["job_id"], error_of(one["error"]) if "error" in one else None))
        return found

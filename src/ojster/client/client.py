"""HTTP client of a server: raises error responses as exceptions, and retries while the server is unreachable."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
import msgspec
from msgspec import UNSET, UnsetType

from ojster.agents.attributes import AgentState
from ojster.agents.budgets import Account
from ojster.collections.contents import Collection
from ojster.collections.items import ITEM_QUERY, Item, Lookup, NewItem, Where
from ojster.core import errors
from ojster.core.durations import format_duration
from ojster.core.errors import BackendError, BackendUnavailable, Duplicate, OjsterError
from ojster.core.ids import new_id
from ojster.core.job import Job
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.events.channel import Channel, read_channel
from ojster.files.file import OCTET_STREAM, File, NewFile
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.worker_rule import WorkerRule, read_rule
from ojster.fleet.workers import Heartbeat, HeartbeatResponse, Worker
from ojster.insight.task_values import TaskFilter, TaskRun, TaskStatistics
from ojster.jobs.admission import Pushed
from ojster.jobs.bulk import Action
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.envelope import from_json
from ojster.jobs.failure import Failure
from ojster.jobs.history import Entry
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.request import Members, read_members
from ojster.jobs.selection import JobFilter
from ojster.jobs.service import Sweep
from ojster.jobs.transitions import ChangedJob
from ojster.queues.queues import Queue, QueueStatistics
from ojster.queues.rate_limit import parse_limits
from ojster.schedules.cron import Cron
from ojster.tenancy.access import Grant, Token, read_shown_token, shown_grants
from ojster.workflows.definition import Definition
from ojster.workflows.definitions import Deletion, Named
from ojster.workflows.info import WorkflowInfo, WorkflowPage
from ojster.workflows.notes import NewNote, Note
from ojster.workflows.properties import Properties, PropertyChange
from ojster.workflows.status import WorkflowStatistics, WorkflowStatus
from ojster.workflows.suspensions import WorkflowResumption
from ojster.workflows.views import WorkflowFilter
from ojster.workflows.workflows import Review, StepAddress

log = logging.getLogger(__name__)

MAX_SWEEP_SECONDS: Final = 3_600.0
"""Read timeout for a sweep or a prune, in seconds, in addition to the usual 30."""

DEFAULT_RETRY_SECONDS: Final = 10.0
"""Default time for which a call is retried while the server is unreachable, in seconds."""

_TRANSFER_TIMEOUT: Final = httpx.Timeout(60.0, connect=5.0, read=600.0)
"""Timeouts of file transfers, in seconds. The server may read the whole file before it answers."""

_HEADERS: Final = {"Content-Type": "application/openjobspec+json", "Accept": "application/openjobspec+json"}
_encode: Final = msgspec.json.Encoder().encode


def _error_classes(root: type[OjsterError]) -> Iterator[type[OjsterError]]:
    yield root
    for child in root.__subclasses__():
        yield from _error_classes(child)


_BY_CODE_AND_STATUS: Final = {(kind.code, kind.status): kind for kind in _error_classes(OjsterError)}


class HttpClient:
    """A client of an Open Job Spec server, for one event loop.

    Parameters
    ----------
    url:
        Server, such as ``http://127.0.0.1:8080``.
    patience:
        Time for which a call is retried while the server is unreachable, in seconds. Job ids are part of a push, so
        that a retried push creates no second job.
    headers:
        HTTP headers of every request, for example ``Authorization``.
    """

    def __init__(
        self, url: str, *, patience: float = DEFAULT_RETRY_SECONDS, headers: Mapping[str, str] | None = None
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/ojs/v1")
        self.patience = patience
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=_HEADERS | dict(headers or {}),
            timeout=httpx.Timeout(30.0, connect=5.0),
            limits=httpx.Limits(max_connections=100, max_keepalive_connections=20),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # Jobs

    async def enqueue(self, requests: Sequence[Members]) -> list[Pushed]:
        """Push jobs, all or none."""
        for members in requests:
            members.setdefault("id", msgspec.Raw(_encode(new_id())))
        try:
            if len(requests) == 1:
                answer = await self._call("POST", "/jobs", requests[0])
                return [Pushed(_job(answer["job"]), existing="deduplicated" in answer)]
            answer = await self._call("POST", "/jobs/batch", {"jobs": requests})
        except Duplicate as refusal:
            ids = [msgspec.json.decode(members["id"], type=str) for members in requests]
            if refusal.details.get("existing_job_id") != ids[refusal.details.get("index", 0)]:
                raise
            # The answer to an earlier try was lost: the jobs exist already.
            return [Pushed(await self.find(id)) for id in ids]
        return [Pushed(_job(raw)) for raw in _list(answer["jobs"])]

    async def find(self, job_id: str) -> Job:
        """Return a job."""
        return _job((await self._call("GET", f"/jobs/{quote(job_id, safe='')}"))["job"])

    async def wait_for(self, job_id: str, wait: float) -> Job:
        """Return a job when it is finished, or its current state after ``wait`` seconds (at most 60)."""
        path = f"/jobs/{quote(job_id, safe='')}?wait_ms={int(min(wait, 60) * 1000)}"
        return _job((await self._call("GET", path, wait=wait))["job"])

    async def cancel(self, job_id: str) -> ChangedJob:
        """Cancel an unfinished job."""
        return _steered((await self._call("DELETE", f"/jobs/{quote(job_id, safe='')}"))["job"])

    async def adjust_priority(self, job_id: str, by: int) -> Job:
        """Set the priority of an unfinished job to the priority of its push plus ``by``."""
        answer = await self._call("PATCH", f"/jobs/{quote(job_id, safe='')}", {"priority_adjustment": by})
        return _job(answer["job"])

    async def activate(self, job_id: str, data: bytes | None = None, failure: Failure | None = None) -> ChangedJob:
        """Make a pending job available, or resume a suspended job with a result or a failure."""
        path = f"/jobs/{quote(job_id, safe='')}/activate"
        return _steered((await self._call("POST", path, _resumption(data, failure)))["job"])

    async def add_note(self, item: NewNote) -> Note:
        """Add a note to a job or a workflow."""
        of = f"/jobs/{item.job_id}" if item.job_id is not None else f"/workflows/{item.workflow_id}"
        answer = await self._call("POST", quote(of) + "/info", {"note": msgspec.Raw(item.note)})
        return msgspec.json.decode(answer["note"], type=Note)

    async def job_notes(self, job_id: str) -> list[Note]:
        """Return the notes on a job."""
        answer = await self._call("GET", f"/jobs/{quote(job_id, safe='')}/info")
        return msgspec.json.decode(answer["notes"], type=list[Note])

    async def list_jobs(self, chosen: JobFilter = JobFilter(), page: Page = Page()) -> JobPage:  # noqa: B008  (frozen)
        """Return a page of jobs, filtered by states, queue, type and dead letters."""
        query = _paging(page) | {"state": ",".join(chosen.states), "queue": chosen.queue, "type": chosen.type}
        path = "/dead-letter" if chosen.dead else "/jobs"
        answer, total, before = await self._list(path, query)
        return JobPage([_job(raw) for raw in _list(answer["jobs"])], total, before)

    async def sweep(self, action: Action, chosen: JobFilter) -> Sweep:
        """Apply an action to all jobs that match. An idempotency key makes retried requests safe."""
        body = {"filter": _filter(chosen), "idempotency_key": new_id()}
        answer = await self._call("POST", f"/jobs/batch/{action}", body, wait=MAX_SWEEP_SECONDS, also=422)
        if "summary" not in answer:
            raise _error(msgspec.json.decode(answer.get("error", b"{}")))
        summary = msgspec.json.decode(answer["summary"])
        found = Sweep(action)
        found.matched, found.succeeded = summary["total"], summary["succeeded"]
        for one in msgspec.json.decode(answer["results"]):
            found.items.append((one["job_id"], _error(one["error"]) if "error" in one else None))
        return found

    async def history(self, job_id: str) -> list[Entry]:
        """Return the events of a job, oldest first."""
        answer = await self._call("GET", f"/jobs/{quote(job_id, safe='')}/history?limit=1000")
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
        return _job((await self._call("POST", f"/dead-letter/{quote(job_id, safe='')}/retry"))["job"])

    async def delete_dead(self, job_id: str) -> None:
        """Delete a discarded job."""
        await self._call("DELETE", f"/dead-letter/{quote(job_id, safe='')}")

    async def _list(self, path: str, query: Mapping[str, Any]) -> tuple[dict[str, msgspec.Raw], int, int | None]:
        """Return a page of a list, the length of the list, and the cursor of the next page."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        answer = await self._call("GET", f"{path}?{httpx.QueryParams(given)}")
        page = msgspec.json.decode(answer["pagination"])
        cursor = page.get("next_cursor")
        return answer, page["total"], int(cursor) if cursor else None

    # Workflows

    async def create_workflow(self, members: Members) -> WorkflowInfo:
        """Create a workflow."""
        given = "id" in members
        id = msgspec.json.decode(members.setdefault("id", msgspec.Raw(_encode(new_id()))))
        try:
            return _workflow(await self._call("POST", "/workflows", members))
        except Duplicate as refusal:
            if given or refusal.details.get("existing_workflow_id") != id:
                raise
            return await self.show_workflow(id)  # the answer to an earlier try was lost

    async def show_workflow(
        self, workflow_id: str, *, wait: float = 0.0, version: int | None = None, steps: bool = True
    ) -> WorkflowInfo:
        """Return a workflow; wait up to ``wait`` seconds (at most 60) until it finishes or differs from ``version``."""
        query: dict[str, Any] = {"wait_ms": int(min(wait, 60) * 1000), "steps": "true" if steps else "false"}
        if version is not None:
            query["version"] = version
        path = f"/workflows/{quote(workflow_id, safe='')}?{httpx.QueryParams(query)}"
        return _workflow(await self._call("GET", path, wait=wait))

    async def list_workflows(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows."""
        given = {name: getattr(chosen, name) for name in ("state", "type", "name", "definition", "target")}
        query = _paging(chosen) | given
        answer, total, before = await self._list("/workflows", query)
        found = [WorkflowInfo.from_json(raw) for raw in _list(answer["workflows"])]
        return WorkflowPage(found, total, before)

    async def cancel_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Cancel a workflow."""
        return _workflow(await self._call("DELETE", f"/workflows/{quote(workflow_id, safe='')}"))

    async def retry_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Retry the steps of a workflow that did not succeed."""
        return await self._post_to_workflow(workflow_id, "retry")

    async def hold_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Hold a workflow: no further step starts."""
        return await self._post_to_workflow(workflow_id, "hold")

    async def release_workflow(self, workflow_id: str) -> WorkflowInfo:
        """Release a held workflow."""
        return await self._post_to_workflow(workflow_id, "release")

    async def resume_workflow(self, item: WorkflowResumption) -> WorkflowInfo:
        """Resume the suspended job of a workflow."""
        body = _resumption(item.data, item.failure) | ({} if item.step is None else {"step": item.step})
        return await self._post_to_workflow(item.workflow_id, "resume", body)

    async def properties(self, workflow_id: str) -> Properties:
        """Return the properties that the tasks of a workflow share."""
        answer = await self._call("GET", f"/workflows/{quote(workflow_id, safe='')}/properties")
        return msgspec.json.decode(answer["properties"], type=Properties)

    async def change_properties(self, item: PropertyChange) -> Properties:
        """Change the properties that the tasks of a workflow share."""
        body = msgspec.structs.asdict(item.changes) | {
            "job_id": item.job_id,
            "worker_id": item.worker_id,
            "attempt": item.attempt,
        }
        answer = await self._call("POST", f"/workflows/{quote(item.workflow_id, safe='')}/properties", body)
        return msgspec.json.decode(answer["properties"], type=Properties)

    async def workflow_notes(self, workflow_id: str) -> list[Note]:
        """Return the notes on a workflow and its jobs."""
        answer = await self._call("GET", f"/workflows/{quote(workflow_id, safe='')}/info")
        return msgspec.json.decode(answer["notes"], type=list[Note])

    async def workflow_status(self, workflow_id: str) -> WorkflowStatus:
        """Return the outcomes of a workflow's ended steps, and its current steps."""
        answer = await self._call("GET", f"/workflows/{quote(workflow_id, safe='')}/status")
        return msgspec.json.decode(answer["status"], type=WorkflowStatus)

    async def workflow_statistics(self, definition: str | None = None) -> WorkflowStatistics:
        """Return the number of workflows by state and time of creation."""
        query = "" if definition is None else f"?{httpx.QueryParams({'definition': definition})}"
        answer = await self._call("GET", f"/workflows/statistics{query}")
        return msgspec.json.decode(answer["statistics"], type=WorkflowStatistics)

    # Definitions

    async def create_definition(self, name: str, members: Members) -> Definition:
        """Create a workflow definition."""
        body = members | {"name": msgspec.Raw(_encode(name))}
        return _definition((await self._call("POST", "/definitions", body))["definition"])

    async def update_definition(self, name: str, members: Members) -> Definition:
        """Give a definition a new version, unless its latest version is the same."""
        answer = await self._call("PUT", f"/definitions/{quote(name, safe='')}", members)
        return _definition(answer["definition"])

    async def find_definition(self, which: Named) -> Definition:
        """Return a version of a definition, or its latest."""
        path = f"/definitions/{quote(which.name, safe='')}"
        if which.version is not None:
            path += f"/versions/{which.version}"
        return _definition((await self._call("GET", path))["definition"])

    async def definitions(self) -> list[Definition]:
        """Return the latest version of every definition."""
        found: list[Definition] = []
        while True:
            answer = await self._call("GET", f"/definitions?limit=200&offset={len(found)}")
            found += [_definition(raw) for raw in _list(answer["definitions"])]
            if not msgspec.json.decode(answer["pagination"])["has_more"]:
                return found

    async def delete_definition(self, what: Deletion) -> None:
        """Delete a definition."""
        await self._call("DELETE", f"/definitions/{quote(what.name, safe='')}" + "?force=true" * what.force)

    async def review_step(self, review: Review) -> WorkflowInfo:
        """Approve or reject a step, or add a note to it."""
        body = {"action": review.action, "notes": review.notes, "author": review.author}
        return await self._post_to_workflow(review.workflow_id, f"steps/{quote(review.step, safe='')}/review", body)

    async def cancel_step(self, address: StepAddress) -> WorkflowInfo:
        """Cancel a step and all steps inside it."""
        return await self._post_to_workflow(address.workflow_id, f"steps/{quote(address.step, safe='')}/cancel")

    async def _post_to_workflow(self, workflow_id: str, what: str, body: Any = None) -> WorkflowInfo:
        return _workflow(await self._call("POST", f"/workflows/{quote(workflow_id, safe='')}/{what}", body))

    # Workers

    async def fetch(self, request: Claim, wait: float = 0.0) -> list[Job]:
        """Claim jobs; wait up to ``wait`` seconds for the first one.

        Not retried, because the caller fetches again anyway.
        """
        body: dict[str, Any] = {"queues": request.queues, "count": request.count, "wait_ms": int(wait * 1000)}
        if request.worker_id is not None:
            body["worker_id"] = request.worker_id
        if request.lease is not None:
            body["visibility_timeout_ms"] = request.lease // 1000
        if not request.sharing.is_plain:
            body["strategy"], body["weights"] = request.sharing.strategy, dict(request.sharing.weights)
        answer = await self._call("POST", "/workers/fetch", body, wait=wait, patience=0.0)
        return [_job(raw) for raw in _list(answer["jobs"])]

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
        return await self._batch("/workers/ack/batch", "acks", acks)

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
        return await self._batch("/workers/nack/batch", "nacks", nacks)

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
        return await self._batch("/workers/release/batch", "releases", releases)

    async def report(self, item: Progress) -> None:
        """Report a job's progress."""
        body = {
            "progress": item.fraction,
            "message": item.message,
            "worker_id": item.worker_id,
            "attempt": item.attempt,
        }
        await self._call("PUT", f"/jobs/{quote(item.job_id, safe='')}/progress", body)

    async def account(self, item: Account) -> AgentState:
        """Record token use and tool results of an agent's job. Not retried, to charge no tokens twice."""
        body = msgspec.structs.asdict(item)
        path = f"/jobs/{quote(body.pop('job_id'), safe='')}/agent/usage"
        answer = await self._call("POST", path, body, patience=0.0)
        return msgspec.json.decode(answer["agent"], type=AgentState)

    async def save_checkpoint(self, item: NewCheckpoint) -> None:
        """Save a job's checkpoint."""
        body = {"state": msgspec.Raw(item.state), "worker_id": item.worker_id, "attempt": item.attempt}
        await self._call("PUT", f"/jobs/{quote(item.job_id, safe='')}/checkpoint", body)

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        """Send a worker's heartbeat. Not retried, because the next heartbeat follows."""
        body = {name: value for name, value in msgspec.structs.asdict(heartbeat).items() if value is not None}
        body.pop("tenant", None)
        body["handlers"] = [{"type": one.type, "versions": one.versions} for one in heartbeat.handlers]
        lease = body.pop("lease", None)
        if lease is not None:
            body["visibility_timeout_ms"] = lease // 1000
        answer = await self._call("POST", "/workers/heartbeat", body, patience=0.0)
        known = {name: msgspec.json.decode(raw) for name, raw in answer.items()}
        return HeartbeatResponse(
            known["state"],
            known.get("jobs_extended", []),
            known.get("jobs_cancelled", []),
            known.get("jobs_lost", []),
        )

    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Sign off a stopped worker."""
        await self._call("DELETE", f"/workers/{quote(worker_id, safe='')}" + "?lost=true" * lost)

    async def workers(self) -> list[Worker]:
        """Return all workers."""
        answer = await self._call("GET", "/workers")
        return [_worker(shown) for shown in msgspec.json.decode(answer["workers"])]

    async def unrunnable(self) -> list[Unrunnable]:
        """Return the waiting jobs that none of the present workers can run."""
        return msgspec.json.decode((await self._call("GET", "/admin/unrunnable"))["unrunnable"], type=list[Unrunnable])

    async def change_worker_rule(self, worker_id: str, members: Mapping[str, Any]) -> WorkerRule:
        """Change the rule that overrides what a worker reports."""
        body = {"allowed": "allowed_types", "denied": "denied_types"}
        path = f"/admin/worker-rules/{quote(worker_id, safe='')}"
        answer = await self._call("PATCH", path, {body.get(name, name): value for name, value in members.items()})
        return read_rule(msgspec.json.decode(answer["rule"]))

    async def forget_worker_rule(self, worker_id: str) -> None:
        """Delete the rule of a worker."""
        await self._call("DELETE", f"/admin/worker-rules/{quote(worker_id, safe='')}")

    async def worker_rules(self) -> list[WorkerRule]:
        """Return all worker rules."""
        answer = await self._call("GET", "/admin/worker-rules")
        return [read_rule(shown) for shown in msgspec.json.decode(answer["items"])]

    async def direct(self, worker_id: str, directive: str) -> Worker:
        """Set a worker's directive, which it gets with its next heartbeat."""
        answer = await self._call("POST", f"/workers/{quote(worker_id, safe='')}/directive", {"directive": directive})
        return _worker(msgspec.json.decode(answer["worker"]))

    async def put_channel(self, channel: Channel) -> bool:
        """Create or change a channel; return whether it is new."""
        shown = channel.to_wire()
        body = {name: value for name, value in shown.items() if name not in ("name", "created_at")}
        if channel.secret is not None:
            body["secret"] = channel.secret
        known = {one.name for one in await self.channels()}
        await self._call("PUT", f"/channels/{quote(channel.name, safe='')}", body)
        return channel.name not in known

    async def channels(self) -> list[Channel]:
        """Return all channels."""
        answer = await self._call("GET", "/channels")
        return [read_channel(shown) for shown in msgspec.json.decode(answer["channels"])]

    async def delete_channel(self, name: str) -> None:
        """Delete a channel."""
        await self._call("DELETE", f"/channels/{quote(name, safe='')}")

    # Tasks

    async def task_runs(self, chosen: TaskFilter = TaskFilter()) -> list[TaskRun]:  # noqa: B008  (frozen)
        """Return recorded runs of tasks, latest first."""
        answer = await self._call("GET", f"/tasks/runs?{_task_query(chosen)}")
        return msgspec.json.decode(answer["runs"], type=list[TaskRun])

    async def task_statistics(self, chosen: TaskFilter = TaskFilter()) -> list[TaskStatistics]:  # noqa: B008  (frozen)
        """Return the numbers of successes and failures of tasks, and their durations."""
        answer = await self._call("GET", f"/tasks/statistics?{_task_query(chosen)}")
        return msgspec.json.decode(answer["statistics"], type=list[TaskStatistics])

    # Files

    async def create_file(self, new: NewFile) -> File:
        """Start the upload of a file; a file that is already stored is returned complete."""
        return _file(await self._call("POST", "/files", new))

    async def find_file(self, file_id: str, job_id: str | None = None) -> File:
        """Return a file, or the state of its upload; with ``job_id``, only a file of the job's workspace."""
        query = "" if job_id is None else f"?{urlencode({'job_id': job_id})}"
        return _file(await self._call("GET", f"/files/{quote(file_id, safe='')}{query}"))

    async def list_files(self, limit: int = 50, before: str | None = None) -> list[File]:
        """Return files, newest first."""
        query = {"limit": limit} | ({} if before is None else {"before": before})
        answer = await self._call("GET", f"/files?{urlencode(query)}")
        return msgspec.json.decode(answer["files"], type=list[File])

    async def delete_file(self, file_id: str) -> None:
        """Delete a file without references."""
        await self._call("DELETE", f"/files/{quote(file_id, safe='')}")

    async def write_file(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Continue an upload at ``offset``. Not retried, because ``source`` can be read only once."""
        headers = {"Content-Type": OCTET_STREAM, "Upload-Offset": str(offset)}
        path = f"/ojs/v1/files/{quote(file_id, safe='')}"
        try:
            response = await self._http.patch(path, content=source, headers=headers, timeout=_TRANSFER_TIMEOUT)
        except httpx.TransportError as error:
            raise self._unreachable(error) from None
        return _file(_answer(response))

    async def read_file(self, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a file, from ``start``, as a stream. Not retried."""
        return self._read_file(file_id, start)

    async def _read_file(self, file_id: str, start: int) -> AsyncIterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        path = f"/ojs/v1/files/{quote(file_id, safe='')}/content"
        try:
            async with self._http.stream("GET", path, headers=headers, timeout=_TRANSFER_TIMEOUT) as response:
                if not response.is_success:
                    await response.aread()
                    _answer(response)
                async for some in response.aiter_raw():
                    yield some
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> BackendUnavailable:
        return BackendUnavailable(f"The server {self.url} cannot be reached: {error or type(error).__name__}.")

    async def create_collection(self, name: str, description: str | None = None) -> Collection:
        """Create a named collection."""
        answer = await self._call("POST", "/collections", {"name": name, "description": description})
        return msgspec.json.decode(answer["collection"], type=Collection)

    async def collections(self) -> list[Collection]:
        """Return all named collections."""
        return msgspec.json.decode((await self._call("GET", "/collections"))["collections"], type=list[Collection])

    async def delete_collection(self, name: str, *, force: bool = False) -> None:
        """Delete a named collection."""
        await self._call("DELETE", f"/collections/{quote(name, safe='')}{'?force=true' * force}")

    async def add_item(self, where: Where, item: NewItem) -> Item:
        """Add an item to a collection."""
        body = {
            "name": item.name,
            "data": msgspec.Raw(item.data),
            "category": item.category,
            "replace": item.replace,
            "file": item.file_id,
            "filename": item.filename,
            "content_type": item.content_type,
        }
        return msgspec.json.decode((await self._call("POST", _items_path(where), body))["item"], type=Item)

    async def remove_item(self, where: Where, name: str) -> Item:
        """Remove an item from a collection."""
        answer = await self._call("DELETE", _items_path(where, name))
        return msgspec.json.decode(answer["item"], type=Item)

    async def items(self, where: Where, lookup: Lookup | None = None, *, history: bool = False) -> list[Item]:
        """Return the items of a collection that match ``lookup``; with ``history``, removed and replaced ones too."""
        wanted = msgspec.structs.asdict(lookup) if lookup is not None else {}
        query: dict[str, Any] = {name: wanted.get(name) for name in ITEM_QUERY}
        query["data"] = _encode(wanted["data"]).decode() if wanted.get("data") else None
        query["history"] = "true" if history else None
        given = {name: value for name, value in query.items() if value is not None}
        answer = await self._call("GET", _items_path(where, query=given))
        return msgspec.json.decode(answer["items"], type=list[Item])

    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Delete everything past its retention, or only count it; return the numbers by kind, such as ``jobs``."""
        answer = await self._call("POST", "/admin/prune", {"dry_run": dry_run}, wait=MAX_SWEEP_SECONDS)
        return msgspec.json.decode(answer["pruned"], type=dict[str, int])

    # Tokens

    async def create_token(
        self, name: str, grants: Sequence[Grant], queues: Sequence[str] = (), expires_at: int | None = None
    ) -> tuple[Token, str]:
        """Create a token; return it with its secret, which cannot be retrieved later."""
        body: dict[str, Any] = {"name": name, "grants": shown_grants(grants), "queues": queues}
        if expires_at is not None:
            body["expires_at"] = format_timestamp(expires_at)
        return _token_with_secret((await self._call("POST", "/admin/tokens", body))["token"])

    async def rotate_token(self, token_id: str, grace: int) -> tuple[Token, str]:
        """Give a token a new secret; the old secret stays valid for ``grace`` microseconds."""
        path = f"/admin/tokens/{quote(token_id, safe='')}/rotate"
        return _token_with_secret((await self._call("POST", path, {"grace": format_duration(grace)}))["token"])

    async def revoke_token(self, token_id: str) -> Token:
        """Revoke a token."""
        answer = await self._call("DELETE", f"/admin/tokens/{quote(token_id, safe='')}")
        return read_shown_token(msgspec.json.decode(answer["token"]))

    async def tokens(self) -> list[Token]:
        """Return all tokens."""
        answer = await self._call("GET", "/admin/tokens")
        return [read_shown_token(shown) for shown in msgspec.json.decode(answer["tokens"])]

    # Queues

    async def queues(self) -> list[Queue]:
        """Return all queues."""
        found: list[Queue] = []
        while True:
            answer = await self._call("GET", f"/queues?limit=200&offset={len(found)}")
            found += [_queue(shown) for shown in msgspec.json.decode(answer["queues"])]
            if not msgspec.json.decode(answer["pagination"])["has_more"]:
                return found

    async def queue_statistics(self, name: str) -> QueueStatistics:
        """Return a queue's job counts and its throughput in the last hour."""
        answer = await self._call("GET", f"/queues/{quote(name, safe='')}/stats")
        queue, stats = msgspec.json.decode(answer["queue"]), msgspec.json.decode(answer["stats"])
        completed, failed = stats["completed_last_hour"], stats["failed_last_hour"]
        return QueueStatistics(
            queue=_queue(queue),
            counts={state: queue[state] for state in queue if isinstance(queue[state], int)},
            enqueued=stats.get("enqueued_last_hour", 0),
            completed=completed,
            failed=failed,
            waited=stats["avg_wait_ms"] * 1000 * (completed + failed),
            ran=stats["avg_duration_ms"] * 1000 * completed,
        )

    async def pause(self, name: str) -> Queue:
        """Pause a queue: workers get none of its jobs."""
        answer = await self._call("POST", f"/queues/{quote(name, safe='')}/pause")
        return _queue(msgspec.json.decode(answer["queue"]))

    async def resume(self, name: str) -> Queue:
        """Resume a paused queue."""
        answer = await self._call("POST", f"/queues/{quote(name, safe='')}/resume")
        return _queue(msgspec.json.decode(answer["queue"]))

    # Cron jobs

    async def register_cron(self, item: Cron) -> tuple[Cron, bool]:
        """Register or update a cron job."""
        body = {
            "name": item.name,
            "expression": item.expression,
            "timezone": item.timezone,
            "overlap_policy": item.overlap_policy,
            "enabled": item.enabled,
            "description": item.description,
            "job_template": msgspec.Raw(item.template),
        }
        answer = await self._call("POST", "/cron", body)
        cron = _cron(answer["cron"])
        return cron, cron.run_count == 0

    async def switch_cron(self, name: str, enabled: bool) -> Cron:
        """Enable or disable a cron job."""
        return _cron((await self._call("PATCH", f"/cron/{quote(name, safe='')}", {"enabled": enabled}))["cron"])

    async def unregister_cron(self, name: str) -> Cron:
        """Remove a cron job."""
        return _cron((await self._call("DELETE", f"/cron/{quote(name, safe='')}"))["cron"])

    async def find_cron(self, name: str) -> Cron:
        """Return a cron job."""
        return _cron((await self._call("GET", f"/cron/{quote(name, safe='')}"))["cron"])

    async def crons(self) -> list[Cron]:
        """Return all cron jobs."""
        found: list[Cron] = []
        while True:
            answer = await self._call("GET", f"/cron?limit=200&offset={len(found)}")
            found += [_cron(raw) for raw in _list(answer["crons"])]
            if not msgspec.json.decode(answer["pagination"])["has_more"]:
                return found

    # Internals

    async def _batch(self, path: str, name: str, items: Sequence[Any]) -> list[Job | OjsterError]:
        if not items:
            return []
        answer = await self._call("POST", path, {name: items})
        return [_outcome(raw) for raw in _list(answer["results"])]

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        wait: float = 0.0,
        patience: float | None = None,
        also: int | None = None,
    ) -> Members:
        """Make a request. While the server is unreachable or answers 503, retry it for ``patience`` seconds.

        An answer with the status ``also`` is returned, not raised as an error.
        """
        content = None if body is None else _encode(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.patience if patience is None else patience)
        pause = 0.05
        while True:
            try:
                response = await self._http.request(
                    method, "/ojs/v1" + path, content=content, timeout=httpx.Timeout(30.0 + wait, connect=5.0)
                )
            except httpx.TransportError as error:
                problem = self._unreachable(error)
            else:
                if response.status_code != 503:
                    return _answer(response, also)
                problem = BackendUnavailable(f"The server {self.url} is unavailable (503). Retry later.")
            if loop.time() + pause > deadline:
                raise problem
            log.debug("%s Retrying in %.2f s.", problem, pause)
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(pause * 2, 1.0)


def _answer(response: httpx.Response, also: int | None = None) -> Members:
    try:
        members = read_members(response.content, "The answer")
    except OjsterError as error:
        raise BackendError(f"{response.request.url} answered {response.status_code} without JSON: {error}") from None
    if response.is_success or response.status_code == also:
        return members
    raise _error(msgspec.json.decode(members.get("error", b"{}")), response.status_code)


def _error(shown: Mapping[str, Any], status: int | None = None) -> OjsterError:
    code = shown.get("code", "backend_error")
    statuses = [status] if status is not None else [known for name, known in _BY_CODE_AND_STATUS if name == code]
    kind = next((_BY_CODE_AND_STATUS[code, each] for each in statuses if (code, each) in _BY_CODE_AND_STATUS), None)
    details = shown.get("details") or {}
    return (kind or errors.OjsterError)(shown.get("message", f"The server answered {status}."), **details)


def _outcome(raw: msgspec.Raw) -> Job | OjsterError:
    shown = read_members(raw, "The result")
    return _error(msgspec.json.decode(shown["error"])) if "error" in shown else from_json(bytes(raw))


def _paging(page: Page | WorkflowFilter) -> dict[str, Any]:
    return {"limit": page.limit, "offset": page.offset, "cursor": page.before}


def _job(raw: msgspec.Raw) -> Job:
    return from_json(bytes(raw))


def _workflow(answer: Members) -> WorkflowInfo:
    return WorkflowInfo.from_json(answer["workflow"])


class _DefinitionBody(msgspec.Struct):
    name: str
    version: int
    workflow: msgspec.Raw
    hashes: dict[str, str]
    created_at: str
    params_schema: msgspec.Raw | UnsetType = UNSET


def _definition(raw: msgspec.Raw) -> Definition:
    seen = msgspec.json.decode(raw, type=_DefinitionBody)
    schema = None if seen.params_schema is UNSET else bytes(seen.params_schema)
    created_at = parse_timestamp(seen.created_at)
    return Definition(seen.name, seen.version, bytes(seen.workflow), schema, seen.hashes, created_at)


def _resumption(data: bytes | None, failure: Failure | None) -> dict[str, Any]:
    if failure is not None:
        return {"error": failure}
    return {} if data is None else {"result": msgspec.Raw(data)}


def _filter(chosen: JobFilter) -> dict[str, Any]:
    """Return a filter in the server's request format."""
    given = msgspec.structs.asdict(chosen)
    given["states"] = list(chosen.states) or None
    for name, value in given.items():
        if name.endswith(("_after", "_before")) and value is not None:
            given[name] = format_timestamp(value)
    return {name: value for name, value in given.items() if value not in (None, {}, ()) and name != "tenant"}


def _list(raw: msgspec.Raw) -> list[msgspec.Raw]:
    return msgspec.json.decode(raw, type=list[msgspec.Raw])


def _steered(raw: msgspec.Raw) -> ChangedJob:
    return ChangedJob(_job(raw), msgspec.json.decode(raw).get("previous_state", ""))


def _queue(shown: Mapping[str, Any]) -> Queue:
    return Queue(
        name=shown["name"],
        created_at=parse_timestamp(shown["created_at"]),
        paused_at=_read_timestamp(shown.get("paused_at")),
        limits=parse_limits(shown.get("rate_limit") or {}, "rate_limit"),
    )


def _worker(shown: Mapping[str, Any]) -> Worker:
    return Worker(
        id=shown["worker_id"],
        started_at=parse_timestamp(shown["started_at"]),
        last_seen_at=parse_timestamp(shown["last_heartbeat_at"]),
        pool=shown.get("pool"),
        provides=shown.get("provides", {}),
        enabled=shown.get("enabled", True),
        **{
            name: shown[name]
            for name in ("state", "directive", "hostname", "pid", "queues", "labels", "concurrency", "active_jobs")
        },
    )


def _cron(raw: msgspec.Raw) -> Cron:
    shown = msgspec.json.decode(raw)
    return Cron(
        template=_encode(shown["job_template"]),
        created_at=parse_timestamp(shown["created_at"]),
        last_run_at=_read_timestamp(shown["last_run_at"]),
        next_run_at=_read_timestamp(shown["next_run_at"]),
        **{
            name: shown[name]
            for name in ("name", "expression", "timezone", "overlap_policy", "enabled", "description", "run_count")
        },
    )


def _read_timestamp(text: str | None) -> int | None:
    return None if text is None else parse_timestamp(text)


def _task_query(chosen: TaskFilter) -> str:
    given = msgspec.structs.asdict(chosen)
    return urlencode({name: value for name, value in given.items() if value is not None and name != "tenant"})


def _file(answer: Members) -> File:
    return msgspec.json.decode(answer["file"], type=File)


def _items_path(where: Where, name: str | None = None, query: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the path and query of a collection's items, or of one item."""
    query = dict(query)
    if where.name is not None:
        path = f"/collections/{quote(where.name, safe='')}/items"
        if where.job_id is not None:
            query["job_id"] = where.job_id
    elif where.job_id is not None:
        path = f"/jobs/{quote(where.job_id, safe='')}/items"
    else:
        path = f"/workflows/{quote(where.workflow_id or '', safe='')}/items"
    if name is not None:
        path += f"/{quote(name, safe='')}"
    return f"{path}?{urlencode(query)}" if query else path


def _token_with_secret(raw: msgspec.Raw) -> tuple[Token, str]:
    shown = msgspec.json.decode(raw)
    return read_shown_token(shown), shown["secret"]

"""Calls about workflows, made to a server."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from ojster.client.connection import RemoteCapability, job_of, list_of, log_warnings, paging, query_of
from ojster.core.errors import Duplicate
from ojster.core.ids import new_id
from ojster.core.json_objects import Members
from ojster.jobs.failure import Failure
from ojster.jobs.transitions import ChangedJob
from ojster.workflows.answer_wire import (
    NoteAnswer,
    NotesAnswer,
    PropertiesAnswer,
    StepsAnswer,
    WorkflowStatisticsAnswer,
    WorkflowStatusAnswer,
)
from ojster.workflows.notes import NewNote, Note
from ojster.workflows.properties import Properties, PropertyChange
from ojster.workflows.read.info import WorkflowInfo, WorkflowPage
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.read.status import WorkflowStatistics, WorkflowStatus
from ojster.workflows.read.step_pages import StepFilter, StepPage
from ojster.workflows.run.control import Review
from ojster.workflows.run.dependencies import NewDependencies
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption
from ojster.workflows.wire import NoteBody, PropertiesBody, ReviewBody

_encode: Final = msgspec.json.Encoder().encode


class RemoteWorkflows(RemoteCapability):
    """Calls about workflows."""

    async def activate(self, job_id: str, data: bytes | None = None, failure: Failure | None = None) -> ChangedJob:
        """Make a pending job available, or resume a suspended job with a result or a failure."""
        path = f"/jobs/{quote(job_id, safe='')}/activate"
        return _steered((await self._connection.call("POST", path, _resumption(data, failure)))["job"])

    async def add_note(self, item: NewNote) -> Note:
        """Add a note to a job or a workflow."""
        of = f"/jobs/{item.job_id}" if item.job_id is not None else f"/workflows/{item.workflow_id}"
        holder = item.holder
        body = NoteBody(msgspec.Raw(item.note))
        if holder is not None:
            body.worker_id, body.attempt = holder.worker_id, holder.attempt
        return (await self._connection.ask(NoteAnswer, "POST", quote(of) + "/info", body, once=True)).note

    async def notes_of_job(self, job_id: str) -> list[Note]:
        """Return the notes on a job."""
        return (await self._connection.ask(NotesAnswer, "GET", f"/jobs/{quote(job_id, safe='')}/info")).notes

    async def create(self, members: Members) -> WorkflowInfo:
        """Create a workflow."""
        given = "id" in members
        id = msgspec.json.decode(members.setdefault("id", msgspec.Raw(_encode(new_id()))))
        try:
            answer = await self._connection.call("POST", "/workflows", members)
            log_warnings(answer)
            return _workflow(answer)
        except Duplicate as refusal:
            if given or refusal.details.get("existing_workflow_id") != id:
                raise
            return await self.show(id)  # the answer to an earlier try was lost

    async def show(
        self, workflow_id: str, *, wait: float = 0.0, version: int | None = None, steps: bool = True
    ) -> WorkflowInfo:
        """Return a workflow; wait up to ``wait`` seconds (at most 60) until it finishes or differs from ``version``."""
        query: dict[str, Any] = {"wait_ms": int(min(wait, 60) * 1000), "steps": "true" if steps else "false"}
        if version is not None:
            query["version"] = version
        path = f"/workflows/{quote(workflow_id, safe='')}?{query_of(query)}"
        return _workflow(await self._connection.call("GET", path, wait=wait))

    async def steps(self, chosen: StepFilter) -> StepPage:
        """Return a page of the steps of a workflow."""
        query: dict[str, Any] = {"limit": chosen.limit, "cursor": chosen.after}
        if chosen.state is not None:
            query["state"] = chosen.state
        if chosen.is_held:
            query["held"] = "true"
        if chosen.search:
            query["search"] = chosen.search
        path = f"/workflows/{quote(chosen.workflow_id, safe='')}/steps?{query_of(query)}"
        answer = await self._connection.ask(StepsAnswer, "GET", path)
        return StepPage(answer.steps, None if answer.next_cursor is None else int(answer.next_cursor))

    async def select(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows."""
        given = {
            name: getattr(chosen, name) for name in ("state", "type", "name", "definition", "target", "waiting_for")
        }
        if chosen.params:
            given["params"] = _encode(chosen.params).decode()
        query = paging(chosen) | given
        answer, total, before = await self._connection.list_page("/workflows", query)
        found = [WorkflowInfo.from_json(raw) for raw in list_of(answer["workflows"])]
        return WorkflowPage(found, total, before)

    async def cancel(self, workflow_id: str, *, stop_active: bool = False) -> WorkflowInfo:
        """Cancel a workflow."""
        path = f"/workflows/{quote(workflow_id, safe='')}?active={'cancel' if stop_active else 'finish'}"
        return _workflow(await self._connection.call("DELETE", path))

    async def retry(self, workflow_id: str) -> WorkflowInfo:
        """Retry the steps of a workflow that did not succeed."""
        return await self._post_to_workflow(workflow_id, "retry")

    async def hold(self, workflow_id: str) -> WorkflowInfo:
        """Hold a workflow: no further step starts."""
        return await self._post_to_workflow(workflow_id, "hold")

    async def release(self, workflow_id: str) -> WorkflowInfo:
        """Release a held workflow."""
        return await self._post_to_workflow(workflow_id, "release")

    async def resume(self, item: WorkflowResumption) -> WorkflowInfo:
        """Resume the suspended job of a workflow."""
        body = _resumption(item.data, item.failure) | ({} if item.step is None else {"step": item.step})
        return await self._post_to_workflow(item.workflow_id, "resume", body)

    async def properties(self, workflow_id: str) -> Properties:
        """Return the properties that the tasks of a workflow share."""
        path = f"/workflows/{quote(workflow_id, safe='')}/properties"
        return (await self._connection.ask(PropertiesAnswer, "GET", path)).properties

    async def change_properties(self, item: PropertyChange) -> Properties:
        """Change the properties that the tasks of a workflow share."""
        changes = item.changes
        body = PropertiesBody(
            dict(changes.set), list(changes.delete), dict(changes.expected), item.job_id, item.worker_id, item.attempt
        )
        path = f"/workflows/{quote(item.workflow_id, safe='')}/properties"
        return (await self._connection.ask(PropertiesAnswer, "POST", path, body)).properties

    async def notes(self, workflow_id: str) -> list[Note]:
        """Return the notes on a workflow and its jobs."""
        path = f"/workflows/{quote(workflow_id, safe='')}/info"
        return (await self._connection.ask(NotesAnswer, "GET", path)).notes

    async def status(self, workflow_id: str) -> WorkflowStatus:
        """Return the outcomes of a workflow's ended steps, and its current steps."""
        path = f"/workflows/{quote(workflow_id, safe='')}/status"
        return (await self._connection.ask(WorkflowStatusAnswer, "GET", path)).status

    async def statistics(self, definition: str | None = None) -> WorkflowStatistics:
        """Return the number of workflows by state and time of creation."""
        query = "" if definition is None else f"?{query_of({'definition': definition})}"
        return (await self._connection.ask(WorkflowStatisticsAnswer, "GET", f"/workflows/statistics{query}")).statistics

    async def review_step(self, review: Review) -> WorkflowInfo:
        """Approve or reject a step, or add a note to it."""
        body = ReviewBody(review.action, review.notes, review.author)
        return await self._post_to_workflow(review.workflow_id, f"steps/{quote(review.step, safe='')}/review", body)

    async def cancel_step(self, address: StepAddress) -> WorkflowInfo:
        """Cancel a step and all steps inside it."""
        return await self._post_to_workflow(address.workflow_id, f"steps/{quote(address.step, safe='')}/cancel")

    async def add_dependencies(self, item: NewDependencies) -> WorkflowInfo:
        """Let a step of a graph that has not started wait for others of the graph, too."""
        what = f"steps/{quote(item.step, safe='')}/dependencies"
        return await self._post_to_workflow(item.workflow_id, what, {"depends_on": item.depends_on})

    async def retry_step(self, address: StepAddress) -> WorkflowInfo:
        """Run a failed or cancelled step again, with everything after it."""
        return await self._post_to_workflow(address.workflow_id, f"steps/{quote(address.step, safe='')}/retry")

    async def _post_to_workflow(self, workflow_id: str, what: str, body: Any = None) -> WorkflowInfo:
        return _workflow(await self._connection.call("POST", f"/workflows/{quote(workflow_id, safe='')}/{what}", body))


def _workflow(answer: Members) -> WorkflowInfo:
    return WorkflowInfo.from_json(answer["workflow"])


def _resumption(data: bytes | None, failure: Failure | None) -> dict[str, Any]:
    if failure is not None:
        return {"error": failure}
    return {} if data is None else {"result": msgspec.Raw(data)}


def _steered(raw: msgspec.Raw) -> ChangedJob:
    return ChangedJob(job_of(raw), msgspec.json.decode(raw).get("previous_state", ""))

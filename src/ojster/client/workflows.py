"""Calls about workflows, made to a server."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from ojster.client.connection import RemoteCapability, list_of, log_warnings, query_of
from ojster.core.errors import Duplicate
from ojster.core.ids import new_id
from ojster.core.json_objects import Members
from ojster.jobs.filters import filter_members, joined_values
from ojster.workflows.calls import WorkflowCalls
from ojster.workflows.read.info import WorkflowInfo, WorkflowPage
from ojster.workflows.read.selection import WorkflowFilter

_PAGE: Final = ("before", "limit", "offset")

_encode: Final = msgspec.json.Encoder().encode


class RemoteWorkflows(RemoteCapability, WorkflowCalls):
    """Calls about workflows."""

    async def create(self, members: Members) -> WorkflowInfo:
        """Create a workflow."""
        has_id = "id" in members
        id = msgspec.json.decode(members.setdefault("id", msgspec.Raw(_encode(new_id()))))
        try:
            answer = await self._connection.call("POST", "/workflows", members)
            log_warnings(answer)
            return _workflow(answer)
        except Duplicate as refusal:
            if has_id or refusal.details.get("existing_workflow_id") != id:
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

    async def select(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows."""
        members = {name: value for name, value in filter_members(chosen).items() if name not in _PAGE}
        members |= {name: _encode(members[name]).decode() for name in ("params", "metadata") if name in members}
        if chosen.ids:
            members["id"] = joined_values(members.pop("ids"))
        if chosen.states:
            members["state"] = ",".join(members.pop("states"))
        query = {"limit": chosen.limit, "offset": chosen.offset, "cursor": chosen.before} | members
        answer, total, before = await self._connection.list_page("/workflows", query)
        workflows = [WorkflowInfo.from_json(raw) for raw in list_of(answer["workflows"])]
        return WorkflowPage(workflows, total, before)

    async def cancel(self, workflow_id: str, *, stop_active: bool = False) -> WorkflowInfo:
        """Cancel a workflow."""
        path = f"/workflows/{quote(workflow_id, safe='')}?active={'cancel' if stop_active else 'finish'}"
        return _workflow(await self._connection.call("DELETE", path))


def _workflow(answer: Members) -> WorkflowInfo:
    return WorkflowInfo.from_json(answer["workflow"])

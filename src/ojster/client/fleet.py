"""Calls about workers, made to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from ojster.client.connection import RemoteCapability
from ojster.core.durations import MILLISECOND
from ojster.fleet.answer_wire import (
    HeartbeatAnswer,
    UnrunnableAnswer,
    WorkerAnswer,
    WorkerRuleAnswer,
    WorkerRulesAnswer,
    WorkersAnswer,
    read_rule,
    read_worker,
)
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.wire import DirectiveBody, WorkerRuleBody
from ojster.fleet.worker_rule import WorkerRule
from ojster.fleet.workers import Heartbeat, HeartbeatResponse, Worker


class RemoteFleet(RemoteCapability):
    """Calls about workers."""

    async def beat(self, heartbeat: Heartbeat, wait: float = 0.0) -> HeartbeatResponse:
        """Send a worker's heartbeat. Not retried, because the next heartbeat follows."""
        body = {name: value for name, value in msgspec.structs.asdict(heartbeat).items() if value is not None}
        body.pop("tenant", None)
        body["handlers"] = [{"type": one.type, "versions": one.versions} for one in heartbeat.handlers]
        lease = body.pop("lease", None)
        if lease is not None:
            body["visibility_timeout_ms"] = lease // 1000
        body["wait_ms"] = int(wait * 1000)
        path = "/workers/heartbeat"
        answer = await self._connection.ask(HeartbeatAnswer, "POST", path, body, wait=wait, patience=0.0)
        return HeartbeatResponse(
            answer.state,
            answer.jobs_extended,
            answer.jobs_cancelled,
            answer.jobs_lost,
            answer.woken,
            answer.heartbeat_timeout_ms * MILLISECOND,
        )

    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Sign off a stopped worker."""
        await self._connection.call("DELETE", f"/workers/{quote(worker_id, safe='')}" + "?lost=true" * lost)

    async def all(self) -> list[Worker]:
        """Return all workers."""
        found: list[Worker] = []
        while True:
            answer = await self._connection.ask(WorkersAnswer, "GET", f"/workers?limit=200&offset={len(found)}")
            found += [read_worker(shown) for shown in answer.workers]
            if not answer.pagination.has_more:
                return found

    async def unrunnable(self) -> list[Unrunnable]:
        """Return the waiting jobs that none of the present workers can run."""
        return (await self._connection.ask(UnrunnableAnswer, "GET", "/admin/unrunnable")).unrunnable

    async def change_rule(self, worker_id: str, members: Mapping[str, Any]) -> WorkerRule:
        """Change the rule that overrides what a worker reports."""
        names = {"allowed": "allowed_types", "denied": "denied_types"}
        body = WorkerRuleBody(**{names.get(name, name): value for name, value in members.items()})
        path = f"/admin/worker-rules/{quote(worker_id, safe='')}"
        return read_rule((await self._connection.ask(WorkerRuleAnswer, "PATCH", path, body)).rule)

    async def forget_rule(self, worker_id: str) -> None:
        """Delete the rule of a worker."""
        await self._connection.call("DELETE", f"/admin/worker-rules/{quote(worker_id, safe='')}")

    async def rules(self) -> list[WorkerRule]:
        """Return all worker rules."""
        answer = await self._connection.ask(WorkerRulesAnswer, "GET", "/admin/worker-rules")
        return [read_rule(shown) for shown in answer.items]

    async def direct(self, worker_id: str, directive: str) -> Worker:
        """Set a worker's directive, which it gets with its next heartbeat."""
        path = f"/workers/{quote(worker_id, safe='')}/directive"
        return read_worker((await self._connection.ask(WorkerAnswer, "POST", path, DirectiveBody(directive))).worker)

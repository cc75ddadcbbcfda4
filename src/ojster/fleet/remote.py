"""Calls about workers, made to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from ojster.client.connection import (
    RemoteCapability,
)
from ojster.core.timestamps import parse_timestamp
from ojster.fleet.unrunnable import Unrunnable
from ojster.fleet.worker_rule import WorkerRule, read_rule
from ojster.fleet.workers import Heartbeat, HeartbeatResponse, Worker


class RemoteFleet(RemoteCapability):
    """Calls about workers."""

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        """Send a worker's heartbeat. Not retried, because the next heartbeat follows."""
        body = {name: value for name, value in msgspec.structs.asdict(heartbeat).items() if value is not None}
        body.pop("tenant", None)
        body["handlers"] = [{"type": one.type, "versions": one.versions} for one in heartbeat.handlers]
        lease = body.pop("lease", None)
        if lease is not None:
            body["visibility_timeout_ms"] = lease // 1000
        answer = await self._connection.call("POST", "/workers/heartbeat", body, patience=0.0)
        known = {name: msgspec.json.decode(raw) for name, raw in answer.items()}
        return HeartbeatResponse(
            known["state"],
            known.get("jobs_extended", []),
            known.get("jobs_cancelled", []),
            known.get("jobs_lost", []),
        )

    async def leave(self, worker_id: str, *, lost: bool = False) -> None:
        """Sign off a stopped worker."""
        await self._connection.call("DELETE", f"/workers/{quote(worker_id, safe='')}" + "?lost=true" * lost)

    async def all(self) -> list[Worker]:
        """Return all workers."""
        answer = await self._connection.call("GET", "/workers")
        return [_worker(shown) for shown in msgspec.json.decode(answer["workers"])]

    async def unrunnable(self) -> list[Unrunnable]:
        """Return the waiting jobs that none of the present workers can run."""
        return msgspec.json.decode(
            (await self._connection.call("GET", "/admin/unrunnable"))["unrunnable"], type=list[Unrunnable]
        )

    async def change_rule(self, worker_id: str, members: Mapping[str, Any]) -> WorkerRule:
        """Change the rule that overrides what a worker reports."""
        body = {"allowed": "allowed_types", "denied": "denied_types"}
        path = f"/admin/worker-rules/{quote(worker_id, safe='')}"
        answer = await self._connection.call(
            "PATCH", path, {body.get(name, name): value for name, value in members.items()}
        )
        return read_rule(msgspec.json.decode(answer["rule"]))

    async def forget_rule(self, worker_id: str) -> None:
        """Delete the rule of a worker."""
        await self._connection.call("DELETE", f"/admin/worker-rules/{quote(worker_id, safe='')}")

    async def rules(self) -> list[WorkerRule]:
        """Return all worker rules."""
        answer = await self._connection.call("GET", "/admin/worker-rules")
        return [read_rule(shown) for shown in msgspec.json.decode(answer["items"])]

    async def direct(self, worker_id: str, directive: str) -> Worker:
        """Set a worker's directive, which it gets with its next heartbeat."""
        answer = await self._connection.call(
            "POST", f"/workers/{quote(worker_id, safe='')}/directive", {"directive": directive}
        )
        return _worker(msgspec.json.decode(answer["worker"]))


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

"""Calls about workers, made to a server."""

from __future__ import annotations

import msgspec

from ojster.client.connection import RemoteCapability
from ojster.core.durations import MILLISECOND
from ojster.fleet.answer_wire import (
    HeartbeatAnswer,
)
from ojster.fleet.calls import FleetCalls
from ojster.fleet.workers import Heartbeat, HeartbeatResponse


class RemoteFleet(RemoteCapability, FleetCalls):
    """Calls about workers."""

    async def beat(self, heartbeat: Heartbeat, wait: float = 0.0) -> HeartbeatResponse:
        """Send a worker's heartbeat. Not retried, because the next heartbeat follows."""
        body = {name: value for name, value in msgspec.structs.asdict(heartbeat).items() if value is not None}
        body.pop("tenant", None)
        body["handlers"] = [{"type": handled.type, "versions": handled.versions} for handled in heartbeat.handlers]
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

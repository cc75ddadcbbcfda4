"""Calls about queues, made to a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from ojster.client.connection import (
    RemoteCapability,
    read_timestamp,
)
from ojster.core.timestamps import parse_timestamp
from ojster.queues.queues import Queue, QueueStatistics
from ojster.queues.rate_limit import parse_limits


class RemoteQueues(RemoteCapability):
    """Calls about queues."""

    async def all(self) -> list[Queue]:
        """Return all queues."""
        found: list[Queue] = []
        while True:
            answer = await self._connection.call("GET", f"/queues?limit=200&offset={len(found)}")
            found += [_queue(shown) for shown in msgspec.json.decode(answer["queues"])]
            if not msgspec.json.decode(answer["pagination"])["has_more"]:
                return found

    async def statistics(self, name: str) -> QueueStatistics:
        """Return a queue's job counts and its throughput in the last hour."""
        answer = await self._connection.call("GET", f"/queues/{quote(name, safe='')}/stats")
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
        answer = await self._connection.call("POST", f"/queues/{quote(name, safe='')}/pause")
        return _queue(msgspec.json.decode(answer["queue"]))

    async def resume(self, name: str) -> Queue:
        """Resume a paused queue."""
        answer = await self._connection.call("POST", f"/queues/{quote(name, safe='')}/resume")
        return _queue(msgspec.json.decode(answer["queue"]))


def _queue(shown: Mapping[str, Any]) -> Queue:
    return Queue(
        name=shown["name"],
        created_at=parse_timestamp(shown["created_at"]),
        paused_at=read_timestamp(shown.get("paused_at")),
        limits=parse_limits(shown.get("rate_limit") or {}, "rate_limit"),
    )

"""Calls about queues, made to a server."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from ojster.client.connection import RemoteCapability
from ojster.core.rate_limit import Limits
from ojster.core.states import JobState
from ojster.core.timestamps import parse_optional, parse_timestamp
from ojster.jobs.rate_limit_wire import parse_rate
from ojster.queues.answer_wire import (
    QueueAnswer,
    QueueBody,
    QueueCreatedAnswer,
    QueueDeletedAnswer,
    QueuesAnswer,
    QueueStatisticsAnswer,
)
from ojster.queues.queues import Queue, QueueStatistics
from ojster.queues.wire import DeletionStrategy


class RemoteQueues(RemoteCapability):
    """Calls about queues."""

    async def all(self) -> list[Queue]:
        """Return all queues."""
        found: list[Queue] = []
        while True:
            answer = await self._connection.ask(QueuesAnswer, "GET", f"/queues?limit=200&offset={len(found)}")
            found += [_queue(shown) for shown in answer.queues]
            if not answer.pagination.has_more:
                return found

    async def statistics(self, name: str) -> QueueStatistics:
        """Return a queue's job counts and its throughput in the last hour."""
        answer = await self._connection.ask(QueueStatisticsAnswer, "GET", f"/queues/{quote(name, safe='')}/stats")
        stats = answer.stats
        completed, failed = stats.completed_last_hour, stats.failed_last_hour
        counts = {state.value: getattr(answer.queue, state.value) for state in JobState}
        return QueueStatistics(
            queue=_queue(answer.queue),
            counts={state: count for state, count in counts.items() if isinstance(count, int)},
            enqueued=stats.enqueued_last_hour,
            completed=completed,
            failed=failed,
            waited=stats.avg_wait_ms * 1000 * (completed + failed),
            ran=stats.avg_duration_ms * 1000 * completed,
        )

    async def pause(self, name: str) -> Queue:
        """Pause a queue: workers get none of its jobs."""
        answer = await self._connection.ask(QueueAnswer, "POST", f"/queues/{quote(name, safe='')}/pause")
        return _queue(answer.queue)

    async def create(self, name: str) -> Queue:
        """Create a queue."""
        answer = await self._connection.ask(QueueCreatedAnswer, "POST", "/queues", {"name": name})
        return _queue(answer.queue)

    async def delete(self, name: str, strategy: DeletionStrategy = "reject", target: str | None = None) -> int:
        """Delete a queue; return the number of jobs that were discarded or moved."""
        body = {"strategy": strategy} | ({} if target is None else {"target_queue": target})
        answer = await self._connection.ask(QueueDeletedAnswer, "DELETE", f"/queues/{quote(name, safe='')}", body)
        return answer.jobs_affected

    async def resume(self, name: str) -> Queue:
        """Resume a paused queue."""
        answer = await self._connection.ask(QueueAnswer, "POST", f"/queues/{quote(name, safe='')}/resume")
        return _queue(answer.queue)


def _queue(shown: QueueBody) -> Queue:
    limits = Limits()
    if given := shown.rate_limit or None:
        rate, throttle = (
            None if body is None else parse_rate(msgspec.to_builtins(body), "rate_limit")
            for body in (given.rate, given.throttle)
        )
        limits = Limits(given.concurrency, rate, throttle)
    return Queue(
        name=shown.name,
        created_at=parse_timestamp(shown.created_at),
        paused_at=parse_optional(shown.paused_at or None),
        limits=limits,
    )

"""Calls about queues, as a service, a server and its client have them.

Spec: ojs-http-binding 11
"""

from __future__ import annotations

from typing import Final

from ojster.core.access import INSPECT
from ojster.core.calls import Call, Calls, Handled, Listing
from ojster.queues.answer_wire import (
    QueueAnswer,
    QueueCreatedAnswer,
    QueueDeletedAnswer,
    QueuesAnswer,
    QueueStatisticsAnswer,
)
from ojster.queues.queues import Queue, QueueStatistics
from ojster.queues.wire import DeletionStrategy, NewQueueBody, QueueDeletionBody

_TAG: Final = "Queues"
_ONE: Final = "/queues/{name}"


class QueueCalls(Calls):
    """Calls about queues."""

    @Listing("GET", "/queues", "list_queues", _TAG, QueuesAnswer)
    async def all(self) -> list[Queue]:
        """List all queues, by name."""

    @Listing("GET", "/admin/unserved-queues", "list_unserved_queues", "Operators", QueuesAnswer, needs=INSPECT)
    async def unserved(self) -> list[Queue]:
        """List the queues that no worker serves. Queues in which jobs run have workers, if without heartbeats."""

    @Handled("GET", _ONE, "queue_statistics", _TAG, QueueStatisticsAnswer, also=(f"{_ONE}/stats",))
    async def statistics(self, name: str) -> QueueStatistics:
        """Show a queue with its job counts by state and its statistics for the last hour."""

    @Call("POST", f"{_ONE}/pause", "pause_queue", _TAG, QueueAnswer)
    async def pause(self, name: str) -> Queue:
        """Pause a queue: workers cannot claim its jobs, but clients can still enqueue."""

    @Call("POST", f"{_ONE}/resume", "resume_queue", _TAG, QueueAnswer)
    async def resume(self, name: str) -> Queue:
        """Resume a paused queue, so that workers can claim its jobs."""

    @Handled("POST", "/queues", "create_queue", _TAG, QueueCreatedAnswer, body=NewQueueBody, status=201, for_all=True)
    async def create(self, name: str) -> Queue:
        """Create a queue with its configuration, before it has jobs. A push creates its queue as well."""

    @Handled(
        "DELETE",
        _ONE,
        "delete_queue",
        _TAG,
        QueueDeletedAnswer,
        body=QueueDeletionBody,
        may_be_empty=True,
        for_all=True,
    )
    async def delete(self, name: str, strategy: DeletionStrategy = "reject", target: str | None = None) -> int:
        """Delete a queue and its configuration; ``strategy`` says what becomes of jobs that wait in it."""

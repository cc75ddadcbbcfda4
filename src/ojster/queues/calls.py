"""Calls about queues, rate limits and pools, as a service, a server and its client have them.

Spec: ojs-http-binding 11
"""

from __future__ import annotations

from typing import Final

from ojster.core.access import INSPECT
from ojster.core.calls import Call, Calls, Deletion, Handled, Listing, NumberedListing
from ojster.core.rate_limit import Limits
from ojster.core.wire import DeletedAnswer
from ojster.queues.answer_wire import (
    AdminQueueBody,
    AdminQueuesAnswer,
    QueueAnswer,
    QueueChangesAnswer,
    QueueConfigurationAnswer,
    QueueCreatedAnswer,
    QueueDeletedAnswer,
    QueueDetailAnswer,
    QueuesAnswer,
    QueueStatisticsAnswer,
)
from ojster.queues.limit_wire import (
    DispatchedAnswer,
    LimitAnswer,
    LimitPageAnswer,
    PoolAnswer,
    PoolsAnswer,
    PoolStateBody,
)
from ojster.queues.overview import QueueOrder
from ojster.queues.queues import Queue, QueueStatistics
from ojster.queues.wire import (
    DeletionStrategy,
    NewQueueBody,
    PoolBody,
    QueueConfigBody,
    QueueDeletionBody,
    QueueLimitBody,
    RateLimitOverrideBody,
)

_TAG: Final = "Queues"
_ONE: Final = "/queues/{name}"
_LIMITS: Final = "Rate limits"
_KEY: Final = "/rate-limits/{key}"
_OPERATORS: Final = "Operators"
_POOL: Final = "/admin/pools/{name}"


class QueueCalls(Calls):
    """Calls about queues."""

    @Listing("GET", "/queues", "list_queues", _TAG, QueuesAnswer, page_size=200)
    async def all(self, *, internal: bool = False) -> list[Queue]:
        """List all queues, by name.

        Queues of the server's own work, such as deliveries, are left out unless ``internal`` is true.
        """

    @Listing("GET", "/admin/unserved-queues", "list_unserved_queues", _OPERATORS, QueuesAnswer, needs=INSPECT)
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
    async def create(self, name: str, body: QueueConfigBody | None = None) -> Queue:
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

    @Call("GET", f"{_ONE}/config", "show_queue_config", _TAG, QueueConfigurationAnswer, for_all=True)
    async def configuration(self, name: str) -> QueueConfigurationAnswer:
        """Show the configuration of a queue."""

    @Call(
        "PUT",
        f"{_ONE}/config",
        "configure_queue",
        _TAG,
        QueueConfigurationAnswer,
        body=QueueConfigBody,
        for_all=True,
    )
    async def configure(self, name: str, body: QueueConfigBody) -> QueueConfigurationAnswer:
        """Change the configuration of a queue, which need not exist. Omitted members keep their values."""

    @Call(
        "PUT",
        "/admin/queues/{name}/rate-limit",
        "limit_admin_queue",
        _OPERATORS,
        QueueConfigurationAnswer,
        body=QueueLimitBody,
    )
    async def limit(self, name: str, limits: Limits) -> QueueConfigurationAnswer:
        """Replace the concurrency limit and the rate limits of a queue. An empty body removes all limits."""

    @Call(
        "POST",
        "/admin/queues/{name}/config/preview",
        "preview_queue_config",
        _OPERATORS,
        QueueChangesAnswer,
        body=QueueConfigBody,
        needs=INSPECT,
    )
    async def preview(self, name: str, body: QueueConfigBody) -> QueueChangesAnswer:
        """Show what a change of the configuration of a queue would change, and what that means for its jobs now.

        Nothing is changed. What the change would be refused for, the preview is refused for, too.
        """

    @NumberedListing(
        "GET", "/admin/queues", "list_admin_queues", _OPERATORS, AdminQueuesAnswer, needs=INSPECT, recent=True
    )
    async def overviews(self, *, internal: bool = False, sort: QueueOrder = "name") -> list[AdminQueueBody]:
        """List the queues with their job counts by state, throughput, latency and the age of their oldest job.

        With ``sort=trouble``, those come first whose next job has waited longest, of 100 tenants at most. Queues of the
        server's own work are left out unless ``internal`` is true.
        """

    @Call("GET", "/admin/queues/{name}", "show_admin_queue", _OPERATORS, QueueDetailAnswer, needs=INSPECT, recent=True)
    async def overview(self, name: str) -> QueueDetailAnswer:
        """Show a queue with its counts, throughput, latency and configuration."""


class RateLimitCalls(Calls):
    """Calls about the rate limits of keys.

    Spec: ojs-rate-limiting 10
    """

    @NumberedListing("GET", "/rate-limits", "list_rate_limits", _LIMITS, LimitPageAnswer)
    async def all(self) -> list[LimitAnswer]:
        """List the rate limits by key, with their current usage."""

    @Call("GET", _KEY, "show_rate_limit", _LIMITS, LimitAnswer)
    async def find(self, key: str) -> LimitAnswer:
        """Show the limits of a key and their current usage."""

    @Call("PUT", _KEY, "override_rate_limit", _LIMITS, LimitAnswer, body=RateLimitOverrideBody)
    async def override(self, key: str, limits: Limits, until: int | None = None) -> LimitAnswer:
        """Override the limits of a key until ``expires_at``, or until the override is deleted."""

    @Call("DELETE", _KEY, "restore_rate_limit", _LIMITS, LimitAnswer)
    async def restore(self, key: str) -> LimitAnswer:
        """Delete the override of a key, so that the limits in its jobs apply again."""


class PoolCalls(Calls):
    """Calls about pools: groups of workers that queues share.

    Spec: ojs-fair-scheduling 10
    """

    @Call("GET", "/admin/pools", "list_pools", _OPERATORS, PoolsAnswer)
    async def all(self) -> list[PoolStateBody]:
        """List the pools by name, with their numbers of active workers and jobs."""

    @Call("GET", _POOL, "show_one_pool", _OPERATORS, PoolAnswer)
    async def find(self, name: str) -> PoolStateBody:
        """Show a pool with its numbers of active workers and jobs."""

    @Handled("PUT", _POOL, "put_pool", _OPERATORS, PoolAnswer, body=PoolBody, more=(201,))
    async def put(self, name: str, body: PoolBody) -> PoolStateBody:
        """Create or replace a pool. It applies at once to all workers that name it."""

    @Deletion("DELETE", _POOL, "delete_pool", _OPERATORS, DeletedAnswer)
    async def delete(self, name: str) -> None:
        """Delete a pool. Its workers continue without a pool."""

    @Call("GET", "/admin/scheduling/stats", "show_dispatched", _OPERATORS, DispatchedAnswer)
    async def dispatched(self) -> DispatchedAnswer:
        """Show the jobs claimed from each queue in the last minute."""

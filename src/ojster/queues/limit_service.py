"""Calls about rate limits and pools."""

from __future__ import annotations

from typing import Final

from ojster.core.durations import parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.rate_limit import Limits
from ojster.jobs.names import check_queue_name
from ojster.jobs.rate_limit_wire import check_key
from ojster.jobs.scope import CapabilityService
from ojster.queues import limit_views, limits, pools
from ojster.queues.calls import PoolCalls, RateLimitCalls
from ojster.queues.fairness import Sharing
from ojster.queues.limit_wire import (
    DispatchedAnswer,
    DispatchedBody,
    DispatchedQueueBody,
    LimitAnswer,
    PoolStateBody,
    show_limit,
    show_pool,
)
from ojster.queues.limits import Override
from ojster.queues.pool import Pool
from ojster.queues.wire import PoolBody

_MAX_NAME_CHARS: Final = 128
"""Maximum length of a pool's name, in characters."""

_MOST: Final = 1_000_000_000
"""More limits than there are."""


class RateLimitService(CapabilityService, RateLimitCalls):
    """Calls about the rate limits of keys."""

    async def all(self) -> list[LimitAnswer]:
        """Return the rate limits with their usage, by key."""
        return (await self.page(_MOST, 0))[0]

    async def page(self, size: int, offset: int) -> tuple[list[LimitAnswer], int]:
        """Return a page of the rate limits with their usage, by key, and the number of all.

        Raises
        ------
        Forbidden
            The caller is limited to some queues: jobs of any queue have the keys.
        """
        self.scope.need_all_queues("A rate limit")
        states, total = await self.scope.look(limit_views.list_limits, (self.scope.tenant or "", size, offset))
        return [show_limit(state) for state in states], total

    async def find(self, key: str) -> LimitAnswer:
        """Return the limits of a key and their usage.

        Raises
        ------
        NotFound
            No job and no override has the key.
        Forbidden
            As in ``page``.
        """
        self.scope.need_all_queues("A rate limit")
        return show_limit(await self.scope.look(limit_views.show_limits, self.scope.named(key)))

    async def override(self, key: str, limits: Limits, until: int | None = None) -> LimitAnswer:
        """Override the limits of a key; return what applies then.

        Parameters
        ----------
        until:
            When the override ends, in microseconds since the epoch; ``None``: when it is deleted.

        Raises
        ------
        InvalidRequest
            There is no limit, or ``until`` has passed.
        """
        check_key(key)
        if limits == Limits():
            raise InvalidRequest("The override is empty. Set 'concurrency', 'rate' or 'throttle'.", field="concurrency")
        if until is not None and until <= self.database.clock():
            raise InvalidRequest("'expires_at' is in the past. Use a later time.", field="expires_at")
        return await self._override(key, limits, until)

    async def restore(self, key: str) -> LimitAnswer:
        """Delete the override of a key; return what applies then."""
        return await self._override(key, None)

    async def _override(self, key: str, wanted: Limits | None, until: int | None = None) -> LimitAnswer:
        self.scope.need_all_queues("A rate limit")
        await self.scope.do(limits.override, Override(self.scope.named(key), wanted, until))
        return await self.find(key)


class PoolService(CapabilityService, PoolCalls):
    """Calls about pools."""

    async def all(self) -> list[PoolStateBody]:
        """Return the pools, by name."""
        self.scope.require_all_tenants("Listing pools")
        return [show_pool(pool) for pool in await self.scope.look(pools.list_pools, None)]

    async def find(self, name: str) -> PoolStateBody:
        """Return a pool.

        Raises
        ------
        NotFound
            There is no such pool.
        """
        self.scope.require_all_tenants("Showing a pool")
        return show_pool(await self.scope.look(pools.find_pools, name))

    async def put(self, name: str, body: PoolBody) -> PoolStateBody:
        """Create or replace a pool. Raises as ``replace``."""
        return (await self.replace(name, body))[0]

    async def replace(self, name: str, body: PoolBody) -> tuple[PoolStateBody, bool]:
        """Create or replace a pool; return it, and whether it is new.

        Raises
        ------
        InvalidRequest
            A name or a weight is invalid.
        """
        self.scope.require_all_tenants("Changing a pool")
        self.scope.need_all_queues("A pool")
        pool, is_new = await self.scope.do(pools.put_pools, _pool(name, body))
        return show_pool(pool), is_new

    async def delete(self, name: str) -> None:
        """Delete a pool.

        Raises
        ------
        NotFound
            There is no such pool.
        """
        self.scope.require_all_tenants("Deleting a pool")
        self.scope.need_all_queues("A pool")
        await self.scope.do(pools.delete_pools, name)

    async def dispatched(self) -> DispatchedAnswer:
        """Return the numbers of jobs that were claimed from each queue in the last minute."""
        self.scope.require_all_tenants("Showing what was claimed")
        dispatched = await self.scope.look(pools.count_dispatched, None)
        queues = [
            DispatchedQueueBody(
                dispatch.queue,
                round(dispatch.started),
                round(dispatch.started),
                round(dispatch.share, 4),
                dispatch.waited // 1000,
                dispatch.active,
            )
            for dispatch in dispatched
        ]
        return DispatchedAnswer(queues, stats=DispatchedBody(queues))


def _pool(name: str, body: PoolBody) -> Pool:
    if len(name) > _MAX_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"Invalid pool name. Use at most {_MAX_NAME_CHARS} printable characters.", field="name")
    if body.name is not None and body.name != name:
        raise InvalidRequest(f"The path names {name!r}, the body {body.name[:40]!r}. Use one name.", field="name")
    queues = tuple(dict.fromkeys(check_queue_name(queue) for queue in body.queues))
    weights = dict(body.weights)
    if isinstance(body.queues, dict):
        weights = {queue: chosen.weight for queue, chosen in body.queues.items()} | weights
    if strangers := weights.keys() - set(queues):
        raise InvalidRequest(f"{min(strangers)[:60]!r} has a weight but is not in 'queues'. Add it.", field="weights")
    prevention = body.starvation_prevention
    least_share, rotation = 0.0, None
    if prevention is not None and prevention.enabled:
        least_share, rotation = prevention.min_dispatch_ratio, parse_duration(prevention.rotation_interval)
        if least_share * len(queues) > 1:
            raise InvalidRequest(
                f"{len(queues)} queues with a share of {least_share} each exceed 1. Lower it.",
                field="starvation_prevention.min_dispatch_ratio",
            )
    sharing = Sharing(body.strategy, tuple(sorted(weights.items())), least_share, rotation)
    return Pool(name, queues, body.concurrency, sharing, body.isolated)

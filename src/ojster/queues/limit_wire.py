"""The JSON of answers about rate limits and pools."""

from __future__ import annotations

from typing import Self

from msgspec import UNSET, Struct, UnsetType

from ojster.core.calls import Single, SinglePage, Whole
from ojster.core.durations import format_duration
from ojster.core.rate_limit import OnLimit
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.core.wire import (
    Count,
    FairnessStrategy,
    NumberedPaginationBody,
    Timestamp,
)
from ojster.jobs.rate_limit_wire import RateBody
from ojster.queues.limit_views import LimitState
from ojster.queues.pools import PoolOverview
from ojster.queues.wire import LimitsBody, StarvationPreventionBody, show_limits


class ConcurrencyStateBody(Struct):
    """A concurrency limit and its use."""

    limit: Count
    active: Count
    available: Count


class RateStateBody(RateBody, kw_only=True):
    """A rate limit and its use in the present window."""

    current_count: Count
    window_resets_at: Timestamp | UnsetType = UNSET


class ThrottleStateBody(RateBody, kw_only=True):
    """A throttle, and when the next job may start."""

    next_allowed_at: Timestamp


class OverrideBody(Struct):
    """The limits that an override replaces, and when it ends."""

    original: LimitsBody
    expires_at: Timestamp | UnsetType = UNSET


class LimitAnswer(Whole):
    """The limits of a key and their use.

    Spec: ojs-rate-limiting 10.1
    """

    key: str
    on_limit: OnLimit
    waiting_count: Count
    concurrency: ConcurrencyStateBody | UnsetType = UNSET
    rate: RateStateBody | UnsetType = UNSET
    throttle: ThrottleStateBody | UnsetType = UNSET
    blocked_until: Timestamp | UnsetType = UNSET
    override: OverrideBody | UnsetType = UNSET


class LimitPageAnswer(SinglePage[list[LimitAnswer]]):
    """A page of the limits."""

    items: list[LimitAnswer]
    pagination: NumberedPaginationBody


def show_limit(state: LimitState) -> LimitAnswer:
    """Return the JSON form of a limit and its use."""
    limit, now, allowed = state.limit, state.now, state.limit.in_force(state.now)
    shown = LimitAnswer(called(limit.key), limit.on_limit, state.waiting)
    if allowed.concurrency is not None:
        available = max(0, allowed.concurrency - state.active)
        shown.concurrency = ConcurrencyStateBody(allowed.concurrency, state.active, available)
    if allowed.rate is not None:
        used, period = limit.used(allowed.rate, now), format_duration(allowed.rate.period)
        resets_at = format_timestamp(limit.window_started_at + allowed.rate.period) if used else UNSET
        shown.rate = RateStateBody(allowed.rate.limit, period, current_count=used, window_resets_at=resets_at)
    if allowed.throttle is not None:
        next_at, period = format_timestamp(max(now, limit.next_start_at)), format_duration(allowed.throttle.period)
        shown.throttle = ThrottleStateBody(allowed.throttle.limit, period, next_allowed_at=next_at)
    if limit.blocked_until > now:
        shown.blocked_until = format_timestamp(limit.blocked_until)
    if limit.overridden(now):
        until = UNSET if limit.override_until is None else format_timestamp(limit.override_until)
        shown.override = OverrideBody(show_limits(limit.own), until)
    return shown


class PoolStateBody(Struct):
    """A pool with its numbers of active workers and jobs.

    ``id`` and ``workers`` are for the specification's admin page: the name, and the number of active workers.

    Spec: ojs-fair-scheduling 10
    """

    id: str
    name: str
    queues: tuple[str, ...]
    concurrency: int | None
    strategy: FairnessStrategy
    isolated: bool
    active_workers: Count
    workers: Count
    active_jobs: Count
    created_at: Timestamp
    updated_at: Timestamp
    weights: dict[str, float] | UnsetType = UNSET
    starvation_prevention: StarvationPreventionBody | UnsetType = UNSET


def show_pool(overview: PoolOverview) -> PoolStateBody:
    """Return the JSON form of a pool."""
    pool, sharing = overview.pool, overview.pool.sharing
    shown = PoolStateBody(
        id=pool.name,
        name=pool.name,
        queues=pool.queues,
        concurrency=pool.concurrency,
        strategy=sharing.strategy,
        isolated=pool.isolated,
        active_workers=overview.active_workers,
        workers=overview.active_workers,
        active_jobs=overview.active_jobs,
        created_at=format_timestamp(pool.created_at),
        updated_at=format_timestamp(pool.updated_at),
    )
    if sharing.strategy == "weighted":
        shown.weights = {queue: sharing.weight(queue) for queue in pool.queues}
    if sharing.rotation is not None:
        shown.starvation_prevention = StarvationPreventionBody(
            True, format_duration(sharing.rotation), sharing.least_share
        )
    return shown


class PoolAnswer(Single[PoolStateBody]):
    """A pool, as the member ``pool``."""

    pool: PoolStateBody


class PoolsAnswer(Struct):
    """All pools. ``pools`` is the same as ``items``: the specification's admin page reads it."""

    items: list[PoolStateBody]
    pools: list[PoolStateBody]

    @classmethod
    def of(cls, pools: list[PoolStateBody]) -> Self:
        return cls(pools, pools)

    def value(self) -> list[PoolStateBody]:
        return self.items


class DispatchedQueueBody(Struct):
    """The jobs claimed from a queue in the last minute.

    ``dispatched`` is the same as ``dispatch_count_1m``: the specification's admin page reads it.
    """

    name: str
    dispatched: Count
    dispatch_count_1m: Count
    dispatch_ratio_1m: float
    avg_wait_ms: Count
    active_jobs: Count


class DispatchedBody(Struct):
    """The jobs claimed from each queue in the window, an ISO 8601 duration."""

    queues: list[DispatchedQueueBody]
    window: str = "PT1M"


class DispatchedAnswer(DispatchedBody, Whole, kw_only=True):
    """The jobs claimed from each queue in the last minute."""

    stats: DispatchedBody

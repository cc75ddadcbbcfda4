"""The JSON of requests about queues, limits and pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.calls import Arguments, Request
from ojster.core.declared_options import NonNegativeCount, described_by
from ojster.core.durations import format_duration
from ojster.core.rate_limit import Limits, Rate
from ojster.core.timestamps import format_optional, parse_optional
from ojster.core.wire import Count, FairnessStrategy, Json, Weight
from ojster.fleet.ml_resources import ResourceLimits
from ojster.jobs.names import MAX_TYPE_LENGTH, TYPE_PATTERN
from ojster.jobs.rate_limit_wire import RateBody, parse_limits
from ojster.queues.fairness import Sharing
from ojster.queues.pool import Pool
from ojster.queues.rules import Bound, OverflowStrategy, Rules


@described_by(Limits)
class RateLimitOverrideBody(Arguments):
    """Limits that temporarily replace those of a key.

    Parameters
    ----------
    expires_at:
        When they end, a time or a duration from now; ``None``: they stay.
    """

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    expires_at: str | None = None

    @classmethod
    def of(cls, limits: Limits, until: int | None) -> Self:
        return cls(limits.concurrency, show_rate(limits.rate), show_rate(limits.throttle), format_optional(until))

    def arguments(self, now: int) -> Mapping[str, Any]:
        return {
            "limits": parse_limits(msgspec.to_builtins(self), "override"),
            "until": parse_optional(self.expires_at),
        }


class QueueWeightBody(Struct):
    """The weight of a queue in its pool."""

    weight: Weight = 1


class StarvationPreventionBody(Struct):
    """How a pool keeps its queues from starving.

    Parameters
    ----------
    enabled:
        Whether it does; without it, the other members have no effect.
    rotation_interval:
        Time without service after which a queue with jobs is served, an ISO 8601 duration.
    min_dispatch_ratio:
        Minimum share of the jobs handed out for each queue that has jobs.

    Spec: ojs-fair-scheduling 8
    """

    enabled: bool = False
    rotation_interval: str = "PT30S"
    min_dispatch_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.05


@described_by(Pool, Sharing)
class PoolBody(Request):
    """A pool: workers that share queues, and the fairness between these queues.

    Parameters
    ----------
    queues:
        Queues of the workers, in order, or with their weights.
    name:
        The same name as in the path.
    weights:
        Weights of queues, used by the strategy ``weighted``. Queues that are left out have the weight 1.
    strategy:
        As of a worker's queues; ``round-robin`` by default.

    Spec: ojs-fair-scheduling 6
    """

    queues: (
        Annotated[list[str], Meta(min_length=1, max_length=100)]
        | Annotated[dict[str, QueueWeightBody], Meta(min_length=1, max_length=100)]
    )
    name: str | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    strategy: FairnessStrategy = "round-robin"
    weights: dict[str, Weight] = msgspec.field(default_factory=dict)
    isolated: bool = False
    starvation_prevention: StarvationPreventionBody | None = None


@described_by(Bound)
class BackpressureBody(Struct):
    """Changes of the bound of a queue. Missing members stay unchanged, or are the defaults of a new bound.

    Parameters
    ----------
    max_depth:
        Maximum number of waiting jobs; 0: no bound.
    max_size_bytes:
        Not supported: only 0 is accepted.
    """

    max_depth: NonNegativeCount | UnsetType = UNSET
    max_size_bytes: Count = 0
    strategy: OverflowStrategy | UnsetType = UNSET
    warning_threshold: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class DeadLetterRetentionBody(Struct):
    """Retention of dead letters.

    Parameters
    ----------
    max_age:
        How long they stay, as an ISO 8601 duration; ``None``: as the server says.
    max_count:
        Maximum number; ``None``: as the server says. The oldest are deleted first.
    """

    max_age: str | UnsetType | None = UNSET
    max_count: NonNegativeCount | UnsetType | None = UNSET


class DeadLetterConfigBody(Struct):
    """Dead letter settings of a queue."""

    retention: DeadLetterRetentionBody


AllowedType = Annotated[str, Meta(pattern=rf"^(\*|{TYPE_PATTERN.pattern}(\.\*)?)$", max_length=MAX_TYPE_LENGTH)]
"""A job type, or a prefix such as ``payment.*``."""


@described_by(Limits, Rules)
class QueueConfigBody(Request, forbid_unknown_fields=True):
    """Changes of the settings of a queue. Missing members stay unchanged; ``null`` removes a setting.

    Parameters
    ----------
    rate_limit:
        Maximum number of starts in a window; it begins with the first start. As ``{"limit": 100, "period": "PT1M"}``.
    retention:
        How long finished jobs stay, by state: ``completed``, ``cancelled`` and ``discarded``, each an ISO 8601 duration
        or null. It is applied every ten minutes.
    dead_letter:
        How long, and how many, dead letters stay.
    max_size:
        Maximum number of waiting jobs. The same as ``backpressure.max_depth``.
    overflow_policy:
        What a push to a full queue does. The same as ``backpressure.strategy``.
    """

    concurrency: NonNegativeCount | UnsetType | None = UNSET
    rate_limit: dict[str, Json] | UnsetType | None = UNSET
    throttle: dict[str, Json] | UnsetType | None = UNSET
    retention: dict[str, str | None] | UnsetType | None = UNSET
    dead_letter: DeadLetterConfigBody | UnsetType | None = UNSET
    backpressure: BackpressureBody | UnsetType | None = UNSET
    ml_defaults: dict[str, Json] | UnsetType | None = UNSET
    ml_limits: ResourceLimits | UnsetType | None = UNSET
    max_size: NonNegativeCount | UnsetType | None = UNSET
    overflow_policy: OverflowStrategy | None = None
    allowed_job_types: list[AllowedType] | UnsetType | None = UNSET


DeletionStrategy = Literal["reject", "discard", "move"]
"""What becomes of waiting jobs when their queue is deleted; with ``reject``, the queue is not deleted."""


class NewQueueBody(QueueConfigBody, kw_only=True, forbid_unknown_fields=True):
    """A queue to create, and its configuration: in ``config``, or beside the name."""

    name: str
    config: QueueConfigBody | None = None


class QueueDeletionBody(Arguments, forbid_unknown_fields=True):
    """What becomes of waiting jobs when their queue is deleted; ``target_queue`` with ``move``."""

    strategy: DeletionStrategy = "reject"
    target_queue: str | None = None

    @classmethod
    def of(cls, strategy: DeletionStrategy, target: str | None) -> Self:
        return cls(strategy, target)


NEW_QUEUE: Final = msgspec.json.Decoder(NewQueueBody)

QUEUE_DELETION: Final = msgspec.json.Decoder(QueueDeletionBody)


@described_by(Limits)
class QueueLimitBody(Arguments, forbid_unknown_fields=True):
    """Concurrency and rate limits of a queue; a missing member means no limit."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None

    @classmethod
    def of(cls, limits: Limits) -> Self:
        return cls(limits.concurrency, show_rate(limits.rate), show_rate(limits.throttle))

    def arguments(self, now: int) -> Mapping[str, Any]:
        return {"limits": parse_limits(msgspec.to_builtins(self), "rate_limit")}


POOL: Final = msgspec.json.Decoder(PoolBody)


def show_rate(rate: Rate | None) -> RateBody | None:
    """Return the JSON form of a rate."""
    return None if rate is None else RateBody(rate.limit, format_duration(rate.period))


@described_by(Limits)
class LimitsBody(Struct, omit_defaults=True):
    """Limits of a queue or a key; a missing member means no limit.

    Parameters
    ----------
    max_per_second:
        The limit of ``rate`` if its period is a second.
    """

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    max_per_second: int | None = None


def show_limits(limits: Limits) -> LimitsBody:
    """Return the JSON form of limits."""
    return LimitsBody(limits.concurrency, show_rate(limits.rate), show_rate(limits.throttle))

"""The JSON of requests about queues, limits and pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.calls import Arguments, Request
from ojster.core.durations import format_duration
from ojster.core.rate_limit import Limits, Rate
from ojster.core.timestamps import format_optional, parse_optional
from ojster.core.wire import Count, FairnessStrategy, Json, Weight
from ojster.fleet.ml_resources import ResourceLimits
from ojster.jobs.names import MAX_TYPE_LENGTH, TYPE_PATTERN
from ojster.jobs.rate_limit_wire import RateBody, parse_limits


class RateLimitOverrideBody(Arguments):
    """Limits that temporarily replace those of a key."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    expires_at: str | None = None

    @classmethod
    def of(cls, limits: Limits, until: int | None) -> Self:
        """Return the request that overrides limits."""
        return cls(limits.concurrency, show_rate(limits.rate), show_rate(limits.throttle), format_optional(until))

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the arguments in the body."""
        return {
            "limits": parse_limits(msgspec.to_builtins(self), "override"),
            "until": parse_optional(self.expires_at),
        }


class QueueWeightBody(Struct):
    """The weight of a queue in its pool."""

    weight: Weight = 1


class StarvationPreventionBody(Struct):
    """How a pool keeps its queues from starving.

    Spec: ojs-fair-scheduling 8
    """

    enabled: bool = False
    rotation_interval: str = "PT30S"
    min_dispatch_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.05


class PoolBody(Request):
    """A pool: workers that share queues, and the fairness between these queues.

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


class BackpressureBody(Struct):
    """Limits of a queue and the strategy when it is full; 0 means no limit. Missing members stay unchanged.

    A new bound has the strategy ``reject`` and the threshold 0.8 if they are missing.
    """

    max_depth: Count | UnsetType = UNSET
    max_size_bytes: Count = 0
    strategy: Literal["reject", "block", "drop_oldest"] | UnsetType = UNSET
    warning_threshold: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class DeadLetterRetentionBody(Struct):
    """Retention of dead letters: maximum age, as an ISO 8601 duration, and maximum number."""

    max_age: str | UnsetType | None = UNSET
    max_count: Count | UnsetType | None = UNSET


class DeadLetterConfigBody(Struct):
    """Dead letter settings of a queue."""

    retention: DeadLetterRetentionBody


AllowedType = Annotated[str, Meta(pattern=rf"^(\*|{TYPE_PATTERN.pattern}(\.\*)?)$", max_length=MAX_TYPE_LENGTH)]
"""A job type, or a prefix such as ``payment.*``."""


class QueueConfigBody(Request, forbid_unknown_fields=True):
    """Changes of the settings of a queue. Missing members stay unchanged; ``null`` removes a setting."""

    concurrency: Count | UnsetType | None = UNSET
    rate_limit: dict[str, Json] | UnsetType | None = UNSET
    throttle: dict[str, Json] | UnsetType | None = UNSET
    retention: dict[str, str | None] | UnsetType | None = UNSET
    dead_letter: DeadLetterConfigBody | UnsetType | None = UNSET
    backpressure: BackpressureBody | UnsetType | None = UNSET
    ml_defaults: dict[str, Json] | UnsetType | None = UNSET
    """Default ``ext_ml_*`` attributes for jobs without them."""
    ml_limits: ResourceLimits | UnsetType | None = UNSET
    max_size: Annotated[Count | UnsetType | None, Meta(description="The same as backpressure.max_depth.")] = UNSET
    overflow_policy: Literal["reject", "block", "drop_oldest"] | None = None
    """The strategy when the queue is full, the same as backpressure.strategy. A new bound rejects by default."""
    allowed_job_types: list[AllowedType] | UnsetType | None = UNSET
    """Job types that the queue takes; ``payment.*`` for all with a prefix, ``*`` or ``null`` for all."""


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
        """Return the request that deletes a queue."""
        return cls(strategy, target)


NEW_QUEUE: Final = msgspec.json.Decoder(NewQueueBody)

QUEUE_DELETION: Final = msgspec.json.Decoder(QueueDeletionBody)


class QueueLimitBody(Arguments, forbid_unknown_fields=True):
    """Concurrency and rate limits of a queue; a missing member means no limit."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """Return the request that replaces limits."""
        return cls(limits.concurrency, show_rate(limits.rate), show_rate(limits.throttle))

    def arguments(self, now: int) -> Mapping[str, Any]:
        """Return the arguments in the body."""
        return {"limits": parse_limits(msgspec.to_builtins(self), "rate_limit")}


POOL: Final = msgspec.json.Decoder(PoolBody)


def show_rate(rate: Rate | None) -> RateBody | None:
    """Return the JSON form of a rate."""
    return None if rate is None else RateBody(rate.limit, format_duration(rate.period))


class LimitsBody(Struct, omit_defaults=True):
    """Limits of a queue or a key; a missing member means no limit."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    max_per_second: int | None = None
    """The limit of ``rate`` if its period is a second."""


def show_limits(limits: Limits) -> LimitsBody:
    """Return the JSON form of limits."""
    return LimitsBody(limits.concurrency, show_rate(limits.rate), show_rate(limits.throttle))

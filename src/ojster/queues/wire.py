"""The JSON of requests about queues, limits and pools."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.wire import (
    Count,
    FairnessStrategy,
    Json,
    Weight,
)
from ojster.fleet.ml_resources import ResourceLimits


class RateBody(Struct):
    """A number of starts per period; ``period`` is an ISO 8601 duration."""

    limit: Annotated[int, Meta(ge=1)]
    period: str


class RateLimitBody(Struct):
    """Concurrency and rate limits of the jobs with a key; ``max_per_second`` limits the job's whole queue."""

    key: str | None = None
    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    on_limit: Literal["wait", "reschedule", "drop"] = "wait"
    max_per_second: Annotated[int, Meta(ge=1)] | None = None


class RateLimitOverrideBody(Struct):
    """Limits that temporarily replace those of a key."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    expires_at: str | None = None


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


class PoolBody(Struct):
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
    weights: dict[str, Weight] = {}
    isolated: bool = False
    starvation_prevention: StarvationPreventionBody | None = None


class BackpressureBody(Struct):
    """Limits of a queue and the strategy when it is full; 0 means no limit."""

    max_depth: Count = 0
    max_size_bytes: Count = 0
    strategy: Literal["reject", "block", "drop_oldest"] = "reject"
    warning_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.8


class DeadLetterRetentionBody(Struct):
    """Retention of dead letters: maximum age, as an ISO 8601 duration, and maximum number."""

    max_age: str | UnsetType | None = UNSET
    max_count: Count | UnsetType | None = UNSET


class DeadLetterConfigBody(Struct):
    """Dead letter settings of a queue."""

    retention: DeadLetterRetentionBody


class QueueConfigBody(Struct, forbid_unknown_fields=True):
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


class QueueLimitBody(Struct, forbid_unknown_fields=True):
    """Concurrency and rate limits of a queue; a missing member means no limit."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None


RATE_LIMIT_OVERRIDE: Final = msgspec.json.Decoder(RateLimitOverrideBody)


QUEUE_CONFIG: Final = msgspec.json.Decoder(QueueConfigBody)


POOL: Final = msgspec.json.Decoder(PoolBody)


QUEUE_LIMIT: Final = msgspec.json.Decoder(QueueLimitBody)

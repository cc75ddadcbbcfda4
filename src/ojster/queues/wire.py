"""The JSON of requests about queues, limits and pools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.durations import DAY, HOUR, MINUTE, SECOND, format_duration, parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.wire import Count, FairnessStrategy, Json, Weight
from ojster.fleet.ml_resources import ResourceLimits
from ojster.jobs.names import MAX_TYPE_LENGTH, TYPE_PATTERN
from ojster.queues.rate_limit import Limits, OnLimit, Rate, RateLimitPolicy

MAX_LIMIT: Final = 1_000_000_000
LONGEST_KEY: Final = 255

_KEY: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")
_PERIODS: Final = {"second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY}


class RateBody(Struct):
    """A number of starts per period; ``period`` is an ISO 8601 duration."""

    limit: Annotated[int, Meta(ge=1)]
    period: str


class RateLimitBody(Struct, omit_defaults=True):
    """Concurrency and rate limits of the jobs with a key; ``max_per_second`` limits the job's whole queue."""

    key: str | None = None
    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None
    on_limit: OnLimit = "wait"
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


AllowedType = Annotated[str, Meta(pattern=rf"^(\*|{TYPE_PATTERN.pattern}(\.\*)?)$", max_length=MAX_TYPE_LENGTH)]
"""A job type, or a prefix such as ``payment.*``."""


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
    max_size: Annotated[Count | UnsetType | None, Meta(description="The same as backpressure.max_depth.")] = UNSET
    overflow_policy: Literal["reject", "block", "drop_oldest"] | None = None
    """With ``max_size``: the strategy when the queue is full; the default is ``reject``."""
    allowed_job_types: list[AllowedType] | UnsetType | None = UNSET
    """Job types that the queue takes; ``payment.*`` for all with a prefix, ``*`` or ``null`` for all."""


DeletionStrategy = Literal["reject", "discard", "move"]
"""What becomes of waiting jobs when their queue is deleted; with ``reject``, the queue is not deleted."""


class NewQueueBody(QueueConfigBody, kw_only=True, forbid_unknown_fields=True):
    """A queue to create, and its configuration: in ``config``, or beside the name."""

    name: str
    config: QueueConfigBody | None = None


class QueueDeletionBody(Struct, forbid_unknown_fields=True):
    """What becomes of waiting jobs when their queue is deleted; ``target_queue`` with ``move``."""

    strategy: DeletionStrategy = "reject"
    target_queue: str | None = None


NEW_QUEUE: Final = msgspec.json.Decoder(NewQueueBody)

QUEUE_DELETION: Final = msgspec.json.Decoder(QueueDeletionBody)


class QueueLimitBody(Struct, forbid_unknown_fields=True):
    """Concurrency and rate limits of a queue; a missing member means no limit."""

    concurrency: Count | None = None
    rate: RateBody | None = None
    throttle: RateBody | None = None


RATE_LIMIT_OVERRIDE: Final = msgspec.json.Decoder(RateLimitOverrideBody)

QUEUE_CONFIG: Final = msgspec.json.Decoder(QueueConfigBody)

POOL: Final = msgspec.json.Decoder(PoolBody)

QUEUE_LIMIT: Final = msgspec.json.Decoder(QueueLimitBody)


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


RATE_LIMIT_MEMBERS: Final = frozenset(RateLimitBody.__struct_fields__) | {"limit", "period"}

_LIMITS: Final = frozenset({"concurrency", "rate", "throttle", "on_limit", "limit", "period"})
"""Members of a rate limit that have an effect only with a key."""


def parse_policy(given: Any) -> RateLimitPolicy | None:
    """Return the policy in the option ``rate_limit`` of a job, or ``None`` if it has no ``key``.

    Raises
    ------
    InvalidRequest
        The option is malformed.
    """
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _wrong("rate_limit", "an object", given)
    if given.get("key") is None:
        if idle := sorted(name for name in _LIMITS & given.keys() if given[name] is not None):
            raise InvalidRequest(
                f"rate_limit.key is missing, and {idle[0]!r} limits the jobs with the same key. Add a key.",
                field="options.rate_limit.key",
            )
        return None
    on_limit: Any = "wait" if given.get("on_limit") is None else given["on_limit"]
    if on_limit not in get_args(OnLimit):
        raise _wrong("rate_limit.on_limit", "'wait', 'reschedule' or 'drop'", on_limit)
    return RateLimitPolicy(check_key(given["key"]), parse_limits(given, "rate_limit"), on_limit)


def check_key(key: Any) -> str:
    """Return ``key`` if it is a valid key of a rate limit.

    Raises
    ------
    InvalidRequest
        It is not valid.
    """
    if not isinstance(key, str) or len(key) > LONGEST_KEY or not _KEY.fullmatch(key):
        raise _wrong("rate_limit.key", "letters, digits, '.', '_', ':' and '-', beginning with a letter or digit", key)
    return key


def parse_limits(given: Mapping[str, Any], where: str) -> Limits:
    """Return the limits that an object describes; ``where`` is its name in errors.

    ``rate`` and ``throttle`` are objects with ``limit`` and ``period``. ``rate`` may also be a number, with ``period``
    beside it (default: a second). A ``limit`` with a ``period`` at the top level is a rate, too.

    Raises
    ------
    InvalidRequest
        A limit is malformed.

    Spec: ojs-admin-api 6.6
    """
    concurrency, rate, throttle = given.get("concurrency"), given.get("rate"), given.get("throttle")
    if isinstance(rate, int) and not isinstance(rate, bool):
        rate = {"limit": rate, "period": given.get("period", "second")}
    elif rate is None and given.get("limit") is not None:
        rate = {"limit": given["limit"], "period": given.get("period", "second")}
    if concurrency is not None:
        concurrency = _whole(concurrency, f"{where}.concurrency", least=0)
    return Limits(concurrency, parse_rate(rate, f"{where}.rate"), parse_rate(throttle, f"{where}.throttle"))


def parse_rate(given: Any, where: str) -> Rate | None:
    """Return the rate that an object with ``limit`` and ``period`` describes; ``where`` is its name in errors.

    Raises
    ------
    InvalidRequest
        The rate is malformed.
    """
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _wrong(where, "an object with 'limit' and 'period'", given)
    period = given.get("period")
    if not isinstance(period, str):
        raise _wrong(f"{where}.period", "an ISO 8601 duration such as 'PT1M'", period)
    micros = _PERIODS.get(period) or parse_duration(period)
    if micros <= 0:
        raise _wrong(f"{where}.period", "longer than zero", period)
    return Rate(_whole(given.get("limit"), f"{where}.limit", least=1), micros)


def _whole(given: Any, where: str, least: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= MAX_LIMIT:
        raise _wrong(where, f"an integer from {least} to {MAX_LIMIT}", given)
    return given


def _wrong(where: str, what: str, given: Any) -> InvalidRequest:
    return InvalidRequest(f"{where} must be {what}, not {given!r:.60}.", field=f"options.{where}")

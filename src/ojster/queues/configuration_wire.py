"""Reading of changes to the configuration of a queue."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from ojster.core.durations import parse_duration
from ojster.core.errors import InvalidRequest, Unsupported
from ojster.fleet.ml_resources import ResourceLimits, check_defaults
from ojster.jobs.rate_limit_wire import parse_limits
from ojster.queues.configuration import Configuration
from ojster.queues.rules import Bound
from ojster.queues.wire import BackpressureBody, DeadLetterRetentionBody, NewQueueBody, QueueConfigBody

_FINISHED: Final = ("completed", "cancelled", "discarded")

_NEW: Final = Bound(0)
"""A bound with its defaults."""

_NO_BOUND: Final = (
    BackpressureBody(),
    BackpressureBody(0),
    BackpressureBody(0, 0, _NEW.strategy, _NEW.warning_threshold),
)

_SAY_NOTHING: Final[tuple[Any, ...]] = (UNSET, None, {}, [], _NEW.strategy, *_NO_BOUND, ResourceLimits())
"""Values of settings of a new queue that say the same as if the settings were absent."""


def configuration_of(name: str, body: QueueConfigBody) -> Configuration:
    """Return the changes to the configuration of a queue that a request asks for.

    Raises
    ------
    InvalidRequest
        A setting is malformed.
    Unsupported
        A bound in bytes is asked for.
    """
    refuse_idle(body)
    return Configuration(name, _limits(body), _retention_changes(body), _policy_changes(body), _bound_changes(body))


def refuse_idle(body: QueueConfigBody) -> None:
    """Refuse settings that have no effect beside others.

    Neither ``null`` nor the default value of a setting contradicts another one, and equal values do not.
    """
    bound = body.backpressure or BackpressureBody()
    if isinstance(body.max_size, int) and bound.max_depth not in (UNSET, 0, body.max_size):
        raise InvalidRequest("'max_size' and 'backpressure.max_depth' differ. Send one of them.", field="max_size")
    if body.overflow_policy is not None and bound.strategy not in (UNSET, body.overflow_policy):
        raise InvalidRequest(
            "'overflow_policy' and 'backpressure.strategy' differ. Send one of them.", field="overflow_policy"
        )
    if _has_policy(body) and _depth(body) == 0:
        raise InvalidRequest(
            "A strategy for a full queue has no effect without a bound. Set 'max_size', too.", field="max_size"
        )
    inner = body.rate_limit.get("concurrency") if body.rate_limit else None
    if inner is not None and isinstance(body.concurrency, int) and body.concurrency != inner:
        raise InvalidRequest(
            "'concurrency' and 'rate_limit.concurrency' differ. Send one of them.", field="rate_limit.concurrency"
        )
    if isinstance(body, NewQueueBody) and body.config is not None:
        for field in QueueConfigBody.__struct_fields__:
            says_nothing = _SAY_NOTHING if field != "overflow_policy" or not _has_policy(body.config) else (None,)
            if getattr(body, field) not in (*says_nothing, getattr(body.config, field)):
                raise InvalidRequest(f"{field!r} has no effect beside 'config'. Write it inside.", field=field)
        refuse_idle(body.config)


def _has_policy(body: QueueConfigBody) -> bool:
    """Whether settings name another strategy for full queues than the default, under either name."""
    bound = body.backpressure or BackpressureBody()
    return body.overflow_policy not in (None, _NEW.strategy) or bound.strategy not in (UNSET, _NEW.strategy)


def _limits(body: QueueConfigBody) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if body.concurrency is not UNSET:
        changes["concurrency"] = body.concurrency
    if body.rate_limit is not UNSET:
        limits = parse_limits(body.rate_limit or {}, "configuration.rate_limit")
        changes["rate"] = limits.rate
        if limits.concurrency is not None:
            changes["concurrency"] = limits.concurrency
    if body.throttle is not UNSET:
        changes["throttle"] = parse_limits({"throttle": body.throttle}, "configuration").throttle
    return changes


def _retention_changes(body: QueueConfigBody) -> dict[str, int | None]:
    changes: dict[str, int | None] = {}
    if body.retention is not UNSET:
        ages = dict.fromkeys(_FINISHED) if body.retention is None else body.retention
        for name, age in ages.items():
            if name not in _FINISHED:
                raise InvalidRequest(
                    f"Unknown retention {name!r:.40}. Use one of {', '.join(_FINISHED)}.", field="retention"
                )
            changes[name] = None if age is None else parse_duration(age)
    if body.dead_letter is not UNSET:
        kept = DeadLetterRetentionBody() if body.dead_letter is None else body.dead_letter.retention
        if body.dead_letter is None or kept.max_age is not UNSET:
            changes["dead_letter"] = parse_duration(kept.max_age) if isinstance(kept.max_age, str) else None
        if body.dead_letter is None or kept.max_count is not UNSET:
            changes["most_dead_letters"] = kept.max_count if isinstance(kept.max_count, int) else None
    return changes


def _policy_changes(body: QueueConfigBody) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if body.ml_defaults is not UNSET:
        changes["ml_defaults"] = body.ml_defaults or {}
        check_defaults(changes["ml_defaults"])
    if body.ml_limits is not UNSET:
        changes["ml_limits"] = body.ml_limits or ResourceLimits()
    if body.allowed_job_types is not UNSET:
        types = body.allowed_job_types or []
        changes["allowed_job_types"] = () if "*" in types else tuple(types)
    return changes


def _bound_changes(body: QueueConfigBody) -> dict[str, Any]:
    """Return the members of the bound of a queue that are given, under either name or both."""
    bound = body.backpressure or BackpressureBody()
    if bound.max_size_bytes:
        raise Unsupported("'max_size_bytes' is not supported. Bound the queue with 'max_depth' instead.")
    changes = {
        "max_depth": _depth(body),
        "strategy": bound.strategy or body.overflow_policy,
        "warning_threshold": None if bound.warning_threshold is UNSET else bound.warning_threshold,
    }
    return {name: value for name, value in changes.items() if value is not None}


def _depth(body: QueueConfigBody) -> int | None:
    """Return the maximum depth of a queue, under either name; 0: there is none; ``None``: it stays as it is."""
    depths = [body.max_size, None if body.backpressure is None else (body.backpressure or BackpressureBody()).max_depth]
    return max((depth or 0 for depth in depths if depth is not UNSET), default=None)

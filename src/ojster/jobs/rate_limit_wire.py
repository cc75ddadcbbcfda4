"""The JSON of the rate limits of jobs.

Spec: ojs-rate-limiting
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, get_args

from msgspec import Meta, Struct

from ojster.core.durations import DAY, HOUR, MINUTE, SECOND, parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.rate_limit import MAX_LIMIT, Limits, OnLimit, Rate, RateLimitPolicy
from ojster.core.wire import Count

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


RATE_LIMIT_MEMBERS: Final = frozenset(RateLimitBody.__struct_fields__) | {"limit", "period"}

_LIMITS: Final = frozenset({"concurrency", "rate", "throttle", "on_limit", "limit", "period"})
"""Members of a rate limit that have an effect only with a key."""


def parse_policy(policy: Any) -> RateLimitPolicy | None:
    """Return the policy in the option ``rate_limit`` of a job, or ``None`` if it has no ``key``.

    Raises
    ------
    InvalidRequest
        The option is malformed.
    """
    if policy is None:
        return None
    if not isinstance(policy, dict):
        raise _wrong("rate_limit", "an object", policy)
    if policy.get("key") is None:
        if idle := sorted(name for name in _LIMITS & policy.keys() if policy[name] is not None):
            raise InvalidRequest(
                f"rate_limit.key is missing, and {idle[0]!r} limits the jobs with the same key. Add a key.",
                field="options.rate_limit.key",
            )
        return None
    on_limit: Any = "wait" if policy.get("on_limit") is None else policy["on_limit"]
    if on_limit not in get_args(OnLimit):
        raise _wrong("rate_limit.on_limit", "'wait', 'reschedule' or 'drop'", on_limit)
    return RateLimitPolicy(check_key(policy["key"]), parse_limits(policy, "rate_limit"), on_limit)


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


def parse_limits(limits: Mapping[str, Any], where: str) -> Limits:
    """Return the limits that an object describes; ``where`` is its name in errors.

    ``rate`` and ``throttle`` are objects with ``limit`` and ``period``. ``rate`` may also be a number, with ``period``
    beside it (default: a second). A ``limit`` with a ``period`` at the top level is a rate, too.

    Raises
    ------
    InvalidRequest
        A limit is malformed.

    Spec: ojs-admin-api 6.6
    """
    concurrency, rate, throttle = limits.get("concurrency"), limits.get("rate"), limits.get("throttle")
    if isinstance(rate, int) and not isinstance(rate, bool):
        rate = {"limit": rate, "period": limits.get("period", "second")}
    elif rate is None and limits.get("limit") is not None:
        rate = {"limit": limits["limit"], "period": limits.get("period", "second")}
    if concurrency is not None:
        concurrency = _whole(concurrency, f"{where}.concurrency", least=0)
    return Limits(concurrency, parse_rate(rate, f"{where}.rate"), parse_rate(throttle, f"{where}.throttle"))


def parse_rate(rate: Any, where: str) -> Rate | None:
    """Return the rate that an object with ``limit`` and ``period`` describes; ``where`` is its name in errors.

    Raises
    ------
    InvalidRequest
        The rate is malformed.
    """
    if rate is None:
        return None
    if not isinstance(rate, dict):
        raise _wrong(where, "an object with 'limit' and 'period'", rate)
    period = rate.get("period")
    if not isinstance(period, str):
        raise _wrong(f"{where}.period", "an ISO 8601 duration such as 'PT1M'", period)
    micros = _PERIODS.get(period) or parse_duration(period)
    if micros <= 0:
        raise _wrong(f"{where}.period", "longer than zero", period)
    return Rate(_whole(rate.get("limit"), f"{where}.limit", least=1), micros)


def _whole(number: Any, where: str, least: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MAX_LIMIT:
        raise _wrong(where, f"an integer from {least} to {MAX_LIMIT}", number)
    return number


def _wrong(where: str, what: str, value: Any) -> InvalidRequest:
    return InvalidRequest(f"{where} must be {what}, not {value!r:.60}.", field=f"options.{where}")

"""Concurrency limits, rate limits and throttles for jobs that share a key or a queue.

Spec: ojs-rate-limiting 6
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.core.durations import DAY, HOUR, MINUTE, SECOND, format_duration, parse_duration
from ojster.core.errors import InvalidRequest

ON_LIMIT: Final = ("wait", "reschedule", "drop")
MAX_LIMIT: Final = 1_000_000_000
LONGEST_KEY: Final = 255

_KEY: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")
_PERIODS: Final = {"second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY}


class Rate(msgspec.Struct, frozen=True):
    """A maximum number of starts in a period. ``period`` is in microseconds."""

    limit: int
    period: int

    def to_wire(self) -> dict[str, Any]:
        """Return the rate as JSON shows it."""
        return {"limit": self.limit, "period": format_duration(self.period)}


class Limits(msgspec.Struct, frozen=True):
    """Limits for the jobs that share a key or a queue; ``None`` means unlimited.

    Parameters
    ----------
    concurrency:
        Maximum number of active jobs.
    rate:
        Maximum number of starts in a window. The window begins with the first start.
    throttle:
        Maximum number of starts in a period, evenly spread.
    """

    concurrency: int | None = None
    rate: Rate | None = None
    throttle: Rate | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the limits as JSON shows them, without those that are not set."""
        wire: dict[str, Any] = {}
        if self.concurrency is not None:
            wire["concurrency"] = self.concurrency
        for name, rate in (("rate", self.rate), ("throttle", self.throttle)):
            if rate is not None:
                wire[name] = rate.to_wire()
        return wire


class RateLimitPolicy(msgspec.Struct, frozen=True):
    """The limits of all jobs with a key; ``on_limit`` decides what happens to a job over the limit."""

    key: str
    limits: Limits
    on_limit: str = "wait"


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
    if "key" not in given:
        return None
    on_limit = given.get("on_limit", "wait")
    if on_limit not in ON_LIMIT:
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
    elif rate is None and "limit" in given:
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

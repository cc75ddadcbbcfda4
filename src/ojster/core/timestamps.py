"""Time stamps: RFC 3339 in requests and responses, integer microseconds since the epoch inside."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from ojster.core.durations import parse_duration
from ojster.core.errors import InvalidRequest

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)

FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
"""The first and the last time that can be shown, in microseconds since the epoch."""

Moment = Annotated[int, msgspec.Meta(ge=FIRST, le=LAST)]
"""Time in microseconds since the epoch for which there is a time stamp."""

_Zoned = Annotated[datetime, msgspec.Meta(tz=True)]


def system_clock() -> int:
    """Return the current time in microseconds since the epoch."""
    return time.time_ns() // 1_000


def parse_timestamp(text: str) -> int:
    """Return an RFC 3339 time stamp as microseconds since the epoch.

    Raises
    ------
    InvalidRequest
        It is not an RFC 3339 time stamp, or has no time zone and is therefore ambiguous.

    Spec: ojs-core 5.5
    """
    try:
        moment = msgspec.convert(text, _Zoned)
        if text[-1] not in "Zz" and text[-3] != ":":
            raise msgspec.ValidationError("the offset has no colon")
    except msgspec.ValidationError as error:
        wrong = "has no time zone" if "timezone" in str(error) else "is not an RFC 3339 time stamp"
        raise InvalidRequest(
            f"{text[:64]!r} {wrong}; write it like '2026-03-15T09:30:00Z' or '2026-03-15T09:30:00+02:00'."
        ) from None
    micros: int = (moment - _EPOCH) // _MICROSECOND
    if not FIRST <= micros <= LAST:
        raise InvalidRequest(f"{text[:64]!r} is not in the years 1 to 9999 of UTC.")
    return micros


def parse_moment(text: str, now: int) -> int:
    """Return a time stamp, or a duration from ``now`` such as ``+PT5S``, as microseconds since the epoch.

    Raises
    ------
    InvalidRequest
        It is neither.
    """
    return now + parse_duration(text[1:]) if text.startswith("+") else parse_timestamp(text)


@lru_cache(maxsize=1024)
def format_timestamp(micros: int) -> str:
    """Return the RFC 3339 form, in UTC with six fractional digits: ``2026-02-12T10:30:00.123456Z``.

    The result is cached: the jobs of a transaction share their times.
    """
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{_whole_seconds(seconds)}.{fraction:06}Z"


@lru_cache(maxsize=256)
def _whole_seconds(seconds: int) -> str:
    return (_NAIVE_EPOCH + timedelta(seconds=seconds)).isoformat()


def format_optional(at: int | None) -> str | None:
    """Return a time stamp; ``None`` for ``None``."""
    return None if at is None else format_timestamp(at)


def parse_optional(text: str | None) -> int | None:
    """Return a time stamp in microseconds since the epoch; ``None`` for ``None``."""
    return None if text is None else parse_timestamp(text)

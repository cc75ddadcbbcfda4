"""When is that? RFC 3339 time stamps on the outside, integer microseconds since the epoch on the inside."""

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
_Zoned = Annotated[datetime, msgspec.Meta(tz=True)]


def system_clock() -> int:
    """Return the present time in microseconds since the epoch."""
    return time.time_ns() // 1_000


def parse_timestamp(text: str) -> int:
    """Return the microseconds since the epoch of an RFC 3339 time stamp.

    Raises
    ------
    InvalidRequest
        It is no RFC 3339 time stamp, or it has no zone (ojs-core.md section 5.5: such a time stamp is ambiguous).
    """
    try:
        moment = msgspec.convert(text, _Zoned)
    except msgspec.ValidationError as error:
        wrong = "has no time zone" if "timezone" in str(error) else "is not an RFC 3339 time stamp"
        raise InvalidRequest(
            f"{text[:64]!r} {wrong}; write it like '2026-03-15T09:30:00Z' or '2026-03-15T09:30:00+02:00'."
        ) from None
    return (moment - _EPOCH) // _MICROSECOND


def parse_moment(text: str, now: int) -> int:
    """Return the microseconds since the epoch of a time stamp, or of a duration from ``now`` such as ``+PT5S``.

    Raises
    ------
    InvalidRequest
        It is neither.
    """
    return now + parse_duration(text[1:]) if text.startswith("+") else parse_timestamp(text)


@lru_cache(maxsize=1024)
def format_timestamp(micros: int) -> str:
    """Return the RFC 3339 form, in UTC with six digits of a second: ``2026-02-12T10:30:00.123456Z``.

    The last ones are remembered, for the jobs of a transaction share theirs.
    """
    seconds, fraction = divmod(micros, 1_000_000)
    return f"{_whole_seconds(seconds)}.{fraction:06}Z"


@lru_cache(maxsize=256)
def _whole_seconds(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")

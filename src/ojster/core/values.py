"""How do Python's values become those of requests? Spans, points in time, and all that is JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import format_timestamp

Seconds = float | timedelta

_encode: Final = msgspec.json.Encoder().encode


def to_millis(span: Seconds) -> int:
    """Return a span in milliseconds; one that is negative is none at all."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    return max(0, round(seconds * 1000))


def to_duration(span: Seconds) -> str:
    """Return a span as an ISO 8601 duration."""
    return f"PT{to_millis(span) / 1000}S"


def to_expiration_delay(span: Seconds | Literal["never"]) -> str:
    """Return for how long something is to be kept, as jobs and workflows say it; for no time: for ever."""
    return span if isinstance(span, str) else to_duration(span)


def to_timestamp(moment: datetime, name: str) -> str:
    """Return a point in time as a time stamp.

    Raises
    ------
    InvalidRequest
        It has no time zone; the error calls it ``name``.
    """
    return format_timestamp(to_micros(moment, name))


def to_micros(moment: datetime, name: str) -> int:
    """Return a point in time in microseconds since the epoch.

    Raises
    ------
    InvalidRequest
        It has no time zone; the error calls it ``name``.
    """
    if moment.tzinfo is None:
        raise InvalidRequest(f"{name} has no time zone; write for example datetime.now(UTC) + timedelta(hours=1).")
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def to_json(value: Any) -> bytes:
    """Return a value as JSON.

    Raises
    ------
    TypeError
        It holds something that JSON has no words for, such as NaN.
    """
    encoded = _encode(value)
    if b"null" in encoded and _holds_no_number(value):
        raise TypeError("NaN and infinity are no JSON")
    return encoded


def _holds_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_holds_no_number, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(_holds_no_number, value))

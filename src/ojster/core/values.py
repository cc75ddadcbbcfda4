"""Conversion of Python values for requests: durations, points in time, and JSON."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from inspect import iscoroutine
from typing import Any, Final, Literal

import msgspec

from ojster.core.durations import LONGEST_SECONDS
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import MAX_VALUE_DEPTH, check_depth, opening_brackets, raw_list, too_deep
from ojster.core.timestamps import format_timestamp

Seconds = float | timedelta


def to_builtin(value: Any) -> Any:
    """Return a pydantic model as values that JSON has; pydantic itself is not needed for that."""
    if hasattr(type(value), "__pydantic_serializer__"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"there is no JSON for an object of type {type(value).__name__}")


_encode: Final = msgspec.json.Encoder(enc_hook=to_builtin).encode


def to_seconds(span: Seconds) -> float:
    """Return a time span in seconds.

    Raises
    ------
    TypeError
        It is neither a number nor a ``timedelta``.
    """
    if isinstance(span, timedelta):
        return span.total_seconds()
    try:
        if isinstance(span, bool | str | bytes):
            raise TypeError
        return float(span)
    except (TypeError, ValueError):
        raise TypeError(f"a duration must be a number of seconds or a timedelta, not {span!r}") from None


def to_millis(span: Seconds) -> int:
    """Return a duration in milliseconds.

    Raises
    ------
    ValueError
        It is negative, not a number, or longer than 100 years.
    """
    seconds = to_seconds(span)
    if not 0 <= seconds <= LONGEST_SECONDS:  # also NaN
        raise ValueError(
            f"A duration must be from 0 to {LONGEST_SECONDS} seconds (100 years), not {span!r}. Leave it out for none."
        )
    return round(seconds * 1000)


def to_duration(span: Seconds) -> str:
    """Return a duration in ISO 8601 format; see ``to_millis``."""
    return f"PT{to_millis(span) / 1000}S"


def to_expiration_delay(span: Seconds | Literal["never"]) -> str:
    """Return a retention time for a request: an ISO 8601 duration or ``never``. Zero also means for ever."""
    return span if isinstance(span, str) else to_duration(span)


def to_whole_seconds(span: Seconds | Literal["never"]) -> int:
    """Return a time span in whole seconds for a request, rounded up; -1 for ``never``."""
    return -1 if span == "never" else -(-to_millis(span) // 1000)


def to_timestamp(moment: datetime, name: str) -> str:
    """Return a point in time as an RFC 3339 timestamp.

    Raises
    ------
    InvalidRequest
        ``moment`` has no time zone; the error calls it ``name``.
    """
    return format_timestamp(to_micros(moment, name))


def to_micros(moment: datetime, name: str) -> int:
    """Return a point in time in microseconds since the epoch.

    Raises
    ------
    InvalidRequest
        ``moment`` has no time zone; the error calls it ``name``.
    """
    if moment.tzinfo is None:
        raise InvalidRequest(f"{name} has no time zone; write for example datetime.now(UTC) + timedelta(hours=1).")
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def to_json(value: Any, deepest: int = MAX_VALUE_DEPTH) -> bytes:
    """Return a value as JSON.

    Parameters
    ----------
    deepest:
        Maximum depth of the value, in levels.

    Raises
    ------
    TypeError
        The value contains something that JSON cannot represent, such as NaN.
    InvalidPayload
        The value is nested deeper than ``deepest`` levels.
    """
    try:
        encoded = _encode(value)
    except RecursionError:
        raise too_deep("The value", deepest) from None
    check_depth(encoded, "The value", deepest)
    if b"null" in encoded and _has_non_finite_number(value):
        raise TypeError("NaN and infinity are not valid JSON")
    return encoded


def result_to_json(type: str, result: Any) -> bytes:
    """Return the result of a handler as JSON.

    Raises
    ------
    TypeError
        The result contains something that JSON cannot represent.
    InvalidPayload
        The result is nested too deep.
    """
    try:
        return to_json(result)
    except (TypeError, ValueError, OverflowError) as error:
        hint = ". Await it in the handler, which then must be declared with 'async def'" if iscoroutine(result) else ""
        raise TypeError(f"The result of the handler of {type!r} is not valid JSON: {error}{hint}") from None


def each_to_json(values: Sequence[Sequence[Any]]) -> list[bytes] | None:
    """Return what ``to_json`` returns for each of many lists, in a third of the time; ``None``: ask that.

    They are encoded as one list, and divided again.
    """
    try:
        encoded = _encode(values)
        each = [bytes(raw) for raw in raw_list(encoded)]
    except Exception:  # ``to_json`` raises it again, for the value that it is about
        return None
    if len(each) != len(values) or (b"null" in encoded and _has_non_finite_number(values)):
        return None
    longest = max(map(len, each), default=0)
    may_be_deep = longest > 2 * MAX_VALUE_DEPTH and any(opening_brackets(raw) > MAX_VALUE_DEPTH for raw in each)
    return None if may_be_deep else each


def _has_non_finite_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_has_non_finite_number, value.values()))
    return isinstance(value, list | tuple | set | frozenset) and any(map(_has_non_finite_number, value))


def refuse_both(options: Mapping[str, object]) -> None:
    """Refuse two options of which one would replace the other.

    Parameters
    ----------
    options:
        Options that exclude each other, by name; ``None``: the caller has not set it.

    Raises
    ------
    TypeError
        More than one of them is set.
    """
    used = [name for name, value in options.items() if value is not None]
    if len(used) > 1:
        raise TypeError(f"{used[0]!r} and {used[1]!r} exclude each other. Pass one of them.")


def check_options(names: Iterable[str], known: Collection[str], elsewhere: Mapping[str, str] | None = None) -> None:
    """Refuse options that a call does not have.

    Parameters
    ----------
    names, known:
        Names of the options that the caller has set, and of those that the call has.
    elsewhere:
        For options that another call has: what to write instead.

    Raises
    ------
    TypeError
        An option does not exist; the message says which one the caller may mean.
    """
    for name in names:
        if name not in known:
            meant = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {meant[0]!r}?" if meant else f"The options are {', '.join(known)}."
            raise TypeError(f"There is no option {name!r}. {(elsewhere or {}).get(name) or hint}")

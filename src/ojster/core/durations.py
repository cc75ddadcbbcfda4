"""Durations: ISO 8601 and Go formats, and units. Ojster stores a duration as an integer number of microseconds.

Spec: ojs-retry 4, ojs-cron 4.1
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from ojster.core.errors import InvalidRequest

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
WEEK: Final = 7 * DAY
MONTH: Final = 30 * DAY
YEAR: Final = 365 * DAY

LONGEST: Final = 100 * YEAR
LONGEST_MILLIS: Final = LONGEST // MILLISECOND
LONGEST_SECONDS: Final = LONGEST // SECOND
"""The longest duration that a request can name: a hundred years, in microseconds, milliseconds and seconds."""

_ISO = re.compile(
    r"P(?!$)(?:(?P<Y>[0-9]+)Y)?(?:(?P<M>[0-9]+)M)?(?:(?P<W>[0-9]+)W)?(?:(?P<D>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<h>[0-9]+)H)?(?:(?P<m>[0-9]+)M)?(?:(?P<s>[0-9]+)(?:[.,](?P<f>[0-9]+))?S)?)?"
)
_ISO_UNITS: Final = {"Y": YEAR, "M": MONTH, "W": WEEK, "D": DAY, "h": HOUR, "m": MINUTE, "s": SECOND}

_GO_PART = re.compile(r"([0-9]+)(?:\.([0-9]+))?(ms|h|m|s)")
_GO = re.compile(rf"(?:{_GO_PART.pattern})+")
_GO_UNITS: Final = {"h": HOUR, "m": MINUTE, "s": SECOND, "ms": MILLISECOND}


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> int:
    """Return the microseconds of an ISO 8601 duration such as ``PT1.5S`` or ``P1DT12H``.

    A year counts as 365 days and a month as 30. Digits beyond the microsecond are truncated.

    Raises
    ------
    InvalidRequest
        The text is not an ISO 8601 duration, or the duration is longer than 100 years.
    """
    match = _ISO.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise InvalidRequest(f"{text[:64]!r} is not an ISO 8601 duration such as 'PT30S' or 'P1DT12H'.")
    parts = match.groupdict()
    fraction = parts.pop("f") or ""
    micros = sum(int(number) * _ISO_UNITS[unit] for unit, number in parts.items() if number)
    return _bounded(micros + int((fraction + "000000")[:6]), text)


def parse_go_duration(text: str) -> int:
    """Return the microseconds of a Go duration such as ``1h30m``, ``1.5s`` or ``500ms``.

    Digits beyond the microsecond are truncated.

    Raises
    ------
    InvalidRequest
        The text is not such a duration, or the duration is zero or longer than 100 years.
    """
    if len(text) > 64 or not _GO.fullmatch(text):
        raise InvalidRequest(f"{text[:64]!r} is not a duration such as '90s', '30m' or '1h30m'.")
    micros = sum(
        int(whole + fraction) * _GO_UNITS[unit] // 10 ** len(fraction)
        for whole, fraction, unit in _GO_PART.findall(text)
    )
    if not micros:
        raise InvalidRequest(f"The duration {text!r} must be longer than zero.")
    return _bounded(micros, text)


def parse_any_duration(text: str) -> int:
    """Return the microseconds of an ISO 8601 duration (``PT90S``) or a Go duration (``90s``).

    Raises
    ------
    InvalidRequest
        The text is neither, or the duration is longer than 100 years.
    """
    return parse_go_duration(text) if text[:1].isdigit() else parse_duration(text)


def format_duration(micros: int) -> str:
    """Return the ISO 8601 form of a duration in microseconds, in days, hours, minutes and seconds."""
    days, rest = divmod(micros, DAY)
    hours, rest = divmod(rest, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    seconds, fraction = divmod(rest, SECOND)
    date = f"{days}D" if days else ""
    time = f"{hours}H" * bool(hours) + f"{minutes}M" * bool(minutes)
    if seconds or fraction:
        time += f"{seconds}.{fraction:06}".rstrip("0").rstrip(".") + "S"
    if not date and not time:
        return "PT0S"
    return "P" + date + ("T" + time if time else "")


def micros_of(millis: int | None, seconds: int | None) -> int | None:
    """Return a duration that is given in milliseconds, or else in seconds, in microseconds; ``None`` for none and 0."""
    return millis * MILLISECOND if millis else seconds * SECOND if seconds else None


def _bounded(micros: int, text: str) -> int:
    if micros > LONGEST:
        raise InvalidRequest(f"The duration {text!r} is too long. The maximum is 100 years.")
    return micros

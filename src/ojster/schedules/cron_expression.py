"""Cron schedules: expressions, time zones and daylight saving time.

Spec: ojs-cron 3 to 5
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from ojster.core.durations import SECOND, parse_go_duration
from ojster.core.errors import InvalidRequest

OverlapPolicy = Literal["skip", "allow", "cancel_previous", "enqueue"]
OVERLAP_POLICIES: Final[tuple[OverlapPolicy, ...]] = get_args(OverlapPolicy)

LONGEST_EXPRESSION: Final = 1_000
"""Maximum length of an expression, in characters."""

_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_NEAREST_WEEKDAY = re.compile(r"([0-9]{1,2})W")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_LAST_BY_NAME = re.compile(rf"\b({'|'.join(_WEEKDAYS)})L\b")
_TO_SUNDAY = re.compile(r"(?<=-)SUN\b")
_ZONE = re.compile(r"[A-Za-z_]+(?:/[A-Za-z0-9_+\-]+)+")
_NO_LEAP_YEAR: Final = 2001
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CronSchedule:
    """A cron expression in a time zone.

    Five or six fields (the first of six is seconds) with names, ranges, steps, ``L``, ``W``, ``#``; the aliases
    ``@yearly`` to ``@hourly``; and ``@every 1h30m``, counted from registration or the last run.

    Raises
    ------
    InvalidRequest
        The expression is malformed or never matches, or the time zone is not in the IANA database.
    """

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        if len(expression) > LONGEST_EXPRESSION:
            raise InvalidRequest(
                f"The cron expression has {len(expression)} characters; at most {LONGEST_EXPRESSION} are allowed.",
                field="cron",
            )
        self.expression = expression
        self.zone = _zone(timezone)
        self.timezone = timezone
        self._interval: int | None = None
        text = expression.strip()
        if text.lower().startswith("@every "):
            self._interval = parse_go_duration(text[7:].strip())
            if self._interval < SECOND:
                raise InvalidRequest("The interval of @every must be at least one second.", field="cron")
            return
        self._fields = _ALIASES.get(text.lower(), text)
        if self._fields.startswith("@"):
            raise InvalidRequest(
                f"Unknown cron alias {expression[:64]!r}. Use {', '.join(_ALIASES)} or '@every 90s'.", field="cron"
            )
        if self.next_after(0) is None:
            raise InvalidRequest(f"The cron expression {expression[:64]!r} never matches.", field="cron")

    def next_after(self, moment: int) -> int | None:
        """Return the first occurrence after ``moment``, both in microseconds since the epoch.

        At the change to or from daylight saving time, a skipped time does not occur, and a repeated time occurs once,
        the first time. A schedule with an hour field that begins with ``*`` occurs whenever the clock shows a time that
        matches, also when it shows it again, so that "every ten minutes" never pauses. Return ``None`` if nothing
        occurs in the next fifty years.
        """
        if self._interval is not None:
            return moment + self._interval
        start = _EPOCH + timedelta(microseconds=moment)
        if self.zone is None:
            nearest = next(_Expression(self._fields, start), None)
            return None if nearest is None else _micros(nearest)
        start = start.astimezone(self.zone)
        if self._follows_elapsed_time():
            return self._next_on_the_clock(start)
        for local in _Expression(self._fields, start.replace(tzinfo=None)):
            occurrence = local.replace(tzinfo=self.zone, fold=0)
            if _exists(occurrence) and occurrence.astimezone(UTC) > start.astimezone(UTC):
                return _micros(occurrence)
        return None

    def warnings(self) -> tuple[str, ...]:
        """Return a warning if the expression names days that some of its months do not have.

        Spec: ojs-cron 3.5
        """
        if self._interval is not None:
            return ()
        expression = _Expression(self._fields, _EPOCH)
        shortest = min(calendar.monthrange(_NO_LEAP_YEAR, month)[1] for month in expression.months)
        missing = sorted(day for day in {*expression.days, *expression.nearest} if day > shortest)
        if not missing or expression.parts[3].startswith("*"):
            return ()
        warning = (
            f"Some months have no day {', '.join(map(str, missing))}: the cron expression {self.expression[:64]!r} "
            "does not match there. 'L' is the last day of each month."
        )
        return (warning,)

    def between(self, since: int, until: int) -> Iterator[int]:
        """Return the occurrences from ``since`` to ``until``; the first one of an interval is at ``since``."""
        at = since if self._interval is not None else self.next_after(since - 1)
        while at is not None and at <= until:
            yield at
            at = self.next_after(at)

    def _next_on_the_clock(self, start: datetime) -> int | None:
        """Return the first moment after ``start`` at which the clock on the wall shows a time that matches.

        Between two changes of the zone's offset, the clock runs like any other: so look from one change to the next.
        """
        after = start.replace(tzinfo=None)
        while True:
            offset = start.utcoffset()
            local = next(_Expression(self._fields, after), None)
            if local is None or offset is None:
                return None
            change = _next_change(start, (local - offset).replace(tzinfo=UTC))
            if change is None:
                return _micros((local - offset).replace(tzinfo=UTC))
            start = change.astimezone(self.zone)
            after = start.replace(tzinfo=None) - timedelta(seconds=1)  # the first time after the change counts, too

    def skipped_between(self, moment: int, until: int) -> list[int]:
        """Return the occurrences between two moments that the change to daylight saving time skips.

        Each is the moment that its local time would be without the change, in microseconds since the epoch.
        """
        if self._interval is not None or self.zone is None or self._follows_elapsed_time():
            return []
        start, end = ((_EPOCH + timedelta(microseconds=at)).astimezone(self.zone) for at in (moment, until))
        moments: list[int] = []
        for local in _Expression(self._fields, start.replace(tzinfo=None)):
            if local >= end.replace(tzinfo=None):
                break
            occurrence = local.replace(tzinfo=self.zone, fold=0)
            if not _exists(occurrence):
                moments.append(_micros(occurrence))
        return moments

    def _follows_elapsed_time(self) -> bool:
        fields = self._fields.split()
        return len(fields) > 3 and fields[-4].startswith("*")  # fewer are refused


_LOOK: Final = timedelta(days=1)
"""Distance at which offsets are compared to find a change of the offset: no zone changes it twice in this time."""


def _next_change(start: datetime, end: datetime) -> datetime | None:
    """Return the first moment after ``start``, and not after ``end``, with another offset; ``None``: there is none."""
    zone, offset = start.tzinfo, start.utcoffset()
    before, end = start.astimezone(UTC), end.astimezone(UTC)
    while before < end:
        after = min(before + _LOOK, end)
        if after.astimezone(zone).utcoffset() != offset:
            while after - before > timedelta(seconds=1):
                middle = before + (after - before) // 2
                if middle.astimezone(zone).utcoffset() == offset:
                    before = middle
                else:
                    after = middle
            return after.replace(microsecond=0)
        before = after
    return None


def _exists(moment: datetime) -> bool:
    """Return whether a local time is not skipped by a change to daylight saving time."""
    return moment.astimezone(UTC).astimezone(moment.tzinfo).replace(tzinfo=None) == moment.replace(tzinfo=None)


class _Expression(CronSim):
    """CronSim with support for the nearest weekday (``15W``), ``FRIL`` and ``SAT-SUN``."""

    def __init__(self, fields: str, start: datetime) -> None:
        self.nearest: list[int] = []
        parts = fields.split()
        if len(parts) not in (5, 6):
            raise InvalidRequest(
                f"The cron expression {fields[:64]!r} has {len(parts)} fields; it needs 5, or 6 with seconds.",
                field="cron",
            )
        _check_steps(parts, fields)
        parts[-1] = _with_numbers(parts[-1].upper())
        terms = parts[-3].upper().split(",")
        self.nearest = [int(match[1]) for term in terms if (match := _NEAREST_WEEKDAY.fullmatch(term))]
        if self.nearest:
            if not all(1 <= day <= 31 for day in self.nearest):
                raise InvalidRequest(
                    f"Bad day-of-month in the cron expression {fields[:64]!r}. Use 1W to 31W.", field="cron"
                )
            others = [term for term in terms if not _NEAREST_WEEKDAY.fullmatch(term)]
            parts[-3] = ",".join(others) or "1"
        try:
            super().__init__(" ".join(parts), start)
        except (CronSimError, ValueError) as error:
            raise InvalidRequest(f"{error} in the cron expression {fields[:64]!r}.", field="cron") from None
        if self.nearest and not others:
            self.days = set()

    def match_dom(self, d: date) -> bool:
        return super().match_dom(d) or any(d.day == _nearest_weekday(d.year, d.month, day) for day in self.nearest)


_RANGES: Final = (
    ("weekdays", 0, 7),
    ("months", 1, 12),
    ("days", 1, 31),
    ("hours", 0, 23),
    ("minutes", 0, 59),
    ("seconds", 0, 59),
)
"""The name and the range of each field of a cron expression, the last one first."""


def _check_steps(parts: list[str], fields: str) -> None:
    """Refuse a step that is longer than the range that it steps through: ``*/90`` would match once an hour."""
    for part, (name, least, most) in zip(reversed(parts), _RANGES, strict=False):
        for term in part.split(","):
            _, slash, step = term.partition("/")
            if slash and step.isascii() and step.isdigit() and int(step) > most - least + (name != "weekdays"):
                raise InvalidRequest(
                    f"The step {term!r} of the {name} in the cron expression {fields[:64]!r} is longer than their "
                    f"range, {least} to {most}. Use a shorter step, or '@every' for a longer interval.",
                    field="cron",
                )


def _with_numbers(weekdays: str) -> str:
    """Return a field of weekdays with numbers where CronSim reads no names: ``FRIL`` and ``SAT-SUN``."""
    return _TO_SUNDAY.sub("7", _LAST_BY_NAME.sub(lambda match: f"{_WEEKDAYS.index(match[1])}L", weekdays))


def _nearest_weekday(year: int, month: int, day: int) -> int | None:
    """Return the weekday nearest to a day within its month; ``None`` if the month has no such day."""
    first, last = 1, calendar.monthrange(year, month)[1]
    if day > last:
        return None
    match calendar.weekday(year, month, day):
        case calendar.SATURDAY:
            return day - 1 if day > first else day + 2
        case calendar.SUNDAY:
            return day + 1 if day < last else day - 2
        case _:
            return day


def _micros(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo | None:
    """Return the time zone with an IANA name; ``None`` for UTC. Offsets and abbreviations are rejected.

    Spec: ojs-cron 5.1
    """
    if name == "UTC":
        return None
    if not _ZONE.fullmatch(name) or name.startswith("Etc/GMT") or name not in available_timezones():
        raise InvalidRequest(
            f"{name[:64]!r} is not a time zone of the IANA database such as 'Europe/Berlin'; "
            "offsets and abbreviations are not accepted.",
            field="timezone",
        )
    return ZoneInfo(name)

"""The simplest meaning of a cron expression: each minute, look at the clock on the wall."""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
MINUTE = timedelta(minutes=1)


class Change(NamedTuple):
    """A change of a zone's offset: the first moment with the new one."""

    zone: str
    moment: datetime

    @property
    def shape(self) -> tuple[object, ...]:
        """What makes this change different from others: the clock before and after it, and the day of the week."""
        zone = ZoneInfo(self.zone)
        before = (self.moment - timedelta(seconds=1)).astimezone(zone)
        after = self.moment.astimezone(zone)
        return (before.time(), after.time(), after.utcoffset() - before.utcoffset(), after.weekday())  # type: ignore[operator]


def changes(first_year: int, last_year: int) -> dict[tuple[object, ...], Change]:
    """Return one change of each shape, of all zones, in some years."""
    found: dict[tuple[object, ...], Change] = {}
    for name in sorted(available_timezones()):
        if "/" in name and not name.startswith("Etc/GMT"):
            for change in _changes_of(name, first_year, last_year):
                found.setdefault(change.shape, change)
    return found


def _changes_of(name: str, first_year: int, last_year: int) -> Iterator[Change]:
    zone = ZoneInfo(name)
    before, end = datetime(first_year, 1, 1, tzinfo=UTC), datetime(last_year + 1, 1, 1, tzinfo=UTC)
    while before < end:
        after = before + timedelta(days=1)
        if before.astimezone(zone).utcoffset() != after.astimezone(zone).utcoffset():
            low, high = before, after
            while high - low > MINUTE:
                middle = low + ((high - low) / 2 // MINUTE) * MINUTE
                same = middle.astimezone(zone).utcoffset() == before.astimezone(zone).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            yield Change(name, high)
        before = after


class Oracle:
    """A cron expression, of five fields, or of six with one number for the seconds."""

    def __init__(self, expression: str) -> None:
        *seconds, minute, hour, self.day, month, self.weekday = expression.upper().split()
        self.second = int(seconds[0]) if seconds else 0
        self.minutes = _numbers(minute, range(60))
        self.hours = _numbers(hour, range(24))
        self.months = _numbers(month, range(1, 13), MONTHS, 1)
        self.is_elapsed = hour.startswith("*")
        self._known: dict[date, bool] = {}

    def occurrences(self, clock: list[tuple[datetime, datetime]]) -> list[datetime]:
        """Return the moments that match; ``clock``: for each minute the moment, and what the clock on the wall shows.

        If the hours do not begin with ``*``, what the clock shows again does not count.
        """
        return [
            moment + timedelta(seconds=self.second)
            for moment, shown in clock
            if shown.minute in self.minutes
            and shown.hour in self.hours
            and (self.is_elapsed or not shown.fold)
            and self._has_day(shown.date())
        ]

    def _has_day(self, day: date) -> bool:
        if day not in self._known:
            matches = [
                any(_is_day(term, day) for term in self.day.split(",")),
                any(_is_weekday(term, day) for term in self.weekday.split(",")),
            ]
            both = self.day.startswith("*") or self.weekday.startswith("*")
            self._known[day] = day.month in self.months and (all(matches) if both else any(matches))
        return self._known[day]


def _numbers(field: str, all_of_them: range, names: tuple[str, ...] = (), first: int = 0) -> set[int]:
    """Return what lists, ranges and steps name."""
    numbers: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        for place, name in enumerate(names, first):
            span = span.replace(name, str(place))
        if span == "*":
            begin, end = all_of_them[0], all_of_them[-1]
        elif "-" in span:
            begin, end = map(int, span.split("-"))
        else:
            begin = int(span)
            end = all_of_them[-1] if step else begin
        numbers.update(range(begin, end + 1, int(step or 1)))
    return numbers


def _is_day(term: str, day: date) -> bool:
    last = calendar.monthrange(day.year, day.month)[1]
    working = [number for number in range(1, last + 1) if date(day.year, day.month, number).weekday() < 5]
    if term == "L":
        return day.day == last
    if term == "LW":
        return day.day == working[-1]
    if term.endswith("W"):
        wanted = int(term[:-1])
        return wanted <= last and day.day == min(working, key=lambda number: abs(number - wanted))
    return day.day in _numbers(term, range(1, 32))


def _is_weekday(term: str, day: date) -> bool:
    weekday = day.isoweekday() % 7
    last = calendar.monthrange(day.year, day.month)[1]
    number, mark, nth = term.partition("#")
    if mark:
        return weekday in _numbers(number, range(7), DAYS) and (day.day + 6) // 7 == int(nth)
    if term != "*" and term.endswith("L"):
        return weekday == int(term[:-1]) % 7 and day.day + 7 > last
    return weekday in {number % 7 for number in _numbers(term, range(7), DAYS)}

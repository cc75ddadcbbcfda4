"""Cron expressions around each change of the clocks, compared with an oracle that goes minute by minute."""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ojster.schedules.cron_expression import CronSchedule
from tests.amount import share
from tests.schedules.cron_oracle import MINUTE, Change, Oracle, changes

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AROUND = timedelta(hours=26)
"""Time before and after a change in which occurrences are compared, beside the time that it skips or repeats."""

MINUTES = ("0", "30", "*/7", "5,45", "10-20/5")
HOURS = ("*", "*/3", "*/6", "*/5", "0", "1", "2", "1-3", "0,23", "20-23/2", "2/3")
DAYS = (
    *("* * *", "* * SUN", "* * MON-FRI", "L * *", "LW * *", "15W * *", "1 * *", "*/2 * *"),
    *("1-7 * SUN", "* * 0#1", "* * 5L"),
)
MONTHS = ("* * *", "* MAR,APR,SEP-NOV *", "* */2 *")
EXPRESSIONS = (
    *(f"{minute} {hour} * * *" for minute, hour in itertools.product(MINUTES, HOURS)),
    *(f"0 {hour} {days}" for hour, days in itertools.product(("*/6", "*", "0", "2"), DAYS)),
    *(f"30 {hour} {months}" for hour, months in itertools.product(("*/2", "1"), MONTHS)),
    *(f"15 30 {hour} * * *" for hour in ("*/3", "1-3")),
)
KNOWN = (
    Change("Australia/Lord_Howe", datetime(2027, 4, 3, 15, tzinfo=UTC)),  # half an hour back
    Change("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),  # half an hour forward
    Change("America/Santiago", datetime(2027, 9, 5, 4, tzinfo=UTC)),  # no midnight
    Change("America/Havana", datetime(2026, 11, 1, 5, tzinfo=UTC)),  # midnight twice
    Change("Atlantic/Azores", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    Change("Antarctica/Troll", datetime(2026, 3, 29, 1, tzinfo=UTC)),  # two hours
    Change("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),  # a whole day is skipped
    Change("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
)


def compare(change: Change, expressions: tuple[str, ...], seed: int) -> None:
    """Compare all occurrences around a change, and the first after some moments of the time around it."""
    zone = ZoneInfo(change.zone)
    skipped = change.moment.astimezone(zone).utcoffset() - (change.moment - MINUTE).astimezone(zone).utcoffset()  # type: ignore[operator]
    begin, end = change.moment - AROUND - abs(skipped), change.moment + AROUND + abs(skipped)
    moments = [begin + number * MINUTE for number in range((end - begin) // MINUTE)]
    clock = [(moment, moment.astimezone(zone)) for moment in moments]
    chance = random.Random(seed)
    for expression in expressions:
        schedule = CronSchedule(expression, change.zone)
        expected = Oracle(expression).occurrences(clock)
        where = f"{expression!r} in {change.zone} around {change.moment}"
        found, at = [], begin - MINUTE
        while (following := schedule.next_after(micros(at))) is not None:
            at = EPOCH + timedelta(microseconds=following)
            if at >= end:
                break
            found.append(at)
        assert found == expected, where
        near = [change.moment + timedelta(seconds=chance.randint(-9_000, 9_000)) for _ in range(5)]
        for start in near:
            following = schedule.next_after(micros(start))
            place = bisect_right(expected, start)
            if place < len(expected):
                assert following == micros(expected[place]), f"{where}, after {start}"
            else:
                assert following is None or following >= micros(end), f"{where}, after {start}"


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize("change", KNOWN, ids=lambda change: f"{change.zone}-{change.moment:%Y-%m}")
def test_occurrences_around_a_change_of_the_clocks_are_those_of_the_oracle(change: Change) -> None:
    some = ("0 */3 * * *", "0 */6 * * SUN", "*/7 * * * *", "30 1-3 * * *", "0 0 * * *", "10 */24 1 11 *", "0 0 L * *")
    compare(change, some, 0)


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_occurrences_around_all_changes_of_all_zones_are_those_of_the_oracle() -> None:
    shapes = changes(2005, 2032)
    assert len(shapes) > 50
    for seed, change in enumerate(shapes.values()):
        compare(change, tuple(share(EXPRESSIONS, seed)), seed)

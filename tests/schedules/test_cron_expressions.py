"""Cron schedules: fields, names, L W #, aliases, intervals, time zones, and both daylight-saving changes."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.schedules.cron_expression import CronSchedule


def occurrences(expression: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    schedule = CronSchedule(expression, zone)
    found, at = [], parse_timestamp(after)
    for _ in range(count):
        following = schedule.next_after(at)
        assert following is not None
        at = following
        found.append(format_timestamp(at)[:19])
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/15 * * * *", ["2026-01-01T00:15:00", "2026-01-01T00:30:00"]),
        ("0 9 * * MON-FRI", ["2026-01-01T09:00:00", "2026-01-02T09:00:00", "2026-01-05T09:00:00"]),
        ("0 9 * * mon", ["2026-01-05T09:00:00"]),
        ("0 0 * * 0", ["2026-01-04T00:00:00"]),
        ("0 0 * * 7", ["2026-01-04T00:00:00"]),
        ("0 0 1 jan,JUL *", ["2026-07-01T00:00:00", "2027-01-01T00:00:00"]),
        ("30 5 10 * * *", ["2026-01-01T10:05:30"]),
        ("*/20 * * * * *", ["2026-01-01T00:00:20", "2026-01-01T00:00:40", "2026-01-01T00:01:00"]),
        ("0 23 L * *", ["2026-01-31T23:00:00", "2026-02-28T23:00:00"]),
        ("0 0 * * 5L", ["2026-01-30T00:00:00"]),
        ("0 0 * * 5#3", ["2026-01-16T00:00:00"]),
        ("0 0 * * MON#1", ["2026-01-05T00:00:00"]),
        ("0 0 15W * *", ["2026-01-15T00:00:00", "2026-02-16T00:00:00", "2026-03-16T00:00:00"]),
        ("0 0 1W 8 *", ["2026-08-03T00:00:00"]),
        ("0 0 31W 1,5 *", ["2026-01-30T00:00:00", "2026-05-29T00:00:00"]),
        ("0 0 1,15W 2 *", ["2026-02-01T00:00:00", "2026-02-16T00:00:00"]),
        ("0 0 LW * *", ["2026-01-30T00:00:00"]),
        ("0 0 31 * *", ["2026-01-31T00:00:00", "2026-03-31T00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00:00"]),
        ("@yearly", ["2027-01-01T00:00:00"]),
        ("@annually", ["2027-01-01T00:00:00"]),
        ("@monthly", ["2026-02-01T00:00:00"]),
        ("@weekly", ["2026-01-04T00:00:00"]),
        ("@daily", ["2026-01-02T00:00:00"]),
        ("@midnight", ["2026-01-02T00:00:00"]),
        ("@Hourly", ["2026-01-01T01:00:00"]),
        ("@every 90s", ["2026-01-01T00:01:30", "2026-01-01T00:03:00"]),
        ("@every 1h30m", ["2026-01-01T01:30:00"]),
    ],
)
def test_an_expression_means_what_it_says(expression: str, expected: list[str]) -> None:
    assert occurrences(expression, "2026-01-01T00:00:00Z", len(expected)) == expected


@pytest.mark.parametrize(
    ("by_name", "by_number"),
    [
        ("SUN", "0"),
        ("sun", "7"),
        ("Mon,fri", "1,5"),
        ("MON-FRI/2", "1-5/2"),
        ("TUE#2", "2#2"),
        ("FRIL", "5L"),
        ("sunl,MON", "0L,1"),
        ("SAT-SUN", "6-7"),
        ("mon,thu-sun/2", "1,4-7/2"),
        ("SUN-SUN", "0-7"),
    ],
)
def test_names_of_weekdays_mean_their_numbers(by_name: str, by_number: str) -> None:
    found = occurrences(f"0 0 * * {by_name}", "2026-01-01T00:00:00Z", 9)
    assert found == occurrences(f"0 0 * * {by_number}", "2026-01-01T00:00:00Z", 9)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "not a valid cron",
        "0 0 0 0 0 0 0",
        "99 25 32 13 8",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "*/² * * * *",
        "5-1 * * * *",
        "1- * * * *",
        "0 0 30 2 *",
        "0 0 32W * *",
        "0 0 W * *",
        "* * * * MON#6",
        "* * * * FRI-MON",
        "* * * * SUNDAYL",
        "@fortnightly",
        "@every",
        "@every 0s",
        "@every 10ms",
        "@every 1d",
        "* * * *",
    ],
)
def test_an_expression_that_means_nothing_is_refused(expression: str) -> None:
    with pytest.raises(InvalidRequest):
        CronSchedule(expression)


@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 31 * *", "31"),
        ("0 0 0 31 * *", "31"),
        ("0 0 1,29-30 * *", "29, 30"),
        ("0 0 29 FEB *", "29"),
        ("0 0 15W,31W * *", "31"),
    ],
)
def test_days_that_some_months_lack_bring_a_warning(expression: str, days: str) -> None:
    (warning,) = CronSchedule(expression).warnings()
    assert warning.startswith(f"Some months have no day {days}: the cron expression {expression!r} does not match")


@pytest.mark.parametrize(
    "expression",
    ["* * * * *", "0 0 */2 * *", "0 0 28 * *", "0 0 31 1,DEC *", "0 0 30 4-6 *", "0 0 L * *", "@monthly", "@every 1h"],
)
def test_days_that_all_months_have_bring_no_warning(expression: str) -> None:
    assert CronSchedule(expression).warnings() == ()


@pytest.mark.parametrize(
    "zone",
    [
        "+05:00",
        "-08:00",
        "UTC+5",
        "EST",
        "PST",
        "CST",
        "Mars/Olympus",
        "",
        "../etc/passwd",
        "Etc/GMT+5",
        "europe/berlin",
    ],
)
def test_only_names_of_the_iana_database_are_zones(zone: str) -> None:
    with pytest.raises(InvalidRequest):
        CronSchedule("0 9 * * *", zone)


def test_a_zone_moves_the_hour_with_its_clocks() -> None:
    assert occurrences("0 9 * * *", "2026-03-06T15:00:00Z", 3, "America/New_York") == [
        "2026-03-07T14:00:00",
        "2026-03-08T13:00:00",
        "2026-03-09T13:00:00",
    ]


def test_a_time_that_the_clocks_skip_does_not_occur() -> None:
    assert occurrences("30 2 * * *", "2026-03-07T00:00:00Z", 3, "America/New_York") == [
        "2026-03-07T07:30:00",  # 2:30 EST
        "2026-03-09T06:30:00",  # 2:30 EDT; on the 8th there is no 2:30
        "2026-03-10T06:30:00",
    ]


def test_the_times_that_the_clocks_skip_are_known() -> None:
    schedule = CronSchedule("0,30 1-3 * * *", "America/New_York")
    start, end = parse_timestamp("2026-03-07T00:00:00Z"), parse_timestamp("2026-03-10T00:00:00Z")
    skipped = [format_timestamp(at)[:19] for at in schedule.skipped_between(start, end)]
    assert skipped == ["2026-03-08T07:00:00", "2026-03-08T07:30:00"]
    assert CronSchedule("0,30 1-3 * * *", "UTC").skipped_between(start, end) == []
    assert CronSchedule("*/30 * * * *", "America/New_York").skipped_between(start, end) == []


def test_a_time_that_the_clocks_repeat_occurs_once_the_first_time() -> None:
    assert occurrences("30 1 * * *", "2026-10-31T12:00:00Z", 2, "America/New_York") == [
        "2026-11-01T05:30:00",  # 1:30 EDT, the first of two
        "2026-11-02T06:30:00",  # 1:30 EST
    ]


def test_after_the_first_of_a_repeated_time_the_second_does_not_count() -> None:
    """Compute the next occurrence between the two times, as after a restart."""
    assert occurrences("30 1 * * *", "2026-11-01T05:45:00Z", 1, "America/New_York") == ["2026-11-02T06:30:00"]


def test_a_schedule_for_every_hour_follows_the_elapsed_time() -> None:
    assert occurrences("*/30 * * * *", "2026-11-01T05:00:00Z", 5, "America/New_York") == [
        "2026-11-01T05:30:00",
        "2026-11-01T06:00:00",
        "2026-11-01T06:30:00",
        "2026-11-01T07:00:00",
        "2026-11-01T07:30:00",
    ]
    assert occurrences("0 * * * *", "2026-03-08T06:30:00Z", 2, "America/New_York") == [
        "2026-03-08T07:00:00",
        "2026-03-08T08:00:00",
    ]


expressions = st.tuples(
    st.sampled_from(["0", "30", "*/7", "5,45"]),
    st.sampled_from(["*", "2", "1-3", "*/6", "23"]),
    st.sampled_from(["*", "1", "L", "15W"]),
    st.sampled_from(["*", "2,3,11", "10"]),
    st.just("*"),
).map(" ".join)
zones = st.sampled_from(
    ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "Asia/Tokyo"]
)
moments = st.integers(parse_timestamp("2026-01-01T00:00:00Z"), parse_timestamp("2027-12-31T00:00:00Z"))


@given(expressions, zones, moments)
def test_an_occurrence_is_later_and_is_there_on_the_wall(expression: str, zone: str, after: int) -> None:
    schedule = CronSchedule(expression, zone)
    found = schedule.next_after(after)
    assert found is not None
    assert found > after
    local = datetime.fromtimestamp(found / 1e6, UTC).astimezone(ZoneInfo(zone))
    minute, hour = expression.split()[:2]
    if minute.isdigit():
        assert local.minute == int(minute)
    if hour.isdigit():
        assert local.hour == int(hour)


@given(expressions, zones, moments, st.integers(0, 10**12))
def test_looking_again_before_an_occurrence_finds_the_same_one(
    expression: str, zone: str, after: int, later: int
) -> None:
    schedule = CronSchedule(expression, zone)
    found = schedule.next_after(after)
    assert found is not None
    between = after + later % max(1, found - after)
    assert schedule.next_after(between) == found

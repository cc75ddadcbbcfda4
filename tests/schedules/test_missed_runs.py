"""Missed runs of cron jobs: each occurrence that starts nothing is recorded with its reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.durations import DAY, SECOND
from ojster.core.errors import NotFound
from ojster.core.timestamps import parse_timestamp
from ojster.schedules.cron import Cron
from ojster.schedules.misses import MAX_COUNTED, MAX_MISSES, Miss
from ojster.schedules.retention import count_forgettable, forget
from tests.conftest import START, Bench

pytestmark = pytest.mark.anyio


async def register(bench: Bench, name: str = "c", **more: Any) -> None:
    template = msgspec.json.encode({"type": "cron.job", "args": [1], "options": {"queue": "q"}})
    usual = {"expression": "@every 60s", "template": template}
    await bench.service.schedules.register(Cron(name=name, **usual | more))


async def misses(bench: Bench, name: str = "c") -> list[Miss]:
    return await bench.service.schedules.misses(name)


async def test_runs_that_would_overlap_are_one_record_for_each_run_that_has_not_finished(bench: Bench) -> None:
    await register(bench)
    assert await misses(bench) == []
    await bench.run_due(after=60)
    first = await bench.fetch_one("q")
    for _ in range(3):
        await bench.run_due(after=60)
    (miss,) = await misses(bench)
    assert (miss.reason, miss.occurrences, miss.active_id) == ("overlap_skip", 3, first.id)
    assert (miss.since, miss.until, miss.noted_at) == (
        START + 120 * SECOND,
        START + 240 * SECOND,
        bench.clock.now,
    )
    await bench.ack(first)
    await bench.run_due(after=60)
    second = await bench.fetch_one("q")
    await bench.run_due(after=60)
    assert [(one.active_id, one.occurrences) for one in await misses(bench)] == [(second.id, 1), (first.id, 3)]
    with pytest.raises(NotFound):
        await misses(bench, "none")


async def test_what_falls_into_an_outage_is_counted_up_to_a_limit(bench: Bench) -> None:
    await register(bench, overlap_policy="allow")
    await bench.run_due(after=240.5)  # runs late for the first of four
    (late,) = await misses(bench)
    assert (late.reason, late.occurrences, late.is_complete) == ("late", 3, True)
    assert (late.since, late.until) == (START + 120 * SECOND, START + 240 * SECOND)
    await bench.run_due(after=59.5)  # in time
    assert len(await misses(bench)) == 1
    await bench.run_due(after=60 * (MAX_COUNTED + 5))
    newest, _ = await misses(bench)
    assert (newest.occurrences, newest.is_complete, newest.until) == (MAX_COUNTED, False, bench.clock.now)


async def test_maintenance_and_refusals_are_reasons_of_their_own(bench: Bench) -> None:
    await register(bench, overlap_policy="allow")
    await bench.service.maintenance.switch_mode(True, "upgrade")
    await bench.run_due(after=180)
    await bench.service.maintenance.switch_mode(False)
    await bench.run_due(after=1)
    (paused,) = await misses(bench)
    assert (paused.reason, paused.occurrences) == ("maintenance", 2)
    await bench.run_due(after=150)
    assert [miss.reason for miss in await misses(bench)] == ["late", "maintenance"], "that maintenance mode has ended"
    unique = {"type": "cron.job", "args": [], "options": {"queue": "q", "unique": {"keys": ["type"]}}}
    await register(bench, "u", overlap_policy="allow", template=msgspec.json.encode(unique))
    for _ in range(3):
        await bench.run_due(after=60)
    (refused,) = await misses(bench, "u")
    assert (refused.reason, refused.occurrences, refused.active_id) == ("duplicate", 2, None)


async def test_a_time_that_the_clock_skips_is_a_missed_run(bench: Bench) -> None:
    bench.clock.now = parse_timestamp("2027-03-12T12:00:00Z")
    await register(bench, expression="30 2 * * *", timezone="America/New_York")
    await bench.run_due(after=24 * 3600)
    (skipped,) = await misses(bench)
    assert (skipped.reason, skipped.since) == ("dst_skip", parse_timestamp("2027-03-14T07:30:00Z"))


async def test_records_are_bounded_by_number_and_age_and_go_with_their_cron_job(bench: Bench) -> None:
    await register(bench, overlap_policy="allow")
    await register(bench, "d", overlap_policy="allow")
    for _ in range(MAX_MISSES + 2):
        await bench.run_due(after=150)
    kept = await misses(bench)
    assert len(kept) == MAX_MISSES
    assert kept[0].noted_at == bench.clock.now
    await bench.service.schedules.unregister("d")
    await register(bench, "d")
    assert await misses(bench, "d") == []
    await bench.service.schedules.switch("c", False)
    bench.clock.advance(30 * DAY / SECOND + 1)
    (counted,) = await bench.service.database.read_many(count_forgettable, [None])
    assert counted["cron_misses"] == MAX_MISSES
    await bench.service.database.run(forget, None)
    assert await misses(bench) == []

"""Statistics: several servers aggregate each hour once, and percentiles stay within their buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ojster.jobs.statistics import Span, Work, history
from ojster.schedules.retention import forget
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.tally import BUCKETS_US
from ojster.storage.transaction import Transaction
from tests.conftest import Bench, Clock

pytestmark = pytest.mark.anyio


async def test_hours_are_summed_up_once_by_several_servers(shared_url: str, clock: Clock) -> None:
    engines = [Service(open_database(shared_url, clock=clock)) for _ in range(3)]
    bench = Bench(engines[0], clock)
    start = clock.now
    for _ in range(10):
        await bench.push()
        clock.advance(400)
    for days in (1, 1, 1, 1):
        clock.advance(days * 86_400)
        await asyncio.gather(*[service.database.run(forget, None) for service in engines])
    steps = await bench.service.scope.look(history, Span(start, clock.now, 60))
    assert sum(work.enqueued for _, work in steps) == 10
    for service in engines:
        await service.close()


def test_percentiles_lie_between_the_bounds_of_their_buckets() -> None:
    waits = [0] * 15
    assert Work(waits=tuple(waits)).percentile(0.5) == 0.0
    waits[0], waits[9] = 99, 1
    work = Work(waits=tuple(waits), waited=99 * 300 + 900_000)
    assert work.percentile(0.5) <= 1.0
    assert 500 < work.percentile(1.0) <= 1000
    waits[14] = 10_000
    assert Work(waits=tuple(waits), waited=10_000 * 5_000_000_000).percentile(0.99) > 3_600_000


def test_percentiles_of_waits_do_not_exceed_what_the_sum_of_all_waits_allows() -> None:
    waits = [0] * 15
    waits[11] = 100  # 5 to 30 seconds
    work = Work(waits=tuple(waits), waited=100 * 6_000_000)
    assert 5_900 < work.percentile(0.5) < 6_100
    assert work.percentile(0.99) < 7_000
    waits[0] = 900
    work = Work(waits=tuple(waits), waited=100 * 20_000_000)
    assert work.percentile(0.5) <= 1.0
    assert 25_000 < work.percentile(0.99) <= 30_000


async def test_totals_of_many_jobs_that_have_waited_for_years_do_not_overflow(bench: Bench) -> None:
    """In each of five minutes, jobs start that waited in a paused queue."""
    waits = [3 * 365 * 86_400 * 1_000_000] * 100_000
    start = bench.clock.now
    await bench.push(queue="old")

    def count(tx: Transaction, arguments: Sequence[None]) -> list[None]:
        tally = tx.effects.tallies["old"]
        tally.count_waits(waits)
        tally.count_attempts("completed", len(waits), sum(waits), [0] * (len(BUCKETS_US) + 1))
        return [None for _ in arguments]

    for _ in range(5):
        await bench.run(count, None)
        bench.clock.advance(60)
    (overview,) = await bench.service.queues.overviews()
    assert overview.throughput.processed_per_minute > 0
    assert (await bench.service.queues.statistics("old")).completed == 500_000
    for _ in range(2):
        bench.clock.advance(2 * 86_400)
        await bench.run(forget, None)
    steps = await bench.service.scope.look(history, Span(start - 3_600_000_000, bench.clock.now, 24 * 60))
    assert sum(work.completed for _, work in steps) == 500_000

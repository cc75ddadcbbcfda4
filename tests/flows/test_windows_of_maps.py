"""Maps of flows with a limited number of jobs at a time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from ojster import App, Flow, JobFailed
from ojster.handlers.flow_keeping import KeptFlows
from ojster.service import Service
from ojster.workflows.read.run_errors import result_of
from tests.conftest import Clock
from tests.flows.driver import NEVER, FlowBench

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(service: Service, clock: Clock, app: App) -> AsyncIterator[FlowBench]:
    bench = FlowBench(service, clock, app)
    bench.kept = KeptFlows()

    @app.job("double", retry=1)
    async def double(number: int) -> int:
        bench.done.append(str(number))
        if number < 0:
            raise ValueError("negative")
        return 2 * number

    @app.flow("all")
    async def run_all(flow: Flow, items: list[int], concurrency: int) -> list[int]:
        try:
            return await flow.map(double, items, concurrency=concurrency)
        except JobFailed:
            return []

    bench.note = run_all
    yield bench
    bench.kept.close()


def _open_jobs(tx: object, _: object) -> list[int]:
    query = "SELECT count(*) FROM jobs WHERE type = 'double' AND state IN ('available', 'active')"
    return [int(tx.execute(query)[0][0])]  # type: ignore[attr-defined]


@pytest.mark.parametrize("concurrency", [1, 5, 20])
async def test_at_most_so_many_jobs_are_there_at_a_time_and_the_results_are_in_order(
    bench: FlowBench, concurrency: int
) -> None:
    numbers, most = list(range(2 * concurrency + 3)), 0
    dice = random.Random(concurrency)
    await bench.start(bench.note.s(numbers, concurrency))
    for _ in range(500):
        if (info := await bench.look()).finished:
            break
        await bench.run_all_due()
        (open_jobs,) = await bench.service.database.run_many(_open_jobs, [0])
        most = max(most, open_jobs)
        jobs = await bench.claim(10)
        for job in dice.sample(jobs, len(jobs)):
            await bench.run_job(job)
    assert result_of(info) == [2 * number for number in numbers]
    assert concurrency * 0.8 <= most <= concurrency
    assert Counter(bench.done) == Counter(map(str, numbers))


async def test_a_map_goes_on_where_it_was_when_its_processes_die(bench: FlowBench) -> None:
    dice = random.Random(7)
    bench.when = lambda _: dice.choice(["before", "after", "lost", NEVER, NEVER, NEVER])
    await bench.start(bench.note.s(list(range(12)), 3))
    info = await bench.finish()
    assert result_of(info) == [2 * number for number in range(12)]
    assert Counter(bench.done) == Counter(map(str, range(12)))


async def test_a_job_that_fails_ends_the_map_and_no_further_ones_begin(bench: FlowBench) -> None:
    await bench.start(bench.note.s([1, -1, 2, 3, 4, 5, 6], 2))
    info = await bench.finish()
    assert (info.state, result_of(info)) == ("completed", [])
    assert len(bench.done) < 7


async def test_the_number_at_a_time_is_at_least_one(bench: FlowBench) -> None:
    await bench.start(bench.note.s([1], 0))
    info = await bench.finish()
    assert info.state == "failed"
    assert "concurrency is at least 1, not 0" in str(info.to_json())


async def test_a_map_of_nothing_has_no_steps(bench: FlowBench) -> None:
    await bench.start(bench.note.s([], 2))
    info = await bench.finish()
    assert (info.state, result_of(info), bench.done) == ("completed", [], [])

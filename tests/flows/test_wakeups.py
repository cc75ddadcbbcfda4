"""When flows go on: at the moment itself, without a look in between, and with few round trips to the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ojster import App, Flow, Retry
from ojster.handlers.flow_keeping import KeptFlows
from ojster.service import Service
from ojster.storage.postgres.pipeline import PipelineConnection
from ojster.workflows.read.run_errors import result_of
from tests.conftest import Clock
from tests.flows.driver import FlowBench

pytestmark = pytest.mark.anyio

SECOND = 1_000_000

DELAY = 3
"""Time that the flows wait, in seconds of the clock that the tests set."""


@pytest.fixture
async def bench(service: Service, clock: Clock, app: App) -> AsyncIterator[FlowBench]:
    bench = FlowBench(service, clock, app)
    bench.kept = KeptFlows()

    @app.job("double")
    async def double(number: int) -> int:
        return 2 * number

    @app.job("flaky", retry=Retry(max_attempts=2, initial_interval=DELAY, jitter=False))
    async def flaky() -> str:
        bench.done.append("tried")
        if len(bench.done) == 1:
            raise ValueError("not yet")
        return "done"

    @app.flow("waits")
    async def waits(flow: Flow, how: str) -> str:
        if how == "a sleep":
            await asyncio.sleep(DELAY)
        elif how == "a retry of a step":
            return await flow.run(flaky)
        else:
            try:
                async with asyncio.timeout(DELAY):
                    await flow.receive("never", str)
            except TimeoutError:
                return "done"
        return "done"

    @app.flow("all")
    async def run_all(flow: Flow, number: int, concurrency: int) -> int:
        return len(await flow.map(double, range(number), concurrency=concurrency))

    bench.note = {"waits": waits, "all": run_all}
    yield bench
    bench.kept.close()


@pytest.mark.parametrize("how", ["a sleep", "a retry of a step", "a timeout"])
async def test_a_flow_goes_on_at_the_moment_for_which_maintenance_waits(bench: FlowBench, how: str) -> None:
    await bench.start(bench.note["waits"].s(how))
    began = bench.clock.now
    await bench.work()
    due = await bench.run_due()
    assert due is not None
    assert abs(due - began - DELAY * SECOND) < SECOND // 100
    bench.clock.now = due - 1
    await bench.run_due()
    await bench.work()
    assert not (await bench.look()).finished
    bench.clock.now = due
    await bench.run_due()
    await bench.work()
    assert result_of(await bench.look()) == "done"


async def test_the_jobs_of_a_map_with_a_window_start_without_maintenance(bench: FlowBench) -> None:
    await bench.start(bench.note["all"].s(200, 50))
    await bench.work()
    assert result_of(await bench.look()) == 200


async def test_a_turn_that_asks_for_jobs_takes_nine_round_trips(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bench.service.database.kind != "postgres":
        pytest.skip("SQLite has no round trips")
    trips, counts = 0, []
    real, turn = PipelineConnection._results, bench.calls.turn

    def counted(self: PipelineConnection) -> Any:
        nonlocal trips
        trips += 1
        return real(self)

    async def counted_turn(item: Any) -> Any:
        nonlocal trips
        trips = 0
        answer = await turn(item)
        counts.append(trips)
        return answer

    await bench.start(bench.note["all"].s(40, 10))
    monkeypatch.setattr(PipelineConnection, "_results", counted)
    monkeypatch.setattr(bench.calls, "turn", counted_turn)
    await bench.work()
    monkeypatch.setattr(PipelineConnection, "_results", real)
    assert len(counts) > 2
    assert max(counts[1:]) <= 9, counts

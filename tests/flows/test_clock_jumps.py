"""The clock of the database is set, forward or back, while flows sleep, wait and hold deadlines."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from ojster import Flow, JobFailed
from ojster.workflows.run.fork import Fork
from tests.flows.driver import FlowBench
from tests.flows.test_broadcasts import tell
from tests.flows.test_flows import app, bench, result

__all__ = ["app", "bench"]

pytestmark = pytest.mark.anyio

HOUR = 3600.0
JUMPS = (HOUR, -HOUR)


async def jump(bench: FlowBench, seconds: float) -> None:
    """Set the clock, and do what is due by it."""
    bench.clock.advance(seconds)
    await bench.run_all_due()
    await bench.work()


@pytest.mark.parametrize("seconds", JUMPS)
async def test_a_flow_sleeps_until_the_clock_says_so_and_its_time_never_goes_back(
    bench: FlowBench, seconds: float
) -> None:
    @bench.app.flow("sleeper")
    async def sleeper(flow: Flow) -> bool:
        times = [flow.now]
        for pause in (600, 1, 600):
            await flow.sleep(pause)
            times.append(flow.now)
            await flow.step("same", str, pause)
            times.append(flow.now)
        return times == sorted(times)

    await bench.start(sleeper.s())
    await bench.work()
    begun = bench.clock.now
    await jump(bench, seconds)
    assert (await bench.look()).state == "running"
    await bench.finish()
    assert await result(bench) is True
    assert bench.clock.now >= begun + 1201 * 1_000_000


@pytest.mark.parametrize("seconds", JUMPS)
async def test_a_message_before_the_deadline_by_the_clock_is_in_time(bench: FlowBench, seconds: float) -> None:
    @bench.app.flow("patient")
    async def patient(flow: Flow) -> str:
        try:
            async with asyncio.timeout(2 * HOUR):
                return await flow.receive("go", str)
        except TimeoutError:
            return "late"

    await bench.start(patient.s())
    await bench.work()
    await jump(bench, seconds)
    await bench.send("go", "in time")
    assert await result(bench) == "in time"


async def test_a_deadline_that_a_jump_passes_is_over_once(bench: FlowBench) -> None:
    @bench.app.flow("late")
    async def late(flow: Flow) -> list[Any]:
        try:
            async with asyncio.timeout(60):
                return [await flow.receive("go", str)]
        except TimeoutError:
            return ["late", await flow.receive("go", str)]

    await bench.start(late.s())
    await bench.work()
    await jump(bench, HOUR)
    await jump(bench, -HOUR)
    await bench.send("go", "now")
    assert await result(bench) == ["late", "now"]


@pytest.mark.parametrize("seconds", JUMPS)
async def test_a_failure_after_a_jump_is_asked_for_again_by_a_retry(bench: FlowBench, seconds: float) -> None:
    @bench.app.job("unlucky", retry=1)
    async def unlucky(what: str) -> str:
        bench.done.append(what)
        if bench.done.count(what) == 1:
            raise ValueError(what)
        return what

    @bench.app.flow("both")
    async def both(flow: Flow) -> list[str]:
        first = asyncio.create_task(flow.run(unlucky, "first"))
        await flow.step("between", str, 1)
        await flow.sleep(1)
        await flow.receive("go")
        return [await first]

    await bench.start(both.s())
    await bench.run_job(await bench.fetch_one(worker_id="w1"))
    failing = await bench.fetch_one(worker_id="w1")
    bench.clock.advance(2)
    await bench.run_all_due()
    await bench.work()
    await jump(bench, seconds)
    await bench.run_job(failing)
    await bench.send("go", None)
    assert (await bench.finish()).state == "failed"
    await bench.service.workflows.retry(bench.id)
    assert await result(bench) == ["first"]


@pytest.mark.parametrize("seconds", JUMPS)
async def test_a_fork_keeps_what_the_flow_had_seen_whatever_the_clock_said(bench: FlowBench, seconds: float) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> list[Any]:
        told: list[Any] = [await flow.receive("a", int)]
        try:
            await flow.run(bench.breaks, "x")
        except JobFailed:
            told.append("failed")
        told.append(await flow.run(bench.note, "last"))
        return [*told, await flow.receive("b", int)]

    await bench.start(order.s())
    await bench.work()
    await bench.send("a", 1)
    await jump(bench, seconds)
    await bench.send("b", 2)
    await jump(bench, seconds)
    assert await result(bench) == [1, "failed", "LAST", 2]
    for step, keeps in (("a", []), ("break", ["a"]), ("note", ["a", "x"]), ("b", ["a", "x", "last"])):
        forked = await bench.service.workflows.fork(Fork(bench.id, step))
        bench.done.clear()
        bench.id, before = forked.id, bench.id
        assert await result(bench) == [1, "failed", "LAST", 2]
        assert bench.done == [what for what in ("x", "last") if what not in keeps]
        bench.id = before


@pytest.mark.parametrize("seconds", JUMPS)
@pytest.mark.parametrize("sees", [True, False])
async def test_a_flow_that_was_cancelled_after_a_jump_goes_on_when_it_is_retried(
    bench: FlowBench, seconds: float, sees: bool
) -> None:
    @bench.app.flow("careful")
    async def careful(flow: Flow) -> list[str]:
        first = await flow.run(bench.note, "first")
        await flow.receive("go")
        return [first, await flow.run(bench.note, "last")]

    await bench.start(careful.s())
    await bench.work()
    await jump(bench, seconds)
    await bench.service.workflows.cancel(bench.id)
    if not sees:
        await bench.service.workflows.terminate(bench.id)
    assert (await bench.finish()).state == "cancelled"
    await bench.service.workflows.retry(bench.id)
    await bench.work()
    await bench.send("go", None)
    assert await result(bench) == ["FIRST", "LAST"]
    assert bench.done == ["first", "last"]


@pytest.mark.parametrize("seconds", JUMPS)
async def test_a_flow_that_was_cancelled_after_a_jump_appends_nothing_twice(bench: FlowBench, seconds: float) -> None:
    @bench.app.flow("teller")
    async def teller(flow: Flow) -> None:
        flow.stream("said").append("hello")
        await flow.receive("go")

    await bench.start(teller.s())
    await bench.work()
    await jump(bench, seconds)
    await bench.service.workflows.cancel(bench.id)
    assert (await bench.finish()).state == "cancelled"
    await bench.service.workflows.retry(bench.id)
    await bench.send("go", None)
    await bench.finish()
    assert await bench.stream("said") == (["hello"], True)


@pytest.mark.parametrize("seconds", JUMPS)
@pytest.mark.parametrize("look_back", [0, 60])
async def test_a_flow_that_waits_gets_the_broadcasts_that_are_sent_after_a_jump(
    bench: FlowBench, seconds: float, look_back: float
) -> None:
    @bench.app.flow("listener")
    async def listener(flow: Flow) -> list[Any]:
        return [await flow.receive("payment", key=42, look_back=timedelta(seconds=look_back)) for _ in range(2)]

    await bench.start(listener.s())
    await bench.work()
    await jump(bench, seconds)
    assert await tell(bench, 1) == 1
    await bench.work()
    await jump(bench, seconds)
    assert await tell(bench, 2) == 1
    assert await result(bench) == [1, 2]


@pytest.mark.parametrize("seconds", JUMPS)
async def test_updates_and_streams_keep_their_order_through_a_jump(bench: FlowBench, seconds: float) -> None:
    @bench.app.flow("basket")
    async def basket(flow: Flow) -> list[int]:
        flow.state = []
        words = flow.stream("words", int)
        while len(flow.state) < 4:
            words.append(len(flow.state))
            await flow.sleep(1)
        return list(flow.state)

    @basket.update
    async def put(flow: Flow, item: int) -> int:
        await flow.run(bench.note, str(item))
        flow.state.append(item)
        return len(flow.state)

    await bench.start(basket.s())
    for item in range(4):
        await bench.work()
        await bench.service.flows.update(bench.id, "put", [item])
        await jump(bench, seconds)
    await bench.finish(HOUR)
    assert await result(bench) == [0, 1, 2, 3]
    said, _ = await bench.stream("words")
    assert said == sorted(said)

"""What becomes of flows that other flows run when those end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from ojster import App, Flow, JobCancelled
from ojster.service import Service
from tests.conftest import Clock
from tests.flows.driver import FlowBench
from tests.flows.test_flows import app

__all__ = ["app"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(service: Service, clock: Clock, app: App) -> FlowBench:
    bench = FlowBench(service, clock, app)

    @app.job("tidy")
    async def tidy(what: str) -> None:
        bench.done.append(what)

    bench.note = tidy
    return bench


def inner_of(bench: FlowBench) -> Any:
    @bench.app.flow("inner")
    async def inner(flow: Flow) -> str:
        try:
            answer: str = await flow.receive("answer", str)
            return answer
        finally:
            await flow.run(bench.note, "inner")

    return inner


async def test_a_flow_waits_for_a_flow_that_it_awaits(bench: FlowBench) -> None:
    inner = inner_of(bench)

    @bench.app.flow("outer")
    async def outer(flow: Flow) -> str:
        answer: str = await flow.run(inner)
        return answer

    await bench.start(outer.s())
    await bench.work()
    await bench.send("answer", "yes", step="1")
    assert (await bench.finish()).state == "completed"
    assert bench.done == ["inner"]


async def test_a_flow_that_nobody_awaits_any_more_is_cancelled_and_cleans_up_before_the_outer_one_is_finished(
    bench: FlowBench,
) -> None:
    inner = inner_of(bench)

    @bench.app.flow("outer")
    async def outer(flow: Flow) -> str:
        beside = asyncio.create_task(flow.run(inner))
        await flow.receive("end")
        return f"ended while {'it ran' if not beside.done() else 'it had ended'}"

    await bench.start(outer.s())
    await bench.work()
    await bench.send("end", None)
    (job,) = await bench.fetch()
    await bench.run_job(job)
    assert not (await bench.look()).finished
    info = await bench.finish()
    assert (info.state, bench.done) == ("completed", ["inner"])


async def test_a_flow_inside_a_cancelled_one_is_cancelled_and_cleans_up(bench: FlowBench) -> None:
    inner = inner_of(bench)

    @bench.app.flow("outer")
    async def outer(flow: Flow) -> str:
        answer: str = await flow.run(inner)
        return answer

    await bench.start(outer.s())
    await bench.work()
    assert (await bench.service.workflows.cancel(bench.id)).state == "cancelling"
    info = await bench.finish()
    assert (info.state, bench.done) == ("cancelled", ["inner"])


@pytest.mark.parametrize("stays", [True, False])
async def test_a_cancelled_flow_sees_its_own_cancellation_although_the_one_inside_has_ended_first(
    bench: FlowBench, stays: bool
) -> None:
    @bench.app.flow("inner")
    async def inner(flow: Flow) -> None:
        await flow.receive("answer")

    async def wait() -> None:
        if "cancelled" not in bench.done:
            bench.done.append("cancelled")
            while jobs := await bench.claim():  # the flow inside begins
                await bench.run_job(jobs[0])
            await bench.service.workflows.cancel(bench.id)
            while jobs := await bench.claim():  # and ends
                await bench.run_job(jobs[0])

    @bench.app.flow("outer")
    async def outer(flow: Flow) -> None:
        if stays:  # in its worker, where it gets to know what has ended in one turn
            await asyncio.gather(flow.step("wait", wait), _watched(flow.run(inner), bench.done))
        await _watched(flow.run(inner), bench.done)

    await bench.start(outer.s())
    if stays:
        (job,) = await bench.claim()
        await bench.run_job(job)
    else:
        await bench.work()
        await bench.service.workflows.cancel(bench.id)
        for job in sorted(await bench.claim(10), key=lambda claimed: claimed.type):
            await bench.run_job(job)
    assert (await bench.finish()).state == "cancelled"
    assert [what for what in bench.done if what != "cancelled"] == ["CancelledError"]


async def _watched(running: Awaitable[None], done: list[str]) -> None:
    try:
        await running
    except (JobCancelled, asyncio.CancelledError) as error:
        done.append(type(error).__name__)
        raise


async def test_a_flow_that_was_started_by_a_step_lives_on(bench: FlowBench) -> None:
    inner = inner_of(bench)
    own: list[str] = []

    async def start() -> str:
        own.append((await bench.service.workflows.create(inner.s().request())).id)
        return own[-1]

    @bench.app.flow("outer")
    async def outer(flow: Flow) -> str:
        return await flow.step("start", start)

    await bench.start(outer.s())
    assert (await bench.finish()).state == "completed"
    assert (await bench.service.workflows.show(own[0])).state == "running"

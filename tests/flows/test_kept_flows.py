"""Flows that wait for a moment stay in their worker, and go on there; that changes nothing but the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest

from ojster import App, Depends, Flow, Worker
from ojster.handlers import flow_keeping
from ojster.handlers.flow_keeping import KeptFlows
from ojster.jobs.messages import hand_back
from ojster.service import Service
from ojster.workflows.flow import FlowRecords, NewRecord, Turn
from ojster.workflows.read.run_errors import result_of
from tests.conftest import Clock
from tests.flows.driver import FlowBench
from tests.serving import serving
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(service: Service, clock: Clock, app: App) -> AsyncIterator[FlowBench]:
    bench = FlowBench(service, clock, app)
    bench.kept = KeptFlows()

    @app.job("double")
    async def double(number: int) -> int:
        return 2 * number

    @app.flow("loop")
    async def loop(flow: Flow, count: int) -> int:
        bench.done.append("begins")
        total = 0
        for number in range(count):
            total += await flow.run(double, number)
            total += await flow.step("add", _one)
        return total

    bench.note = loop
    yield bench
    bench.kept.close()


def _one() -> int:
    return 1


async def _hold(bench: FlowBench) -> None:
    """Run the flow until it waits, and then its job."""
    for _ in range(2):
        (job,) = await bench.claim()
        await bench.run_job(job)


async def test_a_kept_flow_goes_on_without_running_again_and_reads_each_end_once(bench: FlowBench) -> None:
    read: list[int] = []
    records = bench.service.flows.records

    async def counted(job_id: str, after: int | None = None) -> FlowRecords:
        answer = await records(job_id, after)
        read.append(len(answer.records))
        return answer

    bench.calls.records = counted  # type: ignore[method-assign]
    await bench.start(bench.note.s(20))
    info = await bench.finish()
    assert result_of(info) == 2 * sum(range(20)) + 20
    assert bench.done == ["begins"]
    assert read == [0, *[1] * 20]
    assert len(bench.kept or ()) == 0


async def test_a_turn_gets_only_what_has_ended_since_the_last_end_that_its_worker_knows(bench: FlowBench) -> None:
    @bench.app.flow("three")
    async def three(flow: Flow) -> list[str]:
        return [await flow.receive("a") for _ in range(3)]

    await bench.start(three.s())
    await bench.send("a", 1)
    (job,) = await bench.claim()
    ended: list[FlowRecords] = []
    for key in ("a", "a#2"):
        record = NewRecord(key, "receive", "a", job.created_at)
        known = max((record.number or 0 for answer in ended for record in answer.records), default=0)
        turn = Turn(job.id, "w1", 1, records=(record,), suspends=True, ended=known)
        ended.append(await bench.service.flows.turn(turn))
        await bench.send("a", 2)
    assert [[record.key for record in answer.records] for answer in ended] == [["a"], ["a#2"]]
    assert not any(answer.suspended for answer in ended)
    later = await bench.service.flows.records(job.id, 1)
    assert [(record.key, record.number) for record in later.records] == [("a#2", 2)]
    assert {record.key for record in (await bench.service.flows.records(job.id)).records} == {"a", "a#2"}


async def test_a_kept_flow_that_another_worker_has_run_meanwhile_runs_again(bench: FlowBench) -> None:
    await bench.start(bench.note.s(4))
    first, second = KeptFlows(), KeptFlows()
    for bench.kept in (first, second, first, second):
        await _hold(bench)
    info = await bench.finish()
    assert result_of(info) == 2 * sum(range(4)) + 4
    assert len(bench.done) == 4
    for kept in (first, second):
        kept.close()


async def test_a_kept_flow_runs_again_if_a_worker_that_had_it_meanwhile_has_died(bench: FlowBench) -> None:
    await bench.start(bench.note.s(2))
    kept = bench.kept
    await _hold(bench)
    bench.kept, crashes = KeptFlows(), iter(["after"])
    bench.when = lambda _: next(crashes, "never")  # after the local step, which nobody else knows
    (job,) = await bench.claim()
    await bench.run_job(job)
    bench.kept = kept
    info = await bench.finish()
    assert result_of(info) == 2 * sum(range(2)) + 2
    assert len(bench.done) == 3


async def test_a_flow_that_was_only_handed_back_meanwhile_runs_again(bench: FlowBench) -> None:
    await bench.start(bench.note.s(1))
    await _hold(bench)
    (job,) = await bench.claim()
    await bench.service.jobs.release([hand_back(job, "w1")])
    assert result_of(await bench.finish()) == 1
    assert bench.done == ["begins", "begins"]


async def test_flows_that_await_no_job_go_first_when_there_is_no_room(bench: FlowBench) -> None:
    @bench.app.flow("listens")
    async def listens(flow: Flow) -> None:
        bench.done.append("listens")
        await flow.receive("a")

    ids = []
    bench.kept = KeptFlows(most=2)
    for flow in (bench.note.s(1), listens.s(), bench.note.s(1)):
        await bench.start(flow)
        ids.append(bench.id)
    for job in await bench.claim(3):
        await bench.run_job(job)
    bench.done.clear()
    bench.id = ids[1]
    await bench.send("a", 1)
    for bench.id in ids:
        await bench.finish()
    assert bench.done == ["listens"]


async def test_what_is_kept_has_bounds_of_memory_and_time(bench: FlowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.kept = KeptFlows(most_bytes=10)
    await bench.start(bench.note.s(1))
    await _hold(bench)
    assert len(bench.kept) == 0
    monkeypatch.setattr(flow_keeping, "KEPT_SECONDS", 0.0)
    bench.kept = KeptFlows()
    await bench.start(bench.note.s(1))
    job = (await bench.claim(10))[-1]
    await bench.run_job(job)
    assert len(bench.kept) == 1
    while len(bench.kept):
        await asyncio.sleep(0)
    assert bench.kept._bytes == 0


async def test_a_kept_function_sees_the_job_and_the_context_of_the_present_attempt(bench: FlowBench) -> None:
    attempt: ContextVar[int] = ContextVar("attempt")
    own: ContextVar[str] = ContextVar("own", default="")
    seen: list[Any] = []

    @bench.app.flow("looks")
    async def looks(flow: Flow, double: Any) -> None:
        stream, job = flow.job.stream("lines"), flow.job
        own.set("mine")
        for number in range(3):
            seen.append((attempt.get(), own.get(), job.job.started_at == flow.job.job.started_at))
            await flow.step("append", stream.aappend, number)
            await flow.receive("go")

    run_job = bench.run_job

    async def counted(job: Any) -> None:
        attempt.set(len(seen))
        await run_job(job)

    bench.run_job = counted  # type: ignore[method-assign]
    await bench.start(looks.s(0))
    for _ in range(3):
        await bench.work()
        await bench.send("go", None)
    await bench.finish()
    assert seen == [(0, "mine", True), (1, "mine", True), (2, "mine", True)]
    assert (await bench.stream("lines"))[0] == [0, 1, 2]


async def test_a_flow_that_its_worker_stops_when_it_has_just_left_is_kept(bench: FlowBench) -> None:
    await bench.start(bench.note.s(1))
    (job,) = await bench.claim()
    running = asyncio.create_task(bench.run_job(job))
    turn = bench.calls.turn

    async def stopped(item: Turn) -> FlowRecords:
        answer = await turn(item)
        running.cancel()
        return answer

    bench.calls.turn = stopped  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await running
    bench.calls.turn = turn  # type: ignore[method-assign]
    assert result_of(await bench.finish()) == 1
    assert bench.done == ["begins"]


async def test_a_function_with_dependencies_is_not_kept(app: App) -> None:
    opened: list[int] = []

    def resource() -> int:
        opened.append(1)
        return len(opened)

    @app.job("nothing")
    async def nothing() -> None: ...

    @app.flow("depends")
    async def depends(flow: Flow, number: int = Depends(resource)) -> int:
        await flow.run(nothing)
        return number

    run = await depends.astart()
    await Worker(app).run(until_empty=True)
    assert await run.aresult(PATIENCE) == 2


async def test_a_worker_keeps_flows_also_of_a_server(service: Service, url: str) -> None:
    async with serving(service) as (_, port):
        for at in (url, f"http://127.0.0.1:{port}"):
            app, begun = App(at), [0]

            @app.job("next")
            async def following(number: int) -> int:
                return number + 1

            @app.flow("count")
            async def count(flow: Flow, begun: list[int] = begun) -> int:
                begun[0] += 1
                number = 0
                for _ in range(5):
                    number = await flow.run(following, number)
                return number

            run = await count.astart()
            await Worker(app).run(until_empty=True)
            assert await run.aresult(PATIENCE) == 5
            assert begun == [1]
            await app.aclose()

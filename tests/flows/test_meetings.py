"""Flows meet what holds, limits and orders jobs: each promise holds while they run, wait and go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from msgspec import Raw

from ojster import App, Flow, RateLimit, Unique, Worker, chain
from ojster.core.job import Job
from ojster.jobs.claim import claim
from ojster.jobs.claim_policy import Claim
from ojster.queues.wire import QueueConfigBody
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.transaction import Transaction
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.flow import NewRecord, Turn
from ojster.workflows.run.steps import StepAddress
from tests.client.test_enqueue_in_transaction import parts
from tests.flows.driver import NEVER, FlowBench
from tests.flows.test_flows import app, bench, result
from tests.waiting import PATIENCE

__all__ = ["app", "bench"]

pytestmark = pytest.mark.anyio


def declare(bench: FlowBench, **options: Any) -> Any:
    """A flow that awaits a job, a message and a time."""

    @bench.app.flow("order", **options)
    async def order(flow: Flow, number: int = 1) -> list[Any]:
        told = [await flow.run(bench.note, f"first {number}"), await flow.receive("go", int)]
        await flow.sleep(60)
        return [*told, await flow.run(bench.note, f"last {number}")]

    return order


ENDED = ["FIRST 1", 7, "LAST 1"]


async def test_a_paused_queue_holds_a_flow_that_could_go_on_and_loses_nothing(bench: FlowBench) -> None:
    await bench.start(declare(bench).s())
    await bench.work()
    await bench.service.queues.pause("default")
    await bench.send("go", 7)
    bench.clock.advance(3600)
    await bench.run_all_due()
    await bench.work()
    assert bench.done == ["first 1"]
    assert (await bench.look()).state == "running"
    await bench.service.queues.resume("default")
    assert await result(bench) == ENDED


async def test_maintenance_mode_holds_flows_and_their_deadlines_and_takes_messages(bench: FlowBench) -> None:
    @bench.app.flow("late")
    async def late(flow: Flow) -> list[Any]:
        try:
            async with asyncio.timeout(60):
                await flow.receive("never")
        except TimeoutError:
            return ["late", await flow.receive("go", int)]
        return []

    await bench.start(late.s())
    await bench.work()
    await bench.service.maintenance.switch_mode(True)
    bench.clock.advance(3600)
    await bench.run_all_due()
    await bench.send("go", 7)
    await bench.work()
    assert (await bench.look()).state == "running"
    await bench.service.maintenance.switch_mode(False)
    assert await result(bench) == ["late", 7]


OPTIONS: dict[str, dict[str, Any]] = {
    "one place in the queue": {},
    "one start an hour": {"rate_limit": RateLimit(key="orders", rate=(1, 3600))},
    "one start an hour, or dropped": {"rate_limit": RateLimit(key="orders", rate=(1, 3600), on_limit="drop")},
    "one at a time": {"rate_limit": RateLimit(key="orders", concurrency=1)},
    "a short run time": {"timeout": 1},
    "a late start is none": {"expires_in": 5},
    "unique": {"unique": Unique()},
}
"""Options of flows that say something about starts and runs."""


@pytest.mark.parametrize("what", OPTIONS)
async def test_what_limits_the_start_of_a_flow_does_not_hold_it_when_it_goes_on(bench: FlowBench, what: str) -> None:
    if what == "one place in the queue":
        await bench.service.queues.configure("default", QueueConfigBody(concurrency=1))
    await bench.start(declare(bench, **OPTIONS[what]).s())
    await bench.work()
    assert bench.done == ["first 1"]
    bench.clock.advance(10)
    await bench.run_all_due()
    await bench.send("go", 7)
    await bench.work()
    bench.clock.advance(60)
    await bench.run_all_due()
    await bench.work()
    assert (await bench.look()).state == "completed"
    assert await result(bench) == ENDED


@pytest.mark.parametrize("how", ["its worker dies", "it is handed back", "its server is away"])
@pytest.mark.parametrize("what", [*OPTIONS, "one at a time, or dropped"])
async def test_what_limits_the_start_of_a_flow_does_not_hold_it_when_it_runs_again(
    bench: FlowBench, what: str, how: str
) -> None:
    if what == "one place in the queue":
        await bench.service.queues.configure("default", QueueConfigBody(concurrency=1))
    one_or_none = {"rate_limit": RateLimit(key="orders", concurrency=1, on_limit="drop")}

    @bench.app.flow("order", **OPTIONS.get(what, one_or_none))
    async def order(flow: Flow) -> list[Any]:
        return [await flow.step(name, str, name) for name in ("first", "second")]

    await bench.start(order.s())
    if how == "its worker dies":
        (job,) = await bench.service.jobs.fetch(Claim(("default",), 1, "w1", 1_000_000))
        first = NewRecord("first", "step", "first", bench.clock.now, ended_at=bench.clock.now, result=Raw(b'"first"'))
        await bench.service.flows.turn(Turn(job.id, "w1", job.attempt, job.started_at, (first,)))
    else:
        (job,) = await bench.claim()
        bench.when = lambda _: "after" if how == "it is handed back" else "lost"
        await bench.run_job(job)
        bench.when = lambda _: NEVER
    for _ in range(3):
        await bench.run_due(10)
    if what == "one at a time, or dropped":
        other = await bench.push("note", "other", priority=1, **one_or_none)
        (taken,) = await bench.claim()
        assert taken.id == other.id
        await bench.work()  # there is no room
        await bench.run_job(taken)
    assert await result(bench) == ["first", "second"]


async def test_a_second_run_of_a_unique_flow_is_refused_also_while_the_first_waits(bench: FlowBench) -> None:
    order = declare(bench, unique=Unique())
    first = (await bench.start(order.s())).id
    await bench.work()
    second = await bench.start(order.s())
    assert (second.state, b"duplicate" in second.to_json()) == ("failed", True)
    bench.id = first
    await bench.send("go", 7)
    assert await result(bench) == ENDED
    await bench.start(order.s())
    await bench.work()
    assert (await bench.look()).state == "running"


@pytest.mark.parametrize("when", ["while it waits", "while it sleeps", "before it starts"])
async def test_a_flow_ends_when_its_total_timeout_is_over(bench: FlowBench, when: str) -> None:
    await bench.start(declare(bench, total_timeout=100).s())
    if when != "before it starts":
        await bench.work()
    if when == "while it sleeps":
        bench.clock.advance(90)
        await bench.send("go", 7)
        await bench.work()
    await bench.run_due(101)
    await bench.run_all_due()
    info = await bench.look()
    assert (info.state, b"total_timeout" in info.to_json()) == ("failed", True)


async def test_flows_that_wait_hold_no_place_of_a_limit(bench: FlowBench) -> None:
    order = declare(bench, rate_limit=RateLimit(key="orders", concurrency=1))
    ids = [(await bench.start(order.s(number))).id for number in range(3)]
    await bench.work()
    assert bench.done == [f"first {number}" for number in range(3)]
    for bench.id in ids:
        await bench.send("go", 7)
        assert (await bench.finish()).state == "completed"


@pytest.mark.parametrize("what", ["the workflow", "the step"])
async def test_a_flow_that_is_cancelled_while_a_claim_starts_it_cleans_up(
    bench: FlowBench, url: str, what: str
) -> None:
    if bench.service.database.kind != "postgres":
        pytest.skip("SQLite has one transaction at a time")

    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        async with flow.compensation() as undo:
            undo.add(bench.note, "refund")
            await flow.step("charge", bench.done.append, "charge")
            await flow.receive("never")

    claimed, may_commit = threading.Event(), threading.Event()

    def claim_slowly(tx: Transaction, claims: Sequence[Claim]) -> list[list[Job]]:
        jobs = claim(tx, claims)
        claimed.set()
        may_commit.wait(PATIENCE)
        return jobs

    await bench.start(chain(bench.note.s("first"), order.s()))
    (first,) = await bench.claim()
    await bench.run_job(first)
    other = Service(open_database(url))
    other.database.clock = bench.service.database.clock
    claiming = asyncio.create_task(other.database.run(claim_slowly, Claim(("default",), 1, "w1")))
    await asyncio.to_thread(claimed.wait, PATIENCE)
    workflows = bench.service.workflows
    call = workflows.cancel(bench.id) if what == "the workflow" else workflows.cancel_step(StepAddress(bench.id, "1"))
    cancelling = asyncio.create_task(call)
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(**parts(), autocommit=True) as connection:  # type: ignore[arg-type]  # all are strings
        while not cancelling.done() and not connection.execute(waiting).fetchall():
            await asyncio.sleep(0.01)
    may_commit.set()
    (job,) = await claiming
    await asyncio.wait_for(cancelling, PATIENCE)
    await bench.run_job(job)
    assert (await bench.finish()).state == "cancelled"
    assert bench.done[-1] == "refund"
    await other.close()


async def test_a_flow_goes_on_with_the_priority_that_it_was_started_with(bench: FlowBench) -> None:
    await bench.start(declare(bench, priority=5).s())
    await bench.work()
    await bench.push("note", "other", priority=3)
    await bench.send("go", 7)
    assert (await bench.fetch_one(worker_id="w1")).type == "order"


@pytest.mark.parametrize("grace", [0.0, PATIENCE])
async def test_a_worker_that_stops_hands_on_its_flow_and_all_that_it_has_recorded(url: str, grace: float) -> None:
    app = App(url, migrate=True)
    begun, may_end = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    @app.job("other")
    async def other() -> str:
        return "other"

    async def first() -> str:
        done.append("first")
        return "first"

    async def second() -> str:
        done.append("second")
        begun.set()
        await may_end.wait()
        return "second"

    @app.flow("long")
    async def long(flow: Flow) -> list[str]:
        return [await flow.step("first", first), await flow.step("second", second), await flow.run(other)]

    run = await long.astart()
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await begun.wait()
    worker.stop(grace=grace)
    if grace:
        may_end.set()
    await running
    may_end.set()
    await Worker(app).run(until_empty=True)
    assert await run.aresult(PATIENCE) == ["first", "second", "other"]
    assert done == ["first", "second"] + ["second"] * (not grace)
    (step, _) = run.info.walk()
    assert (await app.client().jobs.find(step.job_id or "")).errors in (None, b"[]", [])
    await app.aclose()


async def test_nothing_of_a_flow_is_left_when_its_retention_is_over(bench: FlowBench) -> None:
    @bench.app.flow("everything")
    async def everything(flow: Flow) -> None:
        flow.publish(1)
        flow.stream("words").append("a")
        await flow.step("local", str, 1)
        await flow.run(bench.note, "a")
        await flow.receive("news", key=1, look_back=60)
        await flow.receive("go", int)

    @everything.update
    async def put(flow: Flow, item: int) -> int:
        return item

    await bench.start(everything.s(), expiration_delay=1)
    await bench.service.flows.broadcast(Broadcast("news", "1", b"1"))
    await bench.service.flows.update(bench.id, "put", [1])
    await bench.send("go", 7)
    assert (await bench.finish()).state == "completed"
    bench.clock.advance(3600)
    for _ in range(5):
        await bench.service.maintenance.prune()
    assert await bench.run(_rows, None) == dict.fromkeys(TABLES, 0)


TABLES = (
    *("flow_records", "flow_messages", "streams", "stream_chunks", "broadcast_receivers"),
    *("nodes", "node_specs", "workflows", "jobs", "payloads"),
)


def _rows(tx: Transaction, asked: Sequence[None]) -> list[dict[str, int]]:
    return [{table: tx.execute(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES} for _ in asked]

"""Broadcasts: messages that all flows receive which wait for a name and a key."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from ojster import App, Flow
from ojster.cli.main import cli
from ojster.core.access import Access, Operation
from ojster.core.errors import BackendUnavailable, Conflict, Forbidden, InvalidRequest, PayloadTooLarge
from ojster.handlers.flow_export import export_flow
from ojster.jobs.scope import Caller
from ojster.service import Service
from ojster.storage.sqlite.transaction import SqliteTransaction
from ojster.testing import JobTester, areplay, crash_everywhere
from ojster.workflows import broadcast as limits
from ojster.workflows.broadcast import Broadcast
from ojster.workflows.flow import MAX_MESSAGE_BYTES
from ojster.workflows.read import run_errors
from ojster.workflows.run import broadcasts
from ojster.workflows.run.fork import Fork
from tests.conftest import Http
from tests.flows.driver import NEVER, FlowBench
from tests.flows.test_flows import app, bench, result
from tests.serving import serving
from tests.waiting import PATIENCE
from tests.worker.test_worker import working

__all__ = ["app", "bench"]

pytestmark = pytest.mark.anyio


def declare(app: App, **options: Any) -> Any:
    @app.flow("order")
    async def order(flow: Flow, number: int | str) -> Any:
        return await flow.receive("payment", key=number, **options)

    return order


async def tell(bench: FlowBench, data: Any, key: str = "42", **more: Any) -> int:
    return await bench.service.flows.broadcast(Broadcast("payment", key, msgspec.json.encode(data), **more))


async def ended(bench: FlowBench, id: str) -> Any:
    """Return the result of a flow, or its state."""
    info = await bench.service.workflows.show(id)
    return run_errors.result_of(info) if info.state == "completed" else info.state


async def test_a_broadcast_reaches_all_flows_that_wait_for_its_name_and_key(bench: FlowBench) -> None:
    order = declare(bench.app)

    @bench.app.flow("delivery")
    async def delivery(flow: Flow) -> list[Any]:
        return [await flow.receive("delivery", key=42), await flow.receive("payment")]

    waiting = [(await bench.start(order.s(number))).id for number in (42, "42", 43)]
    other = (await bench.start(delivery.s())).id
    await bench.work()
    assert await tell(bench, "paid") == 2
    await bench.work()
    assert [await ended(bench, id) for id in waiting] == ["paid", "paid", "running"]
    assert await ended(bench, other) == "running"
    assert await tell(bench, "paid") == 0, "nobody waits any more"


@pytest.mark.parametrize("early", [1, 3599, 3601])
async def test_a_flow_looks_back_as_long_as_it_says(bench: FlowBench, early: int) -> None:
    order = declare(bench.app, look_back=timedelta(hours=1), timeout=10)
    await tell(bench, "early")
    bench.clock.advance(early)
    await bench.start(order.s(42))
    await bench.work()
    assert (await bench.look()).state == ("completed" if early < 3600 else "running")


async def test_without_a_look_back_only_what_is_sent_afterwards_is_received(bench: FlowBench) -> None:
    await tell(bench, "early")
    bench.clock.advance(1)
    await bench.start(declare(bench.app).s(42))
    await bench.work()
    assert (await bench.look()).state == "running"
    await tell(bench, "late")
    assert await result(bench) == "late"


async def test_a_flow_that_waits_again_has_missed_nothing_and_receives_each_once(bench: FlowBench) -> None:
    @bench.app.flow("loop")
    async def loop(flow: Flow) -> list[Any]:
        received = [await flow.receive("payment", key=42)]
        await flow.sleep(100)
        received += await flow.receive_many("payment", key=42, look_back=60)
        received.append(await flow.receive("payment", key=42))
        return received

    await bench.start(loop.s())
    await bench.work()
    for number in (1, 2, 3):
        await tell(bench, number)
        bench.clock.advance(1)
    await bench.work()
    bench.clock.advance(200)
    await bench.run_all_due()
    await bench.work()
    assert (await bench.look()).state == "running"
    await tell(bench, 4)
    assert await result(bench) == [1, 2, 3, 4]


async def test_a_timeout_gives_up_the_wait_but_not_the_message(bench: FlowBench) -> None:
    @bench.app.flow("patient")
    async def patient(flow: Flow) -> list[Any]:
        received = []
        for _ in range(2):
            try:
                received.append(await flow.receive("payment", key=42, timeout=10))
            except TimeoutError:
                received.append("timeout")
                await flow.run(bench.note, "remind")
        return received

    await bench.start(patient.s())
    await bench.work()
    bench.clock.advance(11)
    await bench.run_all_due()
    await tell(bench, "between")
    assert await result(bench) == ["timeout", "between"]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("given_up", [[0], [1], [0, 1], [0, 2], [1, 2]])
async def test_a_wait_that_is_given_up_loses_nothing_to_those_beside_it(
    bench: FlowBench, given_up: list[int], restarts: bool
) -> None:
    @bench.app.flow("beside")
    async def beside(flow: Flow, received: list[int]) -> list[int]:
        if not received:
            waits = [asyncio.ensure_future(flow.receive("payment", int, key=42)) for _ in range(3)]
            await flow.receive("go")
            for place in given_up:
                waits[place].cancel()
            results = await asyncio.gather(*waits, return_exceptions=True)
            received = [result for result in results if isinstance(result, int)]
            if restarts:
                await flow.restart(received)
        while len(received) < 4:
            received += await flow.receive_many("payment", int, key=42)
        return received

    await bench.start(beside.s([]))
    await bench.work()
    await bench.send("go", None)
    for number in range(4):
        await tell(bench, number)
    kept = [number for number in range(3) if number not in given_up]
    assert await result(bench) == [*kept, *given_up, 3]


@pytest.mark.parametrize("when", ["before", "after", "lost"])
async def test_each_is_received_once_wherever_the_process_dies(bench: FlowBench, when: str) -> None:
    @bench.app.flow("two")
    async def two(flow: Flow) -> list[Any]:
        first = await flow.receive("payment", key=42)
        await flow.run(bench.note, "a")
        return [first, await flow.receive("payment", key=42)]

    for place in range(5):
        bench.when = partial(lambda place, number: when if number == place else NEVER, place)
        bench.calls.count = 0
        await bench.start(two.s())
        await bench.work()
        bench.clock.advance(2)
        await bench.run_all_due()
        await bench.work()
        await tell(bench, 1)
        bench.clock.advance(1)
        await tell(bench, 2)
        bench.clock.advance(1)
        assert await result(bench) == [1, 2], place


async def test_the_same_idempotency_key_sends_once(bench: FlowBench) -> None:
    order = declare(bench.app)
    await bench.start(order.s(42))
    await bench.work()
    assert await tell(bench, "paid", idempotency_key="k") == 1
    await bench.work()
    bench.clock.advance(1)
    await bench.start(order.s(42))
    await bench.work()
    assert await tell(bench, "paid again", idempotency_key="k") == 1, "what it has reached then"
    assert (await bench.look()).state == "running"
    assert await tell(bench, "other", "43", idempotency_key="k") == 0, "the key belongs to the name and the key"


async def test_only_flows_of_the_same_tenant_get_it(bench: FlowBench) -> None:
    order = declare(bench.app)
    acme, other = (bench.service.as_(Caller(tenant)) for tenant in ("acme", "other"))
    ids = [(await service.workflows.create(order.s(42).request())).id for service in (acme, other, bench.service)]
    await bench.work()
    assert await acme.flows.broadcast(Broadcast("payment", "42", b'"of acme"')) == 1
    await bench.work()
    assert [await ended(bench, id) for id in ids] == ["of acme", "running", "running"]
    assert await tell(bench, "of nobody") == 1


async def test_what_cannot_be_sent_is_refused(bench: FlowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    flows = bench.service.flows
    with pytest.raises(InvalidRequest, match="do not begin"):
        await flows.broadcast(Broadcast("!put", "42", b"1"))
    with pytest.raises(PayloadTooLarge):
        await tell(bench, "x" * MAX_MESSAGE_BYTES)
    access = Access("p", frozenset({Operation.ENQUEUE}), ("mail",))
    with pytest.raises(Forbidden):
        await bench.service.as_(Caller(None, access)).flows.broadcast(Broadcast("payment", "42", b"1"))
    monkeypatch.setattr(broadcasts, "MAX_BROADCASTS", 2)
    for _ in range(2):
        await tell(bench, 1)
    with pytest.raises(Conflict, match="the maximum is 2"):
        await tell(bench, 1)
    assert await tell(bench, 1, "43") == 0


async def test_a_wrong_wait_is_an_error_of_the_function(bench: FlowBench) -> None:
    @bench.app.flow("wrong")
    async def wrong(flow: Flow) -> int:
        for wait in (
            {"look_back": 1},
            {"key": "", "look_back": 1},
            {"key": "x" * 256},
            {"key": True},
            {"key": 1, "look_back": timedelta(days=8)},
        ):
            with pytest.raises(ValueError, match=r"key|looks back"):
                await flow.receive("payment", **wait)
        return 1

    await bench.start(wrong.s())
    assert await result(bench) == 1


async def test_a_flow_that_asks_for_another_key_has_changed(bench: FlowBench) -> None:
    keys = ["42"]

    @bench.app.flow("changing")
    async def changing(flow: Flow) -> None:
        await flow.receive("payment", key=keys[-1])

    await bench.start(changing.s())
    await bench.work()
    keys.append("43")
    await tell(bench, 1)
    ended = await bench.finish()
    assert (ended.state, b"FlowChanged" in ended.to_json()) == ("failed", True)


async def test_a_broadcast_whose_sender_has_died_is_delivered_by_due_work_in_parts(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasts, "MAX_REACHED_AT_ONCE", 2)
    order = declare(bench.app)
    ids = [(await bench.start(order.s(42))).id for _ in range(5)]
    await bench.work()
    number = await bench.run(broadcasts.store, Broadcast("payment", "42", b"1"))
    assert isinstance(number, int)
    assert (await bench.run(broadcasts.deliver, number)).flows == 2
    await bench.run_all_due()
    await bench.work()
    assert [await ended(bench, id) for id in ids] == [1, 1, "running", "running", "running"], "it may yet be done"
    bench.clock.advance(6)
    await bench.run_all_due()
    await bench.work()
    assert [await ended(bench, id) for id in ids] == [1] * 5
    assert await bench.run(broadcasts.deliver, number) == (5, False)


async def test_none_is_missed_that_is_sent_while_the_flow_begins_to_wait(bench: FlowBench) -> None:
    """Neither sees what the other has not committed: without the lock of the topic both would pass by."""

    @bench.app.flow("listener")
    async def listener(flow: Flow, number: int) -> list[int]:
        return [await flow.receive("payment", int, key=42) for _ in range(10)]

    runs = [(await bench.start(listener.s(number))).id for number in range(3)]
    await bench.work()

    async def send_all() -> None:
        for number in range(10):
            await tell(bench, number)

    async def work_on() -> None:
        for _ in range(30):
            await bench.work()

    await asyncio.gather(send_all(), work_on(), work_on())
    await bench.work()
    assert [await ended(bench, id) for id in runs] == [list(range(10))] * 3


async def test_waiting_flows_and_their_broadcasts_are_found_by_indexes(bench: FlowBench, url: str) -> None:
    if not url.startswith("sqlite"):
        pytest.skip("so small a table is always read as a whole on PostgreSQL")
    plans = await bench.run(_plans, None)
    assert [line for line in plans if "SCAN" in line] == []
    for index in ("broadcast_receivers_waiting", "broadcasts_topic", "broadcast_receivers_topic", "nodes"):
        assert any(index in line or "n USING INTEGER PRIMARY KEY" in line for line in plans), index


def _plans(tx: Any, _: Any) -> list[list[str]]:
    values = {"topic": "t", "reached": 0, "since": 0, "flow": 1, "most": 1}
    lines = []
    for statement in (broadcasts.WAITING, broadcasts.NEXT):
        named = {name: value for name, value in values.items() if f":{name}" in statement}
        lines += [str(row[-1]) for row in tx.execute(f"EXPLAIN QUERY PLAN {statement}", named)]
    return [lines]


async def test_broadcasts_are_deleted_after_a_week_and_receivers_with_their_flow(bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s(42), expiration_delay=1)
    await bench.work()
    await tell(bench, 1)
    await bench.work()
    bench.clock.advance(100)
    await bench.service.maintenance.prune()
    assert [await bench.run(_count, table) for table in ("broadcasts", "broadcast_receivers")] == [1, 0]
    bench.clock.advance(limits.MAX_LOOK_BACK / 1e6)
    await bench.service.maintenance.prune()
    assert await bench.run(_count, "broadcasts") == 0


def _count(tx: Any, tables: Any) -> list[int]:
    return [tx.execute(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


async def test_a_flow_that_was_terminated_gets_nothing(bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s(42))
    await bench.work()
    await bench.service.workflows.cancel(bench.id, stop_active=True)
    assert await tell(bench, 1) == 0


async def test_a_retried_flow_waits_again(bench: FlowBench) -> None:
    broken = [True]

    @bench.app.job("check", retry=1)
    async def check() -> None:
        bench.clock.advance(1)
        if broken:
            raise ValueError("broken")

    @bench.app.flow("retried")
    async def retried(flow: Flow) -> list[Any]:
        first = await flow.receive("payment", key=42)
        async with asyncio.TaskGroup() as tasks:
            waits = tasks.create_task(flow.receive("payment", key=42))
            await flow.run(check)
        return [first, waits.result()]

    await bench.start(retried.s())
    await bench.work()
    await tell(bench, 1)
    await bench.work()
    assert (await bench.look()).state == "failed"
    await tell(bench, 2)
    broken.clear()
    await bench.service.workflows.retry(bench.id)
    assert await result(bench) == [1, 2]


@pytest.mark.parametrize("how", ["the job is cancelled", "the run is cancelled", "the run is terminated"])
async def test_a_retried_flow_receives_what_was_sent_after_its_end(bench: FlowBench, how: str) -> None:
    @bench.app.flow("listener")
    async def listener(flow: Flow) -> list[Any]:
        first = await flow.receive("payment", key=42)
        return [first, await flow.receive("payment", key=42)]

    await bench.start(listener.s())
    await bench.work()
    await tell(bench, 1)
    await bench.work()
    bench.clock.advance(1)
    if how == "the job is cancelled":
        (job_id,) = [step.job_id for step in (await bench.look()).walk() if step.job_id]
        await bench.service.jobs.cancel(job_id)
    else:
        await bench.service.workflows.cancel(bench.id, stop_active=how == "the run is terminated")
        await bench.work()
    bench.clock.advance(1)
    assert await tell(bench, 2) == 0
    bench.clock.advance(1)
    await bench.service.workflows.retry(bench.id)
    await bench.work()
    assert (await bench.look()).state == "completed"
    assert await result(bench) == [1, 2]


@pytest.mark.parametrize(("step", "received"), [("note", [1, 2]), ("payment#2", [1, 2]), (None, [1, 2])])
async def test_a_fork_keeps_what_was_received_and_gets_the_rest_again(
    bench: FlowBench, step: str | None, received: list[int]
) -> None:
    @bench.app.flow("forked")
    async def forked(flow: Flow) -> list[int]:
        first = await flow.receive("payment", int, key=42, look_back=3600)
        await flow.run(bench.note, "a")
        return [first, await flow.receive("payment", int, key=42)]

    await bench.start(forked.s())
    await bench.work()
    for number in (1, 2):
        bench.clock.advance(1)
        await tell(bench, number)
        await bench.work()
    assert await result(bench) == received
    copy = await bench.service.workflows.fork(Fork(bench.id, step))
    bench.id = copy.id
    assert await result(bench) == received


async def test_a_run_is_exported_and_replayed(bench: FlowBench, tmp_path: Path) -> None:
    order = declare(bench.app)
    await bench.start(order.s(42))
    await bench.work()
    await tell(bench, "paid")
    await bench.finish()
    file = tmp_path / "run.json"
    file.write_bytes(msgspec.json.encode(await export_flow(bench.service, bench.id)))
    assert await areplay(order, file) == "paid"


async def test_an_application_sends_to_all_flows_over_http(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")
        order = declare(app, look_back=60)
        async with working(app):
            runs = [await order.astart(number) for number in (42, 42, 43)]
            await app.asend("payment", {"amount": 7}, key=42)
            assert await asyncio.to_thread(partial(app.send, "payment", "other", key="43")) in (0, 1)
            assert [await run.aresult(PATIENCE) for run in runs] == [{"amount": 7}, {"amount": 7}, "other"]
            with pytest.raises(ValueError, match="1 to 255"):
                await app.asend("payment", key="")
        await app.aclose()


async def test_broadcasts_are_sent_over_http(http: Http, bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s(42))
    await bench.work()
    path = "/ojs/v1/broadcasts"
    body = {"name": "payment", "key": 42, "idempotency_key": "k"}
    assert [(await http("POST", path, body)).json() for _ in range(2)] == [{"sent": True, "flows": 1}] * 2
    assert await result(bench) is None
    for wrong in ({"name": "payment"}, {"name": "", "key": 1}, {"name": "!x", "key": 1}, {"name": "x", "key": ""}):
        assert (await http("POST", path, wrong)).status_code == 400


async def test_broadcasts_are_sent_in_the_shell(file_url: str) -> None:
    app = App(file_url)
    order = declare(app, look_back=60)
    async with working(app):
        run = await order.astart("order 42")
        words = ["flows", "broadcast", "payment", "order 42", "--data", '{"amount": 7}', "--url", file_url, "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, cli, words)
        assert msgspec.json.decode(done.output)["sent"] is True
        assert await run.aresult(PATIENCE) == {"amount": 7}
    await app.aclose()


def test_broadcasts_are_tested_in_memory_and_survive_crashes_everywhere() -> None:
    app = App()
    order = declare(app, look_back=60)
    with JobTester(app) as jobs:
        run = order.start(42)
        jobs.drain()
        assert app.send("payment", "paid", key=42) == 1
        jobs.finish(run)
        assert run.result() == "paid"
    crash_everywhere(order, 42, script=lambda run, jobs: app.send("payment", "paid", key=42))
    app.close()


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", "\ud800", 1.5, True])
def test_a_key_that_cannot_be_stored_is_refused_with_what_to_do(key: Any) -> None:
    with pytest.raises(ValueError, match=r"\. (Send|Leave)"):
        limits.key_of_broadcast(key)


async def test_a_broadcast_is_refused_while_the_disk_is_almost_full(monkeypatch: pytest.MonkeyPatch) -> None:
    full = BackendUnavailable("The disk is almost full. Make room.")
    app = App("sqlite:///:memory:")
    try:
        await app.asend("payment", 1, key=7)
        monkeypatch.setattr(SqliteTransaction, "refuse_growth", lambda tx: full)
        with pytest.raises(BackendUnavailable, match="almost full"):
            await app.asend("payment", 2, key=7)
    finally:
        await app.aclose()


async def test_a_flow_waits_on_for_what_is_sent_after_all_broadcasts_were_deleted(bench: FlowBench) -> None:
    @bench.app.flow("loop")
    async def loop(flow: Flow) -> list[Any]:
        return [await flow.receive("payment", key=42), await flow.receive("payment", key=42)]

    await bench.start(loop.s())
    await bench.work()
    await tell(bench, 1)
    await bench.work()
    bench.clock.advance(limits.MAX_LOOK_BACK / 1e6 + 1)
    await bench.service.maintenance.prune()
    assert await bench.run(_count, "broadcasts") == 0
    await tell(bench, 2)
    assert await result(bench) == [1, 2]

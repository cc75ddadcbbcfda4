"""Updates and published values: what others ask of a running flow, and what it shows them."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from ojster import App, Flow, JobFailed, UpdateFailed, Worker, chain
from ojster.cli.main import cli
from ojster.core.access import Access, Operation
from ojster.core.errors import Conflict, Forbidden, InvalidRequest, NotFound, PayloadTooLarge
from ojster.handlers.flow_export import export_flow
from ojster.jobs.scope import Caller
from ojster.service import Service
from ojster.testing import areplay
from ojster.workflows.flow import MAX_MESSAGE_BYTES, FlowMessage
from ojster.workflows.run import flow_messages
from tests.flows.driver import NEVER, FlowBench
from tests.flows.test_flows import app, bench, result
from tests.serving import serving
from tests.waiting import PATIENCE
from tests.worker.test_worker import working

__all__ = ["app", "bench"]

pytestmark = pytest.mark.anyio


class Item(msgspec.Struct):
    name: str
    count: int = 1


def declare(app: App, note: Any = None) -> Any:
    """A basket that is filled by updates until it is paid; what it holds is published."""

    @app.flow("basket")
    async def basket(flow: Flow, owner: str) -> list[str]:
        flow.state = []
        flow.publish({"owner": owner, "items": 0})
        paid = await flow.receive("paid", str)
        return [*flow.state, paid]

    @basket.update
    async def put(flow: Flow, item: Item) -> int:
        if item.count < 1:
            raise ValueError(f"{item.count} is too few")
        name = item.name if note is None else await flow.run(note, item.name)
        flow.state.append(f"{item.count} {name}")
        flow.publish({"items": len(flow.state)})
        return len(flow.state)

    @basket.update
    async def slow(flow: Flow, seconds: int) -> str:
        await flow.sleep(seconds)
        return "slept"

    basket.put, basket.slow = put, slow  # type: ignore[attr-defined]
    return basket


async def ask(bench: FlowBench, name: str, *args: Any, **more: Any) -> str:
    """Begin an update; return its number."""
    return str((await bench.service.flows.update(bench.id, name, msgspec.to_builtins(list(args)), **more)).id)


async def answer(bench: FlowBench, number: str) -> tuple[str, Any]:
    update = await bench.service.flows.find_update(bench.id, number)
    shown = update.error if update.state == "failed" else update.result
    return update.state, msgspec.json.decode(shown) if shown else None


async def test_a_flow_answers_updates_while_it_waits(bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s("Ada"))
    early = await ask(bench, "put", {"name": "tea"})
    assert await answer(bench, early) == ("waiting", None)
    await bench.work()
    assert await answer(bench, early) == ("completed", 1), "also those that came before it began"
    later = await ask(bench, "put", {"name": "milk", "count": 2})
    await bench.work()
    assert await answer(bench, later) == ("completed", 2)
    await bench.send("paid", "cash")
    assert await result(bench) == ["1 tea", "2 milk", "cash"]
    assert await answer(bench, early) == ("completed", 1), "answers stay"


@pytest.mark.parametrize(
    ("args", "type", "message"),
    [
        ([{"name": "tea", "count": 0}], "ValueError", "0 is too few"),
        ([{"name": 7}], "ojster.handlers.arguments.InvalidArguments", None),
        ([], "TypeError", None),
    ],
)
async def test_what_a_handler_refuses_is_the_answer(bench: FlowBench, args: Any, type: str, message: Any) -> None:
    await bench.start(declare(bench.app).s("Ada"))
    refused = await ask(bench, "put", *args)
    await bench.work()
    state, error = await answer(bench, refused)
    assert (state, error["type"]) == ("failed", type)
    assert message in (None, error["message"])
    await bench.send("paid", "cash")
    assert await result(bench) == ["cash"]


async def test_a_handler_that_waits_holds_up_no_other(bench: FlowBench) -> None:
    await bench.start(declare(bench.app, bench.note).s("Ada"))
    slow = await ask(bench, "slow", 30)
    quick = await ask(bench, "put", {"name": "tea"})
    await bench.work()
    assert await answer(bench, quick) == ("completed", 1)
    assert await answer(bench, slow) == ("waiting", None)
    bench.clock.advance(31)
    await bench.run_all_due()
    await bench.work()
    assert await answer(bench, slow) == ("completed", "slept")


async def test_an_update_with_the_same_key_is_made_once(bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s("Ada"))
    first = await ask(bench, "put", {"name": "tea"}, idempotency_key="k")
    await bench.work()
    assert await ask(bench, "put", {"name": "tea"}, idempotency_key="k") == first
    await bench.send("note", "x", idempotency_key="of a message")
    later = await ask(bench, "put", {"name": "jam"}, idempotency_key="of a message")
    await bench.work()
    assert await answer(bench, later) == ("completed", 2), "an update is no message"
    await bench.send("paid", "cash")
    assert await result(bench) == ["1 tea", "1 jam", "cash"]


async def test_a_handler_that_cancels_itself_has_answered(bench: FlowBench) -> None:
    basket = declare(bench.app)

    async def give_up(flow: Flow) -> None:
        raise asyncio.CancelledError("by itself")

    basket.update(give_up)

    await bench.start(basket.s("Ada"))
    given_up = await ask(bench, "give_up")
    await bench.work()
    state, error = await answer(bench, given_up)
    assert (state, error["message"]) == ("failed", "by itself")
    await bench.send("paid", "cash")
    assert await result(bench) == ["cash"]


async def test_an_update_that_the_flow_never_answers_fails_when_it_ends(bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s("Ada"))
    unknown, slow = await ask(bench, "unknown"), await ask(bench, "slow", 1000)
    await bench.work()
    await bench.send("paid", "cash")
    await bench.finish()
    for number in (unknown, slow):
        state, error = await answer(bench, number)
        assert (state, error["type"]) == ("failed", "FlowEnded")
    with pytest.raises(Conflict):
        await ask(bench, "put", {"name": "late"})


def _at(place: int, when: str, number: int) -> str:
    return when if number == place else NEVER


@pytest.mark.parametrize("when", ["before", "after", "lost"])
async def test_each_update_is_handled_once_wherever_the_process_dies(bench: FlowBench, when: str) -> None:
    basket = declare(bench.app, bench.note)
    for place in range(9):
        bench.done.clear()
        bench.when = partial(_at, place, when)
        bench.calls.count = 0
        await bench.start(basket.s("Ada"))
        numbers = [await ask(bench, "put", {"name": "tea"}), await ask(bench, "put", {"name": "milk"})]
        await bench.work()
        bench.clock.advance(2)  # a flow that could not reach its server runs again soon
        await bench.run_all_due()
        await bench.work()
        numbers.append(await ask(bench, "put", {"name": "jam", "count": 3}))
        await bench.work()
        bench.clock.advance(2)
        await bench.run_all_due()
        await bench.work()
        assert [(await answer(bench, number))[0] for number in numbers] == ["completed"] * 3, place
        answers = [(await answer(bench, number))[1] for number in numbers]
        assert sorted(answers) == [1, 2, 3]
        assert sorted(bench.done) == ["jam", "milk", "tea"], place
        await bench.send("paid", "cash")
        ended = await result(bench)
        assert [ended[place - 1] for place in answers] == ["1 TEA", "1 MILK", "3 JAM"], "as they were answered"
        assert await bench.service.flows.published(bench.id) == {"items": 3}


async def test_what_a_flow_publishes_is_read_while_it_runs_and_afterwards(bench: FlowBench) -> None:
    basket = declare(bench.app)
    await bench.start(basket.s("Ada"))
    assert await bench.service.flows.published(bench.id) is None
    await bench.work()
    assert await bench.service.flows.published(bench.id) == {"owner": "Ada", "items": 0}
    await bench.send("paid", "cash")
    await bench.finish()
    assert await bench.service.flows.published(bench.id) == {"owner": "Ada", "items": 0}


@pytest.mark.parametrize("fails", [False, True])
async def test_the_last_value_is_published_however_the_flow_ends(bench: FlowBench, fails: bool) -> None:
    @bench.app.flow("short")
    async def short(flow: Flow) -> int:
        flow.publish("begun")
        await flow.step("one", int)
        flow.publish("ending")
        if fails:
            raise ValueError("no")
        return 1

    await bench.start(short.s())
    await bench.finish()
    assert await bench.service.flows.published(bench.id) == "ending"


async def test_what_cannot_be_said_to_a_flow_is_refused(bench: FlowBench) -> None:
    flows = bench.service.flows
    await bench.start(declare(bench.app).s("Ada"))
    with pytest.raises(InvalidRequest, match="do not begin"):
        await flows.send(FlowMessage(bench.id, "!put", b"[]"))
    with pytest.raises(NotFound):
        await flows.find_update(bench.id, "12345")
    with pytest.raises(NotFound):
        await flows.find_update(bench.id, "no number")
    await bench.send("paid", "cash")
    with pytest.raises(PayloadTooLarge):
        await ask(bench, "put", "x" * (MAX_MESSAGE_BYTES + 1))
    await bench.start(chain(bench.note.s("x")))
    for call in (flows.published(bench.id), flows.update(bench.id, "put", [])):
        with pytest.raises(Conflict, match="is no flow"):
            await call


async def test_a_value_that_is_too_large_is_an_error_of_the_function(bench: FlowBench) -> None:
    @bench.app.flow("large")
    async def large(flow: Flow) -> str:
        try:
            flow.publish("x" * MAX_MESSAGE_BYTES)
        except ValueError:
            return "refused"
        return "published"

    await bench.start(large.s())
    assert await result(bench) == "refused"


async def test_wrong_handlers_are_refused_where_they_are_declared(app: App) -> None:
    @app.flow("basket")
    async def basket(flow: Flow) -> None: ...

    @basket.update
    async def put(flow: Flow) -> None: ...

    with pytest.raises(ValueError, match="already"):
        basket.update(put.function)
    with pytest.raises(TypeError, match="coroutine function"):
        basket.update(lambda flow: None)  # type: ignore[arg-type, return-value]


async def test_updates_are_typed_calls_of_a_run(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")
        basket = declare(app)
        async with working(app):
            run = await basket.astart("Ada")
            assert await run.aupdate(basket.put, Item("tea")) == 1
            assert await asyncio.to_thread(run.update, basket.put, Item("milk")) == 2
            assert await run.apublished() == {"items": 2}
            with pytest.raises(UpdateFailed, match="0 is too few") as failed:
                await run.aupdate(basket.put, Item("jam", 0))
            assert failed.value.error["type"] == "ValueError"
            with pytest.raises(TypeError):
                await run.aupdate(basket.put, Item("jam"), 1)
            await run.asend("paid", "cash")
            assert await run.aresult(PATIENCE) == ["1 tea", "1 milk", "cash"]
        await app.aclose()


async def test_updates_work_in_one_process(app: App) -> None:
    basket = declare(app)
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    run = await basket.astart("Ada")
    async with asyncio.timeout(PATIENCE):
        assert await run.aupdate(basket.put, Item("tea")) == 1
    worker.stop(grace=1)
    await working


async def test_updates_and_published_values_are_at_hand_in_the_shell(file_url: str) -> None:
    app = App(file_url)
    basket = declare(app)
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    run = await basket.astart("Ada")

    async def said(*words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner().invoke, cli, ["flows", *words, "--url", file_url])
        return done.exit_code, done.output.strip()

    assert await said("update", run.id, "put", '{"name": "tea"}') == (0, "1")
    assert await said("update", run.id, "put", '{"name": "tea", "count": 0}') == (
        1,
        "Error: put failed: ValueError: 0 is too few",
    )
    status, text = await said("update", run.id, "unknown", "--wait", "0")
    assert (status, "has not answered in 0 s" in text) == (1, True)
    assert await said("published", run.id) == (0, '{\n  "items": 1\n}')
    worker.stop(grace=1)
    await working
    await app.aclose()


async def test_updates_of_all_names_are_handled_in_the_order_in_which_they_came(bench: FlowBench) -> None:
    @bench.app.flow("list")
    async def items(flow: Flow) -> list[str]:
        flow.state = []
        await flow.receive("end")
        return list(flow.state)

    @items.update
    async def put(flow: Flow, item: str) -> None:
        flow.state.append(f"put {item}")

    @items.update
    async def drop(flow: Flow, item: str) -> None:
        flow.state.append(f"drop {item}")

    for waits_first in (False, True):
        await bench.start(items.s())
        if waits_first:
            await bench.work()
        for name, item in (("put", "tea"), ("put", "milk"), ("drop", "milk"), ("put", "jam"), ("drop", "tea")):
            await ask(bench, name, item)
        await bench.work()
        await bench.send("end", None)
        assert await result(bench) == ["put tea", "put milk", "drop milk", "put jam", "drop tea"]


async def test_a_flow_that_is_retried_goes_on_with_its_updates(bench: FlowBench) -> None:
    broken = [True]

    @bench.app.job("check", retry=1)
    async def check() -> None:
        bench.clock.advance(1)
        if broken:
            raise ValueError("broken")

    @bench.app.flow("counter")
    async def counter(flow: Flow) -> int:
        flow.state = 0
        await flow.receive("check")
        try:
            await flow.run(check)
        except JobFailed:
            flow.publish("failed")
            raise
        await flow.receive("end")
        return int(flow.state)

    @counter.update
    async def add(flow: Flow, number: int) -> int:
        flow.state += number
        return int(flow.state)

    await bench.start(counter.s())
    first = await ask(bench, "add", 1)
    await bench.send("check", None)
    await bench.finish()
    broken.clear()
    await bench.service.workflows.retry(bench.id)
    await bench.work()
    assert await answer(bench, first) == ("completed", 1)
    second = await ask(bench, "add", 2)
    await bench.work()
    assert await answer(bench, second) == ("completed", 3)
    await bench.send("end", None)
    assert await result(bench) == 3


async def test_a_key_gives_the_answer_again_after_the_end_and_belongs_to_one_update(bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s("Ada"))
    first = await ask(bench, "put", {"name": "tea"}, idempotency_key="k")
    await bench.work()
    with pytest.raises(Conflict, match="belongs to the update 'put'"):
        await ask(bench, "slow", 1, idempotency_key="k")
    await bench.send("paid", "cash")
    await bench.finish()
    assert await ask(bench, "put", {"name": "tea"}, idempotency_key="k") == first
    assert await answer(bench, first) == ("completed", 1)


async def test_updates_that_nobody_handles_leave_room_for_messages(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_messages, "MAX_MESSAGES", 2)
    await bench.start(declare(bench.app).s("Ada"))
    for _ in range(2):
        await ask(bench, "unknown")
    with pytest.raises(Conflict, match="2 messages wait"):
        await ask(bench, "unknown")
    await bench.send("paid", "cash")
    assert await result(bench) == ["cash"]


async def test_the_first_update_that_a_running_flow_gets_moves_no_time(bench: FlowBench) -> None:
    """What its runs have recorded before has no place; it still ended when it did."""

    @bench.app.flow("slow")
    async def slow(flow: Flow) -> str:
        await flow.run(bench.note, "a")
        await flow.sleep(86400)
        await flow.receive("paid")
        return "done"

    await bench.start(slow.s())
    await bench.work()
    bench.clock.advance(90000)
    await bench.run_all_due()
    await bench.work()
    slow.update(_touch)
    await bench.send("paid", None)
    await bench.work()
    assert (await bench.look()).state == "completed"


async def _touch(flow: Flow) -> None:
    """An update."""


async def test_an_update_that_was_answered_before_a_change_replays_the_old_way(bench: FlowBench) -> None:
    is_new: list[bool] = []

    @bench.app.flow("list")
    async def items(flow: Flow) -> list[int]:
        flow.state = []
        await flow.receive("end")
        return list(flow.state)

    @items.update
    async def put(flow: Flow, item: int) -> None:
        if is_new and flow.patched("check"):
            await flow.run(bench.note, f"check {item}")
        flow.state.append(item)

    await bench.start(items.s())
    for item in (1, 2, 3):
        await ask(bench, "put", item)
    await bench.work()
    is_new.append(True)
    await ask(bench, "put", 4)
    await bench.work()
    await bench.send("end", None)
    assert await result(bench) == [1, 2, 3, 4]
    assert bench.done == ["check 4"]


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_run_with_updates_is_replayed(bench: FlowBench, tmp_path: Path, has_ended: bool) -> None:
    basket = declare(bench.app, bench.note)
    await bench.start(basket.s("Ada"))
    await ask(bench, "put", {"name": "tea"})
    await bench.work()
    if has_ended:
        await bench.send("paid", "cash")
        await bench.finish()
    file = tmp_path / "run.json"
    file.write_bytes(msgspec.json.encode(await export_flow(bench.service, bench.id)))
    assert await areplay(basket, file) == (["1 TEA", "cash"] if has_ended else None)


async def test_tokens_for_some_queues_talk_to_no_flow(bench: FlowBench) -> None:
    await bench.start(declare(bench.app).s("Ada"))
    access = Access("p", frozenset({Operation.ENQUEUE}), ("mail",))
    limited = bench.service.as_(Caller(None, access)).flows
    with pytest.raises(Forbidden):
        await limited.update(bench.id, "put", [])
    with pytest.raises(Forbidden):
        await limited.send(FlowMessage(bench.id, "paid", b"1"))

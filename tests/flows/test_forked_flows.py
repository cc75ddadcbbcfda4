"""Forks of flows: they run again from a step on, with the records of what they had seen before they asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ojster import App, Flow, WorkflowFailed, chain
from ojster.core.errors import Conflict, InvalidRequest, NotFound
from ojster.service import Service
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.run import fork_preview
from ojster.workflows.run.fork import Fork
from ojster.workflows.run.fork_preview import ForkPoint
from tests.conftest import Clock
from tests.flows.driver import FlowBench
from tests.flows.test_flows import app, result

__all__ = ["app"]

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(service: Service, clock: Clock, app: App) -> FlowBench:
    bench = FlowBench(service, clock, app)

    @app.job("note", retry=1)
    async def note(what: str) -> str:
        bench.done.append(what)
        if what.startswith("bad"):
            raise ValueError(what)
        return what.upper()

    bench.note = note
    return bench


async def fork(bench: FlowBench, step: str | None = None, **more: Any) -> WorkflowInfo:
    """Fork the flow of the bench; the bench then looks at the new one, and forgets what was done."""
    encoded: dict[str, Any] = {name: msgspec.json.encode(value) for name, value in more.items()}
    info = await bench.service.workflows.fork(Fork(bench.id, step, **encoded))
    bench.id = info.id
    bench.done.clear()
    return info


def declare_order(bench: FlowBench) -> Any:
    @bench.app.flow("order")
    async def order(flow: Flow, name: str) -> list[Any]:
        first = await flow.run(bench.note, name)
        both: list[str] = list(await asyncio.gather(flow.run(bench.note, "b"), flow.run(bench.note, "c")))
        total = await flow.step("total", step, both)
        approval = await flow.receive("approval", str)
        last = await flow.run(bench.note, f"{total} {approval}")
        return [first, both, total, approval, last]

    def step(both: list[str]) -> int:
        bench.done.append("total")
        return len(both)

    return order


WHOLE = ["A", ["B", "C"], 2, "yes", "2 YES"]

PLACES: list[tuple[str | None, dict[str, Any], list[str], list[Any]]] = [
    (None, {}, ["2 yes", "a", "b", "c", "total"], WHOLE),
    (None, {"args": ["x"]}, ["2 yes", "b", "c", "total", "x"], ["X", *WHOLE[1:]]),
    ("note", {}, ["2 yes", "a", "b", "c", "total"], WHOLE),
    ("note", {"args": ["z"]}, ["2 yes", "b", "c", "total", "z"], ["Z", *WHOLE[1:]]),
    ("note", {"result": "given"}, ["2 yes", "b", "c", "total"], ["given", *WHOLE[1:]]),
    ("total", {}, ["2 yes", "total"], WHOLE),
    ("total", {"result": 7}, ["7 yes"], ["A", ["B", "C"], 7, "yes", "7 YES"]),
    ("approval", {}, ["2 yes"], WHOLE),
    ("approval", {"result": "no"}, ["2 no"], ["A", ["B", "C"], 2, "no", "2 NO"]),
    ("note#4", {}, ["2 yes"], WHOLE),
    ("note#4", {"args": ["y"]}, ["y"], ["A", ["B", "C"], 2, "yes", "Y"]),
    ("note#4", {"result": None}, [], ["A", ["B", "C"], 2, "yes", None]),
]


async def test_the_preview_of_a_long_flow_reads_no_more_steps_than_it_names(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @bench.app.flow("long")
    async def long(flow: Flow) -> int:
        for number in range(40):
            await flow.step(f"s{number:02}", int, number)
        await flow.run(bench.note, "a")
        return 40

    await bench.start(long.s())
    assert await result(bench) == 40
    monkeypatch.setattr(fork_preview, "MAX_PREVIEWED_STEPS", 3)

    def counted(tx: Any, points: Sequence[ForkPoint]) -> list[tuple[Any, int]]:
        sizes: list[int] = []

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(tx, name)

            def execute(self, *statement: Any) -> Any:
                rows = tx.execute(*statement)
                sizes.append(len(rows))
                return rows

        return [(preview, max(sizes)) for preview in fork_preview.preview_forks(Counting(), points)]  # type: ignore[arg-type]

    for step, first, kept in (("s10", 10, 10), (None, 0, 0)):
        preview, most = await bench.service.database.run(counted, ForkPoint(bench.id, step))
        assert preview.again == tuple(f"s{number:02}" for number in range(first, first + 3))
        assert (preview.again_count, preview.kept_count) == (41 - kept, kept)
        assert most <= 3


@pytest.mark.parametrize(("step", "more", "again", "comes_out"), PLACES)
async def test_a_flow_runs_again_from_a_step_on_as_a_new_workflow(
    bench: FlowBench, step: str | None, more: dict[str, Any], again: list[str], comes_out: list[Any]
) -> None:
    first = await bench.start(declare_order(bench).s("a"))
    await bench.send("approval", "yes")
    assert await result(bench) == WHOLE
    preview = await bench.service.workflows.preview_fork(ForkPoint(bench.id, step))
    asked = {None: 6, "note": 6, "total": 3, "approval": 2, "note#4": 1}[step]
    assert (preview.again_count, len(preview.again), preview.kept_count) == (asked, asked, 6 - asked)
    assert step is None or step in preview.again
    assert preview.takes_args == (step not in ("total", "approval"))
    assert preview.takes_result == (step is not None)
    forked = await fork(bench, step, **more)
    assert (forked.forked_from, forked.forked_step) == (first.id, step)
    assert await result(bench) == comes_out
    assert sorted(bench.done) == again
    assert (await bench.service.workflows.show(first.id)).forks == [forked.id]


async def test_a_fork_from_the_start_of_concurrent_branches_asks_for_them_again(bench: FlowBench) -> None:
    @bench.app.flow("branches")
    async def branches(flow: Flow) -> list[str]:
        async def branch(name: str) -> str:
            return "".join([await flow.run(bench.note, f"{name}1"), await flow.run(bench.note, f"{name}2")])

        return list(await asyncio.gather(branch("a"), branch("b"), flow.run(bench.note, "c")))

    await bench.start(branches.s())
    whole = ["A1A2", "B1B2", "C"]
    assert await result(bench) == whole
    await fork(bench, "branch/note#2")  # when it was asked for, all or some of the first ones had ended
    assert await result(bench) == whole
    assert "a2" in bench.done
    assert "a1" not in bench.done


async def test_a_fork_draws_the_same_random_numbers_and_takes_corrected_arguments(bench: FlowBench) -> None:
    wanted = "bad"

    @bench.app.flow("drawing")
    async def drawing(flow: Flow) -> list[Any]:
        number = await flow.step("draw", int, flow.random.randrange(10**9))
        id = await flow.run(bench.note, str(flow.uuid()))
        own = await flow.run(bench.note, flow.id)
        await flow.run(bench.note, wanted)
        return [number, id, own]

    first = await bench.start(drawing.s())
    assert (await bench.finish()).state == "failed"
    wanted = "good"
    await fork(bench, "note#3")
    number, id, own = await result(bench)
    assert (bench.done, own) == (["good"], first.id.upper())
    await fork(bench)
    assert (await result(bench))[:2] != [number, id]


async def test_a_fork_of_a_fork_keeps_the_first_random_numbers(bench: FlowBench) -> None:
    @bench.app.flow("drawing")
    async def drawing(flow: Flow) -> list[Any]:
        await flow.run(bench.note, "one")
        drawn = [flow.random.random()]
        await flow.run(bench.note, "two")
        return drawn

    await bench.start(drawing.s())
    drawn = await result(bench)
    for _ in range(2):
        await fork(bench, "note#2")
        assert await result(bench) == drawn
        assert bench.done == ["two"]


async def test_messages_that_came_after_the_step_wait_for_the_fork_in_their_order(bench: FlowBench) -> None:
    @bench.app.flow("inbox")
    async def inbox(flow: Flow) -> list[Any]:
        got = [await flow.receive("a")]
        await flow.run(bench.note, "between")
        return [*got, await flow.receive("a"), *await flow.receive_many("a")]

    await bench.start(inbox.s())
    for number in range(5):
        await bench.send("a", number)
    assert await result(bench) == [0, 1, 2, 3, 4]
    await fork(bench, "note")
    assert await result(bench) == [0, 1, 2, 3, 4]
    await fork(bench, "a#2", result="x")
    assert await result(bench) == [0, "x", 2, 3, 4]


async def test_updates_after_the_step_are_handled_again_and_those_before_are_not(bench: FlowBench) -> None:
    @bench.app.flow("basket")
    async def basket(flow: Flow) -> list[str]:
        flow.state = []
        await flow.receive("one")
        await flow.run(bench.note, "middle")
        await flow.receive("two")
        return list(flow.state)

    @basket.update
    async def put(flow: Flow, item: str) -> int:
        flow.state.append(item)
        await flow.run(bench.note, item)
        return len(flow.state)

    await bench.start(basket.s())
    await bench.work()
    await bench.service.flows.update(bench.id, "put", ["tea"])
    await bench.work()
    await bench.send("one", None)
    await bench.work()
    second = await bench.service.flows.update(bench.id, "put", ["milk"])
    await bench.work()
    await bench.send("two", None)
    assert await result(bench) == ["tea", "milk"]
    assert (await bench.service.flows.find_update(bench.id, str(second.id))).state == "completed"
    await fork(bench, "note")
    assert await result(bench) == ["tea", "milk"]
    assert sorted(bench.done) == ["middle", "milk"]


async def test_a_running_flow_can_be_forked_and_goes_on(bench: FlowBench) -> None:
    first = await bench.start(declare_order(bench).s("a"))
    await bench.work()
    await fork(bench, "total")
    await bench.send("approval", "fork")
    assert (await result(bench))[3] == "fork"
    bench.id = first.id
    await bench.send("approval", "first")
    assert (await result(bench))[3] == "first"


async def test_a_cancelled_flow_is_forked_from_before_its_cancellation(bench: FlowBench) -> None:
    await bench.start(declare_order(bench).s("a"))
    await bench.work()
    await bench.service.workflows.cancel(bench.id)
    assert (await bench.finish()).state == "cancelled"
    await fork(bench, "approval", result="after all")
    assert (await result(bench))[3] == "after all"


async def test_a_flow_inside_of_a_flow_and_one_inside_of_a_chain_run_again_as_a_whole(bench: FlowBench) -> None:
    @bench.app.flow("inner")
    async def inner(flow: Flow, name: str) -> str:
        return "".join([await flow.run(bench.note, name), await flow.run(bench.note, "second")])

    @bench.app.flow("outer")
    async def outer(flow: Flow) -> list[str]:
        return [await flow.run(bench.note, "before"), await flow.run(inner, "in"), await flow.run(bench.note, "after")]

    await bench.start(outer.s())
    assert await result(bench) == ["BEFORE", "INSECOND", "AFTER"]
    await fork(bench, "inner", args=["new"])
    assert await result(bench) == ["BEFORE", "NEWSECOND", "AFTER"]
    assert bench.done == ["new", "second", "after"]
    await fork(bench, "note#2")
    assert await result(bench) == ["BEFORE", "NEWSECOND", "AFTER"]
    assert bench.done == ["after"]


REFUSED: list[tuple[str | None, dict[str, Any], type[Exception], str]] = [
    ("totall", {}, NotFound, "Similar ones: 'total'"),
    ("ship", {}, NotFound, "It has: "),
    ("!begin", {}, NotFound, "has no step '!begin'"),
    ("total", {"args": [1]}, InvalidRequest, "is a local step"),
    ("approval", {"args": [1]}, InvalidRequest, "is a message"),
    (None, {"result": 1}, InvalidRequest, "Name it in 'from_step'"),
    ("note", {"args": {"a": 1}}, InvalidRequest, "args"),
]


@pytest.mark.parametrize(("step", "more", "error", "says"), REFUSED)
async def test_what_cannot_be_is_refused_and_changes_nothing(
    bench: FlowBench, step: str | None, more: dict[str, Any], error: type[Exception], says: str
) -> None:
    await bench.start(declare_order(bench).s("a"))
    await bench.send("approval", "yes")
    await bench.finish()
    with pytest.raises(error) as refusal:
        await fork(bench, step, **more)
    assert says in str(refusal.value)
    assert (await bench.look()).forks == []


async def test_a_step_of_a_flow_inside_of_a_chain_is_none_of_the_chain(bench: FlowBench) -> None:
    @bench.app.flow("one")
    async def one(flow: Flow) -> str:
        return await flow.run(bench.note, "a")

    info = await bench.start(chain(one.s().set(id="f")))
    await bench.finish()
    bench.id = info.id
    with pytest.raises(Conflict, match="belongs to a flow"):
        await fork(bench, "f.1")
    await fork(bench, "f")
    assert await result(bench) == "A"
    assert bench.done == ["a"]


async def test_the_error_of_a_message_of_another_type_names_the_step_to_fork_from(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> int:
        return await flow.receive("go", int) + await flow.receive("go", int)

    await bench.start(order.s())
    for message in (1, "2"):
        await bench.send("go", message)
    with pytest.raises(WorkflowFailed, match=r"Expected `int`, got `str`.* fork the run from 'go#2' with the right"):
        await result(bench)
    await fork(bench, "go#2", result=2)
    assert await result(bench) == 3

"""What people see of flows: where they wait, their steps as a growing picture, and their messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ojster import App, Flow, chain, group
from ojster.client.client import HttpClient
from ojster.core.durations import SECOND
from ojster.core.errors import Conflict, NotFound
from ojster.core.timestamps import format_timestamp
from ojster.server.application import Application
from ojster.service import Service
from ojster.workflows.read.drawing import arrows_of
from ojster.workflows.read.flow_info import MessageFilter, WaitInfo
from ojster.workflows.read.levels import LevelRequest, LevelStep
from ojster.workflows.read.selection import WorkflowFilter
from tests.client.in_memory import InMemoryTransport, connect, to
from tests.conftest import Clock
from tests.flows.driver import FlowBench
from tests.flows.test_flows import app

__all__ = ["app"]

pytestmark = pytest.mark.anyio


class Approval(msgspec.Struct):
    ok: bool
    reason: str = ""


@pytest.fixture
async def bench(service: Service, clock: Clock, app: App) -> FlowBench:
    bench = FlowBench(service, clock, app)

    @app.job("note")
    async def note(what: str) -> str:
        bench.clock.advance(5)
        return what.upper()

    bench.note = note
    return bench


def line_with(text: str) -> int:
    """The number of the only line of this file that has a text."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(text)]
    return number


def value(raw: msgspec.Raw | msgspec.UnsetType) -> Any:
    assert raw is not msgspec.UNSET
    return msgspec.json.decode(raw)


def kinds(waits: list[WaitInfo]) -> dict[str, tuple[str, str | None]]:
    return {wait.name: (wait.kind, None if wait.at is None else wait.at.partition(":")[2]) for wait in waits}


async def steps(bench: FlowBench, **more: Any) -> list[LevelStep]:
    return (await bench.service.workflows.level(LevelRequest(bench.id, **more))).steps


async def test_a_flow_that_waits_shows_for_what_and_in_which_line_of_its_code(bench: FlowBench) -> None:
    async def beside(flow: Flow) -> None:
        await flow.sleep(3_600)  # the line of the sleep

    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(beside(flow))
            job = bench.note.using(queue="elsewhere")
            await asyncio.gather(flow.run(job, "a"), flow.receive("approval", Approval, timeout=60))  # the line of two

    await bench.start(order.s())
    await bench.work()
    flow = await bench.service.flows.show(bench.id)
    two = f"{line_with('# the line of two')} in order"
    assert kinds(flow.waits) == {
        "note": ("run", two),
        "approval": ("receive", two),
        "sleep": ("sleep", f"{line_with('# the line of the sleep')} in beside"),
    }
    assert (flow.name, flow.state, flow.messages_waiting) == ("order", "waiting", 0)
    asleep, approval = (next(wait for wait in flow.waits if wait.name == name) for name in ("sleep", "approval"))
    assert asleep.code == "await flow.sleep(3_600)  # the line of the sleep"
    assert (asleep.until, approval.until) == tuple(
        map(format_timestamp, (bench.clock.now + 3_600 * SECOND, bench.clock.now + 60 * SECOND))
    )
    assert value(approval.form)["properties"].keys() == {"ok", "reason"}


async def test_status_and_tree_show_where_a_flow_waits_and_a_running_one_waits_for_nothing(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("paid")

    await bench.start(order.s())
    assert (await bench.service.flows.show(bench.id)).state == "available"
    await bench.work()
    (current,) = (await bench.service.workflows.status(bench.id)).current
    assert ([wait.name for wait in current.waits], current.waiting_for) == (["paid"], None)
    (body,) = (await bench.look()).steps or []
    assert [wait.name for wait in body.waits] == ["paid"]
    assert (await bench.look()).waiting_for == []
    await bench.send("paid", None)
    await bench.fetch_one()
    flow = await bench.service.flows.show(bench.id)
    assert (flow.state, flow.waits) == ("active", [])


async def test_the_picture_of_a_flow_has_all_that_it_asks_for_in_its_order(bench: FlowBench) -> None:
    def total(one: str, two: str) -> int:
        bench.clock.advance(1)
        return len(one + two)

    @bench.app.flow("inner")
    async def inner(flow: Flow) -> str:
        return await flow.run(bench.note, "inside")

    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        one, two = await asyncio.gather(flow.run(bench.note, "a"), flow.run(bench.note, "b"))
        await flow.step("total", total, one, two)
        await flow.sleep(30)
        await flow.receive("paid")
        await flow.run(inner)
        await flow.run(chain(bench.note.s("c"), bench.note.s("d")))

    await bench.start(order.s())
    await bench.work()
    assert [(step.kind, step.state) for step in await steps(bench)][-1] == ("sleep", "waiting")
    bench.clock.advance(30)
    await bench.run_all_due()
    await bench.work()
    bench.clock.advance(1)
    await bench.send("paid", None)
    await bench.finish()
    shown = await steps(bench)
    assert [(step.kind, step.type, step.state) for step in shown] == [
        ("job", "order", "completed"),
        ("job", "note", "completed"),
        ("job", "note", "completed"),
        ("step", "total", "completed"),
        ("sleep", "sleep", "completed"),
        ("receive", "paid", "completed"),
        ("flow", "flow", "completed"),
        ("chain", "chain", "completed"),
    ]
    numbers = [step.number for step in shown]
    assert [step.after for step in shown] == [
        (),
        [numbers[0]],
        [numbers[0]],
        numbers[1:3],
        [numbers[3]],
        [numbers[4]],
        [numbers[5]],
        [numbers[6]],
    ]
    assert len(set(numbers)) == len(numbers)
    local, asleep = shown[3:5]
    assert (local.enqueued_at, asleep.started_at) == (None, None), "one runs, and the other waits"
    inside = await steps(bench, number=numbers[6])
    assert [step.type for step in inside] == ["inner", "note"]


async def test_tasks_beside_each_other_do_not_follow_one_another(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        async def left() -> None:
            await flow.step("l1", bench.clock.advance, 1)
            await flow.step("l2", bench.clock.advance, 3)

        async def right() -> None:
            await flow.step("r1", bench.clock.advance, 2)
            await flow.step("r2", bench.clock.advance, 4)

        await asyncio.gather(left(), right())
        await flow.step("end", bench.clock.advance, 1)

    await bench.start(order.s())
    await bench.finish()
    shown = {step.number: step for step in await steps(bench)}
    names = {step.type: sorted(shown[number].type for number in step.after) for step in shown.values()}
    assert names == {"order": [], "l1": ["order"], "r1": ["order"], "l2": ["l1"], "r2": ["r1"], "end": ["l2", "r2"]}


async def test_pages_of_a_picture_have_each_step_once(bench: FlowBench) -> None:
    @bench.app.flow("long")
    async def long(flow: Flow) -> None:
        for number in range(10):
            await flow.step("step", abs, number)
            bench.clock.advance(1)

    await bench.start(long.s())
    await bench.finish()
    pages, after = [], -1
    while True:
        page = await bench.service.workflows.level(LevelRequest(bench.id, after=after, limit=4))
        assert page.total == 11
        pages.append([step.path for step in page.steps])
        if page.next_after is None:
            break
        after = page.next_after
    assert [len(page) for page in pages] == [4, 4, 3]
    assert len({path for page in pages for path in page}) == 11


async def test_messages_and_updates_are_listed_with_what_became_of_them(bench: FlowBench) -> None:
    @bench.app.flow("basket")
    async def basket(flow: Flow) -> None:
        flow.publish({"items": 0})
        await flow.receive("paid")

    @basket.update
    async def put(flow: Flow, item: str, count: int = 1) -> str:
        if not item:
            raise ValueError("no name")
        return item

    await bench.start(basket.s())
    await bench.work()
    for item in ("tea", ""):
        await bench.service.flows.update(bench.id, "put", [item])
        await bench.work()
    await bench.send("other", {"a": "x" * 5_000})
    flow = await bench.service.flows.show(bench.id)
    assert value(flow.published) == {"items": 0}
    assert (flow.messages_waiting, flow.updates_waiting) == (1, 0)
    (update,) = flow.updates
    form = value(update.form)
    assert [one["title"] for one in form["prefixItems"]] == ["item", "count"]
    assert (update.name, form["minItems"]) == ("put", 1)
    page = await bench.service.flows.messages(MessageFilter(bench.id))
    assert [(one.kind, one.name, one.state) for one in page.messages] == [
        ("message", "other", "waiting"),
        ("update", "put", "failed"),
        ("update", "put", "completed"),
    ]
    assert page.messages[0].data is msgspec.UNSET, "it is too large for a list"
    assert value(page.messages[2].answer) == "tea"
    waiting = await bench.service.flows.messages(MessageFilter(bench.id, state="waiting"))
    assert [one.name for one in waiting.messages] == ["other"]
    first = await bench.service.flows.messages(MessageFilter(bench.id, limit=2))
    rest = await bench.service.flows.messages(MessageFilter(bench.id, before=first.next_before))
    assert [one.number for one in [*first.messages, *rest.messages]] == [one.number for one in page.messages]


async def test_a_flow_inside_a_workflow_is_named_by_its_step_and_what_is_no_flow_is_refused(bench: FlowBench) -> None:
    @bench.app.flow("inner")
    async def inner(flow: Flow) -> None:
        await flow.receive("paid")

    await bench.start(group(inner.s(), bench.note.s("a")))
    await bench.work()
    assert [wait.name for wait in (await bench.service.flows.show(bench.id, "0")).waits] == ["paid"]
    with pytest.raises(Conflict, match="is no flow"):
        await bench.service.flows.show(bench.id)
    with pytest.raises(Conflict, match="is no flow"):
        await bench.service.flows.messages(MessageFilter(bench.id, "1"))
    with pytest.raises(NotFound):
        await bench.service.flows.show(bench.id, "7")


async def test_the_version_of_the_code_that_a_run_began_with_is_shown_beside_that_of_now(bench: FlowBench) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("one")
        await flow.receive("two")

    await bench.start(order.s())
    await bench.work()
    before = await bench.service.flows.show(bench.id)
    assert before.code_version == before.latest_code_version is not None
    del bench.app.handlers["order"]

    @bench.app.flow("order")
    async def changed(flow: Flow) -> None:
        await flow.receive("one")
        await flow.receive("two")
        await flow.step("more", abs, 1)

    await bench.send("one", None)
    await bench.work()
    after = await bench.service.flows.show(bench.id)
    assert after.code_version == before.code_version != after.latest_code_version


async def test_clients_of_the_specification_see_a_chain_and_others_a_flow(bench: FlowBench, service: Service) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await asyncio.gather(flow.run(bench.note, "a"), flow.run(bench.note, "b"))

    info = await bench.start(order.s())
    assert (info.type, info.kind, info.label) == ("chain", "flow", "flow")
    listed = await service.workflows.select(WorkflowFilter(type="flow"))
    assert [one.kind for one in listed.workflows] == ["flow"]
    assert not (await service.workflows.select(WorkflowFilter(type="chain"))).workflows
    done = await bench.finish()
    assert (done.type, done.kind, done.state) == ("chain", "flow", "completed")
    assert list(arrows_of(done)) == [], "what ran at the same time is not drawn in a row"
    declared = await service.workflows.create(chain(bench.note.s("a")).request())
    assert (declared.type, declared.kind) == ("chain", None)


async def test_a_server_answers_as_the_service_does(bench: FlowBench, service: Service) -> None:
    @bench.app.flow("order")
    async def order(flow: Flow) -> None:
        await flow.receive("approval", Approval, timeout=60)

    await bench.start(order.s())
    await bench.work()
    await bench.send("other", [1])
    http = HttpClient("http://test")
    connect(http, InMemoryTransport(to(Application(service, trusting=True))))
    assert await http.flows.show(bench.id) == await service.flows.show(bench.id)
    chosen = MessageFilter(bench.id, state="waiting", limit=1)
    assert await http.flows.messages(chosen) == await service.flows.messages(chosen)
    assert await http.workflows.level(LevelRequest(bench.id)) == await service.workflows.level(LevelRequest(bench.id))
    with pytest.raises(Conflict):
        await http.flows.show(await _chain(bench))
    await http.close()


async def _chain(bench: FlowBench) -> str:
    workflow = chain(bench.note.s("a"))
    return (await bench.service.workflows.create(workflow.request())).id

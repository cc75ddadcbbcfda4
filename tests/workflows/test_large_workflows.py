"""Large workflows: they are created, and their steps started, in transactions that are short for everybody else."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ojster.core.errors import BackendUnavailable, NotFound
from ojster.core.ids import new_id
from ojster.core.json_objects import read_members
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import accepted
from ojster.schedules import retention
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.run import creation, start_quota
from ojster.workflows.run import graph as graphs
from ojster.workflows.run.start_quota import MAX_STARTS_OF_WORKFLOW
from tests.workflows.bench import WorkflowBench, chain, graph, group, job

pytestmark = pytest.mark.anyio


async def available(flow: WorkflowBench) -> int:
    """Return the number of jobs that can be claimed."""

    def count(tx: Any, requests: Any) -> list[int]:
        return [tx.execute("SELECT count(*) FROM jobs WHERE state = 'available'")[0][0]]

    return await flow.service.database.read(count, None)


async def start_all(flow: WorkflowBench) -> list[int]:
    """Go on with large containers until all is started; return how many jobs were available after each transaction."""
    seen = [await available(flow)]
    while (due := await flow.run_due()) is not None and due <= flow.clock.now:
        seen.append(await available(flow))
    return [*seen, await available(flow)]


async def work_off(flow: WorkflowBench) -> list[Any]:
    """Complete all jobs that can be claimed; return their first arguments."""
    done = []
    while jobs := await flow.fetch(count=500):
        await asyncio.gather(*(flow.ack(one) for one in jobs))
        done += [one.args[0] for one in jobs]
    return done


def steps(count: int) -> list[dict[str, Any]]:
    return [job("work", number) for number in range(count)]


async def test_the_steps_of_a_large_group_start_in_order_a_few_in_each_transaction(flow: WorkflowBench) -> None:
    await flow.create(group(*steps(1_700)))
    seen = await start_all(flow)
    first, *more, last = [after - before for before, after in zip([0, *seen], seen, strict=False) if after > before]
    assert (first, set(more)) == (MAX_STARTS_OF_WORKFLOW - 1, {MAX_STARTS_OF_WORKFLOW})
    assert last <= MAX_STARTS_OF_WORKFLOW
    assert await work_off(flow) == list(range(1_700))
    assert await flow.state() == "completed"


async def test_steps_that_follow_one_step_start_a_few_in_each_transaction(flow: WorkflowBench) -> None:
    followers = [job("work", number, id=f"s{number}", depends_on=["first"]) for number in range(1_200)]
    await flow.create(graph(job("first", -1, id="first"), *followers))
    most = MAX_STARTS_OF_WORKFLOW
    assert await work_off(flow) == [-1, *range(most)]
    assert max(await start_all(flow)) == 1_200 - most
    assert await work_off(flow) == list(range(most, 1_200))
    info = await flow.look()
    assert (info.state, info.steps_completed) == ("completed", 1_201)


async def test_a_held_workflow_goes_on_when_it_is_released(flow: WorkflowBench) -> None:
    await flow.create(group(*steps(1_200)))
    await flow.service.workflows.hold(flow.id)
    await start_all(flow)
    assert await flow.fetch(count=500) == []
    await flow.service.workflows.release(flow.id)
    await start_all(flow)
    assert sorted(await work_off(flow)) == list(range(1_200))
    assert await flow.state() == "completed"


async def test_steps_that_have_not_started_are_cancelled_with_their_workflow(flow: WorkflowBench) -> None:
    await flow.create(group(*steps(1_200)))
    await flow.service.workflows.cancel(flow.id)
    await start_all(flow)
    assert await flow.fetch(count=500) == []
    info = await flow.look()
    assert (info.state, {step.state for step in info.walk()}) == ("cancelled", {"cancelled"})
    await flow.service.workflows.retry(flow.id)
    await start_all(flow)
    assert sorted(await work_off(flow)) == list(range(1_200))
    assert await flow.state() == "completed"


@pytest.mark.parametrize("more", [0, 1])
async def test_what_undoes_a_cancelled_saga_starts_although_much_else_was_stopped(
    flow: WorkflowBench, more: int
) -> None:
    """The inner sagas leave no room in the transaction for what undoes the outer one, or just enough."""
    count = start_quota.MAX_STARTS_OF_WORKFLOW // 2 + more
    inner = [{"type": "saga", "steps": [job("never", compensate=job("undo"))]} for _ in range(count)]
    first = job("first", 0, compensate=job("undo", "first"))
    await flow.create({"type": "saga", "steps": [first, group(*inner)]})
    (taken,) = await flow.take()
    await flow.ack(taken)
    await start_all(flow)
    await flow.service.workflows.cancel(flow.id)
    await start_all(flow)
    assert await work_off(flow) == ["first"]
    await start_all(flow)
    assert (await flow.look()).finished


async def test_small_containers_in_a_large_one_start_together(flow: WorkflowBench) -> None:
    await flow.create(group(*[chain(job("a", number), job("b", number)) for number in range(1_000)]))
    assert len(await start_all(flow)) < 20
    assert await available(flow) == 1_000


async def test_nested_containers_start_each_job_once_whatever_is_read_together(
    flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "CHILDREN_AT_ONCE", 7)

    def nested(level: int, first: int) -> dict[str, Any]:
        if not level:
            return chain(job("work", 2 * first), job("work", 2 * first + 1))
        return group(nested(level - 1, first), nested(level - 1, first + 2 ** (level - 1)))

    await flow.create(nested(8, 0))
    done: list[int] = []
    while not (await flow.look()).finished:
        await start_all(flow)
        done += (found := await work_off(flow))
        assert found, "something can always be done"
    assert sorted(done) == list(range(512))
    assert await flow.state() == "completed"


async def test_the_containers_of_several_workflows_start_their_children_after_one_look(
    flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    real = graphs.LoadedGraph.first_children

    def count(graph: Any, containers: Any, limits: Any) -> Any:
        execute = graph.tx.execute

        def note(sql: str, *parameters: Any) -> Any:
            looks.append(sql)
            return execute(sql, *parameters)

        with monkeypatch.context() as while_looking:
            while_looking.setattr(graph.tx, "execute", note)
            return real(graph, containers, limits)

    for _ in range(3):
        await flow.create(chain(job("a"), group(job("b"), chain(job("b"), job("c")))))
    monkeypatch.setattr(graphs.LoadedGraph, "first_children", count)
    await flow.service.jobs.acknowledge([Acknowledgement(one.id, b"1") for one in await flow.take(3)])
    assert [one.type for one in await flow.take(9)] == ["b"] * 6
    assert len(looks) == 2, "one for the groups, and one for the chains in them"


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_step_starts_once_if_what_it_waits_for_ends_while_its_container_starts(
    flow: WorkflowBench, behind: bool, is_first: bool
) -> None:
    """The edge is that of a promised item: it leads into another container."""
    more: dict[str, Any] = {"depends_on": ["first"]} if behind else {}
    promising = job("a", id="promising", provides=["x"], **{"if": "1 > 2"}, **more)
    waiting = job("b", {"$lookup": {"collection": "internal"}})
    container = group(waiting, job("free"), id="container", **more)
    steps = [promising, container] if is_first else [container, promising]
    await flow.create(graph(*([job("first", id="first")] if behind else []), *steps))
    done = await flow.work()
    assert sorted(done) == sorted(["free", "b", *(["first"] if behind else [])])
    assert await flow.state() == "completed"


async def test_many_large_workflows_take_turns(flow: WorkflowBench) -> None:
    ids = [(await flow.create(group(*steps(1_100)))).id for _ in range(3)]
    await flow.run_due()
    started = [sum(step.state == "pending" for step in (await flow.service.workflows.show(id)).walk()) for id in ids]
    assert max(started) - min(started) <= start_quota.MAX_STARTS_OF_WORKFLOW + 1
    await start_all(flow)
    assert await available(flow) == 3_300


async def prepared(flow: WorkflowBench, **more: Any) -> NewWorkflow:
    wire = group(*steps(1_500)) | more
    return await flow.service.workflows.prepare(read_members(msgspec.json.encode(wire)))


async def test_nobody_sees_a_workflow_before_it_is_complete(flow: WorkflowBench) -> None:
    new = await prepared(flow, id=new_id())
    seq = accepted(await flow.run(creation.begin, new))
    first, *others = creation.parts_of(new.plan)
    await flow.run(creation.plant, (seq, first))
    with pytest.raises(NotFound):
        await flow.service.workflows.show(new.id)
    with pytest.raises(NotFound):
        await flow.service.workflows.cancel(new.id)
    assert (await flow.service.workflows.select(WorkflowFilter())).total == 0
    with pytest.raises(BackendUnavailable, match="being created"):
        await flow.create(chain(job("a")) | {"id": new.id})
    await flow.run_due()
    for part in others:
        await flow.run(creation.plant, (seq, part))
    assert await flow.fetch() == []
    assert await flow.run(creation.finish, (seq, new)) == new.id
    info = await flow.service.workflows.show(new.id)
    assert (info.state, info.jobs_total, info.version) == ("running", 1_500, 1)
    await start_all(flow)
    assert sorted(await work_off(flow)) == list(range(1_500))


async def test_a_workflow_whose_creation_stops_in_the_middle_is_deleted(flow: WorkflowBench) -> None:
    """As when the server dies: its caller has got no answer, and can use the same id and target again."""
    new = await prepared(flow, id=new_id())
    seq = accepted(await flow.run(creation.begin, new))
    first, *_ = creation.parts_of(new.plan)
    await flow.run(creation.plant, (seq, first))
    await flow.run_due(59)
    assert (await flow.run(retention.forget, None))["rows"] == 0
    await flow.run_due(2)
    assert isinstance(await flow.run(creation.plant, (seq, first)), BackendUnavailable)
    assert isinstance(await flow.run(creation.finish, (seq, new)), BackendUnavailable)
    while (await flow.run(retention.forget, None))["rows"]:
        pass

    def count(tx: Any, requests: Any) -> list[int]:
        return [tx.execute("SELECT (SELECT count(*) FROM nodes) + (SELECT count(*) FROM workflows)")[0][0]]

    assert await flow.service.database.read(count, None) == 0
    assert (await flow.create(chain(job("a")) | {"id": new.id})).id == new.id


async def test_conditions_that_take_long_are_evaluated_in_several_transactions(flow: WorkflowBench) -> None:
    conditions = [f"'{number}'.matches('[02468]$')" for number in range(100)]
    await flow.create(group(*(job("work", n, **{"if": condition}) for n, condition in enumerate(conditions))))
    started = await work_off(flow)
    assert 0 < len(started) < 50
    await start_all(flow)
    assert sorted(started + await work_off(flow)) == list(range(0, 100, 2))
    info = await flow.look()
    assert info.state == "completed"
    assert [step.state for step in info.walk() if step.path == "1"] == ["skipped"]

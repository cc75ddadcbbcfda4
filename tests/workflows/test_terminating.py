"""Workflows that were cancelled and clean up, and their termination, which lets nothing clean up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster import App, Flow
from ojster.core.errors import Conflict, NotFound
from ojster.core.json_objects import read_members
from ojster.service import Service
from ojster.workflows.read.selection import WorkflowConditions, WorkflowFilter
from tests.conftest import Bench, Clock
from tests.flows.driver import FlowBench

pytestmark = pytest.mark.anyio


def job(type: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "args": [], **more}


SAGA = {"type": "saga", "steps": [job("charge", compensate_type="refund"), job("ship", compensate_type="return")]}
BRANCHES = {"type": "graph", "steps": [job("build", id="build")], "on_cancel": job("tidy"), "on_error": job("tell")}
CASES: dict[str, dict[str, Any]] = {
    "saga": SAGA,
    "graph with branches": BRANCHES,
    "map": {"type": "map", "over": [1, 2], "do": job("each")},
    "chain of sagas": {"type": "chain", "steps": [SAGA, job("after")]},
    "group": {"type": "group", "jobs": [job("a"), SAGA]},
    "batch": {"type": "batch", "jobs": [job("a")], "callbacks": {"on_complete": job("told")}},
    "chain with a fallback": {"type": "chain", "steps": [job("a", fallback=job("b"))]},
    "gate": {"type": "graph", "steps": [job("a", id="a", manual=True)]},
}


async def create(bench: Bench, body: dict[str, Any]) -> str:
    return (await bench.service.workflows.create(read_members(msgspec.json.encode(body)))).id


async def live(bench: Bench) -> list[str]:
    """Types of the jobs that have not ended."""
    counts = await bench.service.jobs.count()
    states = {state: number for queue in counts.values() for state, number in queue.items()}
    return [state for state in ("available", "active", "pending", "scheduled", "retryable") if states.get(state)]


@pytest.mark.parametrize("after", ["at once", "while it runs", "while it cleans up"])
@pytest.mark.parametrize("name", list(CASES))
async def test_a_terminated_workflow_starts_nothing_more_and_ends_with_its_active_jobs(
    bench: Bench, name: str, after: str
) -> None:
    id = await create(bench, CASES[name])
    if after != "at once":
        for first in await bench.fetch(count=1):
            if name in ("saga", "chain of sagas"):
                await bench.ack(first)
        await bench.fetch(count=5)
    if after == "while it cleans up":
        if (await bench.service.workflows.cancel(id)).finished:
            assert name == "gate", "it has nothing to clean up"
            return
        await bench.fetch(count=5)
    await bench.service.workflows.terminate(id)
    assert not set(await live(bench)) & {"available", "pending", "scheduled", "retryable"}
    bench.clock.advance(3_600)  # the leases of what ran are over
    await bench.run_all_due()
    info = await bench.service.workflows.show(id)
    assert (info.state, info.finished) == ("cancelled", True)
    assert await live(bench) == []
    assert await bench.fetch(count=5) == []
    assert {step.state for step in info.walk()} <= {"completed", "cancelled", "skipped", "failed"}
    with pytest.raises(Conflict, match="nothing of it runs"):
        await bench.service.workflows.terminate(id)


async def test_a_saga_that_is_cancelled_is_cancelling_until_it_has_compensated(bench: Bench) -> None:
    id = await create(bench, SAGA)
    await bench.ack(await bench.fetch_one())
    info = await bench.service.workflows.cancel(id)
    assert (info.state, info.finished) == ("cancelling", False)
    refund = await bench.fetch_one()
    assert refund.type == "refund"
    await bench.ack(refund)
    assert (await bench.service.workflows.show(id)).state == "cancelled"


async def test_a_chain_is_cancelled_at_once_as_the_specification_says(bench: Bench) -> None:
    id = await create(bench, {"type": "chain", "steps": [job("a"), job("b")]})
    await bench.fetch_one()
    info = await bench.service.workflows.cancel(id)
    assert (info.state, info.finished) == ("cancelled", False)


async def test_lists_counts_and_bulk_operations_tell_cancelling_from_cancelled(bench: Bench, service: Service) -> None:
    going, gone = await create(bench, SAGA), await create(bench, SAGA)
    chain = await create(bench, {"type": "chain", "steps": [job("a")]})
    for started in await bench.fetch(count=3):
        if started.type == "charge":
            await bench.ack(started)
    for id in (going, gone, chain):
        await service.workflows.cancel(id)
    await service.workflows.terminate(gone)

    async def listed(*states: str) -> set[str]:
        return {info.id for info in (await service.workflows.select(WorkflowFilter(states=states))).workflows}

    assert await listed("cancelling") == {going}
    assert await listed("cancelled") == {gone, chain}
    assert await listed("cancelled", "cancelling") == {going, gone, chain}
    assert await listed("running", "cancelling") == {going}
    assert (await service.workflows.count()).unfinished["cancelling"] == 1
    current = (await service.workflows.statistics()).current
    assert (current["cancelling"], current["cancelled"]) == (1, 2)
    chosen = WorkflowConditions(states=("cancelling",))
    sweep = await service.workflow_bulk.cancel(chosen, stop_active=True, dry_run=True)
    assert [id for id, _ in sweep.items] == [going]


async def test_a_flow_is_cancelling_while_it_cleans_up_and_terminated_without(
    service: Service, clock: Clock, url: str
) -> None:
    app = App(url)
    bench = FlowBench(service, clock, app)

    @app.job("note")
    async def note(what: str) -> None:
        bench.done.append(what)

    @app.flow("order")
    async def order(flow: Flow) -> None:
        async with flow.compensation() as undo:
            await undo.run(note, "charge", undo=note)
            await flow.receive("paid")

    for is_terminated in (False, True):
        bench.done.clear()
        await bench.start(order.s())
        await bench.work()
        assert (await service.workflows.cancel(bench.id)).state == "cancelling"
        assert (await service.flows.show(bench.id)).cancelling
        if is_terminated:
            info = await service.workflows.terminate(bench.id)
            assert (info.state, info.finished) == ("cancelled", True)
            await bench.work()
        else:
            await bench.finish()
        assert (await bench.look()).state == "cancelled"
        assert bench.done == (["charge"] if is_terminated else ["charge", "charge"])
    await app.aclose()


async def test_what_does_not_exist_cannot_be_terminated(service: Service) -> None:
    with pytest.raises(NotFound):
        await service.workflows.terminate("019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f")

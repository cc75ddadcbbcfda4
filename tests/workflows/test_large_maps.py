"""Large maps: they are expanded in steps, and what references stand for is counted."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any
from unittest import mock

import msgspec
import pytest

from ojster.core.errors import PayloadTooLarge, TenantLimitExceeded
from ojster.core.json_objects import read_members
from ojster.core.settings import ServiceSettings
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.scope import Caller
from ojster.workflows.run import expansion, maps, start_quota
from tests.tenancy.test_tenants import say
from tests.workflows.bench import WorkflowBench, chain, group, job, ref

pytestmark = pytest.mark.anyio


def each(elements: list[Any], *args: Any, **more: Any) -> dict[str, Any]:
    return {"type": "map", "id": "each", "over": elements, "do": job("work", *(args or (ref("item"),))), **more}


async def work_off(flow: WorkflowBench) -> int:
    """Run all jobs that there are; return how many."""
    done = 0
    while jobs := await flow.fetch(count=200):
        acks = (flow.ack(one, msgspec.json.encode(one.args[0] if one.args else None)) for one in jobs)
        await asyncio.gather(*acks)
        done += len(jobs)
    return done


async def number_of_nodes(flow: WorkflowBench) -> int:
    def count(tx: Any, requests: Any) -> list[int]:
        return [tx.execute("SELECT count(*) FROM nodes")[0][0] for _ in requests]

    return await flow.service.database.read(count, None)


async def test_a_large_map_is_expanded_in_steps_and_gives_all_results_in_order(flow: WorkflowBench) -> None:
    elements = list(range(700))
    await flow.create(chain(each(elements), job("sum", ref("steps.each.result"))))
    sizes = [await number_of_nodes(flow)]
    while (due := await flow.run_due()) is not None and due <= flow.clock.now:
        sizes.append(await number_of_nodes(flow))
    sizes.append(await number_of_nodes(flow))
    grown = [after - before for before, after in pairwise(sizes)]
    assert sizes[0] <= maps.ELEMENT_NODES_AT_ONCE + 10
    assert len(grown) >= 3
    assert max(grown) <= maps.ELEMENT_NODES_AT_ONCE + maps.ELEMENTS_AT_ONCE
    assert await work_off(flow) == 701
    info = await flow.look()
    assert info.state == "completed"
    (total,) = [step for step in info.walk() if step.path == "1"]
    assert msgspec.json.decode(msgspec.json.encode(total.result)) == {str(number): number for number in elements}


@pytest.mark.parametrize("among", ["maps in maps", "maps beside maps", "maps in chains of a map"])
async def test_many_maps_are_expanded_in_steps(flow: WorkflowBench, among: str) -> None:
    """No transaction creates many more nodes than one that expands a single large map."""
    over, each_of = {"over": ref("params.list")}, {"type": "map"}
    leaf = each_of | over | {"do": job("work")}
    wire = {
        "maps in maps": chain(each_of | over | {"do": each_of | over | {"do": leaf}}),
        "maps beside maps": group(*[leaf] * 60),
        "maps in chains of a map": chain(each_of | over | {"do": chain(leaf, job("work"))}),
    }[among]
    await flow.create(wire | {"params": {"list": list(range(8))}})
    sizes = [0, await number_of_nodes(flow)]
    while (due := await flow.run_due()) is not None and due <= flow.clock.now:
        sizes.append(await number_of_nodes(flow))
    planned = 60 if among == "maps beside maps" else 0
    grown = [after - before for before, after in pairwise(sizes)]
    assert max(grown) <= planned + start_quota.MAPS_AT_ONCE * maps.ELEMENT_NODES_AT_ONCE + 20, grown
    work = {"maps in maps": 8 * 8 * 8, "maps beside maps": 60 * 8, "maps in chains of a map": 8 * 9}[among]
    await flow.run_all_due()
    done = 0
    while more := await work_off(flow):
        done += more
        await flow.run_all_due()
    assert (done, await flow.state()) == (work, "completed")


SECRET = "sk-4242"


@pytest.mark.parametrize("over", [{"token": SECRET}, SECRET, f' "{SECRET}"', 4242, True, None])
async def test_a_map_over_something_else_than_a_list_does_not_show_it(flow: WorkflowBench, over: Any) -> None:
    await flow.create(chain(job("list", id="list"), each([]) | {"over": ref("steps.list.result")}))
    await flow.work(results={"list": over})
    error = msgspec.json.encode((await flow.step("each")).error).decode()
    assert "'over' of a map must be an array, not" in error
    assert "4242" not in error


@pytest.mark.parametrize("value", [SECRET, 4242, {"token": SECRET}, [SECRET]])
async def test_a_condition_that_is_no_condition_does_not_show_the_value(flow: WorkflowBench, value: Any) -> None:
    await flow.create(chain(job("login", id="login"), job("after", id="after", if_="steps.login.result")))
    await flow.work(results={"login": value})
    error = msgspec.json.encode((await flow.step("after")).error).decode()
    assert "neither true nor false" in error
    assert "4242" not in error


async def test_a_map_ends_only_after_its_last_element(flow: WorkflowBench) -> None:
    await flow.create(chain(each(list(range(600))), job("after")))
    assert await work_off(flow) == maps.ELEMENT_NODES_AT_ONCE
    assert (await flow.step("each")).state == "active"
    await flow.run_all_due()
    assert await work_off(flow) == 601 - maps.ELEMENT_NODES_AT_ONCE
    assert await flow.state() == "completed"


async def test_maps_take_turns(flow: WorkflowBench) -> None:
    steps = [each(list(range(1_600))) | {"id": name} for name in ("left", "right")]
    await flow.create(group(*steps))
    before = await number_of_nodes(flow)
    await flow.run_due()
    await flow.run_due()
    states = await flow.states()
    assert await number_of_nodes(flow) > before + maps.ELEMENT_NODES_AT_ONCE
    assert all(f"{name}.{3 * maps.ELEMENT_NODES_AT_ONCE // 2}" in states for name in ("left", "right"))


@pytest.mark.parametrize("ended_before", [False, True])
async def test_a_cancelled_map_creates_no_more_elements_and_a_retry_creates_them(
    flow: WorkflowBench, ended_before: bool
) -> None:
    await flow.create(chain(each(list(range(600))), job("after")))
    if ended_before:
        assert await work_off(flow) == maps.ELEMENT_NODES_AT_ONCE
    await flow.service.workflows.cancel(flow.id)
    await flow.run_all_due()
    info = await flow.look()
    assert (info.state, info.completed_at is not None) == ("cancelled", True)
    assert await number_of_nodes(flow) < maps.ELEMENT_NODES_AT_ONCE + 10
    assert await work_off(flow) == 0
    await flow.service.workflows.retry(flow.id)
    await flow.run_all_due()
    assert await work_off(flow) == 601 - ended_before * maps.ELEMENT_NODES_AT_ONCE
    assert await flow.state() == "completed"


async def test_a_map_that_is_retried_after_a_failure_begins_where_it_was(flow: WorkflowBench) -> None:
    await flow.create(chain(each(list(range(600)))))
    first = await flow.fetch_one()
    await flow.give_up(first)
    await work_off(flow)
    await flow.run_all_due()
    await work_off(flow)
    assert await flow.state() == "failed"
    await flow.service.workflows.retry(flow.id)
    await flow.run_all_due()
    assert await work_off(flow) == 1
    assert await flow.state() == "completed"


async def test_a_held_workflow_expands_and_starts_nothing(flow: WorkflowBench) -> None:
    await flow.create(chain(each(list(range(600)))))
    await flow.service.workflows.hold(flow.id)
    await flow.run_all_due()
    assert await flow.fetch(count=1_000) == []
    await flow.service.workflows.release(flow.id)
    assert await work_off(flow) == 600
    assert await flow.state() == "completed"


async def test_an_element_that_cannot_be_planned_fails_the_map(flow: WorkflowBench) -> None:
    await flow.create(chain(each(list(range(600))), job("after"), on_error=job("mend")))
    refusal = PayloadTooLarge("too large")
    with mock.patch.object(expansion, "plant_elements", side_effect=refusal):
        await flow.run_all_due()
    await work_off(flow)
    info = await flow.look()
    assert info.state == "failed"
    assert (await flow.step("on_error")).state == "completed"


async def test_a_map_beyond_the_number_of_nodes_is_refused_as_a_whole(flow: WorkflowBench) -> None:
    with mock.patch.object(maps, "MAX_NODES", 300):
        await flow.create(chain(each(list(range(600)))))
    step = await flow.step("each")
    assert step.state == "failed"
    assert await number_of_nodes(flow) < 10


class TestBytes:
    """What references stand for."""

    @pytest.fixture
    def engine_settings(self) -> ServiceSettings:
        return ServiceSettings(largest_workflow=3_000_000)

    async def test_jobs_with_a_large_parameter_are_created_a_few_at_a_time(self, flow: WorkflowBench) -> None:
        params = {"big": "x" * 60_000}
        await flow.create(chain(each(list(range(40)), ref("params.big"))) | {"params": params})
        assert len(await flow.fetch(count=100)) == maps.ELEMENTS_AT_ONCE
        await flow.run_all_due()
        assert len(await flow.fetch(count=100)) == 40 - maps.ELEMENTS_AT_ONCE

    async def test_a_workflow_whose_references_stand_for_too_much_fails_with_the_reason(
        self, flow: WorkflowBench
    ) -> None:
        params = {"big": "x" * 60_000, "other": "y" * 50_000}
        step = each(list(range(200)), ref("params.big"), ref("params.other"))
        await flow.create(chain(step) | {"params": params})
        await flow.run_all_due()
        await work_off(flow)
        info = await flow.look()
        assert info.state == "failed"
        failed = [step for step in info.walk() if step.state == "failed" and step.path.startswith("each.")]
        assert b"more than 3000000 bytes" in msgspec.json.encode(failed[0].error)


async def refused_map(flow: WorkflowBench, *args: Any) -> None:
    """Begin a map of ten jobs for a tenant that may have five."""
    await say(flow, "acme", max_queue_depth=5)
    work = {"type": "map", "id": "each", "over": ref("steps.list.result"), "do": job("work", *args)}
    steps = chain(job("list", id="list"), work)
    made = await flow.service.as_(Caller("acme")).workflows.create(read_members(msgspec.json.encode(steps)))
    flow.id = made.id
    (one,) = await flow.fetch()
    await flow.ack(one, msgspec.json.encode(list(range(10))))
    assert await flow.state() == "failed"


@pytest.mark.parametrize("how", ["workflow", "step"])
async def test_a_map_that_was_refused_begins_when_it_is_retried(flow: WorkflowBench, how: str) -> None:
    await refused_map(flow)
    await say(flow, "acme", max_queue_depth=1000)
    if how == "workflow":
        await flow.service.workflows.retry(flow.id)
    else:
        await flow.retry_step("each")
    await flow.run_all_due()
    assert await flow.work() == ["work"] * 10
    assert await flow.state() == "completed"


async def test_jobs_with_references_count_towards_the_depth_of_their_tenant(flow: WorkflowBench) -> None:
    """In a map, in a new workflow, and as appended steps."""
    await refused_map(flow, ref("item"))
    workflows = flow.service.as_(Caller("acme")).workflows
    wire = group(*[job("work", ref("params.a")) for _ in range(10)], params={"a": 1})
    with pytest.raises(TenantLimitExceeded):
        await workflows.create(read_members(msgspec.json.encode(wire)))
    await workflows.create(read_members(msgspec.json.encode(group(job("a"), params={"a": 1}))))
    (one,) = await flow.fetch()
    step = msgspec.json.encode(job("work", ref("params.a")))
    (refused,) = await flow.service.jobs.acknowledge([Acknowledgement(one.id, b"1", append=(step,) * 10)])
    assert isinstance(refused, TenantLimitExceeded)


async def test_small_maps_that_begin_together_start_all_their_jobs_at_once(flow: WorkflowBench) -> None:
    await flow.create(group(*[each(list(range(10))) | {"id": f"map{number}"} for number in range(5)]))
    assert len(await flow.fetch(count=100)) == 50

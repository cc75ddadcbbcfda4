"""The branches of a workflow, ``on_error`` and ``on_cancel``: both clean up, and neither takes for ever."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.json_objects import read_members
from ojster.workflows.stored_workflow import BRANCH_TIMEOUT
from tests.workflows.bench import WorkflowBench, chain, group, job

pytestmark = pytest.mark.anyio

ON_ERROR = {
    "job": (job("tidy"), ["tidy"]),
    "steps": ([job("tidy"), job("tell")], ["tidy", "tell"]),
    "group": (group(job("tidy"), chain(job("ask"), job("tell"))), ["tidy", "ask", "tell"]),
    "batch": ({"type": "batch", "jobs": [job("tidy")], "callbacks": {"on_complete": job("tell")}}, ["tidy", "tell"]),
}
WEEK = BRANCH_TIMEOUT / 1e6


async def fail(flow: WorkflowBench, **more: Any) -> Any:
    """Start a workflow whose first step fails; return the first job of ``on_error``."""
    await flow.create(chain(job("a"), job("b"), **more))
    await flow.give_up((await flow.take())[0])
    return await flow.fetch_one(worker_id="w")


@pytest.mark.parametrize("kind", ON_ERROR)
@pytest.mark.parametrize("fails", [False, True])
async def test_cancelling_while_on_error_runs_cuts_nothing_off_and_runs_on_cancel_after_it(
    flow: WorkflowBench, kind: str, fails: bool
) -> None:
    on_error, expected = ON_ERROR[kind]
    active = await fail(flow, on_error=on_error, on_cancel=[job("c"), job("d")])
    await flow.service.workflows.cancel(flow.id)
    assert (await flow.look()).state == "cancelled"
    done = [active.type]
    await flow.ack(active)
    done += await flow.work(*(expected[-1:] if fails and len(expected) > 1 else []))
    assert (sorted(done[:-2]), done[-2:]) == (sorted(expected), ["c", "d"])
    info = await flow.look()
    assert (info.state, info.finished) == ("cancelled", True)
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["a", "b"]


async def test_cancelling_without_on_cancel_lets_on_error_finish(flow: WorkflowBench) -> None:
    active = await fail(flow, on_error=[job("tidy"), job("tell")])
    await flow.service.workflows.cancel(flow.id)
    assert not (await flow.look()).finished
    await flow.ack(active)
    assert await flow.work() == ["tell"]
    info = await flow.look()
    assert (info.state, info.finished) == ("cancelled", True)


async def test_active_steps_of_on_error_are_stopped_on_demand_and_on_cancel_runs_then(flow: WorkflowBench) -> None:
    active = await fail(flow, on_error=[job("tidy"), job("tell")], on_cancel=job("c"))
    await flow.service.workflows.cancel(flow.id, stop_active=True)
    assert await flow.work() == [], "the worker has not confirmed yet"
    await flow.confirm(active)
    assert await flow.work() == ["c"]
    info = await flow.look()
    assert (info.state, info.finished) == ("cancelled", True)


async def test_a_held_workflow_that_is_cancelled_runs_both_branches(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), on_error=job("tidy"), on_cancel=job("c")))
    (one,) = await flow.take()
    await flow.service.workflows.hold(flow.id)
    await flow.give_up(one)
    assert await flow.work() == []
    await flow.service.workflows.cancel(flow.id)
    assert await flow.work() == ["tidy", "c"]


@pytest.mark.parametrize("on_error", [job("tidy"), {"type": "gate"}, [job("tidy"), job("tell")]])
async def test_a_branch_that_never_ends_is_ended_after_a_week(flow: WorkflowBench, on_error: Any) -> None:
    await flow.create(chain(job("a"), on_error=on_error))
    await flow.give_up((await flow.take())[0])
    await flow.run_due(WEEK - 1)
    assert not (await flow.look()).finished
    await flow.run_due(2)
    info = await flow.look()
    assert (info.state, info.finished) == ("failed", True)


async def test_each_branch_has_its_own_week(flow: WorkflowBench) -> None:
    await fail(flow, on_error=job("tidy"), on_cancel=job("c"))
    await flow.run_due(WEEK - 10)
    await flow.service.workflows.cancel(flow.id)
    await flow.run_due(WEEK + 1)
    assert (await flow.look()).on_cancel is not None
    await flow.run_due(WEEK + 60)
    info = await flow.look()
    assert (info.state, info.finished) == ("cancelled", True)


async def test_a_workflow_that_runs_out_of_time_while_it_is_held_cleans_up_and_releases_its_target(
    flow: WorkflowBench,
) -> None:
    definition = {"type": "chain", "steps": [job("a")], "on_error": job("tidy"), "timeout": 10}
    await flow.service.definitions.create("d", read_members(msgspec.json.encode(definition)))
    await flow.create({"definition": "d", "target": "/x"})
    await flow.service.workflows.hold(flow.id)
    await flow.run_due(11)
    assert await flow.work() == ["tidy"]
    info = await flow.look()
    assert (info.state, info.finished, info.held) == ("failed", True, False)
    await flow.create({"definition": "d", "target": "/x"})

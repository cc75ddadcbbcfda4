"""Bulk operations on the workflows that match a filter, in the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ojster.core.access import Access, Operation
from ojster.core.durations import SECOND
from ojster.core.errors import Conflict, Forbidden, InvalidRequest
from ojster.core.json_objects import read_members
from ojster.core.settings import ServiceSettings
from ojster.core.timestamps import format_timestamp
from ojster.jobs import sweeps
from ojster.jobs.filters import filter_members
from ojster.jobs.scope import Caller
from ojster.jobs.sweeps import Sweep
from ojster.service import Service
from ojster.workflows import bulk
from ojster.workflows.bulk import ALLOWED_STATES, DEFAULT_STATES, WorkflowAction
from ojster.workflows.filters import narrowing_workflow_filter_of, workflow_filter_of
from ojster.workflows.read import selection
from ojster.workflows.read.selection import WorkflowConditions, WorkflowFilter
from ojster.workflows.run.control import Review
from ojster.workflows.stored_workflow import ALL_STATES
from tests.conftest import START
from tests.workflows.bench import WorkflowBench, chain, graph, job

pytestmark = pytest.mark.anyio

IN_THIS_TEST = WorkflowConditions(type="chain")


async def one_in_each_state(flow: WorkflowBench) -> dict[str, str]:
    """Create a workflow in each of some states; return their ids by what they are."""
    ids = {"completed": (await flow.create(chain(job("a")))).id}
    await flow.work()
    ids["failed"] = (await flow.create(chain(job("a")))).id
    await flow.work("a")
    ids["cancelled"] = (await flow.create(chain(job("a")))).id
    await flow.service.workflows.cancel(ids["cancelled"])
    ids["cancelled, with an active job"] = (await flow.create(chain(job("a"), job("b")))).id
    await flow.take()
    await flow.service.workflows.cancel(ids["cancelled, with an active job"])
    ids["cancelled and held"] = (await flow.create(chain(job("a"), job("b")))).id
    await flow.take()
    await flow.service.workflows.cancel(ids["cancelled and held"])
    await flow.service.workflows.hold(ids["cancelled and held"])
    ids["running"] = (await flow.create(chain(job("a")))).id
    ids["held"] = (await flow.create(chain(job("a")))).id
    await flow.service.workflows.hold(ids["held"])
    at = format_timestamp(START + 3600 * SECOND)
    ids["pending"] = (await flow.create(chain(job("a")) | {"scheduled_at": at})).id
    return ids


async def sweep(service: Service, action: WorkflowAction, chosen: WorkflowConditions, **more: Any) -> Sweep:
    what = {"flow": "a", "version": "2.0"} if action == WorkflowAction.PIN else {}
    swept: Sweep = await getattr(service.workflow_bulk, action)(chosen, **what, **more)
    return swept


CHANGED = {
    WorkflowAction.CANCEL: {"running", "held", "pending"},
    WorkflowAction.RETRY: {"failed"},
    WorkflowAction.FORK: {"failed"},
    WorkflowAction.HOLD: {"running", "pending"},
    WorkflowAction.RELEASE: {"held", "cancelled and held"},
}


@pytest.mark.parametrize("action", CHANGED)
async def test_each_action_changes_what_it_can_and_its_dry_run_says_so_before(
    flow: WorkflowBench, action: WorkflowAction
) -> None:
    ids = await one_in_each_state(flow)
    before = {id: (await flow.service.workflows.show(id)).version for id in ids.values()}
    foreseen = await sweep(flow.service, action, IN_THIS_TEST, dry_run=True)
    assert {id: (await flow.service.workflows.show(id)).version for id in ids.values()} == before
    assert foreseen.as_of == START + 1
    swept = await sweep(flow.service, action, IN_THIS_TEST)
    assert swept.as_of is None
    assert (swept.matched, swept.succeeded, swept.items) == (foreseen.matched, foreseen.succeeded, foreseen.items)
    by_id = {id: what for what, id in ids.items()}
    assert {by_id[id] for id, refusal in swept.items if refusal is None} == CHANGED[action]
    changed = {id for id in ids.values() if (await flow.service.workflows.show(id)).version != before[id]}
    assert {by_id[id] for id in changed} == CHANGED[action]


@pytest.mark.parametrize("action", WorkflowAction)
@pytest.mark.parametrize("state", ALL_STATES)
async def test_a_filter_names_only_states_in_which_the_action_is_allowed(
    flow: WorkflowBench, action: WorkflowAction, state: str
) -> None:
    if state in ALLOWED_STATES[action]:
        assert (await sweep(flow.service, action, WorkflowConditions(states=(state,)))).matched == 0
        return
    with pytest.raises(InvalidRequest, match=f"in the state {state} cannot be {action.past}. Choose"):
        await sweep(flow.service, action, WorkflowConditions(states=(state,)))


async def test_default_states_are_allowed() -> None:
    for action in WorkflowAction:
        assert set(DEFAULT_STATES[action]) <= set(ALLOWED_STATES[action])


async def test_what_cannot_be_changed_is_counted_with_its_reason(flow: WorkflowBench) -> None:
    ids = await one_in_each_state(flow)
    chosen = WorkflowConditions(states=("cancelled",))
    for dry_run in (True, False):
        swept = await flow.service.workflow_bulk.retry(chosen, dry_run=dry_run)
        assert (swept.matched, swept.succeeded, swept.failed) == (3, 1, 2)
        refusals = {id: str(refusal) for id, refusal in swept.items if refusal is not None}
        assert "still has active jobs" in refusals[ids["cancelled, with an active job"]]


async def test_a_cancellation_stops_active_jobs_if_it_shall(flow: WorkflowBench) -> None:
    for active_too, state in ((False, "active"), (True, "cancelled")):
        await flow.create(chain(job("a")))
        (held,) = await flow.take()
        assert (await flow.service.workflow_bulk.cancel(IN_THIS_TEST, stop_active=active_too)).succeeded == 1
        assert (await flow.find(held)).state == state
        if not active_too:
            await flow.ack(held, b"1")


async def test_a_retry_is_refused_while_another_workflow_has_the_target(flow: WorkflowBench) -> None:
    await flow.service.definitions.create("d", read_members(b'{"type":"chain","steps":[{"type":"a","args":[]}]}'))
    await flow.create({"definition": "d", "target": "x"})
    await flow.work("a")
    await flow.create({"definition": "d", "target": "x"})
    for dry_run in (True, False):
        swept = await flow.service.workflow_bulk.retry(WorkflowConditions(definition="d"), dry_run=dry_run)
        assert (swept.matched, swept.succeeded) == (1, 0)
        assert "cannot be retried. Another workflow" in str(swept.items[0][1])


async def test_the_filter_has_every_condition_of_the_list(flow: WorkflowBench) -> None:
    """Each condition alone selects the second workflow, in the list and in a bulk operation."""
    await flow.service.definitions.create("d", read_members(b'{"type":"chain","steps":[{"type":"a","args":[]}]}'))
    await flow.create(chain(job("a")) | {"name": "first"})
    await flow.work()
    flow.clock.advance(10)
    wire = {"definition": "d", "target": "x", "params": {"zone": "eu"}, "name": "second", "metadata": {"customer": 42}}
    id = (await flow.create(wire)).id
    await flow.service.workflows.hold(id)
    flow.clock.advance(10)
    await flow.create({"type": "group", "jobs": [job("b")], "name": "third"})
    between = {"created_after": START + 5 * SECOND, "created_before": START + 15 * SECOND}
    alone: list[dict[str, Any]] = [
        {"name": "second"}, {"definition": "d"}, {"target": "x"}, {"params": {"zone": "eu"}}, {"held": True},
        {"states": ("running",), "type": "chain"}, between, {"held": False, "finished_after": START - 1},
        {"waiting_for": "gate"}, {"cron_name": "nightly"}, {"ids": (id, "other")}, {"metadata": {"customer": 42.0}},
    ]  # fmt: skip
    for members in alone:
        chosen = WorkflowConditions(**members)
        listed = await flow.service.workflows.select(WorkflowFilter(**members))
        swept = await flow.service.workflow_bulk.cancel(
            WorkflowConditions(**members | {"states": ("running",)}), dry_run=True
        )
        expected = [] if members.keys() & {"finished_after", "waiting_for", "cron_name"} else [id]
        assert [item for item, _ in swept.items] == expected, members
        assert expected in ([], [workflow.id for workflow in listed.workflows]), members
        assert workflow_filter_of(filter_members(chosen)) == chosen
    assert {name for members in alone for name in members} | {"finished_before", "tenant"} == {
        *WorkflowConditions.__struct_fields__
    }


@pytest.mark.parametrize("action", [WorkflowAction.RETRY, WorkflowAction.DELETE, WorkflowAction.FORK])
async def test_workflows_that_are_named_are_refused_with_a_reason_and_not_left_out(
    flow: WorkflowBench, action: WorkflowAction
) -> None:
    runs, other = [(await flow.create(chain(job("a")))).id for _ in range(2)]
    swept = await sweep(flow.service, action, WorkflowConditions(ids=(runs, "unknown")))
    ((id, refusal),) = swept.items
    assert (id, isinstance(refusal, Conflict)) == (runs, True)
    await flow.work()
    assert [id for id, _ in (await sweep(flow.service, action, WorkflowConditions(ids=(other,)))).items] == [other]


async def test_named_workflows_are_found_without_a_walk_over_the_others(
    flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(await flow.create(chain(job("a")))).id for _ in range(5)]
    monkeypatch.setattr(selection, "_WINDOW", 0)  # a walk would find nothing
    swept = await flow.service.workflow_bulk.cancel(WorkflowConditions(ids=(ids[3], ids[1])))
    assert [id for id, _ in swept.items] == [ids[1], ids[3]]


async def test_what_the_filter_would_no_longer_select_is_left_alone(
    flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk reads many workflows before it changes them; somebody may be quicker."""
    body = graph({"id": "g", "type": "gate"}, job("x", depends_on=["g"], id="x"))
    waiting = [(await flow.create(body)).id for _ in range(3)]
    database = flow.service.database
    read = database.read

    async def read_then_approve(operation: Any, argument: Any, *more: Any, **named: Any) -> Any:
        result = await read(operation, argument, *more, **named)
        if operation is bulk.COURSE.walk:
            monkeypatch.setattr(database, "read", read)
            await flow.service.workflows.review_step(Review(waiting[0], "g", "approve", None, "ada"))
        return result

    monkeypatch.setattr(database, "read", read_then_approve)
    swept = await flow.service.workflow_bulk.cancel(WorkflowConditions(waiting_for="gate"))
    assert (swept.matched, swept.succeeded) == (2, 2)
    states = [(await flow.service.workflows.show(id)).state for id in waiting]
    assert states == ["running", "cancelled", "cancelled"]


@pytest.mark.parametrize("size", [1, 2, 3, 50])
async def test_workflows_are_changed_in_bounded_parts(
    flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(selection, "_WINDOW", 3)
    monkeypatch.setattr(sweeps.parts, "__defaults__", (size,))
    ids = [(await flow.create(chain(*[job("a")] * (number % 4 + 1)))).id for number in range(7)]
    parts: list[int] = []
    run = flow.service.database.run

    async def counting(operation: Any, argument: Any, weight: int = 1) -> Any:
        parts.append(len(argument.ids))
        return await run(operation, argument, weight)

    monkeypatch.setattr(flow.service.database, "run", counting)
    swept = await flow.service.workflow_bulk.cancel(IN_THIS_TEST)
    assert [id for id, _ in swept.items] == ids
    assert swept.succeeded == 7
    assert sum(parts) == 7
    assert (max(parts) == 1) == (size < 6), "a workflow of one step has three nodes"


async def test_a_workflow_that_leaves_the_states_by_its_turn_is_skipped(
    flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [(await flow.create(chain(job("a")))).id for _ in range(3)]
    run = flow.service.database.run

    async def late(operation: Any, argument: Any, weight: int = 1) -> Any:
        monkeypatch.undo()
        await flow.service.workflows.cancel(ids[1])
        return await run(operation, argument, weight)

    monkeypatch.setattr(flow.service.database, "run", late)
    swept = await flow.service.workflow_bulk.hold(IN_THIS_TEST)
    assert [id for id, _ in swept.items] == [ids[0], ids[2]]


@pytest.mark.parametrize("action", WorkflowAction)
async def test_a_filter_without_a_condition_is_refused(flow: WorkflowBench, action: WorkflowAction) -> None:
    with pytest.raises(InvalidRequest, match="would select all workflows"):
        await sweep(flow.service, action, WorkflowConditions())
    for members in (None, {}, {"state": None}):
        with pytest.raises(InvalidRequest, match="would select all workflows"):
            narrowing_workflow_filter_of(members)


async def test_a_filter_that_leaves_nothing_to_hold_or_release_is_refused(flow: WorkflowBench) -> None:
    for call, held in ((flow.service.workflow_bulk.hold, True), (flow.service.workflow_bulk.release, False)):
        with pytest.raises(InvalidRequest, match="which leaves nothing to"):
            await call(WorkflowConditions(name="n", held=held))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"state": "discarded"}, "Unknown state"),
        ({"states": []}, "non-empty array"),
        ({"nam": "x"}, "has no member 'nam'"),
        ({"name": ""}, "non-empty string"),
        ({"waiting_for": "rain"}, "does not wait for 'rain'"),
        ({"held": 1}, "true or false"),
        ({"params": []}, "object"),
        ({"metadata": {}}, "at least one member"),
        ({"ids": []}, "non-empty"),
        ({"id": "a", "ids": ["b"]}, "twice"),
        ({"created_after": "yesterday"}, "created_after"),
        ({"state": "failed", "states": ["failed"]}, "twice"),
    ],
)
def test_a_malformed_filter_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        workflow_filter_of(members)


async def test_a_tenant_changes_only_its_own_workflows(flow: WorkflowBench) -> None:
    acme = flow.service.as_(Caller("acme"))
    mine = (await acme.workflows.create(read_members(b'{"type":"chain","steps":[{"type":"a","args":[]}]}'))).id
    other = (await flow.create(chain(job("a")))).id
    swept = await acme.workflow_bulk.cancel(IN_THIS_TEST)
    assert [id for id, _ in swept.items] == [mine]
    assert (await flow.service.workflows.show(other)).state == "running"
    assert (await flow.service.as_(Caller("beta")).workflow_bulk.retry(IN_THIS_TEST)).matched == 0


async def test_the_definition_of_a_tenant_is_selected_by_its_name(flow: WorkflowBench) -> None:
    acme = flow.service.as_(Caller("acme"))
    await acme.definitions.create("d", read_members(b'{"type":"chain","steps":[{"type":"a","args":[]}]}'))
    id = (await acme.workflows.create(read_members(b'{"definition":"d"}'))).id
    assert [item for item, _ in (await acme.workflow_bulk.hold(WorkflowConditions(definition="d"))).items] == [id]


CONTRIBUTOR = frozenset({Operation.ENQUEUE, Operation.CANCEL, Operation.INSPECT})
Calling = Callable[[Service], Any]


@pytest.mark.parametrize("engine_settings", [ServiceSettings(contributors_cancel="own")])
async def test_a_caller_that_may_stop_only_its_own_cannot_do_so_by_a_filter(flow: WorkflowBench) -> None:
    ada = flow.service.as_(Caller(None, Access("ada", CONTRIBUTOR)))
    for action in (WorkflowAction.CANCEL, WorkflowAction.HOLD):
        for dry_run in (True, False):
            with pytest.raises(Forbidden, match="Name the workflows"):
                await sweep(ada, action, IN_THIS_TEST, dry_run=dry_run)
    assert (await ada.workflow_bulk.retry(IN_THIS_TEST)).matched == 0
    assert (await ada.workflow_bulk.release(IN_THIS_TEST)).matched == 0


@pytest.mark.parametrize("action", WorkflowAction)
async def test_a_caller_that_is_limited_to_some_queues_is_refused(flow: WorkflowBench, action: WorkflowAction) -> None:
    limited = flow.service.as_(Caller(None, Access("ada", CONTRIBUTOR, ("mail",))))
    with pytest.raises(Forbidden, match="limited to mail"):
        await sweep(limited, action, IN_THIS_TEST)


async def test_a_bulk_cancellation_names_its_caller(flow: WorkflowBench) -> None:
    id = (await flow.create(chain(job("a")))).id
    eve = flow.service.as_(Caller(None, Access("eve", CONTRIBUTOR)))
    await eve.workflow_bulk.cancel(IN_THIS_TEST)
    assert (await flow.service.workflows.show(id)).cancelled_by == "eve"


async def test_a_bulk_fork_begins_at_a_step_and_can_be_repeated(flow: WorkflowBench) -> None:
    ids = []
    for _ in range(3):
        ids.append((await flow.create(chain(job("a"), job("b")))).id)
        await flow.work("b")
    await flow.create(chain(job("a")))
    await flow.work("a")
    chosen = WorkflowConditions(states=("failed",))
    for dry_run in (True, False):
        swept = await flow.service.workflow_bulk.fork(chosen, from_step="1", dry_run=dry_run)
        assert (swept.matched, swept.succeeded, swept.failed) == (4, 3, 1)
        assert "has no step '1'" in str(next(refusal for _, refusal in swept.items if refusal is not None))
    assert await flow.work() == ["b", "b", "b"]
    for id in ids:
        (forked,) = (await flow.service.workflows.show(id)).forks
        assert (await flow.service.workflows.show(forked)).state == "completed"
    swept = await flow.service.workflow_bulk.fork(chosen, from_step="1")
    assert (swept.matched, swept.succeeded) == (4, 0)
    assert await flow.work() == []

"""The tables of node and workflow transitions: every entry happens, and nothing else does."""

from __future__ import annotations

import ast
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

import ojster
from ojster.core.durations import DAY, SECOND
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.state_machine import IllegalTransition, StateMachine
from ojster.jobs.messages import Release
from ojster.workflows.node import Node, NodeState
from ojster.workflows.run import creation
from ojster.workflows.run.dependencies import NewDependencies
from ojster.workflows.run.states import NODE_STATES, WORKFLOW_STATES, change_node
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio

Seen = set[tuple[str, str | None, str]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The transitions that state machines have checked."""
    found: Seen = set()
    check = StateMachine.check

    def record(machine: StateMachine, before: str | None, after: str) -> None:
        check(machine, before, after)
        found.add((machine.what, None if before is None else str(before), str(after)))

    monkeypatch.setattr(StateMachine, "check", record)
    return found


def entries(machine: StateMachine) -> Seen:
    return {
        (machine.what, None if before is None else str(before), str(after))
        for before, afters in machine.table.items()
        for after in afters
    }


async def settle(flow: WorkflowBench, operation: str) -> None:
    await getattr(flow.service.workflows, operation)(flow.id)


async def let_go(flow: WorkflowBench, taken: Job, then: Any) -> None:
    (result,) = await flow.service.jobs.release([Release(taken.id, taken.worker_id, taken.attempt, then=then)])
    assert not isinstance(result, OjsterError), result


async def a_gate_is_approved_before_at_and_after_its_turn(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate", "id": "early"}, job("a")))
    await flow.review("early", "approve")
    await flow.work()
    await flow.create(chain(job("a"), {"type": "gate", "id": "later"}))
    await flow.review("later", "approve")
    await flow.work()
    await flow.create(chain(job("a", id="a"), {"type": "gate", "id": "g"}))
    (taken,) = await flow.take()
    await settle(flow, "hold")
    await flow.ack(taken)
    await flow.review("g", "approve")
    await settle(flow, "release")


async def a_step_waits_for_approval(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", id="a", manual=True)))
    await flow.review("a", "reject")
    await flow.create(chain(job("a", id="a", manual=True)))
    await flow.review("a", "approve")
    await flow.work()
    await flow.create(chain(job("a", ref("params.missing"), id="a", manual=True)) | {"params": {}})
    await flow.review("a", "approve")


async def an_approval_comes_while_the_workflow_is_held(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", id="a", manual=True)))
    await settle(flow, "hold")
    await flow.review("a", "approve")
    await settle(flow, "release")
    await flow.work()


async def a_held_workflow_is_released_or_cancelled(flow: WorkflowBench) -> None:
    for then in ("release", "cancel"):
        await flow.create(chain(job("a"), job("b")))
        (taken,) = await flow.take()
        await settle(flow, "hold")
        await flow.ack(taken)
        await settle(flow, then)
        await flow.work()


async def ready_steps_are_skipped_blocked_or_fail_after_the_release(flow: WorkflowBench) -> None:
    for step in (
        job("b", if_="params.wanted"),
        job("b", manual=True),
        job("b", ref("params.missing")),
    ):
        await flow.create(chain(job("a"), step) | {"params": {"wanted": False}})
        (taken,) = await flow.take()
        await settle(flow, "hold")
        await flow.ack(taken)
        await settle(flow, "release")
        await flow.work()


async def the_rest_is_skipped(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b", manual=True), chain(job("c"), job("d"))))
    jobs = {one.type: one for one in await flow.take(5)}
    await flow.ack(jobs["c"])
    await let_go(flow, jobs["a"], "skip")


async def a_step_that_is_ready_is_skipped(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), chain(job("c"), job("d"))))
    jobs = {one.type: one for one in await flow.take(5)}
    await settle(flow, "hold")
    await flow.ack(jobs["c"])
    await let_go(flow, jobs["a"], "skip")


async def a_branch_is_chosen(flow: WorkflowBench) -> None:
    await flow.create(graph(job("a", id="a"), job("b", depends_on=["a"], when="failed"), job("c", depends_on=["a"])))
    await flow.work("a")
    await flow.create(chain(job("a", ref("params.missing"))) | {"params": {}})
    await flow.create(chain(job("a", if_="params.wanted")) | {"params": {"wanted": False}})


async def a_workflow_fails_and_runs_again(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("a", id="a"),
            group(job("b"), job("c")) | {"id": "b", "depends_on": ["a"]},
            job("d", id="d", depends_on=["a"], when="failed"),
            job("e", depends_on=["d"], when="failed"),
        )
    )
    await flow.work("a")
    await settle(flow, "retry")
    await flow.work()


async def what_is_about_to_follow_a_failure_waits_for_the_next_attempt(flow: WorkflowBench) -> None:
    for handler in ({"type": "gate", "when": "failed"}, job("h", when="failed")):
        await flow.create(group(job("slow"), chain(job("a"), handler)))
        jobs = {one.type: one for one in await flow.take(2)}
        if handler["type"] == "h":
            await settle(flow, "hold")
        await flow.give_up(jobs["a"])
        await flow.retry_step("1.0")
        await settle(flow, "cancel")


async def a_saga_is_compensated_and_runs_again(flow: WorkflowBench) -> None:
    saga = {"type": "saga", "steps": [job("a", compensate=job("u")), job("b")], "failure_policy": "compensate"}
    await flow.create(saga)
    await flow.work("b")
    await settle(flow, "retry")
    await flow.work()
    await flow.create(saga)
    await flow.work("b")
    await flow.create(saga)
    await flow.work("b", "u")
    await flow.create(saga)
    (first,) = await flow.take()
    await flow.ack(first)
    (second,) = await flow.take()
    await flow.give_up(second)
    await settle(flow, "cancel")
    await flow.work()


async def a_workflow_is_cancelled_and_runs_again(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    await settle(flow, "cancel")
    await flow.work()
    await settle(flow, "retry")
    await flow.work()


async def a_workflow_starts_later_or_never(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")) | {"scheduled_at": "+PT1H"})
    await flow.run_due(after=3601)
    await flow.work()
    await flow.create(chain(job("a")) | {"scheduled_at": "+PT1H"})
    await settle(flow, "cancel")


async def a_workflow_runs_again_as_a_whole(flow: WorkflowBench) -> None:
    body = {"type": "chain", "steps": [job("a")], "retry": {"max_attempts": 2}}
    await flow.service.definitions.create("again", read_members(msgspec.json.encode(body)))
    await flow.create({"definition": "again"})
    (taken,) = await flow.take()
    await let_go(flow, taken, "retry")
    flow.clock.advance(3600)
    await flow.run_due()
    for again in await flow.take():
        await flow.ack(again)


async def a_container_ends_as_it_must(flow: WorkflowBench) -> None:
    await flow.create(chain(group(job("a"), job("b"))))
    await flow.work("a")


async def a_large_workflow_is_created_in_steps(flow: WorkflowBench) -> None:
    with mock.patch.object(creation, "NODES_CREATED_AT_ONCE", 1):
        await flow.create(chain(job("a")))


async def steps_that_could_start_wait_for_more(flow: WorkflowBench) -> None:
    steps = (job("a", id="a"), job("b", id="b"), {"type": "gate", "id": "g"}, job("c", id="c", depends_on=["a"]))
    await flow.create(graph(*steps))
    jobs = {one.type: one for one in await flow.take(2)}
    await settle(flow, "hold")
    await flow.ack(jobs["a"])
    for step in ("g", "c"):
        await flow.service.workflows.add_dependencies(NewDependencies(flow.id, step, ("b",)))
    await flow.ack(jobs["b"])
    await settle(flow, "release")
    await flow.review("g", "approve")


SCENARIOS: tuple[Callable[[WorkflowBench], Awaitable[None]], ...] = (
    a_gate_is_approved_before_at_and_after_its_turn,
    a_step_waits_for_approval,
    an_approval_comes_while_the_workflow_is_held,
    a_held_workflow_is_released_or_cancelled,
    ready_steps_are_skipped_blocked_or_fail_after_the_release,
    the_rest_is_skipped,
    a_step_that_is_ready_is_skipped,
    a_branch_is_chosen,
    a_workflow_fails_and_runs_again,
    what_is_about_to_follow_a_failure_waits_for_the_next_attempt,
    a_saga_is_compensated_and_runs_again,
    a_workflow_is_cancelled_and_runs_again,
    a_workflow_starts_later_or_never,
    a_workflow_runs_again_as_a_whole,
    a_container_ends_as_it_must,
    a_large_workflow_is_created_in_steps,
    steps_that_could_start_wait_for_more,
)


async def test_every_transition_of_nodes_and_workflows_happens(flow: WorkflowBench, seen: Seen) -> None:
    for scenario in SCENARIOS:
        await scenario(flow)
        await flow.work()
    flow.clock.advance(1000 * DAY / SECOND)
    assert (await flow.service.maintenance.prune())["workflows"] > 10
    known = entries(NODE_STATES) | entries(WORKFLOW_STATES)
    found = {one for one in seen if one[0] != "job"}
    assert found <= known
    assert json.dumps(sorted(map(str, known - found)), indent=1) == "[]", "the tables have no unused entries"


def test_a_transition_that_the_table_lacks_is_refused() -> None:
    node = Node(1, None, 0, "job", state=NodeState.COMPLETED.value)
    with pytest.raises(IllegalTransition, match="'completed' to 'started'"):
        change_node(node, NodeState.STARTED)
    assert node.state == "completed"


def test_states_are_assigned_only_by_the_functions_that_check_them() -> None:
    folder = Path(ojster.__file__).parent
    places = {
        f"{path.relative_to(folder)}:{name}"
        for package in (
            "storage",
            "jobs",
            "workflows",
            "queues",
            "schedules",
            "fleet",
            "collections",
            "insight",
            "events",
        )
        for path in (folder / package).rglob("*.py")
        for name in _assigning(ast.parse(path.read_text()))
    }
    assert places == {
        "storage/transaction.py:move",
        "storage/transaction.py:move_all",
        "jobs/push.py:_new_row",  # the first state, which `_insert` checks
        "workflows/run/states.py:change_node",
        "workflows/run/states.py:change_workflow",
        "workflows/read/views.py:_show_job",  # how a step is shown
    }


def _assigning(tree: ast.Module) -> Iterator[str]:
    """Yield the functions that assign an attribute `state`."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                targets = node.targets if isinstance(node, ast.Assign) else []
                if any(isinstance(target, ast.Attribute) and target.attr == "state" for target in targets):
                    yield function.name

"""Execution of workflows, with Ojster's extensions of the specification.

Spec: ojs-workflows
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ojster.core.errors import Conflict, Duplicate, InvalidRequest, NotFound
from ojster.core.events import EventFilter
from ojster.core.ids import new_id
from ojster.core.settings import ServiceSettings
from ojster.jobs.claim_policy import Claim
from ojster.schedules import retention
from ojster.service import Service
from ojster.workflows.read.selection import WorkflowFilter
from tests.conftest import Clock
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio


# Data passing


async def test_each_step_of_a_chain_gets_the_results_of_all_before_it(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b"), job("c")))
    await flow.work(results={"a": {"order": 1}, "b": 2})
    assert flow.given == {"a": [], "b": [{"order": 1}], "c": [{"order": 1}, 2]}


async def test_the_results_of_a_group_are_passed_on_by_index(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), group(job("b"), job("c"), job("d")), job("e")))
    await flow.work(results={"a": "A", "b": "B", "c": "C", "d": None})
    assert flow.given["b"] == flow.given["c"] == ["A"], "each job of the group gets what the group gets"
    assert flow.given["e"] == ["A", {"0": "B", "1": "C", "2": None}]


async def test_callbacks_get_the_results_of_all_jobs_also_of_failed_ones(flow: WorkflowBench) -> None:
    await flow.create(batch(job("a"), job("b"), on_complete=job("done"), on_failure=job("alert")))
    assert sorted(await flow.work("b", results={"a": {"sent": 1}})) == ["a", "alert", "b", "done"]
    assert flow.given["done"] == flow.given["alert"]
    first, second = flow.given["done"]
    assert first == {"sent": 1}
    assert second["state"] == "failed"
    assert {"code": "handler_error", "type": "Boom", "message": "it went wrong", "attempt": 1}.items() <= second[
        "error"
    ].items()


async def test_a_step_of_a_graph_gets_what_it_depends_on_by_name(flow: WorkflowBench) -> None:
    await flow.create(
        graph(job("a", id="x"), job("b", id="y"), job("c", id="z", depends_on=["x", "y"]), job("d", depends_on=["z"]))
    )
    await flow.work(results={"a": 1, "b": 2, "c": 3, "d": 4})
    assert flow.given["c"] == {"x": 1, "y": 2}
    assert flow.given["d"] == {"z": 3}
    assert msgspec.json.decode((await flow.look()).result or b"") == {"3": 4}, "of the steps on which nobody depends"


async def test_the_inner_steps_get_what_is_nearest(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), group(chain(job("b"), job("c")), job("d")), job("e")))
    await flow.work(results={"a": "A", "b": "B", "c": "C", "d": "D"})
    assert flow.given["b"] == flow.given["d"] == ["A"]
    assert flow.given["c"] == ["B"]
    assert flow.given["e"] == ["A", {"0": "C", "1": "D"}]


async def test_a_batch_and_a_saga_pass_on_what_their_steps_have_done(flow: WorkflowBench) -> None:
    saga = {"type": "saga", "steps": [job("s"), job("t")]}
    await flow.create(chain(batch(job("a"), on_complete=job("b")), saga, job("e")))
    await flow.work(results={"a": "A", "b": "B", "s": "S", "t": "T"})
    assert flow.given["e"] == [{"0": "A"}, "T"]


async def test_results_come_through_as_they_were_written(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await flow.ack(one, b'{"z": 1.50, "a": 12345678901234567890123, "e": "\\u00e9"}')
    claimed = await flow.fetch_one()
    assert claimed.parent_results == b'[{"z": 1.50, "a": 12345678901234567890123, "e": "\\u00e9"}]'


async def test_a_step_of_a_long_chain_gets_the_results_of_the_last_hundred_by_index(flow: WorkflowBench) -> None:
    steps = [job(f"s{number}") for number in range(103)]
    await flow.create(chain(*steps))
    await flow.work(results={f"s{number}": number for number in range(103)})
    assert flow.given["s100"] == list(range(100)), "all of them"
    assert flow.given["s101"] == {str(number): number for number in range(1, 101)}
    assert flow.given["s102"] == {str(number): number for number in range(2, 102)}


# References and conditions


async def test_references_stand_for_results_parameters_errors_and_states(flow: WorkflowBench) -> None:
    arguments = [
        ref("steps.first.result.list.1"),
        {"deep": [ref("params.order.id")]},
        ref("steps.second.error.code"),
        ref("steps.second.state"),
        ref("steps.0.result"),
        {"$ref": "#/somebody/elses"},
    ]
    await flow.create(
        chain(
            job("first", id="first"),
            job("second", id="second", allow_failure=True),
            job("third", *arguments),
            params={"order": {"id": 42}},
        )
    )
    await flow.work("second", results={"first": {"list": [1, 2]}})
    assert flow.arguments["third"] == [
        2,
        {"deep": [42]},
        "handler_error",
        "failed",
        {"list": [1, 2]},
        {"$ref": "#/somebody/elses"},
    ]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("steps.a.result.nothing", "leads nowhere: 'steps.a.result' has no 'nothing'"),
        ("params.nobody", "leads nowhere: 'params' has no 'nobody'"),
        ("steps.a.result.from.x", "leads nowhere: 'steps.a.result.from' has no 'x'"),
    ],
)
async def test_a_reference_to_nothing_fails_the_step_and_says_which(
    flow: WorkflowBench, reference: str, message: str
) -> None:
    await flow.create(chain(job("a", id="a"), job("b", ref(reference)), job("c")))
    assert await flow.work() == ["a"]
    step = await flow.step("1")
    assert step.error is not msgspec.UNSET
    error = msgspec.json.decode(step.error)
    assert (step.state, error["code"]) == ("failed", "unresolvable_reference")
    assert message in error["message"]
    assert await flow.states() == {"a": "completed", "1": "failed", "2": "cancelled"}


async def test_a_step_that_was_dropped_says_so(flow: WorkflowBench) -> None:
    limit = {"key": "k", "rate": {"limit": 1, "period": "PT60S"}, "on_limit": "drop"}
    await flow.create(group(job("a", options={"rate_limit": limit}), job("b", options={"rate_limit": limit})))
    assert len(await flow.work()) == 1
    info = await flow.look()
    assert info.error is not None
    (error,) = info.error.errors
    assert (info.state, error["code"]) == ("failed", "rate_limit_dropped")
    assert "'k' had no room" in error["message"]


async def test_a_reference_to_a_step_that_failed_says_so(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", id="a", allow_failure=True), job("b", ref("steps.a.result"))))
    await flow.work("a")
    step = await flow.step("1")
    assert step.error is not msgspec.UNSET
    assert "the step is failed" in msgspec.json.decode(step.error)["message"]


async def test_a_condition_that_cannot_be_evaluated_fails_the_step(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b", if_="steps['0'].result.missing > 1")))
    await flow.work()
    step = await flow.step("1")
    assert step.error is not msgspec.UNSET
    assert msgspec.json.decode(step.error)["code"] == "condition_failed"


async def test_a_skipped_step_is_given_to_others_as_null(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", if_="params.go"), job("b", ref("steps.0.result")), params={"go": False}))
    await flow.work()
    assert (flow.given["b"], flow.arguments["b"]) == ([None], [None])


# Maps


async def test_a_map_makes_a_step_for_each_element_that_it_finds(flow: WorkflowBench) -> None:
    do = chain(job("fetch", ref("item.id"), ref("index")), job("store", ref("steps.0.result"), ref("item")))
    await flow.create(
        chain(job("list"), {"type": "map", "id": "each", "over": ref("steps.0.result"), "do": do}, job("sum"))
    )
    (one,) = await flow.take()
    await flow.ack(one, b'[{"id": 7}, {"id": 8}]')
    jobs = await flow.take(10)
    assert [one.args for one in jobs] == [[7, 0], [8, 1]]
    for number, one in enumerate(jobs):
        await flow.ack(one, b"%d" % number)
    stored = await flow.take(10)
    assert [one.args for one in stored] == [[0, {"id": 7}], [1, {"id": 8}]]
    assert flow.given["fetch"] == [[{"id": 7}, {"id": 8}]]
    for one in stored:
        await flow.ack(one, b'"stored"')
    await flow.work()
    assert flow.given["sum"][1] == {"0": "stored", "1": "stored"}
    info = await flow.step("each")
    assert (info.jobs_total, info.jobs_completed) == (2, 2)


async def test_a_map_in_a_map_sees_both_elements(flow: WorkflowBench) -> None:
    inner = {"type": "map", "over": ref("row"), "as": "cell", "do": job("x", ref("row"), ref("cell"), ref("index"))}
    await flow.create({"type": "map", "over": [[1], [2, 3]], "as": "row", "do": inner})
    assert [one.args for one in await flow.take(10)] == [[[1], 1, 0], [[2, 3], 2, 0], [[2, 3], 3, 1]]


async def test_the_condition_of_a_mapped_step_looks_at_its_element(flow: WorkflowBench) -> None:
    await flow.create({"type": "map", "over": [1, 5, 9], "do": job("x", ref("item"), if_="item > 4 && index < 2")})
    assert [one.args for one in await flow.take(10)] == [[5]]
    assert await flow.states() == {"0": "skipped", "1": "active", "2": "skipped"}


# Failure


async def test_a_failed_chain_says_where(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b"), job("c")))
    await flow.work("b")
    info = await flow.look()
    assert info.error is not None
    step = await flow.step("1")
    assert (info.error.failed_step_index, info.error.failed_job_ids) == (1, [step.job_id])
    (error,) = info.error.errors
    assert {"job_id": step.job_id, "code": "handler_error", "message": "it went wrong", "attempt": 1}.items() <= (
        error.items()
    )
    assert await flow.states() == {"0": "completed", "1": "failed", "2": "cancelled"}
    counts = {name: info.metadata[name] for name in ("job_count", "completed_count", "failed_count")}
    assert counts == {"job_count": 3, "completed_count": 1, "failed_count": 1}


async def test_a_batch_fails_if_a_callback_does(flow: WorkflowBench) -> None:
    await flow.create(batch(job("a"), on_complete=job("b")))
    await flow.work("b")
    info = await flow.look()
    assert info.state == "failed"
    assert info.error is not None
    assert [error["step"] for error in info.error.errors] == ["on_complete"]


async def test_a_batch_without_a_callback_for_its_failures_fails(flow: WorkflowBench) -> None:
    await flow.create(batch(job("a"), on_success=job("b")))
    assert await flow.work("a") == ["a"]
    assert await flow.state() == "failed"


@pytest.mark.parametrize(
    ("failing", "called"),
    [
        ((), {"on_complete", "on_success"}),
        (("a",), {"on_complete", "on_failure"}),
        (("a", "b"), {"on_complete", "on_failure"}),
    ],
)
async def test_the_callback_firing_matrix(flow: WorkflowBench, failing: tuple[str, ...], called: set[str]) -> None:
    callbacks = {name: job(name) for name in ("on_complete", "on_success", "on_failure")}
    await flow.create(batch(job("a"), job("b"), **callbacks))
    done = await flow.work(*failing)
    assert sorted(done) == sorted(["a", "b", *called])


async def test_a_fallback_runs_in_place_of_a_step_that_failed(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b", id="b", fallback=job("c")), job("d", ref("steps.b.result.from"))))
    assert await flow.work("b") == ["a", "b", "c", "d"]
    assert flow.given["c"] == [{"from": "a"}]
    assert flow.arguments["d"] == ["c"]
    assert await flow.state() == "completed"
    await flow.create(chain(job("b", fallback=job("c"))))
    await flow.work("b", "c")
    assert await flow.state() == "failed"


async def test_a_saga_is_undone_from_the_end(flow: WorkflowBench) -> None:
    steps = [
        {
            "name": "reserve",
            "job_type": "inventory.reserve",
            "args": ["SKU", 2],
            "compensate_type": "inventory.release",
            "compensate_args": ["SKU", 2],
        },
        {
            "name": "charge",
            "job_type": "payment.charge",
            "args": [],
            "compensate": job("refund", ref("steps.charge.result.id")),
        },
        {"name": "note", "job_type": "note", "args": []},
        {"name": "ship", "job_type": "ship", "args": [], "compensate_type": "unship"},
    ]
    await flow.create({"type": "saga", "name": "order", "failure_policy": "compensate", "steps": steps})
    done = []
    for _ in range(4):
        (one,) = await flow.take()
        done.append(one.type)
        await (flow.give_up(one) if one.type == "ship" else flow.ack(one, b'{"id": "ch_1"}'))
    info = await flow.look()
    assert (info.state, info.finished) == ("compensating", False)
    assert await flow.work() == ["refund", "inventory.release"]
    assert flow.arguments["refund"] == ["ch_1"]
    assert flow.arguments["inventory.release"] == ["SKU", 2]
    assert await flow.state() == "compensated"
    assert (await flow.step("compensate.ship")).state == "skipped", "it did not complete"


@pytest.mark.parametrize(("policy", "attempts"), [("compensate", 1), ("retry", 3)])
async def test_a_saga_tries_its_steps_as_often_as_its_policy_says(
    flow: WorkflowBench, policy: str, attempts: int
) -> None:
    await flow.create({"type": "saga", "failure_policy": policy, "steps": [job("a", compensate=job("b"))]})
    (one,) = await flow.take()
    assert one.max_attempts == attempts


async def test_a_saga_that_skips_failures_goes_on(flow: WorkflowBench) -> None:
    await flow.create({"type": "saga", "failure_policy": "skip", "steps": [job("a", compensate=job("x")), job("b")]})
    assert await flow.work("a") == ["a", "b"]
    assert await flow.state() == "completed"


async def test_a_failed_compensation_can_be_retried(flow: WorkflowBench) -> None:
    await flow.create(
        {"type": "saga", "steps": [job("a", compensate=job("u")), job("b", compensate=job("v")), job("c")]}
    )
    await flow.work("c", "v")
    assert await flow.state() == "failed"
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["v", "u"], "nothing is done forwards"
    assert await flow.state() == "compensated"
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["a", "b", "c"], "nothing was left, so all is done again"
    assert await flow.state() == "completed"


async def test_steps_anywhere_can_be_undone(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("a", id="a", compensate=job("ua")),
            job("b", id="b", depends_on=["a"], compensate=job("ub")),
            job("c", id="c", depends_on=["b"]),
        )
    )
    assert await flow.work("c") == ["a", "b", "c", "ub", "ua"]
    assert await flow.state() == "compensated"


# Branches, timeout, schedule


async def test_the_error_branch_runs_once_and_its_results_are_kept_apart(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")) | {"on_error": job("clean"), "on_cancel": job("other")})
    assert await flow.work("b") == ["a", "b", "clean"]
    assert flow.given["clean"][0] == {"from": "a"}
    assert flow.given["clean"][1]["state"] == "failed"
    info = await flow.look()
    assert (info.state, info.result) == ("failed", msgspec.UNSET)
    assert info.on_error is not None
    assert info.on_error.result is not msgspec.UNSET
    assert msgspec.json.decode(info.on_error.result) == {"from": "clean"}
    assert info.on_cancel is not None
    assert info.on_cancel.state == "skipped"


async def test_the_cancel_branch_runs_when_active_jobs_have_ended(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b")) | {"on_error": job("x"), "on_cancel": [job("c"), job("d")]})
    (one,) = await flow.take()
    info = await flow.service.workflows.cancel(flow.id)
    assert (info.state, info.finished) == ("cancelled", False)
    assert await flow.work() == []
    await flow.ack(one)
    assert await flow.work() == ["c", "d"]
    info = await flow.look()
    assert (info.state, info.finished) == ("cancelled", True)
    assert await flow.states() == {
        "0": "completed",
        "1": "cancelled",
        "on_error": "skipped",
        "on_cancel": "completed",
        "on_cancel.0": "completed",
        "on_cancel.1": "completed",
    }


async def test_an_active_job_of_a_cancelled_workflow_is_not_tried_again(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await flow.service.workflows.cancel(flow.id)
    failed = await flow.fail(one)
    assert failed.state == "cancelled"
    assert (await flow.look()).finished


async def test_a_workflow_ends_when_its_time_is_up(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b")) | {"timeout": 60, "on_error": job("clean")})
    (one,) = await flow.take()
    await flow.run_due(59)
    assert await flow.state() == "running"
    await flow.run_due(1)
    assert (await flow.find(one)).state == "cancelled"
    assert await flow.work() == []
    await flow.confirm(one)
    assert await flow.work() == ["clean"]
    info = await flow.look()
    assert info.error is not None
    assert (info.state, info.error.code) == ("failed", "workflow_timeout")
    await flow.service.workflows.retry(flow.id)
    assert sorted(await flow.work()) == ["a", "b"]
    info = await flow.look()
    assert (info.state, info.error) == ("completed", None)


async def test_a_scheduled_workflow_starts_when_its_time_has_come(flow: WorkflowBench) -> None:
    info = await flow.create(chain(job("a")) | {"scheduled_at": "+PT60S", "timeout": 30})
    assert info.state == "pending"
    assert await flow.run_due() == flow.clock.now + 60_000_000
    assert await flow.work() == []
    await flow.run_due(60)
    assert await flow.state() == "running"
    await flow.run_due(30)
    assert await flow.state() == "failed", "its time counts from its start"


async def test_a_workflow_that_was_not_started_in_time_never_is(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")) | {"scheduled_at": "+PT60S", "expires_at": "+PT30S"})
    await flow.run_due(30)
    info = await flow.look()
    assert info.error is not None
    assert (info.state, info.finished, info.error.code) == ("cancelled", True, "expired")
    await flow.run_due(60)
    assert await flow.work() == []


async def test_a_scheduled_workflow_can_be_cancelled(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")) | {"scheduled_at": "+PT60S"})
    info = await flow.service.workflows.cancel(flow.id)
    assert (info.state, info.finished) == ("cancelled", True)
    await flow.run_due(60)
    assert await flow.work() == []


# Hold and release


async def test_nothing_of_a_held_workflow_starts(flow: WorkflowBench) -> None:
    retry = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}
    await flow.create(group(chain(job("a"), job("b")), job("c"), job("d", options={"retry": retry})))
    jobs = {one.type: one for one in await flow.take(3)}
    await flow.fail(jobs["d"])
    await flow.service.workflows.hold(flow.id)
    await flow.service.workflows.hold(flow.id)
    await flow.ack(jobs["a"])
    flow.service.jobs.give_back([jobs["c"]])
    await flow.run_due(5)
    assert await flow.work() == []
    assert (await flow.look()).held
    assert await flow.states() == {"0": "active", "0.0": "completed", "0.1": "held", "1": "pending", "2": "pending"}
    assert sorted(await _released(flow)) == ["b", "c", "d"]
    assert await flow.state() == "completed"
    with pytest.raises(Conflict, match="cannot be held"):
        await flow.service.workflows.hold(flow.id)


async def _released(flow: WorkflowBench) -> list[str]:
    await flow.service.workflows.release(flow.id)
    with pytest.raises(Conflict, match="is not held"):
        await flow.service.workflows.release(flow.id)
    return await flow.work()


async def test_available_jobs_of_a_held_workflow_are_not_handed_out_and_cannot_be_activated(
    flow: WorkflowBench,
) -> None:
    await flow.create(group(job("a"), job("b")))
    await flow.service.workflows.hold(flow.id)
    assert await flow.fetch(count=10) == []
    job_id = (await flow.step("0")).job_id
    assert isinstance(job_id, str)
    with pytest.raises(Conflict, match="its workflow is held"):
        await flow.service.workflows.activate(job_id)
    assert len(await _released(flow)) == 2


async def test_a_held_workflow_can_be_cancelled(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    await flow.service.workflows.hold(flow.id)
    info = await flow.service.workflows.cancel(flow.id)
    assert (info.state, info.finished, info.held) == ("cancelled", True, False)


async def test_cancelling_a_held_workflow_undoes_it_and_ends_the_hold(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", compensate=job("undo")), job("b")) | {"on_cancel": job("tell")})
    await flow.ack((await flow.take())[0])
    await flow.service.workflows.hold(flow.id)
    await flow.service.workflows.cancel(flow.id)
    assert await flow.work() == ["undo", "tell"]
    info = await flow.look()
    assert (info.state, info.finished, info.held) == ("cancelled", True, False)


async def test_a_workflow_that_ran_out_of_time_while_it_was_held_can_be_retried(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")) | {"timeout": 10})
    await flow.service.workflows.hold(flow.id)
    await flow.run_due(11)
    info = await flow.look()
    assert (info.state, info.held) == ("failed", False)
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["a", "b"]


# Appended steps


async def test_a_job_adds_steps_to_its_chain_together_with_its_end(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await flow.grow(one, job("c", ref("steps.1.result.from")), group(job("d"), job("e")))
    assert await flow.work() == ["b", "c", "d", "e"]
    assert flow.arguments["c"] == ["b"]
    info = await flow.look()
    assert (info.state, info.steps_total, info.steps_completed) == ("completed", 4, 4)
    assert info.metadata["job_count"] == 5


async def test_a_group_grows_as_long_as_its_jobs_add_some(flow: WorkflowBench) -> None:
    await flow.create(batch(job("a"), on_complete=job("done")))
    for _ in range(4):
        (one,) = await flow.take()
        await flow.grow(one, job("more"))
    assert await flow.work() == ["more", "done"]
    assert len(flow.given["done"]) == 5


async def test_what_is_added_to_a_graph_may_depend_on_what_has_ended(flow: WorkflowBench) -> None:
    await flow.create(graph(job("a", id="a"), job("b", id="b", depends_on=["a"])))
    (one,) = await flow.take()
    await flow.ack(one, b"1")
    (one,) = await flow.take()
    await flow.grow(one, job("c", id="c", depends_on=["a", "b"]), job("d", id="d", depends_on=["c"]))
    assert await flow.work() == ["c", "d"]
    assert flow.given["c"] == {"a": 1, "b": 1}


async def test_what_is_added_to_a_cancelled_workflow_is_left_out(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")))
    (one,) = await flow.take()
    await flow.service.workflows.cancel(flow.id)
    await flow.grow(one, job("b"))
    assert await flow.work() == []
    assert (await flow.look()).finished


# Uniqueness, expiry


async def test_a_step_that_is_refused_as_a_duplicate_fails(flow: WorkflowBench) -> None:
    unique = {"keys": ["args"]}
    other = await flow.push("a", 1, unique=unique)
    await flow.create(chain(job("a", 1, options={"unique": unique}), job("b")))
    step = await flow.step("0")
    assert step.error is not msgspec.UNSET
    error = msgspec.json.decode(step.error)
    assert (step.state, error["code"], error["existing_job_id"]) == ("failed", "duplicate", other.id)
    await flow.create(chain(job("a", 1, options={"unique": unique | {"on_conflict": "ignore"}}), job("b")))
    assert await flow.states() == {"0": "skipped", "1": "pending"}


async def test_a_job_that_replaces_one_of_a_workflow_cancels_that_step(flow: WorkflowBench) -> None:
    unique = {"keys": ["args"]}
    await flow.create(chain(job("a", 1, options={"unique": unique}), job("b")))
    await flow.push("a", 1, unique=unique | {"on_conflict": "replace"})
    assert await flow.states() == {"0": "cancelled", "1": "cancelled"}
    assert await flow.state() == "cancelled"


async def test_a_job_that_expires_fails_its_step(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", options={"expires_at": "+PT10S"}), job("b")))
    await flow.run_due(10)
    assert await flow.states() == {"0": "failed", "1": "cancelled"}


# Listings and events


async def test_the_same_id_is_taken_once(flow: WorkflowBench) -> None:
    id = new_id()
    await flow.create(chain(job("a")) | {"id": id})
    with pytest.raises(Duplicate):
        await flow.create(chain(job("a")) | {"id": id})


async def test_workflows_are_listed_by_state_type_and_name(flow: WorkflowBench) -> None:
    for number in range(5):
        await flow.create(chain(job("a"), name=f"n{number % 2}"))
    await flow.create(group(job("a")))
    await flow.service.workflows.cancel(flow.id)
    listing = flow.service.workflows.select
    assert (await listing(WorkflowFilter(name="n0"))).total == 3
    assert (await listing(WorkflowFilter(type="group", states=("cancelled",)))).total == 1
    page = await listing(WorkflowFilter(states=("running",), limit=2))
    assert (len(page.workflows), page.total) == (2, 5)
    rest = await listing(WorkflowFilter(states=("running",), limit=3, before=page.next_before))
    assert (len(rest.workflows), rest.next_before) == (3, None)
    assert not {one.id for one in page.workflows} & {one.id for one in rest.workflows}


async def test_metadata_of_the_creator_and_of_the_system_stand_side_by_side(flow: WorkflowBench) -> None:
    info = await flow.create(chain(job("a")) | {"metadata": {"team": "ops", "job_count": "mine"}})
    assert (info.metadata["team"], info.metadata["job_count"]) == ("ops", 1)


async def events(service: Service) -> list[dict[str, Any]]:
    page = await service.events.select(EventFilter(limit=1000))
    return [event for event in page.events if event["type"].startswith("workflow.")]


async def test_all_events_of_a_chain_are_told(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b", id="second")) | {"name": "two"})
    await flow.work("b")
    told = await events(flow.service)
    assert [event["type"] for event in told] == [
        "workflow.created",
        "workflow.started",
        "workflow.step_completed",
        "workflow.step_failed",
        "workflow.failed",
    ]
    assert all(event["data"]["workflow_id"] == flow.id == event["subject"] for event in told)
    first = told[2]["data"]
    assert (first["workflow_type"], first["workflow_name"]) == ("chain", "two")
    assert (first["step_index"], first["step_type"], first["remaining_steps"]) == (0, "a", 1)
    last = told[4]["data"]
    assert (last["failed_step_id"], last["failed_step_type"], last["error"]["message"]) == (
        "second",
        "b",
        "it went wrong",
    )


async def test_all_events_of_a_batch_are_told(flow: WorkflowBench) -> None:
    await flow.create(batch(job("a"), job("b"), on_failure=job("c")))
    await flow.work("b")
    kinds = [event["type"] for event in await events(flow.service)]
    assert sorted(kinds[2:4]) == ["workflow.job_completed", "workflow.job_failed"]
    assert kinds[4:] == ["workflow.callback_fired", "workflow.completed"]


async def test_operator_actions_emit_events(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate"}, job("a")))
    await flow.service.workflows.hold(flow.id)
    await flow.service.workflows.release(flow.id)
    await flow.service.workflows.cancel(flow.id)
    await flow.service.workflows.retry(flow.id)
    assert [event["type"] for event in await events(flow.service)] == [
        "workflow.created",
        "workflow.step_blocked",
        "workflow.held",
        "workflow.released",
        "workflow.cancelled",
        "workflow.retried",
        "workflow.step_blocked",
    ]


# Retention


async def test_a_workflow_is_forgotten_whole(flow: WorkflowBench, clock: Clock) -> None:
    await flow.create(chain(job("a"), group(job("b"), job("c"))))
    await flow.work()
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await flow.ack(one)
    clock.advance(2 * 86_400)
    while (await flow.run(retention.forget, None))["rows"]:
        pass
    page = await flow.service.workflows.select(WorkflowFilter())
    assert [info.id for info in page.workflows] == [flow.id]
    assert (await flow.find(one)).state == "completed", "the jobs of a workflow stay as long as it does"
    counts = await flow.service.jobs.count("default")
    assert counts["default"]["completed"] == 1


async def test_a_large_workflow_is_forgotten_in_parts(flow: WorkflowBench, clock: Clock) -> None:
    await flow.create(group(*[job("a") for _ in range(1200)]))
    await flow.run_all_due()
    while jobs := await flow.service.jobs.fetch(Claim(("default",), 1000)):
        await asyncio.gather(*(flow.ack(one) for one in jobs))
    clock.advance(2 * 86_400)
    deleted = []
    while count := (await flow.run(retention.forget, None))["rows"]:
        deleted.append(count)
    assert max(deleted) <= retention.BATCH + 1
    with pytest.raises(NotFound):
        await flow.look()


async def test_a_missing_job_is_told_from_a_missing_workflow(flow: WorkflowBench) -> None:
    for id in ("x", new_id(), "'; DROP TABLE jobs", "\x00"):
        with pytest.raises(NotFound, match="Workflow"):
            await flow.service.workflows.show(id)


async def test_a_result_that_is_too_large_is_refused_with_the_workflow_unchanged(flow: WorkflowBench) -> None:
    assert ServiceSettings().largest_job == 1_048_576
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    with pytest.raises(Exception, match="result takes"):
        await flow.ack(one, b'"' + b"x" * 1_048_576 + b'"')
    assert await flow.states() == {"0": "active", "1": "waiting"}


async def test_a_review_without_an_action_and_notes_is_refused(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", manual=True)))
    with pytest.raises(InvalidRequest):
        await flow.review("0", None)

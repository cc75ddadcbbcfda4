"""Orchestration scenarios of work requests. Each test bears the number of its scenario: see docs/work-requests.md.

A status of work requests is a state here: blocked and waiting, pending, running (active), completed, aborted
(cancelled). The result "failure" is the state failed. The verdict of a parent is the end state of a container.
"""

from __future__ import annotations

import msgspec
import pytest

from ojster.collections.items import NewItem, Where
from ojster.core.access import Grant, Operation, Role
from ojster.core.errors import Conflict, InvalidRequest, InvalidWorkflow, NotFound, Unauthenticated
from ojster.core.ids import new_id
from ojster.core.json_objects import read_members
from ojster.fleet.workers import Heartbeat
from ojster.jobs.messages import Acknowledgement
from ojster.server.authentication import Authenticator, Credentials
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio


# Creation and validation


async def test_s07_a_gate_is_a_step_that_needs_somebody(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate", "id": "g"}))
    assert await flow.states() == {"g": "blocked"}
    strange = read_members(msgspec.json.encode(chain({"type": "gate", "args": []})), "the workflow")
    (warning,) = (await flow.service.workflows.prepare(strange)).warnings
    assert "A gate has no member 'args'" in warning


async def test_s08_only_containers_have_children(flow: WorkflowBench) -> None:
    with pytest.raises(InvalidWorkflow, match="Only a container can have 'steps'"):
        await flow.create(chain(job("a"), job("b", steps=[job("c")])))


async def test_s09_children_inherit_the_priority_and_may_adjust_it(flow: WorkflowBench) -> None:
    await flow.create(
        group(
            job("a"),
            job("b", priority_adjustment=-2),
            group(job("c"), job("d", priority_adjustment=1), priority_adjustment=10),
            job("e", options={"priority": 50}),
            priority=6,
        )
    )
    priorities = {one.type: one.priority for one in await flow.take(10)}
    assert priorities == {"a": 6, "b": 4, "c": 16, "d": 17, "e": 50}


async def test_s11_a_step_is_called_by_its_display_name_or_else_its_id_or_type(flow: WorkflowBench) -> None:
    info = await flow.create(chain(job("a"), job("b", id="second"), job("c", id="third", display_name="Third!")))
    assert isinstance(info.steps, list)
    assert [step.label for step in info.steps] == ["a", "second", "Third!"]


# The state machine


async def test_s12_starting_is_noted_once(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    assert (await flow.look()).started_at is None
    (one,) = await flow.take()
    started = (await flow.look()).started_at
    assert started is not None
    flow.clock.advance(5)
    await flow.ack(one)
    await flow.take()
    assert (await flow.look()).started_at == started


async def test_s13_what_was_cancelled_takes_no_more_words(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b")))
    (one,) = await flow.take()
    await flow.cancel_step("0")
    with pytest.raises(Conflict):
        await flow.ack(one)
    assert (await flow.step("0")).state == "cancelled"


async def test_s17_a_worker_that_hands_a_job_back_leaves_the_workflow_as_it_was(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    flow.service.jobs.give_back([one])
    again = await flow.fetch_one()
    assert (again.id, again.attempt) == (one.id, 1)
    assert await flow.states() == {"0": "active", "1": "waiting"}


# Dependencies


async def test_s19_dependencies_stay_inside_their_graph(flow: WorkflowBench) -> None:
    inner = graph(job("b", id="b", depends_on=["a"]), id="inner")
    with pytest.raises(InvalidWorkflow, match="There is no step 'a' here"):
        await flow.create(graph(job("a", id="a"), inner))
    await flow.create(graph(job("a", id="a"), graph(job("b", ref("steps.a.result.from"), id="b"), id="inner")))
    assert await flow.work() == ["a", "b"], "but a reference reaches across, and orders what it needs to"
    assert flow.arguments["b"] == ["a"]


async def test_s20_a_step_waits_while_a_dependency_has_not_ended(flow: WorkflowBench) -> None:
    await flow.create(graph(job("a", id="a"), job("b", id="b", depends_on=["a"])))
    assert await flow.states() == {"a": "pending", "b": "waiting"}


async def test_s21_success_and_skipping_start_what_depends(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("a", id="a"),
            job("b", id="b", if_="false"),
            job("c", id="c", depends_on=["a"]),
            job("d", id="d", depends_on=["b"]),
        )
    )
    assert sorted(await flow.work()) == ["a", "c", "d"]
    assert await flow.states() == {"a": "completed", "b": "skipped", "c": "completed", "d": "completed"}


async def test_s22_failure_and_cancellation_cancel_what_depends_and_so_on(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("a", id="a"),
            job("b", id="b", depends_on=["a"]),
            job("c", id="c", depends_on=["b"]),
            job("x", id="x"),
            job("y", id="y", depends_on=["x"]),
        )
    )
    await flow.cancel_step("x")
    await flow.work("a")
    assert await flow.states() == {
        "a": "failed",
        "b": "cancelled",
        "c": "cancelled",
        "x": "cancelled",
        "y": "cancelled",
    }


async def test_s23_an_allowed_failure_starts_what_depends(flow: WorkflowBench) -> None:
    await flow.create(graph(job("a", id="a", allow_failure=True), job("b", id="b", depends_on=["a"])))
    assert await flow.work("a") == ["a", "b"]
    assert await flow.state() == "completed"


async def test_s24_and_w4_an_allowed_cancellation_starts_what_depends(flow: WorkflowBench) -> None:
    await flow.create(graph(job("a", id="a", allow_failure=True), job("b", id="b", depends_on=["a"])))
    await flow.cancel_step("a")
    assert await flow.work() == ["b"]
    assert await flow.state() == "completed"


async def test_s25_of_two_dependencies_both_must_have_ended(flow: WorkflowBench) -> None:
    await flow.create(graph(job("a", id="a"), job("b", id="b"), job("c", id="c", depends_on=["a", "b"])))
    first, second = await flow.take(2)
    await flow.ack(first)
    assert (await flow.step("c")).state == "waiting"
    await flow.ack(second)
    assert (await flow.step("c")).state == "pending"


async def test_s26_nothing_starts_before_its_container_does(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), group(job("b"), job("c"))))
    assert await flow.states() == {"0": "pending", "1": "waiting", "1.0": "waiting", "1.1": "waiting"}
    (one,) = await flow.take(10)
    await flow.ack(one)
    assert (await flow.states())["1.0"] == "pending"


async def test_s27_a_manual_step_waits_for_more_than_its_dependencies(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b", manual=True)))
    assert await flow.work() == ["a"]
    assert await flow.states() == {"0": "completed", "1": "blocked"}


# End states of containers


async def test_s28_all_that_succeeded_or_was_skipped_completes(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b", if_="1 > 2")))
    await flow.work()
    assert await flow.state() == "completed"


@pytest.mark.parametrize(("allowed", "ends"), [(True, "completed"), (False, "failed")])
async def test_s29_one_failure_fails_unless_it_is_allowed(flow: WorkflowBench, allowed: bool, ends: str) -> None:
    await flow.create(group(job("a", allow_failure=allowed), job("b")))
    await flow.work("a")
    assert await flow.state() == ends


async def test_s30_one_cancelled_step_makes_the_whole_cancelled(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b")))
    await flow.cancel_step("0")
    await flow.work()
    assert await flow.state() == "cancelled"


async def test_s31_a_cancelled_step_that_succeeds_in_the_end_counts_as_success(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b")))
    await flow.cancel_step("0")
    await flow.work()
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["a"]
    assert await flow.state() == "completed"


async def test_s32_nothing_ends_while_a_child_is_at_work(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b")))
    first, second = await flow.take(2)
    await flow.give_up(first)
    assert (await flow.state(), (await flow.look()).finished) == ("running", False)
    await flow.ack(second)
    assert await flow.state() == "failed"


async def test_s33_a_container_without_children_completes(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "map", "over": [], "do": job("a")}, job("b")))
    assert await flow.work() == ["b"]
    assert flow.given["b"] == [{}]


async def test_s34_the_state_of_each_step_is_seen_apart(flow: WorkflowBench) -> None:
    await flow.create(
        group(
            job("a"),
            job("b"),
            job("c"),
            {"type": "gate"},
            chain(job("d"), job("e")),
        )
    )
    jobs = {one.type: one for one in await flow.take(3)}
    await flow.ack(jobs["a"])
    await flow.give_up(jobs["b"])
    assert await flow.states() == {
        "0": "completed",
        "1": "failed",
        "2": "active",
        "3": "blocked",
        "4": "active",
        "4.0": "pending",
        "4.1": "waiting",
    }


async def test_s35_many_ends_in_one_transaction_advance_a_workflow_once(flow: WorkflowBench) -> None:
    await flow.create(group(*[job(f"j{number}") for number in range(20)]))
    jobs = await flow.take(20)
    before = (await flow.look()).version
    await flow.service.jobs.acknowledge([Acknowledgement(one.id) for one in jobs])
    info = await flow.look()
    assert (info.state, info.version) == ("completed", before + 1)


# Retry


async def test_s36_a_retry_makes_new_jobs_that_know_the_old_ones(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b", 1, {"x": 2}, meta={"m": 1}, options={"queue": "default"}), job("c")))
    await flow.work("b")
    old = (await flow.step("1")).job_id
    assert isinstance(old, str)
    info = await flow.service.workflows.retry(flow.id)
    assert (info.state, info.finished, info.completed_at) == ("running", False, None)
    new = await flow.fetch_one()
    assert msgspec.json.decode(new.envelope)["supersedes"] == old
    assert (await flow.find(old)).superseded_by == new.id
    assert (new.args, new.meta) == ([1, {"x": 2}], {"m": 1})
    assert (await flow.find(old)).state == "discarded", "its history stays"
    assert (await flow.step("1")).superseded_job_ids == [old]
    assert await flow.states() == {"0": "completed", "1": "active", "2": "waiting"}
    await flow.ack(new)
    assert await flow.work() == ["c"]


async def test_s37_only_what_has_ended_without_success_can_be_retried(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")))
    with pytest.raises(Conflict, match="has not finished"):
        await flow.service.workflows.retry(flow.id)
    await flow.work()
    with pytest.raises(Conflict, match="is completed; there is nothing to retry"):
        await flow.service.workflows.retry(flow.id)
    with pytest.raises(NotFound):
        await flow.service.workflows.retry("019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f")


async def test_s38_a_job_of_a_workflow_is_retried_with_it_and_not_alone(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")))
    await flow.work("a")
    job_id = (await flow.step("0")).job_id
    assert isinstance(job_id, str)
    for call in (flow.service.jobs.retry_dead, flow.service.jobs.delete_dead):
        with pytest.raises(Conflict, match="belongs to a workflow"):
            await call(job_id)


async def test_s41_a_retried_step_that_needs_an_approval_needs_it_again(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", manual=True)))
    await flow.review("0", "approve")
    await flow.work("a")
    await flow.service.workflows.retry(flow.id)
    assert (await flow.step("0")).state == "blocked"
    await flow.review("0", "approve")
    await flow.work()
    assert await flow.state() == "completed"


async def test_s42_a_lost_worker_spends_attempts_and_not_the_workflow(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", options={"retry": {"max_attempts": 2}}), job("b")))
    await flow.fetch_one(lease=1_000_000)
    await flow.run_due(2)
    again = await flow.fetch_one(lease=1_000_000)
    assert (again.attempt, await flow.states()) == (2, {"0": "active", "1": "waiting"})
    await flow.run_due(2)
    assert await flow.states() == {"0": "failed", "1": "cancelled"}
    await flow.service.workflows.retry(flow.id)
    assert (await flow.fetch_one()).attempt == 1, "by hand, the attempts begin anew"


async def test_s43_a_retry_keeps_the_workflow_and_what_succeeded(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b")))
    await flow.work("b")
    before = await flow.step("0")
    flow.clock.advance(10)
    info = await flow.service.workflows.retry(flow.id)
    assert (info.id, info.retries) == (flow.id, 1)
    assert await flow.step("0") == before
    assert await flow.work() == ["b"]
    assert await flow.state() == "completed"


async def test_s46_a_cancelled_workflow_of_which_nothing_is_left_completes_when_retried(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), {"type": "gate", "id": "g"}))
    (one,) = await flow.take()
    await flow.service.workflows.cancel(flow.id)
    await flow.ack(one)
    await flow.service.workflows.retry(flow.id)
    await flow.review("g", "approve")
    assert await flow.state() == "completed"


async def test_s47_and_w3_a_workflow_can_be_retried_any_number_of_times(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    for attempt in range(5):
        await flow.work("a")
        assert await flow.state() == "failed"
        info = await flow.service.workflows.retry(flow.id)
        assert info.retries == attempt + 1
    await flow.work()
    assert await flow.state() == "completed"
    assert len((await flow.step("0")).superseded_job_ids) == 5


async def test_s48_a_failure_that_is_tried_again_cancels_nobody(flow: WorkflowBench) -> None:
    retry = {"max_attempts": 3, "initial_interval": "PT10S", "jitter": False}
    await flow.create(chain(job("a", options={"retry": retry}), job("b")))
    await flow.fail(await flow.fetch_one())
    assert await flow.states() == {"0": "pending", "1": "waiting"}
    await flow.run_due(11)
    await flow.work()
    assert await flow.states() == {"0": "completed", "1": "completed"}


# Abort and approval


async def test_s49_aborting_takes_all_that_is_inside_but_what_has_completed(flow: WorkflowBench) -> None:
    await flow.create(
        group(chain(job("a"), group(job("b"), job("c")), batch(job("d"), on_complete=job("e"))), job("x"))
    )
    jobs = {one.type: one for one in await flow.take(10)}
    await flow.ack(jobs["a"])
    (b,) = [one for one in await flow.take(1) if one.type == "b"]
    await flow.cancel_step("0")
    states = await flow.states()
    assert states.pop("0.0") == "completed"
    assert states.pop("1") == "active"
    assert states.pop("0.1.0") == "active", "its worker is told, and has not confirmed that it has stopped"
    assert (await flow.step("0.1.0")).stopping
    assert (await flow.find(b)).state == "cancelled"
    await flow.confirm(b)
    states = await flow.states()
    assert (states.pop("0.0"), states.pop("1")) == ("completed", "active")
    assert set(states.values()) == {"cancelled"}
    await flow.ack(jobs["x"])
    assert await flow.state() == "cancelled"


async def test_s50_and_w14_what_has_ended_cannot_be_aborted(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await flow.ack(one)
    with pytest.raises(Conflict, match=r"is completed, and can no longer be cancelled"):
        await flow.cancel_step("0")
    await flow.service.workflows.cancel(flow.id)
    with pytest.raises(Conflict, match="already in terminal state 'cancelled'"):
        await flow.service.workflows.cancel(flow.id)
    with pytest.raises(NotFound, match=r"no step '7\.x'"):
        await flow.cancel_step("7.x")


async def test_s51_a_gate_is_approved_rejected_or_discussed(flow: WorkflowBench) -> None:
    await flow.create(
        group(job("a", id="a", manual=True), job("b", id="b", manual=True), job("c", id="c", manual=True))
    )
    await flow.review("a", "approve", "fine")
    await flow.review("b", "reject", "not fine", author="bob")
    await flow.review("c", None, "hm")
    assert await flow.states() == {"a": "pending", "b": "cancelled", "c": "blocked"}
    (review,) = (await flow.step("b")).reviews
    assert (review.action, review.notes, review.author) == ("reject", "not fine", "bob")
    (review,) = (await flow.step("c")).reviews
    assert (review.action, review.notes) == (None, "hm")
    with pytest.raises(InvalidRequest, match="At least one"):
        await flow.review("c", None)


async def test_s52_the_log_of_a_gate_outlives_a_retry(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", manual=True)))
    await flow.review("0", "reject", "no")
    assert await flow.state() == "cancelled"
    await flow.service.workflows.retry(flow.id)
    await flow.review("0", "approve", "yes")
    assert [review.action for review in (await flow.step("0")).reviews] == ["reject", "approve"]
    await flow.work()
    assert await flow.state() == "completed"


async def test_s53_only_what_waits_for_an_approval_can_have_one(flow: WorkflowBench) -> None:
    await flow.create(group(job("a", id="a"), job("b", id="b", manual=True)))
    with pytest.raises(Conflict, match="is not 'manual'"):
        await flow.review("a", "approve")
    await flow.review("b", "approve")
    for action in ("approve", "reject"):
        with pytest.raises(Conflict, match="does not wait for an approval"):
            await flow.review("b", action)


async def test_an_approval_may_come_before_the_step_could_start(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b", manual=True)))
    await flow.review("1", "approve")
    assert await flow.work() == ["a", "b"]


# Conditions and retry delays


async def test_s58_a_step_is_skipped_if_its_condition_says_so(flow: WorkflowBench) -> None:
    await flow.create(
        chain(
            job("look", id="look"),
            job("same", if_="steps.look.result.hash == params.last"),
            job("differs", if_="steps.look.result.hash != params.last"),
            params={"last": "abc"},
        )
    )
    assert await flow.work(results={"look": {"hash": "abc"}}) == ["look", "same"]
    assert (await flow.step("2")).state == "skipped"


async def test_s60_delays_between_attempts_grow_and_end(flow: WorkflowBench) -> None:
    retry = {"max_attempts": 3, "initial_interval": "PT60S", "backoff_coefficient": 2.0, "jitter": False}
    await flow.create(chain(job("a", options={"retry": retry}), job("b")))
    delays = []
    for _ in range(3):
        failed = await flow.fail(await flow.fetch_one())
        if failed.state == "retryable":
            delays.append((failed.due_at or 0) - flow.clock.now)
            await flow.run_due(delays[-1] / 1e6)
    assert delays == [60_000_000, 120_000_000]
    assert await flow.states() == {"0": "failed", "1": "cancelled"}


# Orchestration


async def test_s66_a_graph_is_laid_out_and_only_what_can_start_does(flow: WorkflowBench) -> None:
    info = await flow.create(graph(job("a", id="a"), job("b", id="b", depends_on=["a"])))
    assert info.state == "running"
    assert await flow.states() == {"a": "pending", "b": "waiting"}


async def test_s67_what_cannot_be_laid_out_fails_with_the_reason(flow: WorkflowBench) -> None:
    await flow.create(chain(job("list"), {"type": "map", "over": ref("steps.0.result.items"), "do": job("x")}))
    await flow.work(results={"list": {"items": 7}})
    step = await flow.step("1")
    assert step.error is not msgspec.UNSET
    error = msgspec.json.decode(step.error)
    assert (step.state, error["code"]) == ("failed", "unresolvable_reference")
    assert "must be an array, not a number" in error["message"]
    assert await flow.state() == "failed"


async def test_s68_a_callback_runs_when_its_turn_comes_and_fails_alone(flow: WorkflowBench) -> None:
    await flow.create(chain(batch(job("a"), on_complete=job("callback", allow_failure=True)), job("b")))
    assert await flow.work("callback") == ["a", "callback", "b"]
    assert await flow.state() == "completed"


async def test_s69_nothing_is_added_outside_of_a_workflow(flow: WorkflowBench) -> None:
    await flow.push("plain")
    with pytest.raises(InvalidRequest, match="belongs to no workflow"):
        await flow.grow(await flow.fetch_one(), job("x"))


async def test_s70_arguments_are_put_together_once_and_stay(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b", ref("steps.0.result.n"), options={"retry": {"max_attempts": 3}})))
    (one,) = await flow.take()
    await flow.ack(one, b'{"n": 5}')
    (one,) = await flow.take()
    failed = await flow.fail(one)
    await flow.run_due(((failed.due_at or 0) - flow.clock.now) / 1e6)
    assert (await flow.fetch_one()).args == [5]


async def test_s72_what_is_appended_has_an_id_of_its_own(flow: WorkflowBench) -> None:
    await flow.create(graph(job("a", id="a"), job("b", id="b", depends_on=["a"])))
    (one,) = await flow.take()
    with pytest.raises(InvalidWorkflow, match="There is another step with the id 'b'"):
        await flow.grow(one, job("again", id="b"))
    assert (await flow.find(one)).state == "active", "the acknowledgement was refused whole"
    await flow.grow(one, job("c", id="c", depends_on=["b"]))
    assert await flow.work() == ["b", "c"]


async def test_s73_s74_what_provides_an_input_comes_before_what_requires_it(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("use", ref("steps.make.result.value"), ref("steps.other.result.value"), id="use"),
            job("make", id="make"),
            job("other", id="other"),
        )
    )
    assert await flow.states() == {"use": "waiting", "make": "pending", "other": "pending"}
    await flow.work(results={"make": {"value": 1}, "other": {"value": 2}})
    assert flow.arguments["use"] == [1, 2]
    assert (await flow.step("use")).depends_on == ["make", "other"]


async def test_containers_at_the_same_time_end_each_for_itself(flow: WorkflowBench) -> None:
    await flow.create(group(group(job("a")), group(job("b"))))
    await flow.work("a")
    assert await flow.states() == {"0": "failed", "0.0": "failed", "1": "completed", "1.0": "completed"}


# Lookups, scheduling and workers


async def test_s40_a_step_whose_input_is_missing_can_be_retried_once_it_is_there(flow: WorkflowBench) -> None:
    await flow.service.collections.create("shelf")
    await flow.create(chain(job("a", {"$lookup": "shelf/x"})))
    assert await flow.state() == "failed"
    await flow.service.collections.add(Where("shelf"), NewItem("x", b"1"))
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["a"]
    assert await flow.state() == "completed"


async def test_s75_containers_that_have_nothing_to_do_end_in_one_pass(flow: WorkflowBench) -> None:
    empty = {"type": "map", "over": [], "do": job("a")}
    await flow.create(chain(empty, group(empty, empty), job("b")))
    assert await flow.work() == ["b"]


async def test_s77_idle_workers_get_a_job_each_and_those_that_are_not_to_have_any_get_none(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b"), job("c")))
    (first,) = await flow.fetch(worker_id="one")
    (second,) = await flow.fetch(worker_id="two")
    assert first.id != second.id
    await flow.service.fleet.change_rule("three", {"enabled": False})
    assert await flow.fetch(worker_id="three") == []
    assert len(await flow.fetch(worker_id="four")) == 1
    assert await flow.fetch(worker_id="five") == []


async def test_s82_a_worker_gets_as_many_jobs_as_it_asks_for(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b"), job("c"), job("d")))
    assert len(await flow.fetch(count=3, worker_id="w")) == 3


async def test_s89_a_job_is_given_whole_and_where_there_is_none_nothing_is(flow: WorkflowBench) -> None:
    assert await flow.fetch(worker_id="w") == []
    await flow.create(chain(job("a", {"k": 1})))
    (given,) = await flow.fetch(worker_id="w")
    assert (given.type, given.args, given.state, given.worker_id) == ("a", [{"k": 1}], "active", "w")


async def test_s90_a_worker_cannot_complete_an_unknown_job_or_that_of_another_worker(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")))
    (given,) = await flow.fetch(worker_id="w")
    stranger, unknown = await flow.service.jobs.acknowledge(
        [Acknowledgement(given.id, None, "v", given.attempt), Acknowledgement(new_id(), None, "w", 1)]
    )
    assert isinstance(stranger, Conflict)
    assert isinstance(unknown, NotFound)
    assert (await flow.find(given)).state == "active"


async def test_s91_a_worker_that_is_silent_for_a_while_keeps_its_job(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")))
    await flow.service.fleet.beat(Heartbeat("w"))
    (given,) = await flow.fetch(worker_id="w")
    await flow.run_due(20)
    pulse = await flow.service.fleet.beat(Heartbeat("w", (given.id,)))
    assert (pulse.extended, (await flow.find(given)).state) == ([given.id], "active")


async def test_s96_registering_a_worker_needs_a_token_where_tokens_are_required(flow: WorkflowBench) -> None:
    door = Authenticator(flow.service)
    with pytest.raises(Unauthenticated):
        await door.admit(Credentials(None, None))
    _, shown = await flow.service.tokens.create("fleet", [Grant(Role.WORKER)])
    _, access = await door.admit(Credentials(f"Bearer {shown}", None))
    access.need(Operation.DEQUEUE)


async def test_w15_there_is_an_event_for_every_beginning_and_every_end(flow: WorkflowBench) -> None:
    once = {"on_success": [{"action": "record"}], "on_assignment": [{"action": "skip-if-unchanged"}]}
    for _ in range(2):
        await flow.create(chain(job("a", event_reactions=once)))
        await flow.work()
    await flow.create(chain(job("b", options={"retry": {"max_attempts": 1}})))
    await flow.work("b")
    await flow.create(chain(job("c"), job("d")))
    await flow.service.workflows.cancel(flow.id)
    happened = set(await flow.events())
    assert happened >= {
        "job.started", "job.completed", "job.skipped", "job.failed", "job.discarded", "job.cancelled",
        "workflow.started", "workflow.completed", "workflow.failed", "workflow.cancelled",
    }  # fmt: skip

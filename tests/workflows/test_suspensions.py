"""Release of active jobs: suspension, requeue, workflow retry, and skipping the rest of a workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg
import pytest

from ojster.core.errors import Conflict, Duplicate, InvalidRequest, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.property_values import Changes, PropertyConflict
from ojster.jobs.bulk import Action
from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.job_json import to_json
from ojster.jobs.messages import Acknowledgement, Release
from ojster.jobs.scope import accepted
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.transaction import Transaction
from ojster.workflows.definitions import DefinitionDeletion
from ojster.workflows.properties import PropertyChange
from ojster.workflows.run.suspensions import WorkflowResumption
from tests.workflows.bench import WorkflowBench, chain, group, job, ref

pytestmark = pytest.mark.anyio

RETRY = {"max_attempts": 3, "initial_interval": "PT10S", "max_interval": "PT15S", "jitter": False}


async def release(flow: WorkflowBench, one: Job, then: Any, **more: Any) -> Job:
    return accepted(
        (await flow.service.jobs.release([Release(one.id, one.worker_id, one.attempt, then=then, **more)]))[0]
    )


async def resume(flow: WorkflowBench, data: Any = None, *, step: str | None = None, error: str | None = None) -> None:
    failure = None if error is None else Failure("Resumed", error, retryable=False)
    given = None if data is None else msgspec.json.encode(data)
    await flow.service.workflows.resume(WorkflowResumption(flow.id, step, given, failure))


async def define(flow: WorkflowBench, **more: Any) -> None:
    body = chain(job("a"), job("b"), on_error=job("mend"), on_cancel=job("tidy")) | {"retry": RETRY} | more
    body = {name: value for name, value in body.items() if value is not None}
    await flow.service.definitions.create("d", read_members(msgspec.json.encode(body)))


# Suspension


async def test_resuming_completes_a_suspended_job_with_the_given_result(
    flow: WorkflowBench,
) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    waiting = await release(flow, one, "wait")
    assert (waiting.state, waiting.worker_id, waiting.due_at) == ("pending", None, None)
    assert (await flow.step("0")).on_hold
    assert await flow.take() == []
    await resume(flow, {"it": "is there"})
    assert await flow.work() == ["b"]
    assert flow.given["b"] == [{"it": "is there"}]
    assert await flow.state() == "completed"
    assert not (await flow.step("0")).on_hold


async def test_a_job_that_waits_may_run_again_and_knows_what_it_was_given(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await release(flow, one, "wait", again=True)
    await resume(flow, [1, 2])
    (again,) = await flow.take()
    assert (again.id, again.attempt) == (one.id, 1)
    assert again.resumed == b"[1,2]"
    assert msgspec.json.decode(to_json(again))["resumed"] == [1, 2]
    await flow.fail(again)
    await flow.run_due(10)
    (third,) = await flow.take()
    assert (third.attempt, third.resumed) == (2, b"[1,2]")
    await flow.ack(third)
    assert await flow.work() == ["b"]


@pytest.mark.parametrize("again", [False, True])
async def test_an_answer_that_comes_before_the_job_waits_is_kept(flow: WorkflowBench, again: bool) -> None:
    """Whoever was asked can be quicker than the worker that is about to say that its job waits."""
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await resume(flow, {"it": "is there"}, step="0")
    with pytest.raises(Conflict):
        await resume(flow, "twice", step="0")
    await release(flow, one, "wait", again=again)
    if again:
        (one,) = await flow.take()
        assert msgspec.json.decode(one.resumed or b"") == {"it": "is there"}
        with pytest.raises(Conflict):
            await resume(flow, "made again, after it was answered", step="0")
        await flow.ack(one, b'{"it": "was there"}')
    assert await flow.work() == ["b"]
    assert await flow.state() == "completed"


async def test_an_early_answer_survives_the_attempt_and_may_be_an_error(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", options={"retry": RETRY | {"max_attempts": 2}}), job("b")))
    (one,) = await flow.take()
    await resume(flow, error="it will never come", step="0")
    await flow.fail(one)
    flow.clock.advance(60)
    await flow.run_all_due()
    (two,) = await flow.take()
    await release(flow, two, "wait", again=True)
    assert await flow.state() == "failed"


async def test_a_job_without_a_workflow_is_answered_early_as_well(flow: WorkflowBench) -> None:
    await flow.push("alone")
    one = await flow.fetch_one()
    steered = await flow.service.workflows.activate(one.id, b"7")
    assert (steered.before, steered.job.state) == ("active", "active")
    assert (await release(flow, one, "wait")).state == "completed"
    assert (await flow.find(one)).result == b"7"


@pytest.mark.parametrize("again", ["retry", "sweep", "dead letter"])
async def test_a_job_that_is_retried_by_hand_does_not_get_the_answer_of_its_life_before(
    flow: WorkflowBench, again: str
) -> None:
    await flow.push("alone", retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    job = await flow.fetch_one()
    await flow.service.workflows.activate(job.id, b'"to the question before"')
    await flow.fail(job)
    match again:
        case "retry":
            await flow.service.jobs.retry(job.id)
        case "sweep":
            await flow.service.bulk.sweep(Action.RETRY, JobFilter(states=("discarded",)))
        case _:
            await flow.service.jobs.retry_dead(job.id)
    job = await flow.fetch_one()
    assert (await release(flow, job, "wait")).state == "pending"


async def test_a_job_that_runs_is_not_activated_without_an_answer(flow: WorkflowBench) -> None:
    await flow.push("alone")
    one = await flow.fetch_one()
    with pytest.raises(Conflict):
        await flow.service.workflows.activate(one.id)


async def test_a_job_without_a_workflow_waits_until_it_is_activated(flow: WorkflowBench) -> None:
    await flow.push("alone")
    one = await flow.fetch_one()
    await release(flow, one, "wait")
    with pytest.raises(Conflict):
        await flow.ack(one)
    steered = await flow.service.workflows.activate(one.id, b'"done"')
    assert (steered.before, steered.job.state) == ("pending", "completed")
    assert (await flow.find(one)).result == b'"done"'
    with pytest.raises(Conflict):
        await flow.service.workflows.activate(one.id)


async def test_a_job_that_is_merely_pending_can_be_given_nothing(flow: WorkflowBench) -> None:
    one = await flow.push("alone", pending=True)
    with pytest.raises(Conflict, match="it is not suspended"):
        await flow.service.workflows.activate(one.id, b"1")
    assert (await flow.service.workflows.activate(one.id)).job.state == "available"


async def test_resuming_with_an_error_fails_the_step_and_runs_the_branch_for_errors(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b"), on_error=job("mend")))
    (one,) = await flow.take()
    await release(flow, one, "wait")
    await resume(flow, error="it will never come")
    assert await flow.work() == ["mend"]
    info = await flow.look()
    assert (info.state, info.error and info.error.errors[0]["message"]) == ("failed", "it will never come")


async def test_a_wait_ends_at_its_deadline_as_a_failure(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", options={"retry": {"max_attempts": 2, "jitter": False}}), job("b")))
    (one,) = await flow.take()
    await release(flow, one, "wait", wait=5_000_000)
    await flow.run_due(4)
    assert (await flow.find(one)).state == "pending"
    await flow.run_due(2)
    assert (await flow.find(one)).state == "retryable"
    await flow.run_due(2)
    (again,) = await flow.take()
    assert again.attempt == 2
    await release(flow, again, "wait", again=True, deadline=flow.clock() + 5_000_000)
    await flow.run_due(6)
    assert (await flow.find(one)).state == "discarded"
    assert await flow.state() == "failed"
    assert msgspec.json.decode((await flow.find(one)).errors or b"[]")[-1]["code"] == "wait_timeout"


async def test_only_what_waits_can_be_resumed_and_if_several_do_it_must_be_said_which(flow: WorkflowBench) -> None:
    await flow.create(group(job("a", id="x"), job("b", id="y")))
    with pytest.raises(Conflict, match="it has no suspended job"):
        await resume(flow)
    for one in await flow.take(2):
        await release(flow, one, "wait")
    with pytest.raises(Conflict, match="2 steps") as refused:
        await resume(flow)
    assert refused.value.details["steps"] == ["x", "y"]
    await resume(flow, 1, step="y")
    with pytest.raises(Conflict, match="'y' cannot be resumed"):
        await resume(flow, 1, step="y")
    with pytest.raises(NotFound):
        await resume(flow, 1, step="z")
    await resume(flow, 2)
    assert await flow.state() == "completed"
    flow.id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
    with pytest.raises(NotFound):
        await resume(flow)


async def test_a_held_workflow_does_not_wake_what_waits_when_it_is_released(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await release(flow, one, "wait", again=True)
    await flow.service.workflows.hold(flow.id)
    await flow.service.workflows.release(flow.id)
    assert (await flow.find(one)).state == "pending"
    await flow.service.workflows.hold(flow.id)
    await resume(flow, "now")
    assert await flow.take() == []
    await flow.service.workflows.release(flow.id)
    (again,) = await flow.take()
    assert again.resumed == b'"now"'


@pytest.mark.parametrize("again", [False, True])
async def test_what_waits_is_cancelled_with_its_workflow(flow: WorkflowBench, again: bool) -> None:
    await flow.create(chain(job("a"), job("b"), on_cancel=job("tidy")))
    (one,) = await flow.take()
    await release(flow, one, "wait", again=again)
    await flow.service.workflows.cancel(flow.id)
    assert (await flow.find(one)).state == "cancelled"
    assert await flow.work() == ["tidy"]
    with pytest.raises(Conflict):
        await resume(flow)


async def test_a_job_of_a_cancelled_workflow_that_wants_to_wait_is_cancelled(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b"), on_cancel=job("tidy")))
    (one,) = await flow.take()
    await flow.service.workflows.cancel(flow.id)
    assert (await release(flow, one, "wait")).state == "cancelled"
    assert await flow.work() == ["tidy"]


async def test_what_waits_ends_with_the_time_of_its_workflow(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b"), on_error=job("mend"), timeout=10))
    (one,) = await flow.take()
    await release(flow, one, "wait")
    await flow.run_due(11)
    assert (await flow.find(one)).state == "cancelled"
    assert await flow.work() == ["mend"]
    assert await flow.state() == "failed"


@pytest.mark.parametrize("rival", ["cancel", "timeout", "resume"])
async def test_resuming_has_one_winner_whatever_happens_at_the_same_time(flow: WorkflowBench, rival: str) -> None:
    winners = set()
    for is_first in (True, False) * 3:
        await flow.create(chain(job("a"), job("b"), timeout=10))
        (one,) = await flow.take()
        await release(flow, one, "wait")
        if rival == "timeout":
            flow.clock.advance(11)
        calls = {"cancel": flow.service.workflows.cancel(flow.id), "timeout": flow.run_due(), "resume": resume(flow, 2)}
        other = calls.pop(rival)
        for unused in calls.values():
            unused.close()
        won: Sequence[object]
        if is_first:
            ends = [await asyncio.gather(call, return_exceptions=True) for call in (resume(flow, 1), other)]
            won = [end for (end,) in ends]
        else:  # in one transaction
            won = (await asyncio.gather(other, resume(flow, 1), return_exceptions=True))[::-1]
        assert all(not isinstance(end, Exception) or isinstance(end, OjsterError) for end in won), won
        found = await flow.find(one)
        resumed = not isinstance(won[0], Exception) or (rival == "resume" and not isinstance(won[1], Exception))
        assert (found.state == "completed") == resumed, won
        winners.add(isinstance(won[0], Exception))
        if rival == "resume":
            assert sum(isinstance(end, Exception) for end in won) == 1
        await flow.work()
        if not (await flow.look()).finished:
            await flow.service.workflows.cancel(flow.id)
    assert winners == {True, False}, "each of the two wins at times"


# Requeue


async def test_a_job_goes_back_to_its_queue_now_or_not_before_a_time(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b"), on_error=job("mend")))
    (one,) = await flow.take()
    await release(flow, one, "queue")
    (again,) = await flow.take()
    assert (again.id, again.attempt) == (one.id, 1)
    await release(flow, again, "queue", not_before=flow.clock() + 60_000_000)
    await flow.run_due(59)
    assert await flow.take() == []
    await flow.run_due(2)
    assert await flow.work() == ["a", "b"]


# Workflow retry


async def test_a_workflow_is_run_again_as_a_new_one_after_a_growing_pause(flow: WorkflowBench) -> None:
    await define(flow)
    start = {"definition": "d", "params": {"n": 1}, "target": "t", "locks": "^u$", "name": "my own", "priority": 7}
    ids = [(await flow.create(start | {"properties": {"p": 1}})).id]
    for pause in (10, 15):
        (one,) = await flow.take()
        assert one.priority == 7
        assert (await release(flow, one, "retry", changes=Changes({"p": msgspec.Raw(b"2")}))).state == "cancelled"
        info = await flow.look()
        assert (info.state, info.finished, info.error and info.error.code) == ("retried", True, "retried")
        assert info.next_attempt is not None
        flow.id = info.next_attempt
        ids.append(flow.id)
        await flow.run_due(pause - 1)
        assert await flow.take() == []
        await flow.run_due(1)
        assert (await flow.service.workflows.properties(flow.id))["p"].decoded() == 1
    last = await flow.look()
    assert (last.attempt, last.previous_attempt, last.target, last.locks, last.name) == (
        3,
        ids[1],
        "t",
        "^u$",
        "my own",
    )
    (one,) = await flow.take()
    assert (await release(flow, one, "retry")).state == "discarded"
    assert await flow.work() == ["mend"]
    last = await flow.look()
    assert (last.state, last.next_attempt, last.error and last.error.errors[0]["code"]) == (
        "failed",
        None,
        "retries_exhausted",
    )
    with pytest.raises(Conflict, match="was retried as"):
        await flow.service.workflows.retry(ids[0])
    assert (await flow.events()).count("workflow.retried") == 2


async def test_a_workflow_retry_cancels_all_other_jobs_of_the_attempt(flow: WorkflowBench) -> None:
    body = {"type": "group", "jobs": [job("a"), job("b"), job("c")], "on_error": job("mend"), "on_cancel": job("tidy")}
    await flow.service.definitions.create("d", read_members(msgspec.json.encode(body)))
    await flow.create({"definition": "d", "target": "t"})
    one, other = await flow.take(2)
    await release(flow, one, "retry")
    with pytest.raises(Conflict):
        await flow.ack(other)
    assert {state for path, state in (await flow.states()).items() if path.isdigit()} == {"cancelled"}
    assert await flow.take(5) == []
    with pytest.raises(Duplicate, match="same definition, target"):
        await flow.create({"definition": "d", "target": "t"})
    await flow.run_due(60)
    assert sorted(await flow.work()) == ["a", "b", "c"]


@pytest.mark.parametrize("what", ["no definition", "deleted", "alone"])
async def test_what_cannot_be_run_again_fails(flow: WorkflowBench, what: str) -> None:
    if what == "alone":
        await flow.push("a")
    elif what == "deleted":
        await define(flow)
        await flow.create({"definition": "d"})
        await flow.service.definitions.delete(DefinitionDeletion("d", force=True))
    else:
        await flow.create(chain(job("a")))
    one = await flow.fetch_one()
    assert (await release(flow, one, "retry")).state == "discarded"
    code = {"no definition": "no_definition", "deleted": "definition_deleted", "alone": "no_workflow"}[what]
    assert msgspec.json.decode((await flow.find(one)).errors or b"[]")[-1]["code"] == code


async def test_the_retry_of_a_workflow_without_a_definition_is_refused(flow: WorkflowBench) -> None:
    with pytest.raises(OjsterError, match=r"\$\.retry"):
        await flow.create(chain(job("a"), retry=RETRY))


# Skipping the rest


async def test_the_rest_is_skipped_and_the_workflow_succeeds(flow: WorkflowBench) -> None:
    await flow.create(
        chain(
            job("a"),
            group(job("b"), chain(job("c"), job("d")), job("e")),
            {"type": "saga", "steps": [job("f", compensate=job("undo"))]},
            on_error=job("mend"),
            on_cancel=job("tidy"),
        )
    )
    await flow.ack((await flow.take())[0])
    one, other, third = await flow.take(3)
    done = await release(flow, one, "skip", result=b'"enough"')
    assert (done.state, done.result) == ("completed", b'"enough"')
    assert await flow.take(5) == []
    assert not (await flow.look()).finished
    await flow.ack(other)
    await flow.ack(third)
    states = await flow.states()
    assert {states[path] for path in ("1.1.1", "2")} == {"skipped"}
    assert await flow.state() == "completed"
    assert await flow.work() == []


@pytest.mark.parametrize("branch", ["on_error", "on_cancel"])
async def test_a_step_of_a_branch_skips_the_rest_of_the_branch(flow: WorkflowBench, branch: str) -> None:
    await flow.create(chain(job("a"), job("b"), **{branch: chain(job("mend"), job("c"), job("d"))}))
    (one,) = await flow.take()
    if branch == "on_error":
        await flow.fail(one, retryable=False)
    else:
        await flow.service.workflows.cancel(flow.id)
        await flow.ack(one)
    (mending,) = await flow.take()
    assert mending.type == "mend"
    assert (await release(flow, mending, "skip")).state == "completed"
    assert await flow.work() == []
    info = await flow.look()
    assert (info.finished, info.state) == (True, "failed" if branch == "on_error" else "cancelled")
    states = await flow.states()
    assert (states[f"{branch}.1"], states[f"{branch}.2"]) == ("skipped", "skipped")


async def test_a_job_alone_that_skips_the_rest_is_done(flow: WorkflowBench) -> None:
    await flow.push("alone")
    assert (await release(flow, await flow.fetch_one(), "skip", result=b"1")).state == "completed"


# Lost workers


@pytest.mark.parametrize("policy", ["retry", "cancel", None])
async def test_a_workflow_says_what_becomes_of_it_when_a_worker_is_lost(
    flow: WorkflowBench, policy: str | None
) -> None:
    await flow.create(
        chain(job("a"), job("b"), on_cancel=job("tidy"), **({} if policy is None else {"on_lost_worker": policy}))
    )
    (one,) = await flow.fetch(worker_id="w", lease=10_000_000)
    await flow.run_due(60)
    assert await flow.work() == (["tidy"] if policy == "cancel" else ["a", "b"])
    assert await flow.state() == ("cancelled" if policy == "cancel" else "completed")
    assert len(msgspec.json.decode((await flow.find(one)).errors or b"[]")) == 1


async def test_what_a_predecessor_held_is_given_back_at_once_and_its_attempts_count(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.fetch(worker_id="w")
    await flow.service.fleet.leave("w", lost=True)
    (again,) = await flow.fetch(worker_id="w")
    assert (again.id, again.attempt) == (one.id, 2)
    with pytest.raises(Conflict):
        await flow.ack(one)
    await flow.ack(again)


async def test_a_stale_release_of_a_suspended_job_changes_nothing(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b")))
    (one,) = await flow.take()
    await release(flow, one, "wait")
    for then in ("queue", "wait", "retry", "skip"):
        with pytest.raises(Conflict):
            await release(flow, one, then)
    assert (await flow.find(one)).state == "pending"


@pytest.mark.parametrize("again", [False, True])
async def test_the_history_of_a_job_that_waited_tells_so(flow: WorkflowBench, again: bool) -> None:
    await flow.push("alone")
    one = await flow.fetch_one(worker_id="w")
    await flow.service.notes.add_to_job(one.id, b'"so far"')
    flow.clock.advance(1)
    await release(flow, one, "wait", again=again)
    flow.clock.advance(1)
    await flow.service.workflows.activate(one.id, b"7")
    flow.clock.advance(1)
    if again:
        await flow.ack(await flow.fetch_one(worker_id="w"))
    told = [(entry.type.removeprefix("job."), entry.data) for entry in await flow.service.jobs.history(one.id)]
    attempts = [data["attempt"] for type, data in told if type == "attempt_started"]
    assert attempts == ([1, 1] if again else [1])
    changes = [f"{data['from']}>{data['to']}" for type, data in told if type == "state_changed"]
    expected = ["available>active", "active>pending"]
    expected += ["pending>available", "available>active", "active>completed"] if again else ["pending>completed"]
    assert changes == expected
    assert "resumed" in [type for type, _ in told]


# Several outcomes in one call


@pytest.mark.parametrize("others", ["retry", "skip", "wait", "queue"])
async def test_what_one_release_does_to_its_workflow_is_seen_by_the_next_in_the_same_call(
    flow: WorkflowBench, others: Any
) -> None:
    await define(flow, type="group", jobs=[job("a"), job("b")], steps=None)
    await flow.create({"definition": "d"})
    first, second = await flow.take(2)
    ends = await flow.service.jobs.release(
        [Release(first.id, None, 1, then="retry"), Release(second.id, None, 1, then=others)]
    )
    assert isinstance(ends[1], Conflict)
    counts = await flow.service.jobs.count("default")
    assert counts["default"].get("active", 0) == 0
    assert (await flow.look()).metadata["cancelled_count"] == 2


async def test_the_workflows_of_one_call_do_not_get_in_each_others_way(flow: WorkflowBench) -> None:
    ids = []
    for _ in range(2):
        ids.append((await flow.create(chain(job("a"), job("b")))).id)
    one, other = await flow.take(2)
    for end in await flow.service.jobs.release([Release(done.id, None, 1, then="skip") for done in (one, other)]):
        assert accepted(end).state == "completed"
    assert [(await flow.service.workflows.show(id)).state for id in ids] == ["completed", "completed"]


async def test_a_job_of_a_branch_cannot_have_the_workflow_run_again(flow: WorkflowBench) -> None:
    await define(flow, on_error=[job("mend"), job("more")])
    await flow.create({"definition": "d"})
    await flow.give_up((await flow.take())[0])
    (mend,) = await flow.take()
    assert (await release(flow, mend, "retry")).state == "discarded"
    assert (await flow.look()).next_attempt is None
    assert (await flow.look()).finished


async def test_after_the_rest_was_skipped_nothing_is_run_again(flow: WorkflowBench) -> None:
    await define(flow, type="group", jobs=[job("a"), job("b")], steps=None)
    await flow.create({"definition": "d"})
    first, second = await flow.take(2)
    await release(flow, first, "skip")
    assert (await release(flow, second, "retry")).state == "cancelled"
    assert ((await flow.look()).state, (await flow.look()).next_attempt) == ("completed", None)


async def test_a_refused_acknowledgement_adds_no_steps(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a")))
    (one,) = await flow.take()
    more = (msgspec.json.encode(job("x")),)
    stale = Changes({"p": msgspec.Raw(b"1")}, expected={"p": 7})
    for _ in range(2):
        (end,) = await flow.service.jobs.acknowledge([Acknowledgement(one.id, b"1", None, 1, more, stale)])
        assert isinstance(end, PropertyConflict)
    bad = (b'{"type":"NO TYPE","args":[]}',)
    (end,) = await flow.service.jobs.acknowledge(
        [Acknowledgement(one.id, b"1", None, 1, bad, Changes({"p": msgspec.Raw(b"1")}))]
    )
    assert isinstance(end, OjsterError)
    assert await flow.service.workflows.properties(flow.id) == {}
    await flow.service.jobs.acknowledge([Acknowledgement(one.id, b"1", None, 1, more)])
    assert await flow.work() == ["x"]


async def test_a_malformed_property_refuses_only_the_outcome_with_which_it_comes(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b"), job("c")))
    one, two, three = await flow.take(3)
    wrong = [Changes({"": msgspec.Raw(b"1")}), Changes({"x": msgspec.Raw(b'"%b"' % (b"y" * 70_000))})]
    ends = await flow.service.jobs.acknowledge(
        [
            Acknowledgement(one.id, b"1", None, 1, (), wrong[0]),
            Acknowledgement(two.id, b"1", None, 1, (), wrong[1]),
            Acknowledgement(three.id, b"1", None, 1, (), Changes({"x": msgspec.Raw(b"1")})),
        ]
    )
    assert [isinstance(end, OjsterError) for end in ends] == [True, True, False]


# Compensation, holds and workflow retries


async def test_the_next_attempt_waits_until_the_last_one_is_undone(flow: WorkflowBench) -> None:
    saga = {"type": "saga", "steps": [job("a", compensate=job("undo")), job("b")], "retry": RETRY}
    await flow.service.definitions.create("d", read_members(msgspec.json.encode(saga)))
    await flow.create({"definition": "d"})
    await flow.ack((await flow.take())[0])
    await release(flow, (await flow.take())[0], "retry")
    (undo,) = await flow.take()
    assert undo.type == "undo"
    await flow.run_due(60)
    assert await flow.take() == []
    await flow.ack(undo)
    await flow.run_due(2)
    assert await flow.work() == ["a", "b"]


async def test_a_held_workflow_that_is_run_again_is_held(flow: WorkflowBench) -> None:
    await define(flow)
    await flow.create({"definition": "d"})
    (one,) = await flow.take()
    await flow.service.workflows.hold(flow.id)
    await release(flow, one, "retry")
    flow.id = (await flow.look()).next_attempt or ""
    await flow.run_due(60)
    assert await flow.take() == []
    await flow.service.workflows.release(flow.id)
    assert await flow.work() == ["a", "b"]


async def test_a_new_attempt_keeps_what_middleware_has_made_of_its_jobs(flow: WorkflowBench) -> None:
    async def stamp(request: Any, next: Any) -> Any:
        return await next(request | {"meta": {"stamped": True}})

    flow.service.middleware.append(stamp)
    await define(flow)
    await flow.create({"definition": "d"})
    (one,) = await flow.take()
    await release(flow, one, "retry")
    await flow.run_due(60)
    (again,) = await flow.take()
    assert again.meta == {"stamped": True}


async def test_another_definition_of_the_same_name_is_not_run_instead(flow: WorkflowBench) -> None:
    await define(flow)
    await flow.create({"definition": "d"})
    (one,) = await flow.take()
    await flow.service.definitions.delete(DefinitionDeletion("d", force=True))
    flow.clock.advance(1)
    await define(flow, steps=[job("other")])
    assert (await release(flow, one, "retry")).state == "discarded"
    assert await flow.work() == ["mend"]


async def test_a_target_that_was_locked_meanwhile_is_still_that_of_the_next_attempt(flow: WorkflowBench) -> None:
    await define(flow)
    await flow.create({"definition": "d", "target": "t"})
    (one,) = await flow.take()
    first = flow.id
    await flow.create({"definition": "d", "target": "u", "locks": "^t$"})
    await release(flow, one, "retry")
    assert (await flow.service.workflows.show(first)).state == "retried"


async def test_tenants_have_their_targets_for_themselves(flow: WorkflowBench) -> None:
    await define(flow)
    for tenant in ("one", "two"):
        await flow.create({"definition": "d", "target": "t", "metadata": {"tenant_id": tenant}})
    with pytest.raises(Duplicate):
        await flow.create({"definition": "d", "target": "t", "metadata": {"tenant_id": "two"}})


# Workers lost during cleanup


async def lose(flow: WorkflowBench) -> str:
    (one,) = await flow.fetch(worker_id="w", lease=10_000_000)
    await flow.run_due(60)
    return one.type


async def test_a_worker_that_is_lost_while_it_cleans_up_is_replaced(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), on_cancel=[job("tidy"), job("more")], on_lost_worker="cancel"))
    assert [await lose(flow), await lose(flow)] == ["a", "tidy"]
    assert await flow.work() == ["tidy", "more"]
    saga = chain(job("a", compensate=job("undo_a")), job("b", compensate=job("undo_b")), job("c"))
    await flow.create({"type": "saga", "steps": saga["steps"], "on_lost_worker": "cancel"})
    for _ in range(2):
        await flow.ack((await flow.take())[0])
    await flow.give_up((await flow.take())[0])
    assert await lose(flow) == "undo_b"
    assert await flow.work() == ["undo_b", "undo_a"]
    await flow.create(chain(job("a"), on_error=job("mend"), on_cancel=job("tidy"), on_lost_worker="cancel"))
    await flow.give_up((await flow.take())[0])
    assert await lose(flow) == "mend"
    assert await flow.work() == ["mend"]


async def test_a_step_with_a_fallback_is_resumed_by_its_own_name(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", id="x", fallback=job("f"))))
    await release(flow, (await flow.take())[0], "wait")
    await resume(flow, 1, step="x")
    assert await flow.state() == "completed"


async def test_a_fallback_that_waits_is_resumed_by_the_name_of_its_step(flow: WorkflowBench) -> None:
    ask = {"type": "wait", "form": {"type": "object"}}
    await flow.create(chain(ask | {"id": "ask", "timeout": 5, "fallback": ask}, job("b", ref("steps.ask.result"))))
    await flow.run_due(6)
    assert await flow.states() == {"ask": "active", "ask.0": "failed", "ask.fallback": "pending", "1": "waiting"}
    await resume(flow, {"yes": 1}, step="ask")
    assert (await flow.work(), flow.arguments["b"]) == (["b"], [{"yes": 1}])


async def test_deleted_properties_leave_no_more_than_one_row_behind_and_no_version_is_used_twice(
    flow: WorkflowBench,
) -> None:
    await flow.create(chain(job("a")))
    seen = set()
    for number in range(20):
        name = f"p{number % 3}"
        changed = await flow.service.workflows.change_properties(
            PropertyChange(flow.id, Changes({name: msgspec.Raw(b"1")}, expected={name: 0}))
        )
        assert changed[name].version not in seen
        seen.add(changed[name].version)
        await flow.service.workflows.change_properties(PropertyChange(flow.id, Changes(delete=(name,))))
    assert await flow.run(_count_properties, None) == 1
    with pytest.raises(PropertyConflict):
        await flow.service.workflows.change_properties(PropertyChange(flow.id, Changes(expected={"p0": 1})))
    with pytest.raises(InvalidRequest, match="job_id"):
        await flow.service.workflows.change_properties(PropertyChange(flow.id, Changes(), worker_id="w"))


def _count_properties(tx: Transaction, requests: Sequence[None]) -> list[int]:
    ((count,),) = tx.execute("SELECT count(*) FROM workflow_properties")
    return [count for _ in requests]


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_waiting_job_is_cancelled_although_somebody_has_it_locked_at_that_moment(
    flow: WorkflowBench, url: str, how: str
) -> None:
    if not url.startswith("postgresql"):
        pytest.skip("a file has one writer")
    await flow.create(chain(job("a"), on_cancel=job("tidy"), timeout=10))
    (one,) = await flow.take()
    await release(flow, one, "wait")
    parsed = parse_postgres_url(url)
    with psycopg.connect(parsed.conninfo, options=f"-c search_path={parsed.schema}") as other:
        other.execute("SELECT seq FROM jobs WHERE id = %s FOR UPDATE", (one.id,))
        ending = asyncio.create_task(flow.service.workflows.cancel(flow.id) if how == "cancel" else flow.run_due(11))
        await asyncio.sleep(0.3)
        other.rollback()
    await ending
    for _ in range(2):
        await flow.run_due(61)
    assert (await flow.find(one)).state == "cancelled"
    assert await flow.work() == (["tidy"] if how == "cancel" else [])
    assert (await flow.look()).finished

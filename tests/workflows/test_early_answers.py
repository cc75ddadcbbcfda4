"""Answers that come before a step waits for them: they are kept, one for each step, until it does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster.core.errors import Conflict, NotFound
from ojster.core.job import Job
from ojster.core.refusals import SchemaViolation
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Release
from ojster.jobs.scope import Caller, accepted
from ojster.workflows.run.suspensions import WorkflowResumption
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio

WAIT = {"type": "wait", "id": "w"}
FORM = {
    "type": "object",
    "required": ["approved"],
    "properties": {"approved": {"type": "boolean"}, "answered_at": {"type": "string", "readOnly": True}},
}


async def answer(flow: WorkflowBench, step: str, value: Any = "early", *, error: str | None = None) -> None:
    failure = None if error is None else Failure("Answered", error, retryable=False)
    data = None if failure else msgspec.json.encode(value)
    await flow.service.workflows.resume(WorkflowResumption(flow.id, step, data, failure))


async def suspend(flow: WorkflowBench, running: Job, **more: Any) -> Job:
    item = Release(running.id, running.worker_id, running.attempt, then="wait", **more)
    return accepted((await flow.service.jobs.release([item]))[0])


async def begin(flow: WorkflowBench, *steps: Any, kind: str = "wait") -> str:
    """Start a workflow whose second step waits, as a wait step or in its handler; return the path of that step."""
    await flow.create(
        chain(job("a"), WAIT if kind == "wait" else job("h", id="w"), job("b", ref("steps.w.result")), *steps)
    )
    return "w"


async def wait_now(flow: WorkflowBench, kind: str) -> None:
    """Run the workflow until its second step waits, if it does."""
    await flow.ack((await flow.take())[0])
    if kind == "handler":
        await suspend(flow, (await flow.take())[0])
    await flow.run_all_due()


@pytest.mark.parametrize("kind", ["wait", "handler"])
async def test_an_answer_is_kept_for_a_step_that_has_not_started(flow: WorkflowBench, kind: str) -> None:
    await begin(flow, kind=kind)
    await answer(flow, "w")
    await wait_now(flow, kind)
    assert await flow.work() == ["b"]
    assert (await flow.state(), flow.arguments["b"]) == ("completed", ["early"])
    with pytest.raises(Conflict, match="no suspended job"):
        await answer(flow, "w", "late")


@pytest.mark.parametrize("kind", ["wait", "handler"])
async def test_one_answer_is_kept_and_a_second_one_is_refused(flow: WorkflowBench, kind: str) -> None:
    await begin(flow, kind=kind)
    await answer(flow, "w")
    with pytest.raises(Conflict, match="has an answer already"):
        await answer(flow, "w", "second")
    await wait_now(flow, kind)
    await flow.work()
    assert flow.arguments["b"] == ["early"]


@pytest.mark.parametrize("kind", ["wait", "handler"])
async def test_an_early_answer_may_be_an_error(flow: WorkflowBench, kind: str) -> None:
    await begin(flow, kind=kind)
    await answer(flow, "w", error="it will never come")
    await wait_now(flow, kind)
    assert await flow.state() == "failed"


async def test_an_early_answer_matches_the_form_and_has_what_the_server_says(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), WAIT | {"form": FORM}, job("b", ref("steps.w.result"))))
    for wrong in ("yes", {}, {"approved": "yes"}, None):
        with pytest.raises(SchemaViolation):
            await answer(flow, "w", wrong)
    await answer(flow, "w", {"approved": True})
    await wait_now(flow, "wait")
    await flow.work()
    assert flow.arguments["b"][0].keys() == {"approved", "answered_at"}


async def test_an_answer_comes_before_the_workflow_starts_or_goes_on(flow: WorkflowBench) -> None:
    await begin(flow)
    await flow.service.workflows.hold(flow.id)
    await answer(flow, "w")
    await flow.service.workflows.release(flow.id)
    await wait_now(flow, "wait")
    assert await flow.work() == ["b"]


async def test_each_step_has_its_own_answer(flow: WorkflowBench) -> None:
    waits = [{"type": "wait", "id": name, "depends_on": ["a"]} for name in ("x", "y")]
    last = job("b", ref("steps.x.result"), ref("steps.y.result"), depends_on=["x", "y"])
    await flow.create(graph(job("a", id="a"), *waits, last))
    await answer(flow, "y", "of y")
    await flow.ack((await flow.take())[0])
    await flow.run_all_due()
    assert await flow.work() == []
    await answer(flow, "x", "of x")
    await flow.work()
    assert flow.arguments["b"] == ["of x", "of y"]


async def test_the_answer_of_a_step_that_never_started_is_kept_for_the_retry_of_its_workflow(
    flow: WorkflowBench,
) -> None:
    await begin(flow)
    await answer(flow, "w")
    await flow.work("a")
    assert await flow.state() == "failed"
    await flow.service.workflows.retry(flow.id)
    await wait_now(flow, "wait")
    assert await flow.work() == ["b"]
    assert flow.arguments["b"] == ["early"]


async def test_a_retried_step_that_had_started_asks_another_question(flow: WorkflowBench) -> None:
    await begin(flow, kind="handler")
    await answer(flow, "w")
    await flow.work("h")
    await flow.service.workflows.retry(flow.id)
    assert (await suspend(flow, (await flow.take())[0])).state == "pending"
    await answer(flow, "w", "to the second question")
    await flow.work()
    assert flow.arguments["b"] == ["to the second question"]


async def test_an_answer_is_taken_once_and_a_retried_step_waits_again(flow: WorkflowBench) -> None:
    await begin(flow, kind="handler")
    await answer(flow, "w")
    await flow.ack((await flow.take())[0])
    (running,) = await flow.take()
    await suspend(flow, running, again=True)
    (again,) = await flow.take()
    assert again.resumed == b'"early"'
    await flow.give_up(again)
    await flow.service.workflows.retry(flow.id)
    (third,) = await flow.take()
    assert (await suspend(flow, third)).state == "pending"
    await answer(flow, "w", "second")
    assert await flow.work() == ["b"]
    assert flow.arguments["b"] == ["second"]


async def test_the_answer_outlives_a_failed_attempt(flow: WorkflowBench) -> None:
    retry = {"max_attempts": 2, "initial_interval": "PT10S", "jitter": False}
    await flow.create(chain(job("h", id="w", options={"retry": retry}), job("b", ref("steps.w.result"))))
    await answer(flow, "w", "before it runs")
    await flow.fail((await flow.take())[0])
    flow.clock.advance(60)
    await flow.run_all_due()
    await suspend(flow, (await flow.take())[0])
    await flow.work()
    assert flow.arguments["b"] == ["before it runs"]


async def test_a_job_without_a_workflow_is_answered_before_it_starts(flow: WorkflowBench) -> None:
    pushed = await flow.push("alone")
    changed = await flow.service.workflows.activate(pushed.id, b"7")
    assert (changed.before, changed.job.state) == ("available", "available")
    with pytest.raises(Conflict):
        await flow.service.workflows.activate(pushed.id, b"8")
    assert (await suspend(flow, await flow.fetch_one())).state == "completed"
    other = await flow.push("other")
    with pytest.raises(Conflict, match="only a pending job"):
        await flow.service.workflows.activate(other.id)


async def test_what_never_waits_for_an_answer_keeps_none(flow: WorkflowBench) -> None:
    gate = {"type": "gate", "id": "g"}
    delay = {"type": "wait", "id": "d", "delay": "PT10S"}
    flowing = {"type": "flow", "id": "f", "job": {"type": "f", "args": []}}
    await flow.create(chain(job("a", id="a"), gate, delay, group(job("c"), job("d")), flowing))
    for step in ("g", "d", "3", "f"):
        with pytest.raises(Conflict, match="no suspended job"):
            await answer(flow, step)
    with pytest.raises(NotFound):
        await answer(flow, "nothing")
    with pytest.raises(Conflict, match="Name the 'step'"):
        await flow.service.workflows.resume(WorkflowResumption(flow.id, None, b"1"))
    with pytest.raises(Conflict):
        await flow.service.workflows.resume(WorkflowResumption(flow.id, "a"))
    await flow.work()
    with pytest.raises(Conflict, match="no suspended job"):
        await answer(flow, "a")
    with pytest.raises(NotFound):
        await flow.service.as_(Caller("other")).workflows.resume(WorkflowResumption(flow.id, "g", b"1"))


async def test_kept_answers_are_deleted_with_the_workflow(flow: WorkflowBench) -> None:
    await flow.create(graph(WAIT | {"depends_on": ["a"]}, job("a", id="a")) | {"expiration_delay": "PT1S"})
    await answer(flow, "w")
    await flow.service.workflows.cancel(flow.id, stop_active=True)
    await flow.run_all_due()
    flow.clock.advance(100)
    await flow.service.maintenance.prune()
    with pytest.raises(NotFound):
        await flow.look()
    assert await flow.run(_count, "early_answers") == 0


def _count(tx: Any, tables: Any) -> list[int]:
    return [tx.execute(f"SELECT count(*) FROM {table}")[0][0] for table in tables]


async def test_a_webhook_that_is_too_early_is_accepted(http: Http, flow: WorkflowBench) -> None:
    await begin(flow)
    path = f"/ojs/v1/workflows/{flow.id}/resume"
    accepted = await http("POST", path, {"step": "w", "result": {"paid": True}})
    assert (accepted.status_code, accepted.json()["workflow"]["state"]) == (200, "running")
    assert (await http("POST", path, {"step": "w", "result": 1})).status_code == 409
    await wait_now(flow, "wait")
    await flow.work()
    assert flow.arguments["b"] == [{"paid": True}]

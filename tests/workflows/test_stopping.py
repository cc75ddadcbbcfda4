"""What was stopped from outside has stopped before anything takes its place."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.timestamps import format_timestamp
from ojster.jobs.ending_attempts import TIMEOUT_GRACE
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.workflows.read.step_pages import StepFilter
from ojster.workflows.run.steps import StepAddress
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, batch, chain, group, job

ENDED = {"retry": {"max_attempts": 1}}
LEASE = 30.0
"""Lease of the worker that takes the first step, in seconds."""

pytestmark = pytest.mark.anyio


async def cancel_step(flow: WorkflowBench) -> None:
    await flow.cancel_step("0")


async def cancel_workflow(flow: WorkflowBench) -> None:
    await flow.service.workflows.cancel(flow.id, stop_active=True)


async def cancel_job(flow: WorkflowBench) -> None:
    info = await flow.look()
    await flow.service.jobs.cancel(str(info.children[0].job_id))


async def exceed_timeout(flow: WorkflowBench) -> None:
    await flow.run_due(20)


async def exceed_workflow_timeout(flow: WorkflowBench) -> None:
    await flow.run_due(25)


ENDS = {
    "step": (cancel_step, {}),
    "workflow": (cancel_workflow, {}),
    "job": (cancel_job, {}),
    "timeout": (exceed_timeout, {"timeout": 20}),
    "workflow-timeout": (exceed_workflow_timeout, {}),
}


async def stop(flow: WorkflowBench, how: str) -> Any:
    """Start a workflow, let a worker take its first step, and stop that; return the job."""
    end, options = ENDS[how]
    tidy = {"on_error": job("tidy"), "on_cancel": job("tidy")}
    limit = {"timeout": 25} if how == "workflow-timeout" else {}
    await flow.create(chain(job("a", options=ENDED | options), job("b")) | tidy | limit)
    one = await flow.fetch_one(worker_id="w", lease=round(LEASE * 1e6))
    await end(flow)
    assert (await flow.find(one)).finished_at is not None
    return one


@pytest.mark.parametrize("how", ENDS)
async def test_branches_start_when_the_worker_has_confirmed(flow: WorkflowBench, how: str) -> None:
    one = await stop(flow, how)
    step = await flow.step("0")
    assert (step.state, step.stopping) == ("active", True)
    assert await flow.work() == []
    assert not (await flow.look()).finished
    await flow.confirm(one)
    assert not (await flow.step("0")).stopping
    assert await flow.work() == ["tidy"]
    assert (await flow.look()).finished


@pytest.mark.parametrize("how", ENDS)
async def test_the_time_in_which_a_worker_stops_a_step_is_not_the_time_in_which_it_ran(
    flow: WorkflowBench, how: str
) -> None:
    one = await stop(flow, how)
    asked = (await flow.find(one)).finished_at
    assert asked is not None
    flow.clock.advance(3)
    await flow.confirm(one)
    whole = await flow.step("0")
    (row, *_) = [step for step in (await flow.service.workflows.steps(StepFilter(flow.id))).steps if step.path == "0"]
    for step in (whole, row):
        assert (step.stop_requested_at, step.completed_at) == tuple(
            format_timestamp(at) for at in (asked, flow.clock.now)
        )


async def test_a_step_that_ends_by_itself_was_not_stopped(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), job("b"), {"type": "wait", "id": "ask", "form": {"type": "object"}}))
    await flow.ack(await flow.fetch_one())
    flow.clock.advance(2)
    await flow.fail(await flow.fetch_one(), retryable=False)
    assert [step.stop_requested_at for step in (await flow.look()).walk()] == [None] * 3


@pytest.mark.parametrize("report", ["ack", "nack", "release"])
async def test_any_late_report_of_the_attempt_is_a_confirmation(flow: WorkflowBench, report: str) -> None:
    one = await stop(flow, "step")
    call: Any
    match report:
        case "ack":
            call = flow.service.jobs.acknowledge([Acknowledgement(one.id, b"1", one.worker_id, one.attempt)])
        case "nack":
            call = flow.service.jobs.fail([FailureReport(one.id, Failure("x", "y"), one.worker_id, one.attempt)])
        case _:
            call = flow.service.jobs.release([Release(one.id)])
    (refusal,) = await call
    assert refusal.code == "conflict"
    assert await flow.work() == ["tidy"]


async def test_reports_of_others_confirm_nothing(flow: WorkflowBench) -> None:
    one = await stop(flow, "step")
    await flow.service.jobs.release([Release(one.id, "somebody else", one.attempt)])
    await flow.service.jobs.release([Release(one.id, one.worker_id, one.attempt + 1)])
    assert await flow.work() == []


@pytest.mark.parametrize(("how", "rest"), [("step", LEASE), ("timeout", TIMEOUT_GRACE / 1e6)])
async def test_the_end_of_the_lease_is_a_confirmation(flow: WorkflowBench, how: str, rest: float) -> None:
    await stop(flow, how)
    await flow.run_due(rest - 1)
    assert await flow.work() == []
    await flow.run_due(1)
    assert await flow.work() == ["tidy"]


async def test_a_worker_that_leaves_confirms_all_that_it_had(flow: WorkflowBench) -> None:
    one = await stop(flow, "step")
    assert one.worker_id is not None
    await flow.service.fleet.leave(one.worker_id)
    assert await flow.work() == ["tidy"]


async def test_callbacks_of_a_batch_wait_for_the_confirmation(flow: WorkflowBench) -> None:
    await flow.create(batch(job("a"), job("b"), on_complete=job("done")))
    jobs = {one.type: one for one in await flow.take(2)}
    await flow.ack(jobs["a"])
    await flow.cancel_step("1")
    assert await flow.work() == []
    await flow.confirm(jobs["b"])
    assert await flow.work() == ["done"]


async def test_a_step_that_waits_is_cancelled_at_once(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b")) | {"on_cancel": job("tidy")})
    await flow.service.workflows.cancel_step(StepAddress(flow.id, "0"))
    await flow.service.workflows.cancel(flow.id)
    assert await flow.work() == ["tidy"]


async def test_a_step_that_stops_cannot_be_retried_yet(http: Http, flow: WorkflowBench) -> None:
    one = await stop(flow, "step")
    path = f"/ojs/v1/workflows/{flow.id}/steps/0/retry"
    assert (await http("POST", path)).status_code == 409

    async def current() -> list[str]:
        status = (await http("GET", f"/ojs/v1/workflows/{flow.id}/status")).json()["status"]
        return [step["state"] for step in status["current"]]

    assert await current() == ["stopping"]
    await flow.confirm(one)
    assert await current() == ["available"]
    assert await flow.work() == ["tidy"]
    assert (await http("POST", path)).status_code == 200

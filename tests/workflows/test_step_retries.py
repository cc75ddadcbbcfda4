"""Retries of single steps, while the other steps of their workflow run, and after it has finished."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.errors import Conflict, NotFound
from ojster.core.job import Job
from ojster.workflows.read.step_pages import StepFilter
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio


async def test_a_failed_step_is_retried_while_its_siblings_run(flow: WorkflowBench) -> None:
    await flow.create(group(job("slow"), chain(job("build"), job("test"), job("ship")), job("other")))
    jobs = {one.type: one for one in await flow.take(10)}
    await flow.give_up(jobs["build"])
    await flow.ack(jobs["other"])
    assert await flow.states() == {
        "0": "active", "1": "failed", "1.0": "failed", "1.1": "cancelled", "1.2": "cancelled", "2": "completed",
    }  # fmt: skip
    info = await flow.retry_step("1.0")
    assert info.state == "running"
    assert await flow.work() == ["build", "test", "ship"]
    assert await flow.state() == "running"
    await flow.ack(jobs["slow"])
    assert await flow.state() == "completed"
    events = await flow.events()
    assert (events.count("workflow.step_retried"), events.count("workflow.completed")) == (1, 1)
    assert "workflow.failed" not in events


async def test_only_what_was_cancelled_because_of_the_step_comes_back(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("a", id="a"),
            job("b", id="b"),
            job("after_a", id="after_a", depends_on=["a"]),
            job("after_b", id="after_b", depends_on=["b"]),
            job("after_both", id="after_both", depends_on=["a", "b"]),
            job("last", id="last", depends_on=["after_both"]),
            job("slow", id="slow"),
        )
    )
    jobs = {one.type: one for one in await flow.take(10)}
    await flow.give_up(jobs["a"])
    await flow.give_up(jobs["b"])
    await flow.retry_step("a")
    states = await flow.states()
    assert (states["after_a"], states["after_b"]) == ("waiting", "cancelled")
    assert await flow.work() == ["a", "after_a"]
    states = await flow.states()
    assert (states["b"], states["after_both"], states["last"]) == ("failed", "cancelled", "cancelled")
    await flow.retry_step("b")
    assert await flow.work() == ["b", "after_b", "after_both", "last"]
    await flow.ack(jobs["slow"])
    assert await flow.state() == "completed"


async def test_a_step_of_a_finished_workflow_is_retried(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a"), group(job("b"), job("c")), job("d"), on_error=job("tidy")))
    assert await flow.work("b", "c") == ["a", "b", "c", "tidy"]
    assert await flow.state() == "failed"
    await flow.retry_step("1.0")
    assert await flow.work() == ["b", "tidy"], "c has failed still"
    await flow.retry_step("1.1")
    assert await flow.work() == ["c", "d"]
    info = await flow.look()
    assert (info.state, info.retries) == ("completed", 2)
    assert info.on_error is not None
    assert info.on_error.state == "skipped"


async def test_a_retried_step_shows_the_jobs_of_its_earlier_attempts(flow: WorkflowBench) -> None:
    """In the workflow and in pages of its steps, while it runs and before the new attempt has a job."""

    async def shown(path: str) -> tuple[Any, list[str]]:
        step = await flow.step(path)
        page = await flow.service.workflows.steps(StepFilter(flow.id))
        (row,) = [row for row in page.steps if row.path == path]
        assert (row.job_id, row.superseded_job_ids) == (step.job_id, step.superseded_job_ids)
        return step.job_id, step.superseded_job_ids

    await flow.create(group(job("slow"), chain(job("a"), job("b", when="finished"))))
    earlier: dict[str, list[str]] = {"a": [], "b": []}
    for _ in range(2):
        jobs = {one.type: one for one in await flow.take(10)}
        assert await shown("1.0") == (jobs["a"].id, earlier["a"])
        await flow.give_up(jobs["a"])
        (b,) = await flow.take(10)
        assert await shown("1.1") == (b.id, earlier["b"])
        await flow.give_up(b)
        await flow.retry_step("1.0")
        earlier["a"].append(jobs["a"].id)
        earlier["b"].append(b.id)
        assert await shown("1.1") == (None, earlier["b"])
        assert (await shown("1.0"))[1] == earlier["a"]
    assert (await flow.look()).retries == 0


async def test_a_container_is_retried_with_what_failed_in_it(flow: WorkflowBench) -> None:
    await flow.create(group(job("slow"), group(job("good"), job("bad"))))
    jobs = {one.type: one for one in await flow.take(10)}
    await flow.ack(jobs["good"])
    await flow.give_up(jobs["bad"])
    await flow.retry_step("1")
    assert await flow.work() == ["bad"]
    await flow.ack(jobs["slow"])
    assert await flow.state() == "completed"


async def test_a_step_that_failed_again_can_be_retried_again(flow: WorkflowBench) -> None:
    await flow.create(group(job("slow"), chain(job("a"), job("b"))))
    slow, a = sorted(await flow.take(10), key=lambda one: one.type, reverse=True)
    await flow.give_up(a)
    for _ in range(2):
        await flow.retry_step("1.0")
        assert await flow.work("a") == ["a"]
    await flow.ack(slow)
    assert await flow.state() == "failed"


async def test_a_step_that_was_allowed_to_fail_is_retried(flow: WorkflowBench) -> None:
    await flow.create(group(job("slow"), chain(job("a", allow_failure=True), job("b"))))
    slow, a = sorted(await flow.take(10), key=lambda one: one.type, reverse=True)
    await flow.give_up(a)
    assert await flow.work() == ["b"]
    with pytest.raises(Conflict, match="is completed"):
        await flow.retry_step("1.1")
    await flow.ack(slow)
    assert await flow.state() == "completed"
    await flow.create(group(job("slow"), job("a", allow_failure=True)))
    slow, a = sorted(await flow.take(10), key=lambda one: one.type, reverse=True)
    await flow.give_up(a)
    await flow.retry_step("1")
    assert await flow.work() == ["a"]
    await flow.ack(slow)
    assert await flow.states() == {"0": "completed", "1": "completed"}


async def test_a_cancelled_step_is_retried(flow: WorkflowBench) -> None:
    await flow.create(group(job("slow"), chain(job("a"), job("b"))))
    await flow.cancel_step("1")
    (slow,) = await flow.take(10)
    await flow.retry_step("1")
    assert await flow.work() == ["a", "b"]
    await flow.ack(slow)
    assert await flow.state() == "completed"


TIDY = job("tidy")
HANDLED: dict[str, tuple[dict[str, Any], str]] = {
    "a step for failures": (chain(job("a"), TIDY | {"when": "failed"}), "0"),
    "a step in any case": (chain(job("a"), TIDY | {"when": "finished"}), "0"),
    "a step for failures in a graph": (
        graph(job("a", id="a"), TIDY | {"id": "t", "depends_on": ["a"], "when": "failed"}),
        "a",
    ),
    "a step after a skipped one": (
        graph(
            job("a", id="a"),
            job("b", id="b", depends_on=["a"], when="finished", if_="1 > 2"),
            TIDY | {"id": "t", "depends_on": ["b"]},
        ),
        "a",
    ),
    "a step after the container": (chain(group(job("a"), job("b")), TIDY | {"when": "failed"}), "0.0"),
    "a container after the container": (chain(chain(job("a")), group(TIDY) | {"when": "finished"}), "0.0"),
    "a step after a tolerated failure": (chain(job("a", allow_failure=True), TIDY), "0"),
    "a callback for failures": (batch(job("a"), job("b"), on_failure=TIDY), "0"),
    "a callback in any case": (batch(job("a"), job("b"), on_complete=TIDY), "0"),
    "a callback around the container": (batch(chain(job("a")), on_failure=TIDY), "0.0"),
    "a fallback": (chain(job("a", fallback=TIDY)), "0.0"),
    "a fallback of the container": (chain(group(job("a"), job("b")) | {"fallback": TIDY}), "0.0.0"),
    "a branch": (group(job("a"), job("b"), on_error=TIDY), "0"),
}
"""Workflows in which ``tidy`` follows the failure of ``a``, and the path of ``a``."""


async def until_tidy(flow: WorkflowBench) -> Job:
    """Fail ``a``, and complete all other jobs until ``tidy`` runs; return its job."""
    while (jobs := await flow.take(10)) and jobs[0].type != "tidy":
        for one in jobs:
            await (flow.give_up(one) if one.type == "a" else flow.ack(one))
    (tidy,) = jobs
    return tidy


@pytest.mark.parametrize("kind", HANDLED)
async def test_a_step_does_not_run_again_beside_what_follows_its_failure(flow: WorkflowBench, kind: str) -> None:
    wire, path = HANDLED[kind]
    await flow.create(group(job("slow"), wire) if "on_error" not in wire else wire)
    path = f"1.{path}" if "on_error" not in wire else path
    tidy = await until_tidy(flow)
    before = await flow.states()
    with pytest.raises(Conflict, match="has begun"):
        await flow.retry_step(path)
    assert await flow.states() == before
    await flow.ack(tidy)
    assert "active" not in {state for path, state in (await flow.states()).items() if path != "0"}


@pytest.mark.parametrize("kind", HANDLED)
async def test_what_followed_a_failure_follows_the_next_attempt_of_the_step(flow: WorkflowBench, kind: str) -> None:
    wire, path = HANDLED[kind]
    own = "on_error" in wire
    await flow.create(wire if own else group(job("broken"), wire))
    path = path if own else f"1.{path}"
    await flow.work("a", "broken")
    assert flow.order.count("tidy") == 1
    for failing in (["a"], []):
        await flow.retry_step(path)
        again = await flow.work(*failing)
        assert again[0] == "a"
        handles_success = kind in ("a step in any case", "a callback in any case", "a container after the container")
        handles_success |= "skipped" in kind or "tolerated" in kind
        assert ("tidy" in again) == (bool(failing) or handles_success), again


NOT_HANDLED = [kind for kind in HANDLED if not any(word in kind for word in ("fallback", "tolerated", "callback"))]
"""Those of them in which the workflow fails because of ``a``."""


@pytest.mark.parametrize("kind", NOT_HANDLED)
async def test_what_followed_a_failure_follows_the_next_attempt_of_the_workflow(flow: WorkflowBench, kind: str) -> None:
    wire, _ = HANDLED[kind]
    await flow.create(wire)
    for _ in range(2):
        assert (await flow.work("a"))[-1] == "tidy"
        assert await flow.state() == "failed"
        await flow.service.workflows.retry(flow.id)
    await flow.work()
    assert await flow.state() == "completed"


async def test_callbacks_follow_the_next_attempt_if_the_batch_failed(flow: WorkflowBench) -> None:
    await flow.create(batch(job("a"), job("b"), on_complete=job("report"), on_failure=job("tidy")))
    assert await flow.work("a", "tidy") == ["a", "b", "report", "tidy"]
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["a", "report"]
    assert await flow.state() == "completed"


async def test_a_report_of_a_step_is_made_anew_when_the_step_has_succeeded(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("build", id="build"),
            job("report", ref("steps.build.state"), id="report", depends_on=["build"], when="finished"),
            job("send", ref("steps.report.result"), id="send", depends_on=["report"]),
        )
    )
    assert await flow.work("build") == ["build", "report", "send"]
    assert flow.arguments["report"] == ["failed"]
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["build", "report", "send"]
    assert flow.arguments["report"] == ["completed"]
    assert await flow.state() == "completed"


async def test_what_waits_for_an_approval_waits_for_the_next_attempt(flow: WorkflowBench) -> None:
    await flow.create(chain(job("deploy", id="deploy"), job("rollback", id="rollback", when="failed", manual=True)))
    for _ in range(2):
        assert await flow.work("deploy") == ["deploy"]
        assert await flow.states() == {"deploy": "failed", "rollback": "blocked"}
        await flow.retry_step("deploy")
        assert await flow.states() == {"deploy": "pending", "rollback": "waiting"}
    assert await flow.work() == ["deploy"]
    assert await flow.state() == "completed"


async def test_steps_that_do_not_follow_the_retried_one_keep_their_results(flow: WorkflowBench) -> None:
    await flow.create(
        graph(
            job("a", id="a"),
            job("b", id="b"),
            job("after_b", id="after_b", depends_on=["b"]),
            job("report", id="report", depends_on=["a"], when="finished"),
            job("skipped", id="skipped", depends_on=["b"], if_="1 > 2"),
            job("last", id="last", depends_on=["skipped"]),
        )
    )
    await flow.work("a")
    await flow.service.workflows.retry(flow.id)
    assert await flow.work() == ["a", "report"]
    assert await flow.state() == "completed"


async def test_a_step_is_not_retried_while_the_failure_is_compensated(flow: WorkflowBench) -> None:
    saga = {"type": "saga", "steps": [job("b", compensate=job("tidy")), job("a")]}
    for wire, path in ((saga, "1"), (group(job("slow"), saga), "1.1")):
        await flow.create(wire)
        while (jobs := await flow.take(10)) and "tidy" not in {one.type for one in jobs}:
            for one in jobs:
                if one.type != "slow":
                    await (flow.give_up(one) if one.type == "a" else flow.ack(one))
        before = await flow.states()
        with pytest.raises(Conflict, match=r"has begun|compensating"):
            await flow.retry_step(path)
        assert await flow.states() == before
        await flow.ack(jobs[0])
        with pytest.raises(Conflict, match=r"has begun"):
            await flow.retry_step(path)


async def test_a_compensation_that_failed_is_retried_by_itself(flow: WorkflowBench) -> None:
    await flow.create({"type": "saga", "steps": [job("b", compensate=job("undo")), job("a")], "on_error": job("tidy")})
    assert await flow.work("a", "undo") == ["b", "a", "undo", "tidy"]
    assert await flow.state() == "failed"
    assert (await flow.retry_step("compensate.0")).state == "compensating"
    assert await flow.work("tidy") == ["undo", "tidy"]
    assert await flow.state() == "compensated"
    await flow.retry_step("on_error")
    assert await flow.work() == ["tidy"]
    assert await flow.state() == "compensated"


async def test_a_step_that_was_left_out_is_not_retried_before_the_failure(flow: WorkflowBench) -> None:
    await flow.create(group(job("slow"), chain(job("a"), job("b"), job("c", allow_failure=True))))
    a = min(await flow.take(10), key=lambda one: one.type)
    await flow.give_up(a)
    for path in ("1.1", "1.2"):
        with pytest.raises(Conflict, match="never ran"):
            await flow.retry_step(path)


async def test_a_step_is_not_retried_while_its_container_is_stopped(flow: WorkflowBench) -> None:
    await flow.create(group(job("slow"), group(job("a"), job("b"))))
    jobs = {one.type: one for one in await flow.take(10)}
    await flow.give_up(jobs["a"])
    await flow.cancel_step("1")
    with pytest.raises(Conflict, match="being stopped"):
        await flow.retry_step("1.0")
    await flow.confirm(jobs["b"])
    await flow.retry_step("1.0")
    assert await flow.work() == ["a"]


async def test_steps_that_did_not_fail_are_not_retried(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b"), job("c")))
    a, b, _ = sorted(await flow.take(10), key=lambda one: one.type)
    await flow.ack(a)
    with pytest.raises(Conflict, match="is completed"):
        await flow.retry_step("0")
    with pytest.raises(Conflict, match="has not ended"):
        await flow.retry_step("1")
    with pytest.raises(NotFound):
        await flow.retry_step("7")
    await flow.give_up(b)
    await flow.service.workflows.cancel(flow.id)
    with pytest.raises(Conflict, match="is cancelled"):
        await flow.retry_step("1")


async def test_a_workflow_is_cancelled_with_its_active_jobs(http: Http, flow: WorkflowBench) -> None:
    for active, states in (
        ("finish", {"0": "active", "1": "cancelled"}),
        ("cancel", {"0": "cancelled", "1": "cancelled"}),
    ):
        await flow.create(chain(job("a"), job("b")))
        (one,) = await flow.take()
        answer = await http("DELETE", f"/ojs/v1/workflows/{flow.id}", params={"active": active})
        assert answer.json()["workflow"]["state"] == "cancelled"
        await flow.confirm(*([one] if active == "cancel" else []))
        assert await flow.states() == states
    await flow.create(chain(job("a"), job("b")))
    assert (await http("DELETE", f"/ojs/v1/workflows/{flow.id}", params={"active": "kill"})).status_code == 400
    assert await flow.state() == "running"


async def test_over_http(http: Http, flow: WorkflowBench) -> None:
    await flow.create(group(job("slow"), chain(job("a"), job("b"))))
    a = min(await flow.take(10), key=lambda one: one.type)
    await flow.give_up(a)
    answer = await http("POST", f"/ojs/v1/workflows/{flow.id}/steps/1.0/retry")
    assert (answer.status_code, answer.json()["workflow"]["state"]) == (200, "running")
    again = await http("POST", f"/ojs/v1/workflows/{flow.id}/steps/1.0/retry")
    assert again.status_code == 409

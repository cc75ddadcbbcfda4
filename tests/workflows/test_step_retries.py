"""Retries of single steps, while the other steps of their workflow run, and after it has finished."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.errors import Conflict, NotFound
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job

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


@pytest.mark.parametrize(
    "wire",
    [
        batch(job("a"), job("b"), on_failure=job("tidy")),
        group(job("a"), job("b"), on_error=job("tidy")),
        chain({**group(job("a"), job("b")), "fallback": job("tidy")}),
        {"type": "saga", "steps": [job("b", compensate=job("tidy")), job("a")]},
    ],
    ids=["callback", "branch", "fallback", "compensation"],
)
async def test_what_follows_the_failure_is_not_disturbed(flow: WorkflowBench, wire: dict[str, Any]) -> None:
    await flow.create(wire)
    while (jobs := await flow.take(10)) and jobs[0].type != "tidy":
        for one in jobs:
            await (flow.give_up(one) if one.type == "a" else flow.ack(one))
    (tidy,) = jobs
    path = next(path for path, state in (await flow.states()).items() if state == "failed" and "." not in path[:-2])
    before = await flow.states()
    with pytest.raises(Conflict, match=r"has begun|compensating"):
        await flow.retry_step(path if wire["type"] != "chain" else "0.0")
    assert await flow.states() == before
    await flow.ack(tidy)
    assert (await flow.look()).finished


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
    await flow.engine.workflows.cancel(flow.id)
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

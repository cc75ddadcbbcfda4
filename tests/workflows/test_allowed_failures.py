"""What ``allow_failure`` tolerates: how a step itself ends, and not that an earlier failure left it out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio

Act = Callable[[WorkflowBench], Awaitable[object]]


async def fail_build(flow: WorkflowBench) -> None:
    await flow.work("build")


async def cancel_build(flow: WorkflowBench) -> None:
    await flow.cancel_step("build")


async def reject_build(flow: WorkflowBench) -> None:
    await flow.review("build", "reject")


BUILDS: dict[str, tuple[dict[str, Any], Act]] = {
    "it failed": (job("build", id="build"), fail_build),
    "it was cancelled": (job("build", id="build"), cancel_build),
    "it was rejected": (job("build", id="build", manual=True), reject_build),
    "it could not be made": (job("build", ref("params.nothing"), id="build"), fail_build),
    "a step in it failed": (group(job("build"), id="build"), fail_build),
    "an earlier step failed": (chain(job("build"), job("other", allow_failure=True), id="build"), fail_build),
}

LINTS: dict[str, dict[str, Any]] = {
    "a job": job("lint"),
    "a job that waits for an approval": job("lint", manual=True),
    "a gate": {"type": "gate"},
    "a chain": chain(job("lint"), job("more")),
    "a group": group(job("lint"), job("more", allow_failure=True)),
    "a batch": batch(job("lint"), on_complete=job("more")),
    "a saga": {"type": "saga", "steps": [job("lint", compensate=job("undo"))]},
    "a map": {"type": "map", "over": [1, 2], "do": job("lint")},
    "a step with a fallback": job("lint", fallback=job("more")),
}


@pytest.mark.parametrize("build", BUILDS)
async def test_a_tolerant_step_does_not_hide_why_the_step_before_it_did_not_succeed(
    flow: WorkflowBench, build: str
) -> None:
    step, act = BUILDS[build]
    lint, publish = job("lint", id="lint", allow_failure=True), job("publish", id="publish")
    for wire in (
        chain(step, lint, publish, params={}),
        graph(step, lint | {"depends_on": ["build"]}, publish | {"depends_on": ["lint"]}, params={}),
        chain(step, chain(lint, id="inner", allow_failure=True), publish, params={}),
    ):
        await flow.create(wire)
        await act(flow)
        assert await flow.work() == []
        states = await flow.states()
        assert states["publish"] == "cancelled", wire
        info = await flow.look()
        assert (info.state in ("failed", "cancelled"), info.finished) == (True, True)


@pytest.mark.parametrize("lint", LINTS)
async def test_no_kind_of_step_hides_an_earlier_failure(flow: WorkflowBench, lint: str) -> None:
    await flow.create(chain(job("build"), LINTS[lint] | {"id": "lint", "allow_failure": True}, job("publish")))
    assert await flow.work("build") == ["build"]
    states = await flow.states()
    end = "compensated" if lint == "a saga" else "failed"  # nothing that took effect is left
    assert (states["lint"], states["2"], await flow.state()) == ("cancelled", "cancelled", end)


async def test_a_step_left_out_does_not_complete_its_container(flow: WorkflowBench) -> None:
    """The failure is in another container, whose item the step looks up."""
    found = {"$lookup": "internal/out"}
    await flow.create(
        graph(
            chain(job("build", provides=["out"]), id="builds"),
            chain(job("lint", found, allow_failure=True), id="lints"),
            job("publish", id="publish", depends_on=["lints"]),
        )
    )
    assert await flow.work("build") == ["build"]
    states = await flow.states()
    assert (states["lints.0"], states["lints"], states["publish"]) == ("cancelled", "cancelled", "cancelled")


async def fail_lint(flow: WorkflowBench) -> None:
    assert "publish" in await flow.work("lint")


async def cancel_lint(flow: WorkflowBench) -> None:
    await flow.cancel_step("lint")


async def reject_lint(flow: WorkflowBench) -> None:
    await flow.review("lint", "reject")


async def test_what_happens_to_the_step_itself_is_tolerated(flow: WorkflowBench) -> None:
    own: list[tuple[dict[str, Any], Act]] = [
        (job("lint"), fail_lint),
        (job("lint"), cancel_lint),
        (job("lint", manual=True), reject_lint),
        ({"type": "gate"}, reject_lint),
        (job("lint", ref("params.nothing")), fail_lint),
        (chain(job("lint"), job("more", allow_failure=True)), fail_lint),
        (job("lint", fallback=job("lint")), fail_lint),
    ]
    for step, act in own:
        await flow.create(chain(job("build"), step | {"id": "lint", "allow_failure": True}, job("publish"), params={}))
        (build,) = await flow.take()
        await flow.ack(build)
        await act(flow)
        await flow.work()
        assert ((await flow.states())["2"], await flow.state()) == ("completed", "completed"), step


async def test_what_runs_in_any_case_runs_after_a_step_that_was_left_out(flow: WorkflowBench) -> None:
    for when in ("finished", "failed"):
        await flow.create(chain(job("build"), job("lint", allow_failure=True), job("report", when=when)))
        assert await flow.work("build") == ["build", "report"]
        assert await flow.state() == "failed"


async def test_a_saga_that_skips_failures_goes_on(flow: WorkflowBench) -> None:
    await flow.create({"type": "saga", "steps": [job("a"), job("b")], "failure_policy": "skip"})
    assert await flow.work("a") == ["a", "b"]
    assert await flow.state() == "completed"

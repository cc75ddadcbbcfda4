"""Forks of declared workflows: they run again from a step on, as new workflows that keep what had ended before it."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.errors import Conflict, Duplicate, InvalidRequest, NotFound
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.run.fork import Fork
from ojster.workflows.run.fork_preview import ForkPoint, ForkPreview
from ojster.workflows.run.steps import StepAddress
from tests.conftest import Clock
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio


async def fork(flow: WorkflowBench, step: str | None = None, **more: Any) -> WorkflowInfo:
    """Fork the workflow of the bench; the bench then looks at the new one."""
    info = await flow.service.workflows.fork(Fork(flow.id, step, **more))
    flow.id = info.id
    return info


CHAIN = chain(job("a"), job("b", ref("steps.0.result.from"), id="b"), job("c", ref("steps.b.result.from"), id="c"))

KINDS: list[tuple[dict[str, Any], str, list[str]]] = [
    (CHAIN, "b", ["b", "c"]),
    (CHAIN, "0", ["a", "b", "c"]),
    (group(job("a"), job("b"), job("c")), "1", ["b"]),
    (chain(group(job("a"), job("b"), id="both"), job("c")), "both.0", ["a", "c"]),
    (chain(group(job("a"), job("b"), id="both"), job("c")), "both", ["a", "b", "c"]),
    (graph(job("a", id="a"), job("b", id="b", depends_on=["a"]), job("c", id="c")), "a", ["a", "b"]),
    (batch(job("a"), job("b"), on_complete=job("c")), "0", ["a", "c"]),
    (chain(job("a"), {"type": "map", "id": "each", "over": [1, 2], "do": job("b")}, job("c")), "each.1", ["b", "c"]),
    (chain(job("a"), {"type": "map", "id": "each", "over": [1, 2], "do": job("b")}, job("c")), "each", ["b", "b", "c"]),
    (
        chain(job("a"), {"type": "saga", "id": "s", "steps": [job("b", compensate=job("undo"))]}, job("c")),
        "s.0",
        ["b", "c"],
    ),
]


@pytest.mark.parametrize(("wire", "step", "again"), KINDS)
async def test_a_step_and_what_follows_it_run_again_as_a_new_workflow(
    flow: WorkflowBench, wire: dict[str, Any], step: str, again: list[str]
) -> None:
    await flow.create(wire)
    await flow.work()
    first = await flow.look()
    forked = await fork(flow, step)
    assert (forked.forked_from, forked.forked_step, forked.state) == (first.id, step, "running")
    assert sorted(await flow.work()) == sorted(again)
    assert await flow.state() == "completed"
    assert (await flow.look()).result == first.result
    flow.id = first.id
    old = await flow.look()
    assert (old.state, old.forks) == ("completed", [forked.id])
    assert (await flow.service.workflows.show(first.id, steps=False)).forks == [forked.id]
    assert [step.job_id for step in old.walk()] == [step.job_id for step in first.walk()]


PREVIEWS: list[tuple[dict[str, Any], str | None, ForkPreview]] = [
    (CHAIN, "b", ForkPreview(("b", "c"), 2, 1, takes_args=True, takes_result=True)),
    (CHAIN, None, ForkPreview(("0", "b", "c"), 3, 0, takes_args=False, takes_result=False)),
    (
        chain(group(job("a"), job("b"), id="both"), job("c"), on_error=job("tell")),
        "both",
        ForkPreview(("both.0", "both.1", "1"), 3, 0, takes_args=False, takes_result=False),
    ),
    (
        chain(job("a"), {"type": "map", "id": "each", "over": [1, 2], "do": job("b")}, job("c")),
        "each.1",
        ForkPreview(("each.1", "2"), 2, 2, takes_args=True, takes_result=True),
    ),
    (
        chain(job("a"), {"type": "map", "id": "each", "over": [1, 2], "do": job("b")}, job("c")),
        "each",
        ForkPreview(("each", "2"), 2, 1, takes_args=False, takes_result=False),
    ),
    (
        chain(job("a"), {"type": "saga", "id": "s", "steps": [job("b", compensate=job("undo"))]}, job("c")),
        "s.0",
        ForkPreview(("s.0", "2"), 2, 1, takes_args=True, takes_result=True),
    ),
]


@pytest.mark.parametrize(("wire", "step", "expected"), PREVIEWS)
async def test_a_preview_says_what_runs_again_and_changes_nothing(
    flow: WorkflowBench, wire: dict[str, Any], step: str | None, expected: ForkPreview
) -> None:
    await flow.create(wire)
    await flow.work()
    before = await flow.look()
    assert await flow.service.workflows.preview_fork(ForkPoint(flow.id, step)) == expected
    after = await flow.look()
    assert (after.to_json(), after.forks) == (before.to_json(), [])
    with pytest.raises(NotFound, match="has no step"):
        await flow.service.workflows.preview_fork(ForkPoint(flow.id, from_step="none"))


async def test_a_preview_of_a_failed_workflow_has_what_did_not_succeed(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b"), chain(job("c"), job("d"))))
    with pytest.raises(Conflict, match="has not finished"):
        await flow.service.workflows.preview_fork(ForkPoint(flow.id, "0"))
    await flow.work("b")
    preview = await flow.service.workflows.preview_fork(ForkPoint(flow.id, "2.0"))
    assert (preview.again, preview.kept_count) == (("1", "2.0", "2.1"), 1)


async def test_without_a_step_everything_runs_again(flow: WorkflowBench) -> None:
    await flow.create(CHAIN)
    await flow.work()
    await fork(flow)
    assert await flow.work() == ["a", "b", "c"]


async def test_a_fork_of_a_failed_workflow_runs_again_what_did_not_succeed(flow: WorkflowBench) -> None:
    await flow.create(group(job("a"), job("b"), chain(job("c"), job("d"))))
    await flow.work("b")
    assert await flow.state() == "failed"
    await fork(flow, "2.0")
    assert sorted(await flow.work()) == ["b", "c", "d"]
    assert await flow.state() == "completed"


async def test_new_arguments_are_those_of_the_step_alone(flow: WorkflowBench) -> None:
    await flow.create(CHAIN)
    await flow.work()
    await fork(flow, "b", args=b'[{"$ref":"steps.0.result"}]')
    await flow.work()
    assert (flow.arguments["b"], flow.arguments["c"]) == ([{"$ref": "steps.0.result"}], ["b"])
    await fork(flow, "c")
    await flow.work()
    assert flow.arguments["c"] == ["b"]


async def test_a_step_with_a_result_does_not_run(flow: WorkflowBench) -> None:
    await flow.create(CHAIN)
    await flow.work()
    await fork(flow, "b", result=b'{"from":"hand"}')
    assert await flow.work() == ["c"]
    assert flow.arguments["c"] == ["hand"]
    assert await flow.state() == "completed"


async def test_the_last_step_with_a_result_completes_the_workflow(flow: WorkflowBench) -> None:
    await flow.create(CHAIN)
    await flow.work()
    info = await fork(flow, "c", result=b"7")
    assert (info.state, bytes(info.result or b"")) == ("completed", b"7")
    assert bytes((await flow.step("c")).result or b"") == b"7", "not what the step had returned before"


async def test_a_fork_can_be_forked_and_retried(flow: WorkflowBench) -> None:
    first = await flow.create(CHAIN)
    await flow.work()
    await fork(flow, "b")
    await flow.work("c")
    await flow.service.workflows.retry_step(StepAddress(flow.id, "c"))
    assert await flow.work() == ["c"]
    await fork(flow, "0")
    assert await flow.work() == ["a", "b", "c"]
    flow.id = first.id
    assert all(not step.superseded_job_ids for step in (await flow.look()).walk())


async def test_reviews_and_shared_properties_are_kept(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate", "id": "ok"}, job("a"), properties={"color": "red"}))
    await flow.review("ok", "approve", "fine")
    await flow.work()
    await fork(flow, "1")
    assert await flow.work() == ["a"]
    (review,) = (await flow.step("ok")).reviews
    assert (review.author, review.notes) == ("ada", "fine")
    assert bytes((await flow.service.workflows.properties(flow.id))["color"].value) == b'"red"'
    await fork(flow, "ok")
    assert (await flow.states())["ok"] == "blocked"
    assert (await flow.step("ok")).reviews == []


REFUSED: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    (CHAIN, {"step": "pay"}, NotFound, "has no step 'pay'. It has: '0', 'b', 'c'."),
    (chain(job("charge", id="charge")), {"step": "chargee"}, NotFound, "Similar ones: 'charge'."),
    (CHAIN, {"step": "b", "args": b"[]", "result": b"1"}, InvalidRequest, "both 'args' and 'result'"),
    (CHAIN, {"args": b"[]"}, InvalidRequest, "Name it in 'from_step'."),
    (CHAIN, {"result": b"1"}, InvalidRequest, "Name it in 'from_step'."),
    (chain(group(job("a"), id="g")), {"step": "g", "args": b"[]"}, InvalidRequest, "is a group"),
    (chain(group(job("a"), id="g")), {"step": "g", "result": b"1"}, InvalidRequest, "is a group"),
    (CHAIN, {"step": "b", "id": "a/b"}, InvalidRequest, "'a/b'"),
]


@pytest.mark.parametrize(("wire", "asked", "error", "says"), REFUSED)
async def test_what_cannot_be_is_refused_and_makes_no_workflow(
    flow: WorkflowBench, wire: dict[str, Any], asked: dict[str, Any], error: type[Exception], says: str
) -> None:
    await flow.create(wire)
    await flow.work()
    with pytest.raises(error) as refusal:
        await fork(flow, **asked)
    assert says in str(refusal.value)
    assert (await flow.look()).forks == []


async def test_a_workflow_that_runs_and_a_step_that_never_ran_are_refused(flow: WorkflowBench) -> None:
    await flow.create(CHAIN)
    with pytest.raises(Conflict, match="has not finished"):
        await fork(flow, "0")
    await flow.work("a")
    with pytest.raises(Conflict, match="never ran"):
        await fork(flow, "c")


async def test_a_request_with_the_same_id_makes_one_fork(flow: WorkflowBench) -> None:
    first = await flow.create(CHAIN)
    await flow.work()
    one = await flow.service.workflows.fork(Fork(first.id, "b", id="again"))
    two = await flow.service.workflows.fork(Fork(first.id, "b", id="again"))
    assert one.id == two.id == "again"
    with pytest.raises(Duplicate):
        await flow.service.workflows.fork(Fork(first.id, "c", id="again"))


async def test_a_workflow_is_kept_while_a_fork_has_results_of_its_jobs(flow: WorkflowBench, clock: Clock) -> None:
    await flow.create(CHAIN)
    await flow.work()
    await fork(flow, "c")
    clock.advance(90 * 86_400)
    assert (await flow.service.maintenance.prune())["workflows"] == 0
    assert await flow.work() == ["c"]
    assert flow.arguments["c"] == ["b"]
    clock.advance(90 * 86_400)
    assert (await flow.service.maintenance.prune())["workflows"] == 2

"""Why a workflow failed, and because of what its other steps were skipped, cancelled or undone."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.events import EventFilter
from ojster.workflows.read import failed_steps
from ojster.workflows.read.causes import Cause
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.read.step_pages import StepFilter
from tests.workflows.bench import WorkflowBench, batch, chain, graph, group, job
from tests.workflows.driver import every_step

pytestmark = pytest.mark.anyio

PAID = job("pay", id="pay", compensate=job("refund"))
SAGA = {"type": "saga", "id": "trip", "steps": [PAID, job("fly", id="fly")]}

CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, tuple[str, list[str]]]]] = {
    "what follows a failure": (
        graph(job("a", id="a"), job("b", id="b", depends_on=["a"]), job("c", id="c", depends_on=["b"])),
        ("a",),
        {"b": ("before it did not succeed", ["a"]), "c": ("before it did not succeed", ["a"])},
    ),
    "what follows two failures": (
        graph(job("a", id="a"), job("b", id="b"), job("c", id="c", depends_on=["a", "b"])),
        ("a", "b"),
        {"c": ("before it did not succeed", ["a", "b"])},
    ),
    "a container that does not begin": (
        chain(job("a"), group(job("b"))),
        ("a",),
        {"1": ("before it did not succeed", ["0"]), "1.0": ("part of was cancelled", ["1"])},
    ),
    "a condition": (
        chain(job("a"), job("b", **{"if": "false"})),
        (),
        {"1": ("condition was false", [])},
    ),
    "a step for failures": (
        graph(job("a", id="a"), job("b", id="b", depends_on=["a"], when="failed")),
        (),
        {"b": ("before it", [])},
    ),
    "callbacks": (
        batch(job("a"), on_failure=job("tell")),
        (),
        {"on_failure": ("and all of them did", [])},
    ),
    "a saga": (
        chain(SAGA),
        ("fly",),
        {"trip": ("a step in it did not succeed", ["trip.fly"])},
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_step_that_did_not_run_or_was_undone_says_because_of_what(flow: WorkflowBench, case: str) -> None:
    """In the whole view and in lists alike; and a step that ran by itself says nothing."""
    body, failing, expected = CASES[case]
    await flow.create(body)
    await flow.work(*failing)
    whole = {step.path: step.because for step in every_step(await flow.look()) if step.because is not None}
    rows = (await flow.service.workflows.steps(StepFilter(flow.id))).steps
    listed = {row.path: row.because for row in rows if row.because is not None}
    for path, (words, steps) in expected.items():
        for shown in (whole[path], listed[path]):
            assert words in shown.message, (path, shown)
            assert shown.steps == steps, (path, shown)
    ran = {row.path for row in rows if row.kind == "job" and row.state in ("completed", "failed")}
    assert {path for path in listed if path in ran and "undid" not in listed[path].message} == set()


async def test_a_compensation_names_the_step_that_it_undid(flow: WorkflowBench) -> None:
    await flow.create(chain(SAGA))
    await flow.work("fly")
    rows = (await flow.service.workflows.steps(StepFilter(flow.id))).steps
    told = {row.path: (row.state, row.because) for row in rows if row.type == "refund"}
    assert told == {
        "trip.compensate.pay": ("completed", Cause("It undid another step.", ["trip.pay"])),
        "compensate.trip.pay": (
            "skipped",
            Cause("It undoes another step, which took no effect or is undone already.", ["trip.pay"]),
        ),
    }


HANDLED: dict[str, dict[str, Any]] = {
    "by the callback of a batch": batch(job("bad"), on_failure=job("tell")),
    "by a fallback": job("bad", fallback=job("instead")),
    "by the fallback of a container": group(job("bad"), fallback=job("instead")),
    "by a container that may fail": group(job("bad"), allow_failure=True),
    "by a step that may fail": job("bad", allow_failure=True),
    "deep inside": group(chain(batch(group(job("bad")), on_complete=job("tell")))),
}


@pytest.mark.parametrize("case", HANDLED)
async def test_a_failure_that_was_handled_is_not_the_cause_of_a_later_one(flow: WorkflowBench, case: str) -> None:
    """In the workflow with and without its steps, in lists and in the event alike."""
    await flow.create(chain(HANDLED[case], job("worse", id="last")))
    done = await flow.work("bad", "worse")
    assert (done[0], done[-1], await flow.state()) == ("bad", "worse", "failed")
    workflows = flow.service.workflows
    for shown in (
        await workflows.show(flow.id),
        await workflows.show(flow.id, most_steps=0),
        (await workflows.select(WorkflowFilter())).workflows[0],
    ):
        assert shown.error is not None
        assert shown.error.message.startswith("The step 'last' failed")
        assert ([one["path"] for one in shown.error.errors], len(shown.error.failed_job_ids)) == (["last"], 1)
    page = await flow.service.events.select(EventFilter(types=("workflow.failed",)))
    (told,) = [event["data"] for event in page.events]
    assert (told["failed_step_id"], told["failed_step_type"]) == ("last", "worse")


@pytest.mark.parametrize("most_steps", [0, 2])
async def test_a_workflow_shown_without_its_steps_says_which_failed_first_and_why(
    flow: WorkflowBench, most_steps: int
) -> None:
    await flow.create(chain(group(job("a"), job("b"), job("c", id="see"))))
    for one in await flow.fetch(count=3):
        flow.clock.advance(1)
        await (flow.ack(one) if one.type == "a" else flow.give_up(one))
    info = await flow.service.workflows.show(flow.id, most_steps=most_steps)
    assert info.error is not None
    assert info.error.message == "The step '0.1' failed: Boom: it went wrong"
    assert [(error["path"], error["type"], error["message"]) for error in info.error.errors] == [
        ("0.1", "Boom", "it went wrong"),
        ("0.see", "Boom", "it went wrong"),
    ]
    whole = await flow.look()
    assert whole.error is not None
    assert info.error.failed_job_ids == whole.error.failed_job_ids
    assert [error["path"] for error in whole.error.errors] == ["0.1", "0.see"]


async def test_a_list_says_of_each_failed_workflow_which_step_failed_first_and_why(
    flow: WorkflowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many statements for several workflows as for one."""
    expected = {}
    for body, message in (
        (chain(group(job("b", id="see"), job("a"))), "The step '0.see' failed: Boom: it went wrong"),
        (graph(job("b", id="x"), job("a", id="y", depends_on=["x"])), "The step 'x' failed: Boom: it went wrong"),
        (chain(job("b", allow_failure=True), job("a")), None),
        (chain(job("a")), None),
    ):
        await flow.create(body)
        await flow.work("b")
        expected[flow.id] = message
    workflows = flow.service.workflows
    page = await workflows.select(WorkflowFilter())
    assert {one.id: one.error and one.error.message for one in page.workflows} == expected
    first = page.workflows[-1]
    assert first.error is not None
    whole = (await workflows.show(first.id)).error
    assert whole is not None
    assert (first.error.failed_step, first.error.failed_job_ids) == ("0.see", whole.failed_job_ids)
    assert [error["path"] for error in first.error.errors] == ["0.see"]
    monkeypatch.setattr(failed_steps, "MAX_LOOKED_AT", 2)
    shown = (await workflows.select(WorkflowFilter(states=("failed",)))).workflows
    assert [one.error for one in shown] == [None, None], (
        "what would take long to find is left to the page of a workflow"
    )

"""How steps are called in the status of their workflow, in its errors, and in pages of its steps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from ojster.core.events import EventFilter
from ojster.workflows.read.drawing import draw
from ojster.workflows.read.preview import preview
from ojster.workflows.read.step_pages import StepFilter
from ojster.workflows.run.steps import StepAddress
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref
from tests.workflows.driver import every_step

pytestmark = pytest.mark.anyio


async def names(flow: WorkflowBench) -> dict[str, tuple[str, str | None]]:
    status = await flow.service.workflows.status(flow.id)
    called = {step.path: (step.name, step.display_name) for step in status.current}
    return called | {
        step.path: (step.name, step.display_name) for results in status.results.values() for step in results
    }


async def test_a_step_with_a_fallback_keeps_its_id(flow: WorkflowBench) -> None:
    build = job("make", id="build", display_name="The build", fallback=job("other", display_name="Plan B"))
    await flow.create(chain(build))
    assert await names(flow) == {"build.0": ("build", "The build")}
    await flow.work("make", "other")
    assert await names(flow) == {"build.0": ("build", "The build"), "build.fallback": ("build", "Plan B")}
    info = await flow.look()
    assert info.error is not None
    assert [(error["step"], error.get("fallback")) for error in info.error.errors] == [("build", None), ("build", True)]
    page = await flow.service.events.select(EventFilter(limit=100))
    (failed,) = [event for event in page.events if event["type"] == "workflow.failed"]
    assert failed["data"].get("failed_step_id") == "build"


STEPS_WITH_FALLBACKS: dict[str, tuple[dict[str, Any], set[tuple[str, str | None, bool]]]] = {
    "a job": (
        job("a", id="x", fallback=job("b")),
        {("x", "x", False), ("x.0", "x", False), ("x.fallback", "x", True)},
    ),
    "without an id": (
        job("a", fallback=job("b")),
        {("0", None, False), ("0.0", None, False), ("0.fallback", None, True)},
    ),
    "a fallback with a fallback": (
        job("a", id="x", fallback=job("b", fallback=job("c"))),
        {
            ("x", "x", False),
            ("x.0", "x", False),
            ("x.fallback", "x", True),
            ("x.fallback.0", "x", True),
            ("x.fallback.fallback", "x", True),
        },
    ),
    "a gate": (
        {"type": "gate", "id": "x", "fallback": job("b")},
        {("x", "x", False), ("x.0", "x", False), ("x.fallback", "x", True)},
    ),
    "containers": (
        group(job("a", id="in")) | {"id": "x", "fallback": chain(job("b"), job("c", id="last"))},
        {
            ("x", "x", False),
            ("x.0", "x", False),
            ("x.0.in", "in", False),
            ("x.fallback", "x", True),
            ("x.fallback.0", None, False),
            ("x.fallback.last", "last", False),
        },
    ),
}
"""Steps with fallbacks, and what each step is called: its path, its id, and whether it is a fallback."""


@pytest.mark.parametrize("kind", STEPS_WITH_FALLBACKS)
async def test_a_step_with_a_fallback_and_its_fallback_have_one_id_wherever_they_are_shown(
    flow: WorkflowBench, kind: str
) -> None:
    step, expected = STEPS_WITH_FALLBACKS[kind]
    await flow.create(chain(step))
    ids = {path: id for path, id, _ in expected}
    replacing = {path for path, _, replaces in expected if replaces}
    info = await flow.look()
    assert {shown.path: shown.id for shown in info.walk()} == ids
    assert {shown.path: (shown.id, shown.name) for shown in preview(chain(step)).walk()} == {
        shown.path: (shown.id, shown.name) for shown in info.walk()
    }
    page = await flow.service.workflows.steps(StepFilter(flow.id))
    assert {(row.path, row.id, row.fallback) for row in page.steps} == expected
    if kind == "a gate":
        await flow.review("x", "reject")
    await flow.work("a", "b", "c")
    status = await flow.service.workflows.status(flow.id)
    ended = status.results["steps"]
    assert {row.path for row in ended if row.fallback} == replacing & {row.path for row in ended}
    assert all(row.name == ids[row.path] for row in ended if ids[row.path] is not None)
    assert {row.name for row in ended if ids[row.path] is None} <= {"a", "b", "c"}


async def test_drawings_show_the_fallback_of_a_step_by_what_it_does(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", id="x", fallback=job("b")), job("c", id="y", fallback=job("d", display_name="D"))))
    drawn = draw(await flow.look())
    assert [
        line.split("[", 1)[1].rstrip("]").split("]")[0].strip('"')[2:] for line in drawn.splitlines() if "[" in line
    ] == [
        "x",
        "x",
        "b",
        "y",
        "y",
        "D",
    ]
    assert drawn.count("-. fallback .->") == 2


async def test_events_name_a_step_with_a_fallback_by_its_id(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate", "id": "ask", "fallback": job("b")}))
    await flow.review("ask", "reject")
    await flow.work("b")
    await flow.service.workflows.retry_step(StepAddress(flow.id, "ask.fallback"))
    page = await flow.service.events.select(EventFilter(limit=100))
    named = {
        event["type"]: event["data"].get("step_id") or event["data"].get("failed_step_id") for event in page.events
    }
    types = ("workflow.step_blocked", "workflow.step_retried", "workflow.failed")
    assert {type: named[type] for type in types} == dict.fromkeys(types, "ask")


async def test_a_step_that_never_started_has_its_name(flow: WorkflowBench) -> None:
    await flow.create(
        chain(
            job("a"),
            job("b", display_name="Second"),
            job("c", id="third"),
            {"type": "gate"},
            job("d", ref("params.nothing"), when="finished"),
            params={},
        )
    )
    await flow.work("a")
    assert await names(flow) == {
        "0": ("a", None),
        "1": ("b", "Second"),
        "third": ("third", None),
        "3": ("gate", None),
        "4": ("d", None),
    }


async def test_steps_that_wait_have_their_names(flow: WorkflowBench) -> None:
    found = {"$lookup": "internal/out"}
    await flow.create(
        graph(
            job("make", id="make", provides=["out"]),
            job("use", found, id="use", display_name="The user"),
            {"type": "gate", "id": "ask", "display_name": "Really?"},
            job("sign", manual=True, display_name="Signature"),
        )
    )
    assert await names(flow) == {
        "make": ("make", None),
        "use": ("use", "The user"),
        "ask": ("ask", "Really?"),
        "3": ("sign", "Signature"),
    }


async def test_pages_of_steps_show_display_names(flow: WorkflowBench) -> None:
    await flow.create(chain(job("a", display_name="First"), group(job("b")), job("c", id="c")))
    page = await flow.service.workflows.steps(StepFilter(flow.id))
    assert {row.path: row.display_name for row in page.steps} == {"0": "First", "1": None, "1.0": None, "c": None}


async def test_a_workflow_says_what_it_waits_for_also_with_its_steps(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate", "id": "ask"}, job("a")))
    status = await flow.service.workflows.status(flow.id)
    assert (await flow.look()).waiting_for == status.workflow.waiting_for == ["gate"]
    await flow.review("ask", "approve")
    assert (await flow.look()).waiting_for == []


async def test_every_answer_says_the_same_of_each_step(flow: WorkflowBench) -> None:
    """The workflow, its status, and the list of its steps: names, state, times, job, result and error."""
    await flow.create(
        chain(
            job("a", id="first", display_name="First"),
            job("b", id="second", display_name="Second", fallback=job("c", display_name="Instead")),
            group(job("d", id="left", allow_failure=True), job("e", id="right")),
            job("g", id="third", display_name="Third", fallback=job("h", compensate=job("u"))),
            {"type": "gate", "id": "review"},
            job("f"),
        )
    )
    await flow.work("b", "d", "g")
    await flow.review("review", "approve")
    await flow.take()
    whole = {step.path: step for step in every_step(await flow.look())}
    status = await flow.service.workflows.status(flow.id)
    rows = {row.path: row for row in (await flow.service.workflows.steps(StepFilter(flow.id))).steps}
    results = {result.path: result for result in status.results["steps"]}
    thirds = {"third.0", "third.fallback"}  # the fallback is a saga with its compensation
    assert {"first", "second.0", "second.fallback", "2.left", "2.right", "review"} == results.keys() - thirds
    assert whole["third.0"].name == "Third"
    for path, result in results.items():
        step, row = whole[path], rows[path]
        of_result = (result.state, result.enqueued_at, result.started_at, result.finished_at, result.error)
        of_row = (row.state, row.enqueued_at, row.started_at, row.completed_at, row.error)
        assert of_result == of_row, path
        assert of_row == (step.state, step.enqueued_at, step.started_at, step.completed_at, step.error), path
        job_id = None if step.job_id is UNSET else step.job_id
        assert result.job_id == row.job_id == job_id, path
        assert result.result == step.result, path
        assert result.display_name == row.display_name, path
        assert step.name in (result.display_name, step.type), path
        assert row.id == step.id, path
        assert result.name == (step.id or step.type), path
        assert result.fallback == row.fallback, path

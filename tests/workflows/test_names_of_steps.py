"""How steps are called in the status of their workflow, in its errors, and in pages of its steps."""

from __future__ import annotations

import pytest

from ojster.core.events import EventFilter
from ojster.workflows.step_pages import StepFilter
from tests.workflows.bench import WorkflowBench, chain, graph, group, job, ref

pytestmark = pytest.mark.anyio


async def names(flow: WorkflowBench) -> dict[str, tuple[str, str | None]]:
    status = await flow.engine.workflows.status(flow.id)
    called = {step.path: (step.name, step.display_name) for step in status.current}
    return called | {
        step.path: (step.name, step.display_name) for results in status.results.values() for step in results
    }


async def test_a_step_with_a_fallback_keeps_its_id(flow: WorkflowBench) -> None:
    build = job("make", id="build", display_name="The build", fallback=job("other", display_name="Plan B"))
    await flow.create(chain(build))
    assert await names(flow) == {"build.0": ("build", "The build")}
    await flow.work("make", "other")
    assert await names(flow) == {"build.0": ("build", "The build"), "build.fallback": ("fallback", "Plan B")}
    info = await flow.look()
    assert info.error is not None
    assert [error["step"] for error in info.error.errors] == ["build", "fallback"]
    page = await flow.engine.events.select(EventFilter(limit=100))
    (failed,) = [event for event in page.events if event["type"] == "workflow.failed"]
    assert failed["data"].get("failed_step_id") == "build"


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
    page = await flow.engine.workflows.steps(StepFilter(flow.id))
    assert {row.path: row.display_name for row in page.steps} == {"0": "First", "1": None, "1.0": None, "c": None}


async def test_a_workflow_says_what_it_waits_for_also_with_its_steps(flow: WorkflowBench) -> None:
    await flow.create(chain({"type": "gate", "id": "ask"}, job("a")))
    status = await flow.engine.workflows.status(flow.id)
    assert (await flow.look()).waiting_for == status.workflow.waiting_for == ["gate"]
    await flow.review("ask", "approve")
    assert (await flow.look()).waiting_for == []

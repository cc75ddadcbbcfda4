"""How steps are shown: groups have frames in drawings, and hidden steps are left out of drawings and pages."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from ojster import Graph, Step, chain, gate
from ojster.core.errors import InvalidWorkflow
from ojster.workflows.read.drawing import MARKS, draw
from ojster.workflows.read.step_pages import StepFilter
from tests.conftest import Http
from tests.workflows.bench import WorkflowBench, batch, graph, group, job
from tests.workflows.bench import chain as chain_of

pytestmark = pytest.mark.anyio

HIDDEN = {"visible": False}

WORKFLOWS: dict[str, dict[str, Any]] = {
    "chain": chain_of(job("a"), job("x", **HIDDEN), job("b")),
    "group": chain_of(job("a"), group(job("x"), job("y"), **HIDDEN), job("b")),
    "inside": chain_of(job("a"), group(job("x", **HIDDEN), job("b"))),
    "map": chain_of(job("a"), {"type": "map", "over": [1], "do": job("x"), **HIDDEN}, job("b")),
    "batch": chain_of(job("a"), batch(job("b"), on_complete=job("x", **HIDDEN))),
    "saga": chain_of(job("a"), job("x", compensate=job("y", **HIDDEN), **HIDDEN), job("b")),
    "fallback": chain_of(job("a"), job("x", fallback=job("y"), **HIDDEN), job("b")),
    "gate": chain_of(job("a"), {"type": "gate", "id": "x", **HIDDEN}, job("b")),
    "on_error": chain_of(job("a"), job("b"), on_error=job("x", **HIDDEN)),
}
"""Workflows in which ``x`` and ``y`` are hidden, and ``a`` and ``b`` are not."""


@pytest.mark.parametrize("which", sorted(WORKFLOWS))
async def test_a_step_that_is_not_visible_is_in_no_drawing_and_on_no_page(flow: WorkflowBench, which: str) -> None:
    info = await flow.create(WORKFLOWS[which])
    for format in ("mermaid", "svg"):
        drawing = draw(info, format)
        labels = {label: any(f"{mark} {label}" in drawing for mark in MARKS.values()) for label in "abxy"}
        assert labels == {"a": True, "b": True, "x": False, "y": False}, drawing
    page = await flow.service.workflows.steps(StepFilter(flow.id))
    assert {step.type for step in page.steps}.isdisjoint({"x", "y"})
    assert {"a", "b"} <= {step.type for step in page.steps}


@pytest.mark.parametrize("which", sorted(WORKFLOWS))
async def test_a_step_that_is_not_visible_runs_and_is_in_the_workflow(flow: WorkflowBench, which: str) -> None:
    await flow.create(WORKFLOWS[which])
    shown = {step.type: step.visible for step in (await flow.look()).walk()}
    assert shown["a"]
    assert not all(shown.values())
    failing = {"on_error": ("a",), "fallback": ("x",), "saga": ("b",)}.get(which, ())
    ran = await flow.work(*failing)
    assert which == "gate" or "x" in ran


async def test_what_follows_a_hidden_step_is_drawn_after_what_precedes_it(flow: WorkflowBench, http: Http) -> None:
    steps = [
        job("a", id="a"),
        job("x", id="x", depends_on=["a"], **HIDDEN),
        job("y", id="y", depends_on=["x"], **HIDDEN),
        job("b", id="b", depends_on=["y"]),
    ]
    info = await flow.create(graph(*steps))
    assert "  n0 --> n1\n" in draw(info)
    level = (await http("GET", f"/ojs/v1/workflows/{flow.id}/graph")).json()["steps"]
    assert [(step["path"], step.get("after", [])) for step in level] == [("a", []), ("b", [level[0]["number"]])]
    chained = await flow.create(WORKFLOWS["chain"])
    assert "  n0 --> n1\n" in draw(chained)


async def test_the_steps_of_a_group_have_a_frame(flow: WorkflowBench) -> None:
    steps = [
        job("lint", id="lint"),
        job("arm", id="arm", group="builds & co"),
        job("x86", id="x86", group="builds & co"),
        job("ship", id="ship", depends_on=["arm", "x86"]),
    ]
    info = await flow.create(graph(*steps))
    mermaid = draw(info).splitlines()
    begin, end = mermaid.index('  subgraph g0["builds #38; co"]'), mermaid.index("  end")
    assert [
        "arm" in mermaid[begin + 1],
        "x86" in mermaid[begin + 2],
        end - begin,
    ] == [True, True, 3]
    root = ElementTree.fromstring(draw(info, "svg"))
    space = "{http://www.w3.org/2000/svg}"
    boxes = {
        (part.findtext(f"{space}title") or ""): part.find(f"{space}rect").attrib  # type: ignore[union-attr]
        for part in root.iter(f"{space}g")
    }
    frame = next(box for title, box in boxes.items() if title == "builds & co")
    for title, box in boxes.items():
        is_inside = all(
            float(frame[edge]) <= float(box[edge])
            and float(box[edge]) + float(box[size]) <= float(frame[edge]) + float(frame[size])
            for edge, size in (("x", "width"), ("y", "height"))
        )
        assert is_inside is (title.startswith(("arm", "x86", "builds"))), title


def test_a_workflow_in_python_is_drawn_with_its_groups_and_without_hidden_steps() -> None:
    flow = Graph("g")
    one = flow.add("one", gate().set(group="gates"))
    flow.add("two", Step({"type": "t", "args": []}).set(visible=False), after=one)
    drawing = flow.draw()
    assert 'subgraph g0["gates"]' in drawing
    assert "two" not in drawing
    assert chain(gate("x").set(visible=False)).draw() == "flowchart LR\n"


async def test_visible_is_true_or_false(flow: WorkflowBench) -> None:
    with pytest.raises(InvalidWorkflow, match="'visible' must be true or false"):
        await flow.create(chain_of(job("a", visible="no")))

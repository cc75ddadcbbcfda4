"""Workflows that are only declared, as they are drawn.

A preview follows the declaration, not the plan, which has no steps in maps, and containers that nobody has declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojster.workflows.read.info import StepInfo, WorkflowInfo


def preview(wire: Mapping[str, Any]) -> WorkflowInfo:
    """Return the initial state of a workflow that is not created."""
    workflow = WorkflowInfo(id="", type=wire.get("type", "graph"), state="pending", name=wire.get("name"))
    _preview_children(workflow, wire, "")
    for name in ("on_error", "on_cancel"):
        branch = wire.get(name)
        if branch is not None:
            branch = {"type": "chain", "steps": branch} if isinstance(branch, list) else branch
            setattr(workflow, name, _preview_step(branch, 0, name))
    return workflow


def _preview_children(shown: WorkflowInfo | StepInfo, wire: Mapping[str, Any], place: str) -> None:
    for noun in ("steps", "jobs"):
        steps_with_index = enumerate(wire.get(noun, ()))
        steps = [_preview_step(step, index, f"{place}{step.get('id', index)}") for index, step in steps_with_index]
        if steps:
            setattr(shown, noun, steps)
    if "do" in wire:
        shown.jobs = [_preview_step(wire["do"], 0, f"{place}0")]
    shown.callbacks = {
        name: _preview_step(step, 0, place + name) for name, step in (wire.get("callbacks") or {}).items()
    }
    undone = [step for step in reversed(wire.get("steps", wire.get("jobs", ()))) if "compensate" in step]
    shown.compensations = [
        _preview_step(step["compensate"], index, f"{place}compensate.{index}") for index, step in enumerate(undone)
    ]


def _call(part: StepInfo, id: str | None) -> None:
    """Call a part of a step with a fallback by the id of the step, also the parts of a fallback with a fallback."""
    part.id = id
    if part.fallback is not None:
        _call(part.steps[0], id)
        _call(part.fallback, id)


def _preview_step(wire: Mapping[str, Any], index: int, path: str) -> StepInfo:
    if "fallback" in wire:
        inner = {name: value for name, value in wire.items() if name not in ("fallback", "depends_on")}
        shown = StepInfo(index, path, "fallback", "waiting", id=wire.get("id"), name=wire.get("display_name"))
        shown.steps = [_preview_step(inner, 0, f"{path}.0")]
        second = shown.fallback = _preview_step(wire["fallback"], 1, f"{path}.fallback")
        second.name = second.name or second.type
        _call(second, shown.id)
    else:
        type = wire.get("type") or wire.get("job_type") or "graph"
        shown = StepInfo(index, path, type, "waiting", id=wire.get("id"))
        shown.name = wire.get("display_name") or wire.get("name")
        _preview_children(shown, wire, f"{path}.")
    shown.group, shown.visible = wire.get("group"), wire.get("visible") is not False
    shown.manual = bool(wire.get("manual")) or wire.get("type") == "gate"
    if "depends_on" in wire:
        shown.depends_on = list(wire["depends_on"])
    return shown

"""The results of groups and maps as Python sees them: lists, wherever they are in a workflow.

The server answers with objects whose members are named by their index, except for a whole workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from ojster.workflows.read.info import StepInfo, WorkflowInfo

_LISTS = ("group", "batch", "map")
_IN_ORDER = ("chain", "saga", "definition")


class ResultShape(NamedTuple):
    """What is known of the result of a step.

    Attributes
    ----------
    type:
        The type of the step.
    last:
        Returns the shape of its last step.
    member:
        Returns the shape of the step with an index or a name; ``None``: it is not known.
    """

    type: str
    last: Callable[[], ResultShape | None]
    member: Callable[[str], ResultShape | None]


def in_python(shape: ResultShape | None, result: Any) -> Any:
    """Return a result with lists for groups, batches and maps, also in chains and graphs."""
    if shape is None:
        return result
    if shape.type in _LISTS and isinstance(result, dict) and is_indexed(result):
        return [in_python(shape.member(index), value) for index, value in result.items()]
    if shape.type == "graph" and isinstance(result, dict):
        return {name: in_python(shape.member(name), value) for name, value in result.items()}
    return in_python(shape.last(), result) if shape.type in _IN_ORDER else result


def is_indexed(value: Mapping[str, Any]) -> bool:
    """Return whether the members of an object are named by their index."""
    return list(value) == [str(index) for index in range(len(value))]


def shape_of_wire(wire: Mapping[str, Any]) -> ResultShape:
    """Return the shape of the result of a declared step."""
    steps: Sequence[Mapping[str, Any]] = wire.get("steps") or wire.get("jobs") or ()

    def member(name: str) -> ResultShape | None:
        if wire["type"] == "map":
            return shape_of_wire(wire["do"])
        if wire["type"] == "graph":
            return next((shape_of_wire(step) for step in steps if step.get("id") == name), None)
        return shape_of_wire(steps[int(name)]) if int(name) < len(steps) else None

    return ResultShape(str(wire.get("type")), lambda: shape_of_wire(steps[-1]) if steps else None, member)


def shape_of(shown: WorkflowInfo | StepInfo) -> ResultShape | None:
    """Return the shape of the result of a workflow that is shown, or of one of its steps that has completed."""
    if isinstance(shown, StepInfo) and shown.state != "completed":
        if shown.fallback is None or shown.fallback.state != "completed":
            return None
        return shape_of(shown.fallback)
    steps = [*(shown.steps or ()), *(shown.jobs or ())]  # of a large workflow, they are not shown
    if isinstance(shown, StepInfo) and shown.fallback is not None and steps:
        return shape_of(steps[0] if steps[0].state == "completed" else shown.fallback)
    type = _type_of(shown)

    def member(name: str) -> ResultShape | None:
        if type == "graph":
            return next((shape_of(step) for step in steps if name in (step.id, step.name)), None)
        return shape_of(steps[int(name)]) if int(name) < len(steps) else None

    return ResultShape(type, lambda: shape_of(steps[-1]) if steps else None, member)


def _type_of(shown: WorkflowInfo | StepInfo) -> str:
    """Return the type that decides the shape: a flow is shown as a chain, and what has compensations as a saga."""
    if isinstance(shown, WorkflowInfo) and shown.kind is not None:
        return shown.kind
    if shown.type != "saga":
        return shown.type
    if shown.jobs_total is not None:
        return "group"
    steps = shown.steps or ()
    return "graph" if steps and all(step.depends_on is not UNSET for step in steps) else "saga"

"""The values that a step of a workflow can refer to."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.references import Reference, Unresolvable, follow
from ojster.core.shared_value import SHARED_FROM, SharedValue
from ojster.workflows.node import NodeState
from ojster.workflows.plan.values import Spec
from ojster.workflows.run.results import NodeOutcome
from ojster.workflows.stored_workflow import Workflow

_decode: Final = msgspec.json.decode
_encode: Final = msgspec.json.Encoder().encode

LargeValues = dict[tuple[int, int | None, str | None, tuple[str, ...]], SharedValue]
"""The large values that were looked up in a transaction, by workflow, step (``None``: the parameters), and path."""


class StepValues:
    """Values for the references and the condition of a node."""

    def __init__(self, workflow: Workflow, spec: Spec, known: dict[int, NodeOutcome], large: LargeValues) -> None:
        self.known = known
        self.largest: SharedValue | None = None
        """The largest of the values that were looked up, if it is one of those that are stored once."""
        self._large = large
        self._workflow = workflow
        self._spec = spec

    def look_up(self, reference: Reference) -> bytes:
        """Return the value of a reference, as JSON.

        Raises
        ------
        Unresolvable
            The reference has no value.
        """
        if reference.root in self._spec.bindings:
            return follow(reference, self._spec.bindings[reference.root])
        step = None if reference.step is None else self._spec.names[reference.step]
        where = (self._workflow.seq, step, reference.aspect, reference.path)
        stored = self._large.get(where)
        if stored is None:
            value = self._value_of(reference)
            if len(value) < SHARED_FROM:
                return value
            stored = self._large[where] = SharedValue(self._workflow.seq, value)
        if self.largest is None or len(stored.value) > len(self.largest.value):
            self.largest = stored
        return stored.value

    def _value_of(self, reference: Reference) -> bytes:
        if reference.step is None:
            return follow(reference, self._workflow.params)
        step = self._step(reference.step)
        match reference.aspect:
            case "state":
                return follow(reference, _encode(step.state))
            case "error":
                return follow(reference, step.error or b"null")
        if step.state == NodeState.COMPLETED or step.succeeded_late:
            return follow(reference, step.result or b"null")
        if self._spec.once_started and self._spec.names[reference.step] == self._spec.compensates:
            return b"null"  # what it undoes has started, and came to no result
        if step.state != NodeState.SKIPPED:
            raise Unresolvable(f"The reference {reference.text!r} leads nowhere: the step is {step.state}.")
        return follow(reference, b"null")

    def for_condition(self) -> dict[str, Any]:
        """Return the variables that a condition can use."""
        steps = {}
        for name in self._spec.names:
            step = self._step(name)
            result = step.result if step.state == NodeState.COMPLETED else None
            steps[name] = {
                "state": step.state,
                "result": None if result is None else _decode(result),
                "error": None if step.error is None else _decode(step.error),
            }
        bound = {name: _decode(value) for name, value in self._spec.bindings.items()}
        return {"steps": steps, "params": _decode(self._workflow.params)} | bound

    def _step(self, name: str) -> NodeOutcome:
        return self.known[self._workflow.root | self._spec.names[name]]

"""The jobs of steps, and the values that references in their arguments and conditions stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ojster.collections.outputs import lookup_resolver
from ojster.core.errors import PayloadTooLarge
from ojster.core.json_objects import stored_members
from ojster.core.references import Reference, Unresolvable, follow, resolve
from ojster.core.refusals import ResultExpired
from ojster.core.shared_value import SHARED_FROM, SharedValue
from ojster.jobs.models import Models, step_models
from ojster.jobs.new_job import NewJob
from ojster.workflows.node import Node, NodeState
from ojster.workflows.orchestrator_request import ORCHESTRATE_TYPE
from ojster.workflows.plan.conditions import InvalidCondition, evaluate
from ojster.workflows.plan.values import Spec
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.results import NodeOutcome
from ojster.workflows.stored_workflow import StoredWorkflow

_decode: Final = msgspec.json.decode
_encode: Final = msgspec.json.Encoder().encode

LargeValues = dict[tuple[int, int | None, str | None, tuple[str, ...]], SharedValue]
"""The large values that were looked up in a transaction, by workflow, step (``None``: the parameters), and path."""


class StepValues:
    """Values for the references and the condition of a node."""

    def __init__(self, workflow: StoredWorkflow, spec: Spec, known: dict[int, NodeOutcome], large: LargeValues) -> None:
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
        ResultExpired
            It leads to a result that was deleted.
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
            return _result_of(step, reference)
        if self._spec.once_started and self._spec.names[reference.step] == self._spec.compensates:
            return b"null"  # what it undoes has started, and came to no result
        if step.state != NodeState.SKIPPED:
            raise Unresolvable(f"The reference {reference.text!r} leads nowhere: the step is {step.state}.")
        return follow(reference, b"null")

    def satisfy(self, condition: str) -> bool:
        """Return whether a condition is true.

        Raises
        ------
        InvalidCondition
            It cannot be evaluated, perhaps because it needs a result that was deleted.
        """
        steps: dict[str, dict[str, Any]] = {}
        deleted: list[str] = []
        for name in self._spec.names:
            step = self._step(name)
            result = step.result if step.state == NodeState.COMPLETED else None
            steps[name] = {"state": step.state, "error": None if step.error is None else _decode(step.error)}
            if step.is_deleted:
                deleted.append(name)
            else:
                steps[name]["result"] = None if result is None else _decode(result)
        bound = {name: _decode(value) for name, value in self._spec.bindings.items()}
        try:
            return evaluate(condition, {"steps": steps, "params": _decode(self._workflow.params)} | bound)
        except InvalidCondition as error:
            raise InvalidCondition(" ".join([str(error), *map(_said_of_deleted, deleted)])) from None

    def _step(self, name: str) -> NodeOutcome:
        return self.known[self._workflow.root | self._spec.names[name]]


def _result_of(step: NodeOutcome, reference: Reference) -> bytes:
    """Return what a reference names in the result of a step. In that of a container, a deleted part is ``null``."""
    try:
        value = follow(reference, step.result or b"null")
        if not (step.is_deleted and b"null" in value):
            return value
    except Unresolvable:
        if not step.is_deleted:
            raise
    assert reference.step is not None
    raise ResultExpired(f"The reference {reference.text!r} leads nowhere. {_said_of_deleted(reference.step)}")


def _said_of_deleted(step: str) -> str:
    return (
        f"The result of the step {step!r}, or a part of it, was deleted after its 'result_ttl'. Fork the workflow from "
        "that step, so that it runs again."
    )


class StepJobs:
    """Makes the jobs of steps that start in one transaction.

    Parameters
    ----------
    graph:
        The workflows of the steps.
    """

    def __init__(self, graph: LoadedGraph) -> None:
        self._graph = graph
        self._models = Models(graph.tx.now, graph.tx.settings.largest_job, step_models(graph.tx))
        self._large: LargeValues = {}
        self._stored: set[SharedValue] = set()
        self._resolved_of: Counter[int] = Counter()
        """The bytes of jobs with resolved references in this transaction, by workflow."""

    @property
    def resolved(self) -> int:
        """The bytes of jobs with resolved references in this transaction."""
        return self._resolved_of.total()

    def values(self, workflow: StoredWorkflow, spec: Spec, known: dict[int, NodeOutcome]) -> StepValues:
        """Return the values that a step can refer to.

        Parameters
        ----------
        known:
            The outcomes of earlier steps, by node id.
        """
        return StepValues(workflow, spec, known, self._large)

    def make(self, node: Node, spec: Spec, values: StepValues) -> NewJob:
        """Return the job of a step."""
        assert spec.request is not UNSET
        workflow = self._graph.workflow_of(node)
        if not spec.has_references:
            job = self._models.read_stored(spec.request, workflow.tenant)
            if job.type == ORCHESTRATE_TYPE:  # its workflow decides how it is admitted
                job.model = None
        else:
            members = stored_members(spec.request)
            members["args"] = msgspec.Raw(resolve(members["args"], values.look_up, self.lookup_resolver(node)))
            job = self._models.read(members, workflow.tenant)
            if values.largest is not None and values.largest.value in job.envelope:  # not only in a lookup
                job.shared = values.largest
            self._count(workflow, job)
        return job

    def lookup_resolver(self, node: Node) -> Callable[[bytes], bytes]:
        """Return the function that resolves the lookups of a step."""
        return lookup_resolver(self._graph.tx, self._graph.workflow_of(node).tenant, node.workflow)

    def _find_stored(self, shared: SharedValue) -> bool:
        """Return, and note, whether the workflow has a value already; earlier jobs of this transaction may bring it."""
        if shared in self._stored:
            return True
        rows = self._graph.tx.execute("SELECT 1 FROM shared_values WHERE digest = :digest", {"digest": shared.digest})
        shared.is_stored = bool(rows)
        return shared.is_stored

    def _count(self, workflow: StoredWorkflow, job: NewJob) -> None:
        """Count what is stored of a job with resolved references: one of a few bytes may stand for megabytes."""
        size = len(job.envelope)
        shared = job.shared
        if shared is not None:
            size -= len(shared.value) if self._find_stored(shared) else 0
        most = self._graph.tx.settings.largest_workflow
        self._resolved_of[workflow.seq] += len(job.envelope)  # in memory, also what is stored only once
        if workflow.resolved_bytes + size > most or self._resolved_of[workflow.seq] > most:
            raise PayloadTooLarge(
                f"The references of the workflow {workflow.id} would be replaced by more than {most} bytes. "
                "Pass large values as files.",
                limit=most,
            )
        workflow.resolved_bytes += size
        self._graph.change(workflow)
        if shared is not None:
            self._stored.add(shared)

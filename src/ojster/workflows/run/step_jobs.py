"""The jobs of steps, with the references in their arguments replaced by values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from ojster.collections.outputs import lookup_resolver
from ojster.core.errors import PayloadTooLarge
from ojster.core.json_objects import stored_members
from ojster.core.references import resolve
from ojster.core.shared_value import SharedValue
from ojster.jobs.new_job import NewJob
from ojster.jobs.preparation import Models
from ojster.workflows.node import Node
from ojster.workflows.plan.values import Spec
from ojster.workflows.run.graph import Graph
from ojster.workflows.run.results import NodeOutcome
from ojster.workflows.run.step_values import LargeValues, StepValues
from ojster.workflows.stored_workflow import Workflow


class StepJobs:
    """Makes the jobs of steps that start in one transaction.

    Parameters
    ----------
    graph:
        The workflows of the steps.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._models = Models(graph.tx.now, graph.tx.settings.largest_job)
        self._large: LargeValues = {}
        self._stored: set[SharedValue] = set()
        self._resolved_of: Counter[int] = Counter()
        """The bytes of jobs with resolved references in this transaction, by workflow."""

    @property
    def resolved(self) -> int:
        """The bytes of jobs with resolved references in this transaction."""
        return self._resolved_of.total()

    def values(self, workflow: Workflow, spec: Spec, known: dict[int, NodeOutcome]) -> StepValues:
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
        members = stored_members(spec.request)
        if spec.has_references:
            members["args"] = msgspec.Raw(resolve(members["args"], values.look_up, self.lookup_resolver(node)))
        job = self._models.read(members, workflow.tenant)
        if spec.has_references:
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

    def _count(self, workflow: Workflow, job: NewJob) -> None:
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

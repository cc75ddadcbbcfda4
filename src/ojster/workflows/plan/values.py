"""Plans: what a request for a workflow becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.collections.contents import Promise
from ojster.core.json_objects import Members, stored_members
from ojster.core.references import ITEM
from ojster.jobs.idempotency import Key
from ojster.jobs.new_job import NewJob, read_job
from ojster.workflows.node import Node
from ojster.workflows.plan.members import Problem
from ojster.workflows.stored_workflow import StoredWorkflow

_encode: Final = msgspec.json.Encoder().encode


class Spec(msgspec.Struct, omit_defaults=True):
    """What a node needs when it starts, and what is shown of it. Written once, and read only when needed.

    Parameters
    ----------
    request:
        The enqueue request of a job.
    has_references:
        Whether its arguments contain references.
    names:
        The numbers of the nodes for the names that follow ``steps.`` in references and conditions.
    condition:
        Condition for the node to start; otherwise it is skipped.
    over, template, item, inherited:
        Of a map: the list, the step for each element, the name of the element, and the options that the steps inherit.
    params_schema:
        Of a definition: the JSON Schema of its parameters.
    bindings:
        Values bound by the maps and definitions around it.
    timeout:
        Of a gate: the longest wait for its approval, in microseconds; ``None``: no limit.
    compensates, once_started:
        The number of the step that a compensation undoes; and whether it does so once that step has started, whatever
        became of it, or only if it has completed.
    settled_by:
        Of a compensation, numbers of the nodes after which nothing is left to undo, if one of them has completed: the
        same compensation in a container inside, or the container whose own compensation undoes all of it. Of a
        container that undoes another: those that new compensations in it get.
    mirrors:
        The numbers of the containers that undo this container, the innermost first.
    is_undoing:
        Whether it is such a container.
    """

    request: msgspec.Raw | UnsetType = UNSET
    has_references: bool = False
    names: dict[str, int] = {}
    condition: str | None = None
    display_name: str | None = None
    step: str | None = None
    group: str | None = None
    visible: bool = True
    over: msgspec.Raw | UnsetType = UNSET
    template: msgspec.Raw | UnsetType = UNSET
    item: str = ITEM
    inherited: dict[str, msgspec.Raw] = {}
    params_schema: msgspec.Raw | UnsetType = UNSET
    bindings: dict[str, msgspec.Raw] = {}
    timeout: int | None = None
    others: dict[str, msgspec.Raw] = {}
    compensates: int | None = None
    once_started: bool = False
    settled_by: list[int] = []
    mirrors: list[int] = []
    is_undoing: bool = False

    def to_json(self) -> bytes:
        """Return the spec as stored."""
        return _encode(self)


read_spec: Final[Callable[[bytes], Spec]] = msgspec.json.Decoder(Spec).decode


class LaterJob(msgspec.Struct, frozen=True):
    """What is known beforehand of a job whose arguments contain references, as limits need it."""

    tenant: str
    scheduled_at: int | None


class Plan(msgspec.Struct):
    """Nodes that can be created. Their ids are only their numbers, without the ``seq`` of the workflow.

    Parameters
    ----------
    nodes, specs:
        In the same order; the number of a node is its index plus the number of the first.
    edges:
        Numbers of a node and of its successor.
    promised:
        Those of the edges that follow from promised items.
    jobs:
        The jobs of nodes with known arguments, by number.
    later_jobs:
        The other jobs, whose arguments contain references.
    promises:
        Items that steps will put into the workflow's collection.
    """

    nodes: list[Node] = []
    specs: list[Spec] = []
    edges: list[tuple[int, int]] = []
    promised: set[tuple[int, int]] = set()
    jobs: dict[int, NewJob] = {}
    later_jobs: list[LaterJob] = []
    promises: list[Promise] = []

    @property
    def job_count(self) -> int:
        """The number of its jobs, including those whose arguments are known later."""
        return len(self.jobs) + len(self.later_jobs)

    def requests(self) -> Iterator[tuple[Node, Spec, Members]]:
        """Yield the nodes that run jobs, with the members of their enqueue requests."""
        for node, spec in zip(self.nodes, self.specs, strict=True):
            if spec.request is not UNSET:
                yield node, spec, stored_members(spec.request)

    def replace(self, node: Node, spec: Spec, members: Members, now: int, largest: int, tenant: str) -> None:
        """Replace the enqueue request of a node, and its job if that is known."""
        spec.request = msgspec.Raw(_encode(members))
        if node.id in self.jobs:
            self.jobs[node.id] = read_job(members, now, largest=largest, tenant=tenant, is_step=True)

    def add_job(self, node: Node, spec: Spec, job: NewJob) -> None:
        """Add the job of a node; of one whose arguments contain references, what is known of it."""
        if spec.has_references:
            self.later_jobs.append(LaterJob(job.tenant, job.scheduled_at))
        else:
            self.jobs[node.id] = job


class PlanContext(msgspec.Struct, frozen=True):
    """The workflow that steps are planned for, and the time at which they are.

    Parameters
    ----------
    now:
        Time from which relative times count, in microseconds since the epoch.
    largest:
        Maximum size of a job as JSON, in bytes.
    workflow_id, tenant:
        The id of the workflow, which its jobs have, and its tenant.
    metadata:
        The metadata of the workflow; jobs carry the trace context in it.
    """

    now: int
    largest: int
    workflow_id: str
    tenant: str = ""
    metadata: bytes = b"{}"


Mirrors = Sequence[tuple[Node, str, Sequence[int]]]
"""Containers that undo an existing container, the innermost first: with their places, and ``Spec.settled_by``."""


class AddedSteps(msgspec.Struct, frozen=True):
    """Where steps are added to a workflow that exists. Its nodes are known by their numbers.

    Parameters
    ----------
    container, path, place:
        The container, the place of its new steps in the request, and its own place in the workflow.
    inherited:
        The options that the steps inherit.
    first:
        The number of the first new node.
    outer:
        Returns the number of a named node outside of the container.
    bindings:
        Values bound by a map for the steps.
    known:
        The container's named children.
    last:
        The last child, if the container is a chain.
    level:
        Number of levels of containers down to this one.
    mirrors, heads:
        The existing containers that undo this one, and the children of each that are undone first: what undoes the
        new steps precedes them.
    """

    container: Node
    path: str
    place: str
    inherited: dict[str, msgspec.Raw]
    first: int
    outer: Callable[[str], int | None]
    bindings: dict[str, msgspec.Raw] = {}
    known: dict[str, Node] = {}
    last: Node | None = None
    level: int = 1
    mirrors: Mirrors = ()
    heads: Sequence[Sequence[Node]] = ()


class Planned(msgspec.Struct, frozen=True):
    """A plan, and the members of its steps that mean nothing, each at its place.

    Jobs keep those in ``kept``, as they keep all members that the server does not know.
    """

    plan: Plan
    unknown: list[Problem]
    kept: list[Problem]


class NewWorkflow(StoredWorkflow, kw_only=True, gc=True):
    """A workflow that passed validation and can be created: it has no number yet, and its plan instead of nodes."""

    plan: Plan
    id_is_given: bool = False
    properties: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    unknown: list[Problem] = msgspec.field(default_factory=list)
    """The members of its request, and of those of its steps, that have no effect."""
    notes: list[str] = msgspec.field(default_factory=list)
    """What else its caller learns: violations of schemas that only warn."""
    key: Key | None = None
    """The idempotency key of its request: who repeats that learns the id from the moment that the workflow exists."""

    @property
    def warnings(self) -> list[str]:
        """What its caller learns about unknown members and violated schemas."""
        idle = [f"{problem.path}: {problem.message}" for problem in self.unknown]
        return [text if "no effect" in text else f"{text} It has no effect." for text in idle] + self.notes

    @property
    def weight(self) -> int:
        """Work that its creation makes, in jobs: its nodes, and the elements of its maps by their size."""
        elements = sum(len(spec.over) for spec in self.plan.specs if spec.over is not UNSET)
        return len(self.plan.nodes) + elements // 200

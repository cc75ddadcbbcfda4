"""Steps as a request describes them, each kind as a type of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ojster.collections.items import Lookup, PromisedItem
from ojster.jobs.new_job import NewJob
from ojster.workflows.node import Kind, Rule
from ojster.workflows.plan.compensations import Own
from ojster.workflows.plan.values import Spec


class References(msgspec.Struct, frozen=True):
    """What the arguments of a job, or the list of a map, refer to.

    Parameters
    ----------
    path:
        Their place in the request.
    names:
        The names of steps in them.
    lookups:
        Lookups in the workflow's collection.
    """

    path: str
    names: frozenset[str]
    lookups: Sequence[Lookup]


class RequestedStep(msgspec.Struct, gc=False):
    """What steps of all kinds have.

    Parameters
    ----------
    path:
        The place in the request, for errors.
    place:
        The place in the workflow: the names or positions of the containers around the step and its own.
    position:
        The position in the container.
    spec:
        What is stored of the step, as far as it is known before the steps are in order.
    name, has_id:
        The name by which other steps refer to it, and whether that is an ``id``, which takes precedence over a
        ``name``.
    role:
        Its name in its container instead, if it has a certain part there, such as a callback.
    rule, tolerated, manual:
        See ``ojster.workflows.node.Node``.
    condition_names:
        The names of steps in its condition.
    depends_on:
        The names of the steps of a graph that it depends on.
    own:
        Its own compensation.
    closed_after:
        Of a container: number of problems of steps that were found before its end. See ``in_order``.
    """

    path: str
    place: str
    position: int
    spec: Spec
    name: str | None = None
    has_id: bool = False
    role: str | None = None
    rule: str = Rule.SUCCEEDED.value
    tolerated: bool = False
    manual: bool = False
    condition_names: frozenset[str] = frozenset()
    depends_on: Sequence[str] = ()
    own: Own | None = None
    closed_after: int = 0

    @property
    def children(self) -> Sequence[AnyStep]:
        """The steps directly inside it, in the order of their nodes."""
        return ()


class JobStep(RequestedStep, kw_only=True):
    """A job; ``provided``: the items that it promises."""

    kind: ClassVar[Kind] = Kind.JOB
    job: NewJob
    references: References | None = None
    provided: Sequence[PromisedItem] = ()


class GateStep(RequestedStep):
    """A gate."""

    kind: ClassVar[Kind] = Kind.GATE


class UnreadStep(RequestedStep):
    """A step with a problem. It keeps its place, so that the steps beside it can be checked."""

    kind: ClassVar[Kind] = Kind.JOB


class ListStep(RequestedStep, kw_only=True):
    """A chain, a group or a graph, by its ``kind``."""

    kind: Kind
    steps: Sequence[AnyStep]

    @property
    def children(self) -> Sequence[AnyStep]:
        """The steps directly inside it, in the order of their nodes."""
        return self.steps


class BatchStep(RequestedStep, kw_only=True):
    """A group of jobs, and the callbacks after it."""

    kind: ClassVar[Kind] = Kind.BATCH
    jobs: AnyStep
    callbacks: Sequence[AnyStep]

    @property
    def children(self) -> Sequence[AnyStep]:
        """The steps directly inside it, in the order of their nodes."""
        return [self.jobs, *self.callbacks]


class UndoingStep(msgspec.Struct, frozen=True):
    """What undoes a step of a container.

    Parameters
    ----------
    index:
        The index of the undone step among the steps of the container.
    own:
        The compensation as the undone step describes it.
    step:
        The step that undoes it.
    """

    index: int
    own: Own
    step: AnyStep


class SagaStep(RequestedStep, kw_only=True):
    """A container ``done``, and another that undoes it: its name, its kind, and the compensations in it."""

    kind: ClassVar[Kind] = Kind.SAGA
    done: AnyStep
    undoing_name: str
    undoing_kind: Kind
    compensations: Sequence[UndoingStep]

    @property
    def children(self) -> Sequence[AnyStep]:
        """The steps directly inside it, in the order of their nodes."""
        return [self.done]


class FlowStep(RequestedStep, kw_only=True):
    """A flow, with the job that runs its function."""

    kind: ClassVar[Kind] = Kind.FLOW
    job: JobStep


class MapStep(RequestedStep, kw_only=True):
    """A map or a nested definition, by its ``kind``, with the step for each element and what undoes that."""

    kind: Kind
    references: References | None
    template: AnyStep
    compensations: Sequence[UndoingStep]


class FallbackStep(RequestedStep, kw_only=True):
    """A step, and another that takes its place if it does not succeed."""

    kind: ClassVar[Kind] = Kind.FALLBACK
    first: AnyStep
    second: AnyStep

    @property
    def children(self) -> Sequence[AnyStep]:
        """The steps directly inside it, in the order of their nodes."""
        return [self.first, self.second]


AnyStep = JobStep | GateStep | ListStep | BatchStep | SagaStep | FlowStep | MapStep | FallbackStep | UnreadStep


class RequestedWorkflow(msgspec.Struct, frozen=True):
    """A whole workflow: the outermost container, and the branches for errors and cancellation."""

    main: AnyStep
    branches: Sequence[AnyStep]


class RequestedAddition(msgspec.Struct, frozen=True):
    """Steps for an existing container, and what undoes them; ``closed_after``: see ``RequestedStep``."""

    steps: Sequence[AnyStep]
    compensations: Sequence[UndoingStep]
    closed_after: int

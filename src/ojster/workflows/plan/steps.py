"""Steps as a request describes them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ojster.collections.items import Lookup, PromisedItem
from ojster.jobs.new_job import NewJob
from ojster.workflows.node import Node
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
    """A step of any kind: a gate, a container that has no more than steps, or one that could not be read.

    Parameters
    ----------
    path:
        The place in the request, for errors.
    place:
        The place in the workflow: the names or positions of the containers around the step and its own.
    node:
        The node that it becomes, whose number and container are known when it is planned. A step with a problem counts
        as a job: it keeps its place, so that the steps beside it can be checked.
    spec:
        What is stored of the step, as far as it is known before the steps are in order.
    has_id:
        Whether the name by which other steps refer to it is an ``id``, which takes precedence over a ``name``.
    role:
        Its name in its container instead, if it has a certain part there, such as a callback.
    condition_names:
        The names of steps in its condition.
    depends_on:
        The names of the steps of a graph that it depends on.
    own:
        Its own compensation.
    children:
        The steps directly inside it, in the order of their nodes: of a batch, its group of jobs and then its callbacks;
        of a fallback, the step and the one that takes its place; of a flow, the job that runs its function; of a
        workflow, the outermost container and the branches.
    closed_after:
        Of a container: number of problems of steps that were found before its end. See ``in_order``.
    """

    path: str
    place: str
    node: Node
    spec: Spec
    has_id: bool = False
    role: str | None = None
    condition_names: frozenset[str] = frozenset()
    depends_on: Sequence[str] = ()
    own: Own | None = None
    children: Sequence[RequestedStep] = ()
    closed_after: int = 0


class JobStep(RequestedStep, kw_only=True):
    """A job; ``provided``: the items that it promises."""

    job: NewJob
    references: References | None = None
    provided: Sequence[PromisedItem] = ()


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
    step: RequestedStep


class SagaStep(RequestedStep, kw_only=True):
    """A container, its only child, and another that undoes it, with the compensations in it."""

    undoing: Node
    compensations: Sequence[UndoingStep]


class MapStep(RequestedStep, kw_only=True):
    """A map or a nested definition, with the step for each element and what undoes that."""

    references: References | None
    template: RequestedStep
    compensations: Sequence[UndoingStep]


class RequestedAddition(msgspec.Struct, frozen=True):
    """Steps for an existing container, and what undoes them; ``closed_after``: see ``RequestedStep``."""

    steps: Sequence[RequestedStep]
    compensations: Sequence[UndoingStep]
    closed_after: int

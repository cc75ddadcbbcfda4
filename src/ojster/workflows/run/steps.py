"""Finding steps of workflows, and changing workflows under their lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Protocol, TypeVar

import msgspec

from ojster.core.errors import Conflict, NotFound, OjsterError
from ojster.core.ids import is_workflow_id
from ojster.jobs.queries import no_workflow
from ojster.storage.call import for_each
from ojster.storage.transaction import Held, Later, Transaction
from ojster.workflows.node import LEAVES, MERGED, Kind, Node
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.stored_workflow import HIDDEN, IS_VISIBLE, StoredWorkflow


class OfWorkflow(Protocol):
    """A request about a workflow."""

    @property
    def workflow_id(self) -> str:
        """The id of the workflow."""


A = TypeVar("A", bound=str | OfWorkflow)


class StepAddress(msgspec.Struct, frozen=True):
    """A step of a workflow, identified by its path."""

    workflow_id: str
    step: str


def steer(tx: Transaction, id: str, change: Callable[[Advance, StoredWorkflow], None]) -> str | OjsterError:
    """Lock a workflow and apply a change to it; return its id or an error."""
    query = f"SELECT seq FROM workflows WHERE id = :id AND {IS_VISIBLE}"
    rows = tx.execute(query, {"id": id}) if is_workflow_id(id) else []
    if not rows:
        return no_workflow(id)
    graph = LoadedGraph(tx)
    graph.lock([rows[0][0]])
    workflow = graph.workflows.get(rows[0][0])
    if workflow is None or workflow.state == HIDDEN:  # retention was first
        return no_workflow(id)
    run = Advance(graph)
    try:
        change(run, workflow)
    except OjsterError as refusal:
        return refusal
    run.go()
    return id


def steering(
    change: Callable[[Advance, StoredWorkflow, A], None],
) -> Callable[[Transaction, Sequence[A]], list[str | OjsterError]]:
    """Make a transaction function of a change of one locked workflow: it returns the workflows' ids, or errors.

    Parameters
    ----------
    change:
        Takes the workflow and the request, which names the workflow as its ``workflow_id`` or is its id. It raises its
        refusal.
    """

    @for_each
    @wraps(change)
    def steer_each(tx: Transaction, item: A) -> str | OjsterError:
        id = item if isinstance(item, str) else item.workflow_id
        return steer(tx, id, lambda run, workflow: change(run, workflow, item))

    return steer_each


def require(refusal: OjsterError | None) -> None:
    """Raise a refusal, if there is one; ``Held`` if another transaction is in the way, so that it is tried again."""
    if isinstance(refusal, Later):
        raise Held(refusal.message)
    if refusal is not None:
        raise refusal


def find_step(graph: LoadedGraph, workflow: StoredWorkflow, path: str) -> Node:
    """Return the node with a path.

    Raises
    ------
    NotFound
        The workflow has no such step.
    """
    node = graph.root_of(workflow)
    for place, name in enumerate(path.split(".")):
        child = _child_named(graph, node, name, is_first=place == 0)
        while child is None and node.kind in MERGED:
            node = graph.children(node)[0]
            child = _child_named(graph, node, name)
        if child is None:
            message = f"The workflow {workflow.id} has no step {path!r:.200}."
            raise NotFound(message, resource_type="workflow_step", resource_id=path)
        node = child
    return node


def _child_named(graph: LoadedGraph, container: Node, name: str, *, is_first: bool = False) -> Node | None:
    """Return the child of a container with a name or an index, if any."""
    if container.kind in LEAVES or (container.kind == Kind.WORKFLOW and not is_first):
        return None
    children = graph.named_children(container, name)
    if container.kind in MERGED:
        children = [child for child in children if child.position and child.name == name]
    named = [child for child in children if child.name == name] or children
    if container.kind == Kind.FLOW:  # runs steps of the same id again and again: one that still goes on is meant
        return next((child for child in named if not child.has_ended), next(reversed(named), None))
    return next(iter(named), None)


def step_in_turn(graph: LoadedGraph, node: Node) -> Node:
    """Return which of a step and its fallback the path of both means: the step, or else the fallback that goes on."""
    children = graph.children(node)
    return next((child for child in children if not child.has_ended), children[0])


def is_over(graph: LoadedGraph, node: Node) -> bool:
    """Return whether a container around a node has ended, so that the node cannot change any more."""
    return any(container.has_ended for _, container in graph.lineage(node))


def wrong_state(workflow: StoredWorkflow, message: str) -> Conflict:
    """Return the refusal of a change that the state of a workflow does not allow."""
    return Conflict(message, workflow_id=workflow.id, current_state=workflow.state)

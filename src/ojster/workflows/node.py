"""Nodes of a workflow: jobs and containers, their rules, and how the end of one node affects others.

Every kind of workflow is one graph of nodes. A node has a container and may have predecessors in that container. It
starts when these have ended and its rule holds. A container ends when all its children have ended. Each node keeps
counts of its predecessors and children, so that a decision about a node reads only that node. See docs/workflows.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import takewhile
from typing import Final, Protocol, TypeVar, assert_never

import msgspec

from ojster.core.job import NODE_BITS

MAX_NODES: Final = 1 << NODE_BITS
"""Maximum number of nodes of a workflow, including those added while it runs."""


class Kind(StrEnum):
    """The kind of a node."""

    JOB = "job"
    GATE = "gate"
    """Runs nothing and waits for an approval."""
    CHAIN = "chain"
    GROUP = "group"
    GRAPH = "graph"
    MAP = "map"
    """A group with one child for each element of a list; the children are created when it starts."""
    DEFINITION = "definition"
    """The steps of a definition, with its parameters as ``params``; they are created when it starts."""
    BATCH = "batch"
    """A group, followed by callbacks."""
    SAGA = "saga"
    """Steps, and a chain of compensations that runs if they do not succeed."""
    FLOW = "flow"
    """A job that runs a function with durable steps, as its first child, and the steps that the function has asked for.
    """
    FALLBACK = "fallback"
    """A node, and another that runs if the first does not succeed."""
    WORKFLOW = "workflow"
    """The root: the main container, and the branches for errors and cancellation."""


FLOW_JOB: Final = "flow"
"""The name of the step that runs the function of a flow."""

TWO_PART: Final = frozenset({Kind.BATCH, Kind.SAGA, Kind.FALLBACK, Kind.WORKFLOW})
"""Containers with a first child that does the work, and other children that depend on how it ended."""

MERGED: Final = TWO_PART - {Kind.FALLBACK}
"""Containers that requests and answers show as one with their first child: paths leave that out."""

LEAVES: Final = frozenset({Kind.JOB, Kind.GATE})
"""Kinds of nodes that have no nodes inside."""

PARALLEL: Final = frozenset({Kind.GROUP, Kind.MAP})
"""Containers of steps that run at the same time: they are called jobs, and their results have indices."""

EXPANDED: Final = frozenset({Kind.MAP, Kind.DEFINITION})
"""Containers whose children are created when they start."""


class Rule(StrEnum):
    """When a node starts after its predecessors have ended."""

    SUCCEEDED = "succeeded"
    """If all of them succeeded; skipped nodes and tolerated failures count as success. Otherwise it is cancelled."""
    IF_SUCCEEDED = "if_succeeded"
    """If all of them succeeded; otherwise it is skipped."""
    FINISHED = "finished"
    FAILED = "failed"
    """If at least one of them failed or was cancelled."""
    ERRORED = "errored"
    """If at least one of them failed."""
    CANCELLED = "cancelled"
    """If none of them failed and at least one was cancelled."""


class NodeState(StrEnum):
    """The state of a node, as stored; people see ``ready`` and ``started`` in other words."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    """It waits only for an approval."""
    READY = "ready"
    """It can start when the held workflow is released."""
    STARTED = "started"
    """Its job was enqueued, or its children are running."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    COMPENSATED = "compensated"
    """A saga that failed and was compensated."""


ENDED: Final = frozenset(
    {
        NodeState.COMPLETED,
        NodeState.FAILED,
        NodeState.CANCELLED,
        NodeState.SKIPPED,
        NodeState.COMPENSATED,
    }
)
ENDED_STATES: Final = ", ".join(f"'{state.value}'" for state in sorted(ENDED))
"""The same as a list in SQL."""
NOT_STARTED: Final = frozenset({NodeState.WAITING, NodeState.BLOCKED, NodeState.READY})
SUCCESSFUL: Final = frozenset({NodeState.COMPLETED, NodeState.SKIPPED})


class Followed:
    """Bits: where the successors of a node are, and those of the nodes inside it."""

    HERE: Final = 1
    """In its container."""
    ELSEWHERE: Final = 2
    """In another container. Such edges follow from promised items alone."""
    INSIDE: Final = 4
    """A node inside it has successors outside of it."""


class Inputs(StrEnum):
    """The results that a node's job receives."""

    BEFORE = "before"
    """Those of all earlier steps of its chain, by index."""
    NEEDED = "needed"
    """Those of the steps that it depends on, by name."""
    MEMBERS = "members"
    """Those of the children of its predecessor, a container."""


class Node(msgspec.Struct, gc=False):
    """A node as stored. Times are microseconds since the epoch.

    Parameters
    ----------
    id, parent:
        Ids of the node and its container (see ``NODE_BITS``); the root has no parent.
    position:
        Position among the children of its container, from 0.
    tolerated:
        Whether its successors and its container treat its own failure or cancellation as success (``allow_failure``).
    manual, approved:
        Whether it requires an approval before it starts, and whether it was approved.
    inputs, source:
        The results that jobs receive, and the id of the node with the ``inputs`` that apply to this node's job: itself
        or a container around it.
    followed:
        Where its successors are, as ``Followed``; 0 if it has none.
    verdict:
        State in which it ends, whatever its children do, because it was stopped.
    waiting:
        Number of predecessors that have not ended.
    failed_before, cancelled_before, unmet:
        Number of predecessors that failed, that were cancelled, and of these together those that are not tolerated.
    total, unfinished, completed, failed, cancelled:
        Number of children: all, not ended, and ended in each state; the rest were skipped.
    broken, lost:
        Number of children that failed, and that were cancelled, without the tolerated ones.
    result, error:
        JSON, for nodes that end without a job.
    """

    id: int
    parent: int | None
    position: int
    kind: str
    name: str | None = None
    rule: str = Rule.SUCCEEDED.value
    tolerated: int = 0
    manual: int = 0
    inputs: str | None = None
    source: int | None = None
    followed: int = 0
    state: str = NodeState.WAITING.value
    approved: int = 0
    verdict: str | None = None
    waiting: int = 0
    failed_before: int = 0
    cancelled_before: int = 0
    unmet: int = 0
    total: int = 0
    unfinished: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    broken: int = 0
    lost: int = 0
    job_id: str | None = None
    result: bytes | None = None
    error: bytes | None = None
    started_at: int | None = None
    finished_at: int | None = None

    @property
    def workflow(self) -> int:
        """The ``seq`` of its workflow."""
        return self.id >> NODE_BITS

    @property
    def number(self) -> int:
        """Its number in its workflow."""
        return self.id & (MAX_NODES - 1)

    @property
    def has_ended(self) -> bool:
        """Whether the node has ended; only a workflow retry changes it afterwards."""
        return self.state in ENDED

    @property
    def was_left_out(self) -> bool:
        """Whether it never ran, because a predecessor did not succeed."""
        return self.state == NodeState.CANCELLED and self.rule == Rule.SUCCEEDED and self.unmet > 0

    @property
    def succeeded(self) -> bool:
        """Whether successors treat its end as success.

        ``allow_failure`` tolerates the end of the node itself. It does not hide the failure that left the node out.
        """
        return self.state in SUCCESSFUL or (bool(self.tolerated) and not self.was_left_out)


def body_of(flow: Node) -> int:
    """Return the id of the node that runs the function of a flow."""
    return body_number(flow.id)


def body_number(flow: int) -> int:
    """Return the id of the node that runs the function of a flow, from the id of the flow: it is planned next."""
    return flow + 1


class Placed(Protocol):
    """The attributes of a node that determine its place in the workflow."""

    @property
    def parent(self) -> int | None:
        """The id of its container; the root has none."""

    @property
    def position(self) -> int:
        """Its position in the container."""

    @property
    def kind(self) -> str:
        """Its kind: containers that are merged with their first part are not in paths."""

    @property
    def name(self) -> str | None:
        """The name by which other steps refer to it."""


P = TypeVar("P", bound=Placed)


def lineage(node: P, container_of: Callable[[P], P]) -> Iterator[tuple[P, P]]:
    """Yield a node with its container, that container with its own, and so on, up to the root."""
    while node.parent is not None:
        container = container_of(node)
        yield node, container
        node = container


def place_of(node: P, container_of: Callable[[P], P]) -> str:
    """Return the place of a node: the names, or else positions, of its containers and itself, joined by dots.

    The root is left out, and so is the first child of a merged container: requests do not name them.
    """
    names = [
        inner.name or str(inner.position)
        for inner, container in lineage(node, container_of)
        if container.kind not in MERGED or inner.position
    ]
    return ".".join(reversed(names))


def step_of(node: P, container_of: Callable[[P], P]) -> P:
    """Return the step that a node is a part of: a step with a fallback, for the step itself and for the fallback.

    Both are called by its id.
    """
    return next((inner for inner, container in lineage(node, container_of) if container.kind != Kind.FALLBACK), node)


def is_fallback(node: P, container_of: Callable[[P], P]) -> bool:
    """Return whether a node takes the place of a step that did not succeed."""
    parts = takewhile(lambda pair: pair[1].kind == Kind.FALLBACK, lineage(node, container_of))
    return any(inner.position for inner, _ in parts)


def count_ended_predecessor(node: Node, before: Node) -> None:
    """Count in a node that one of its predecessors has ended."""
    node.waiting -= 1
    node.failed_before += before.state in (NodeState.FAILED, NodeState.COMPENSATED)
    node.cancelled_before += before.state == NodeState.CANCELLED
    node.unmet += not before.succeeded


def count_ended_child(container: Node, child: Node) -> None:
    """Count in a container that one of its children has ended."""
    container.unfinished -= 1
    match child.state:
        case NodeState.COMPLETED:
            container.completed += 1
        case NodeState.FAILED | NodeState.COMPENSATED:
            container.failed += 1
            container.broken += not child.tolerated
        case NodeState.CANCELLED:
            container.cancelled += 1
            container.lost += not child.succeeded


def decide(node: Node) -> NodeState | None:
    """Return what a waiting node becomes, from the counts of its predecessors; ``None``: it waits.

    ``started``: it may start; otherwise it is skipped or cancelled.
    """
    if node.rule == Rule.SUCCEEDED and node.unmet:
        return NodeState.CANCELLED
    if node.waiting:
        return None
    match node.rule:
        case Rule.IF_SUCCEEDED:
            holds = not node.unmet
        case Rule.FAILED:
            holds = node.failed_before + node.cancelled_before > 0
        case Rule.ERRORED:
            holds = node.failed_before > 0
        case Rule.CANCELLED:
            holds = node.cancelled_before > 0 and not node.failed_before
        case _:
            holds = True
    return NodeState.STARTED if holds else NodeState.SKIPPED


def final_state_of(container: Node, children: list[Node]) -> NodeState:
    """Return the final state of a container after all its children have ended.

    Parameters
    ----------
    children:
        Its children by position; used only for the kinds in ``TWO_PART``.
    """
    match Kind(container.kind):
        case Kind.WORKFLOW:
            return NodeState(children[0].state)
        case Kind.SAGA:
            steps, undoing = children
            if steps.succeeded:
                return NodeState.COMPLETED
            return NodeState.COMPENSATED if undoing.succeeded else NodeState.FAILED
        case Kind.BATCH | Kind.FALLBACK:
            ran = [child for child in children[1:] if child.state != NodeState.SKIPPED]
            ends = [child.state for child in ran or children[:1] if not child.succeeded]
            if not ends:
                return NodeState.COMPLETED
            return NodeState.CANCELLED if set(ends) == {NodeState.CANCELLED} else NodeState.FAILED
        case Kind.CHAIN | Kind.GROUP | Kind.GRAPH | Kind.MAP | Kind.DEFINITION | Kind.FLOW:
            if container.broken:
                return NodeState.FAILED
            return NodeState.CANCELLED if container.lost else NodeState.COMPLETED
        case Kind.JOB | Kind.GATE:
            raise AssertionError(f"A {container.kind} has no children.")
        case kind:
            assert_never(kind)

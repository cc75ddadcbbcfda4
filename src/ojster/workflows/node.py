"""What is a workflow made of? Nodes: jobs and containers, each with its rule. Here is what they say to each other.

Everything that a workflow can do is one graph of nodes. A node has a container, may come after others of the same
container, and starts when these have ended and its rule holds. A container ends when all its children have. All counts
are kept, so that deciding about a node looks at nothing but the node itself. (docs/workflows.md has the whole picture.)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol, TypeVar

import msgspec

NUMBER_BITS: Final = 20
"""A node's id is its workflow's ``seq``, shifted by so many bits, and its number in the workflow."""

MOST_NODES: Final = 1 << NUMBER_BITS
"""How many nodes a workflow can have, those included that were added while it ran."""


class Kind(StrEnum):
    """What a node is."""

    JOB = "job"
    GATE = "gate"
    """Nothing runs: it waits for somebody to approve."""
    CHAIN = "chain"
    GROUP = "group"
    GRAPH = "graph"
    MAP = "map"
    """A group whose children are made when it starts, one for each element of a list."""
    BATCH = "batch"
    """A group, and callbacks after it."""
    SAGA = "saga"
    """Steps, and a chain that undoes them if they do not succeed."""
    FALLBACK = "fallback"
    """A node, and another that runs in its place if it does not succeed."""
    WORKFLOW = "workflow"
    """The root: the main container, and the branches for errors and cancellation."""


TWO_PART: Final = frozenset({Kind.BATCH, Kind.SAGA, Kind.FALLBACK, Kind.WORKFLOW})
"""Containers whose first child does the work, and whose other children come after it, depending on how it ended."""


class Rule(StrEnum):
    """When a node starts, once those before it have ended."""

    SUCCEEDED = "succeeded"
    """If all of them succeeded; skipped ones and failures that are allowed count as success. Else it is cancelled."""
    IF_SUCCEEDED = "if_succeeded"
    """The same, but else it is skipped."""
    FINISHED = "finished"
    FAILED = "failed"
    """If one of them failed or was cancelled."""
    ERRORED = "errored"
    """If one of them failed."""
    CANCELLED = "cancelled"
    """If none of them failed, but one was cancelled."""


class NodeState(StrEnum):
    """Where a node is."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    """Only an approval is missing."""
    READY = "ready"
    """It would have started, but the workflow is held."""
    STARTED = "started"
    """Its job was enqueued, or its children are at work."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    COMPENSATED = "compensated"
    """A saga that failed, and was undone."""


ENDED: Final = frozenset(
    {
        NodeState.COMPLETED,
        NodeState.FAILED,
        NodeState.CANCELLED,
        NodeState.SKIPPED,
        NodeState.COMPENSATED,
    }
)
SUCCESSFUL: Final = frozenset({NodeState.COMPLETED, NodeState.SKIPPED})


class Inputs(StrEnum):
    """Whose results a node's job is given."""

    BEFORE = "before"
    """All steps before it in its chain, by index."""
    NEEDED = "needed"
    """The steps that it depends on, by name."""
    MEMBERS = "members"
    """The children of the container that it comes after."""


class Node(msgspec.Struct, gc=False):
    """A node as it is stored. Times are microseconds since the epoch.

    Parameters
    ----------
    id, parent:
        See ``NUMBER_BITS``; the root has no parent.
    position:
        Its place among its container's children, from 0.
    tolerated:
        Whether those after it, and its container, take any end of it for success (``allow_failure``).
    manual, approved:
        Whether somebody must approve before it starts, and whether somebody has.
    inputs, source:
        Whose results its job is given: what ``inputs`` says of the node ``source``, itself or a container around it.
    followed:
        Whether others come after it.
    verdict:
        How it is to end, whatever its children do: it was told to stop.
    waiting:
        How many of those before it have not ended.
    failed_before, cancelled_before, unmet:
        How many of them failed or were cancelled, and how many of these are not tolerated.
    total, unfinished, completed, failed, cancelled:
        How many children there are, have not ended, and how those ended that have; what is left was skipped.
    broken, lost:
        How many failed and were cancelled that are not tolerated.
    result, error:
        JSON; of nodes that end without a job.
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
        return self.id >> NUMBER_BITS

    @property
    def number(self) -> int:
        """Its number in its workflow."""
        return self.id & (MOST_NODES - 1)

    @property
    def has_ended(self) -> bool:
        """Whether nothing happens to it any more, but that the workflow is retried."""
        return self.state in ENDED

    @property
    def succeeded(self) -> bool:
        """Whether those after it take its end for success."""
        return self.state in SUCCESSFUL or bool(self.tolerated)


class Placed(Protocol):
    """A node as far as it must be known to say where it stands."""

    @property
    def parent(self) -> int | None:
        """Its container; the root has none."""

    @property
    def position(self) -> int:
        """Its place in that."""

    @property
    def kind(self) -> str:
        """What it is."""

    @property
    def name(self) -> str | None:
        """What others call it."""


P = TypeVar("P", bound=Placed)


def place_of(node: P, container_of: Callable[[P], P]) -> str:
    """Return where a node stands in its workflow: the names, or else positions, of its containers and its own.

    Left out are the root and what does the work of a container with two parts: nobody has written them down.
    """
    names: list[str] = []
    while node.parent is not None:
        container = container_of(node)
        if container.kind not in TWO_PART or container.kind == Kind.FALLBACK or node.position:
            names.append(node.name or str(node.position))
        node = container
    return ".".join(reversed(names))


class Decision(StrEnum):
    """What becomes of a node that waits."""

    WAIT = "wait"
    START = "start"
    SKIP = "skip"
    CANCEL = "cancel"


def note_before(node: Node, before: Node) -> None:
    """Note, in a node, that one of those before it has ended."""
    node.waiting -= 1
    node.failed_before += before.state in (NodeState.FAILED, NodeState.COMPENSATED)
    node.cancelled_before += before.state == NodeState.CANCELLED
    node.unmet += not before.succeeded


def note_child(container: Node, child: Node) -> None:
    """Note, in a container, that one of its children has ended."""
    container.unfinished -= 1
    match child.state:
        case NodeState.COMPLETED:
            container.completed += 1
        case NodeState.FAILED | NodeState.COMPENSATED:
            container.failed += 1
            container.broken += not child.tolerated
        case NodeState.CANCELLED:
            container.cancelled += 1
            container.lost += not child.tolerated


def decide(node: Node) -> Decision:
    """Say what becomes of a node that waits, from what is known of those before it."""
    if node.rule == Rule.SUCCEEDED and node.unmet:
        return Decision.CANCEL
    if node.waiting:
        return Decision.WAIT
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
    return Decision.START if holds else Decision.SKIP


def end_of(container: Node, children: list[Node]) -> NodeState:
    """Say how a container ends whose children have all ended.

    Parameters
    ----------
    children:
        Its children, by position; needed only for those in ``TWO_PART``.
    """
    match container.kind:
        case Kind.WORKFLOW:
            return NodeState(children[0].state)
        case Kind.SAGA:
            steps, undoing = children
            if steps.succeeded:
                return NodeState.COMPLETED
            return NodeState.COMPENSATED if undoing.succeeded else NodeState.FAILED
        case Kind.BATCH | Kind.FALLBACK:
            ran = [child for child in children[1:] if child.state != NodeState.SKIPPED]
            return _worst(ran or children[:1])
        case _ if container.broken:
            return NodeState.FAILED
        case _:
            return NodeState.CANCELLED if container.lost else NodeState.COMPLETED


def _worst(nodes: list[Node]) -> NodeState:
    ends = [node.state for node in nodes if not node.succeeded]
    if not ends:
        return NodeState.COMPLETED
    return NodeState.CANCELLED if all(end == NodeState.CANCELLED for end in ends) else NodeState.FAILED

"""How many nodes a transaction starts: the children of a large container start in steps.

So nobody else waits long. A container some of whose children have not started is noted in ``deferred_starts``; due work
goes on with it. So is a gate with a time limit, whose time to fail is its ``turn``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ojster.core.durations import SECOND
from ojster.core.job import NODE_BITS
from ojster.storage.transaction import Transaction
from ojster.tenancy.quotas import forget_announced
from ojster.workflows.node import Kind, Node
from ojster.workflows.stored_workflow import StoredWorkflow

MAX_STARTS: Final = 3_000
"""Maximum number of nodes that a transaction for many callers starts."""

MAX_STARTS_OF_WORKFLOW: Final = 250
"""Maximum number of nodes of one workflow that a transaction starts."""

MAX_STARTS_WITH_LARGE_PARAMS: Final = 32
"""The same if the parameters, which each job may refer to, are larger than ``SMALL_PARAMS``."""

MAPS_AT_ONCE: Final = 5
"""Maximum number of maps of one workflow that a transaction starts: each creates nodes for many elements."""

SMALL_PARAMS: Final = 4_096
"""Size of a workflow's parameters, in bytes, up to which jobs with references to them are not large."""

CONDITION_SECONDS: Final = 0.02
"""Time that conditions may take in one transaction, in seconds. Further steps with conditions wait for the next one."""


WAIT_US: Final = SECOND
"""Time after which a step is tried again whose unique key another transaction holds, in microseconds."""


def most_starts(workflow: StoredWorkflow) -> int:
    """Return how many nodes of a workflow a transaction may start."""
    return MAX_STARTS_OF_WORKFLOW if len(workflow.params) <= SMALL_PARAMS else MAX_STARTS_WITH_LARGE_PARAMS


class Starts:
    """How many nodes a transaction may still start, and what is left for later ones."""

    def __init__(self) -> None:
        self._room = MAX_STARTS
        self._rooms: dict[int, int] = {}
        """The room of each workflow, by its ``seq``."""
        self.waiting: set[int] = set()
        """Those of the containers that wait for another transaction, which holds a unique key."""
        self._maps: dict[int, int] = {}
        """Room that maps have taken that have not begun, by node id."""
        self._deferred: dict[int, int] = {}
        """The containers whose children from a position on are to be started later, by node id."""
        self.has_deferred = False
        """Whether something was left to later transactions."""

    def room_of(self, workflow: StoredWorkflow) -> int:
        """Return how many more nodes of a workflow may be started."""
        room = self._rooms.setdefault(workflow.seq, most_starts(workflow))
        return max(min(self._room, room), 0)

    def take(self, workflow: StoredWorkflow, node: Node) -> None:
        """Note that a node of a workflow starts, whose room was read before.

        A map counts as many until it has begun: so maps inside maps take no longer in one transaction than a single
        large one.
        """
        size = 1
        if node.kind == Kind.MAP:
            size = self._maps[node.id] = max(1, most_starts(workflow) // MAPS_AT_ONCE)
        self._room -= size
        self._rooms[workflow.seq] -= size

    def note_map(self, workflow: StoredWorkflow, node: Node, created: int) -> None:
        """Let a map that has begun count as the nodes that it has created, if these are fewer."""
        left = max(0, self._maps.pop(node.id, 0) - max(1, created))
        self._room += left
        self._rooms[workflow.seq] = self._rooms.get(workflow.seq, most_starts(workflow)) + left

    def defer(self, container: int, position: int, *, waits: bool = False) -> None:
        """Leave the children of a container, given by its id, from a position on to later transactions.

        ``waits``: another transaction holds what one of them needs, so that it is tried after ``WAIT_US``.
        """
        self._deferred[container] = min(position, self._deferred.get(container, position))
        if waits:
            self.waiting.add(container)

    def write(self, tx: Transaction, workflows: Mapping[int, StoredWorkflow]) -> None:
        """Note what is left for later transactions."""
        forget_announced(tx)  # as steps that wait for others, these count when they are jobs
        deferred, self._deferred = self._deferred, {}
        self.has_deferred = self.has_deferred or bool(deferred)
        waiting = {id: position for id, position in deferred.items() if id in self.waiting}
        defer_starts(tx, {id: position for id, position in deferred.items() if id not in waiting}, workflows)
        defer_starts(tx, waiting, workflows, tx.now + WAIT_US)


def defer_starts(
    tx: Transaction, positions: Mapping[int, int], workflows: Mapping[int, StoredWorkflow], due_at: int | None = None
) -> None:
    """Note that children of containers, from a position on, are to be started later.

    Parameters
    ----------
    positions:
        The positions by the node ids of the containers.
    workflows:
        Their workflows, by ``seq``. Those that are held start nothing before their release.
    due_at:
        When they are to be started; ``None``, the default: as soon as there is room.
    """
    due_at = tx.now if due_at is None else due_at
    if not positions:
        return
    tx.execute_many(
        """
        INSERT INTO deferred_starts (node, workflow, position, turn, parked)
        VALUES (?, ?, ?, ?, ?)
        ON CONFLICT (node) DO UPDATE SET
            turn = excluded.turn,
            parked = excluded.parked,
            position = CASE
                WHEN excluded.position < deferred_starts.position THEN excluded.position
                ELSE deferred_starts.position
            END
        """,
        [
            (node, node >> NODE_BITS, position, due_at, int(workflows[node >> NODE_BITS].held_at is not None))
            for node, position in positions.items()
        ],
    )
    tx.expect(due_at)


def park_starts(tx: Transaction, workflow: StoredWorkflow) -> None:
    """Start no more children of the containers of a held workflow."""
    tx.execute("UPDATE deferred_starts SET parked = 1 WHERE workflow = :seq", {"seq": workflow.seq})


def go_on_with_starts(tx: Transaction, workflow: StoredWorkflow) -> None:
    """Go on with the containers of a workflow that was held."""
    tx.execute("UPDATE deferred_starts SET parked = 0 WHERE workflow = :seq", {"seq": workflow.seq})
    tx.expect(tx.now)


def forget_deferred(tx: Transaction, nodes: Sequence[int]) -> None:
    """Forget that children of containers are to be started later."""
    if nodes:
        tx.execute(f"DELETE FROM deferred_starts WHERE node {tx.among}", (tx.integers(nodes),))

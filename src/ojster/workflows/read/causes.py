"""Why steps did not run, or were undone: what was the cause, and which steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import msgspec

from ojster.core.job import NODE_BITS
from ojster.storage.transaction import Transaction
from ojster.workflows.node import SUCCESSFUL, Node, NodeState, Rule
from ojster.workflows.read.node_view import SELECT_NODES, NodeViews, node_of

MAX_NAMED: Final = 10
"""Maximum number of steps that are named as the cause of one step."""

MAX_ROUNDS: Final = 100
"""Maximum number of steps between a cause and what followed from it: of a longer chain, one on the way is named."""

_BRANCHES: Final = {
    Rule.FAILED: "It runs only if a step before it does not succeed, and all of them did.",
    Rule.ERRORED: "It runs only if a step before it fails, and none did.",
    Rule.CANCELLED: "It runs only if a step before it is cancelled, and none was.",
}


class Cause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a step was skipped or cancelled, or why something was undone.

    Parameters
    ----------
    message:
        The cause, in words.
    steps:
        Paths of the steps that are the cause, at most ``MAX_NAMED``.
    """

    message: str
    steps: list[str] = []


def find_causes(tx: Transaction, views: NodeViews, nodes: Iterable[Node]) -> dict[int, Cause]:
    """Return the cause for each node that has one, by id.

    The nodes are in ``views``, with their containers and specifications. Nodes that are a cause are added to it.
    """
    asked = [node for node in nodes if _may_have_cause(views, node)]
    if not asked:
        return {}
    before = _unsuccessful(tx, views, [node for node in asked if _follows(node)])
    inside = _failed_inside(tx, views, [node for node in asked if node.state == NodeState.COMPENSATED])
    undone = _undone(tx, views, asked)
    views.read_containers(tx)

    def paths(causing: Sequence[Node]) -> list[str]:
        return sorted({views.path_of(views.step_of(node)) for node in causing})[:MAX_NAMED]

    causes: dict[int, Cause] = {}
    for node in asked:
        spec, rule = views.spec_of(node), Rule(node.rule)
        if node.state == NodeState.COMPENSATED:
            causes[node.id] = Cause("It was undone, because a step in it did not succeed.", paths(inside[node.id]))
        elif node.id in undone:
            did = "undid" if node.state == NodeState.COMPLETED else "undoes"
            why = "" if node.state != NodeState.SKIPPED else ", which took no effect or is undone already"
            causes[node.id] = Cause(f"It {did} another step{why}.", paths([undone[node.id]]))
        elif node.state not in (NodeState.SKIPPED, NodeState.CANCELLED):
            container = views.ended_around(node)
            assert container is not None
            causes[node.id] = Cause(f"What it is a part of was {_WORDS[container.state]}.", paths([container]))
        elif before[node.id]:
            causes[node.id] = Cause("A step before it did not succeed.", paths(before[node.id]))
        elif node.error is not None:
            causes[node.id] = Cause(_message_of(node.error))
        elif node.state == NodeState.SKIPPED:
            condition = None if spec.condition is None else f"Its condition was false: {spec.condition}"
            if (message := condition or _BRANCHES.get(rule)) is not None:
                causes[node.id] = Cause(message)
    return causes


_WORDS: Final = {
    NodeState.SKIPPED.value: "skipped",
    NodeState.CANCELLED.value: "cancelled",
    NodeState.FAILED.value: "stopped, because it had failed",
    NodeState.COMPLETED.value: "completed without it",
    NodeState.COMPENSATED.value: "undone",
}


class _Message(msgspec.Struct):
    message: str = ""


_decode: Final = msgspec.json.Decoder(_Message).decode


def _message_of(error: bytes) -> str:
    return _decode(error).message


def _may_have_cause(views: NodeViews, node: Node) -> bool:
    if node.state in (NodeState.SKIPPED, NodeState.CANCELLED, NodeState.COMPENSATED):
        return True
    return views.spec_of(node).compensates is not None if node.has_ended else views.ended_around(node) is not None


def _follows(node: Node) -> bool:
    """Return whether a node did not run because of how the steps before it ended."""
    return node.state in (NodeState.SKIPPED, NodeState.CANCELLED) and node.unmet > 0


def _unsuccessful(tx: Transaction, views: NodeViews, nodes: Sequence[Node]) -> dict[int, list[Node]]:
    """Return for each node the steps whose failure or cancellation is the reason that it did not run."""
    known: dict[int, Node] = {}
    earlier: dict[int, set[int]] = {}
    front = {node.id for node in nodes}
    for _ in range(MAX_ROUNDS):
        if not front:
            break
        sources: dict[int, set[int]] = defaultdict(set)
        for source, target in tx.execute(
            f"SELECT source, target FROM node_edges WHERE target {tx.among}", (tx.integers(sorted(front)),)
        ):
            sources[target].add(source)
        missing = set().union(*sources.values()) - known.keys()
        if missing:
            rows = tx.execute(f"{SELECT_NODES} WHERE n.id {tx.among}", (tx.integers(sorted(missing)),))
            known |= {row[0]: node_of(row) for row in rows}
        earlier |= {target: {id for id in sources[target] if not _succeeded(known[id])} for target in front}
        front = {id for target in front for id in earlier[target] if known[id].was_left_out} - earlier.keys()
    causes = {node.id: _roots(node.id, earlier, known) for node in nodes}
    views.add(list(chain.from_iterable(causes.values())))
    return defaultdict(list, causes)


def _succeeded(node: Node) -> bool:
    return node.state in SUCCESSFUL or bool(node.tolerated)


def _roots(id: int, earlier: dict[int, set[int]], known: dict[int, Node]) -> list[Node]:
    """Return the first steps that did not succeed, by way of those that were only left out because of them."""
    seen: set[int] = set()
    roots: list[Node] = []
    front = [id]
    while front and len(roots) <= MAX_NAMED:
        for source in earlier.get(front.pop(), ()):
            if source in seen:
                continue
            seen.add(source)
            if known[source].was_left_out and earlier.get(source):
                front.append(source)
            else:
                roots.append(known[source])
    return roots


def _failed_inside(tx: Transaction, views: NodeViews, sagas: Sequence[Node]) -> dict[int, list[Node]]:
    """Return the jobs in each of these containers that failed, the first ones."""
    inside: dict[int, list[Node]] = {saga.id: [] for saga in sagas}
    for saga in sagas:
        front = [saga.id]
        while front and not inside[saga.id]:
            rows = tx.execute(
                f"""
                {SELECT_NODES}
                WHERE n.parent {tx.among} AND n.state IN ('failed', 'cancelled', 'compensated') AND n.tolerated = 0
                ORDER BY n.id
                LIMIT {MAX_NAMED}
                """,
                (tx.integers(front),),
            )
            children = [node_of(row) for row in rows]
            inside[saga.id] = [node for node in children if node.kind in ("job", "gate") and not node.was_left_out]
            front = [node.id for node in children if node.kind not in ("job", "gate")]
    views.add(list(chain.from_iterable(inside.values())))
    return inside


def _undone(tx: Transaction, views: NodeViews, nodes: Sequence[Node]) -> dict[int, Node]:
    """Return for each compensation the step that it undoes."""
    numbers = {
        node.id: node.workflow << NODE_BITS | compensates
        for node in nodes
        if (compensates := views.spec_of(node).compensates) is not None
    }
    if not numbers:
        return {}
    rows = tx.execute(f"{SELECT_NODES} WHERE n.id {tx.among}", (tx.integers(sorted(set(numbers.values()))),))
    steps = {row[0]: node_of(row) for row in rows}
    views.add(list(steps.values()))
    return {id: steps[number] for id, number in numbers.items() if number in steps}

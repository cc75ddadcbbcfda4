"""What there is to undo: steps that took effect and that nothing has undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ojster.core.job import NODE_BITS
from ojster.core.outcome import SKIPPED
from ojster.storage.transaction import Transaction
from ojster.workflows.node import ENDED, LEAVES, Kind, Node, NodeState
from ojster.workflows.plan.values import Spec
from ojster.workflows.run.results import NodeOutcome


def compared_nodes(node: Node, spec: Spec) -> Iterator[int]:
    """Yield the ids of the nodes whose ends decide whether a compensation runs."""
    base = node.workflow << NODE_BITS
    if spec.compensates is not None:
        yield from (base | number for number in (spec.compensates, *spec.settled_by))


def is_left_to_undo(tx: Transaction, node: Node, spec: Spec, known: Mapping[int, NodeOutcome]) -> bool:
    """Return whether a node that undoes something has something to undo; true for all other nodes.

    Parameters
    ----------
    known:
        The outcomes of the nodes that ``compared_nodes`` yields, by id.
    """
    base = node.workflow << NODE_BITS
    if spec.compensates is None:
        return True
    if any(known[base | number].state == NodeState.COMPLETED for number in spec.settled_by):
        return False
    step = known[base | spec.compensates]
    return took_effect(tx, step) or (spec.once_started and _has_started(tx, step))


def took_effect(tx: Transaction, step: NodeOutcome) -> bool:
    """Return whether a step succeeded, be it after it was stopped: then its worker reported a result all the same.

    A job that was skipped has adopted the result of another, which is not undone here.
    """
    if step.kind not in (Kind.JOB, Kind.FALLBACK):
        return step.state == NodeState.COMPLETED
    if step.state not in ENDED:
        return False
    query = f"""
        SELECT 1
        FROM nodes AS n
        LEFT JOIN jobs AS j ON j.id = n.job_id
        WHERE n.{"parent" if step.kind == Kind.FALLBACK else "id"} = :id
            AND (n.state = 'completed' OR (n.kind = 'job' AND n.result IS NOT NULL))
            AND coalesce(j.suspension, '') <> '{SKIPPED}'
        LIMIT 1
    """
    return bool(tx.execute(query, {"id": step.id}))


def _has_started(tx: Transaction, step: NodeOutcome) -> bool:
    """Return whether a step has begun since its container began: for a job, whether a worker has had it.

    That may be a job of the step before it was retried; but not one of a run that was undone as a whole.
    """
    if step.kind not in LEAVES:
        return bool(tx.execute("SELECT 1 FROM nodes WHERE id = :id AND started_at IS NOT NULL", {"id": step.id}))
    query = """
        SELECT 1
        FROM jobs AS j
        JOIN nodes AS c ON c.id = :container
        WHERE j.node = :id AND j.started_at IS NOT NULL AND j.created_at >= c.started_at
        LIMIT 1
    """
    return bool(tx.execute(query, {"id": step.id, "container": step.parent}))

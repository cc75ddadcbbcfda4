"""Steps that must not start: those of held workflows, and those that their workflow has given up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set

from ojster.core.job import NODE_BITS, Job
from ojster.core.states import JobState
from ojster.jobs.transitions import cancel_job, free, write_states
from ojster.storage.transaction import Query, Transaction


def stop_steps(tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
    """Suspend jobs of held workflows, cancel jobs of nodes that were told to stop; return the ids of both.

    A job of a held workflow is ``pending`` until the workflow is released.
    """
    nodes = {job.node for job in jobs if job.node is not None}
    if not nodes:
        return frozenset()
    locked, verdicts = tx.execute_together([_locking(tx, {node >> NODE_BITS for node in nodes}), _stopped(tx, nodes)])
    held = {seq for seq, held_at in locked if held_at is not None}
    given_up = {id for (id,) in verdicts}
    stopped = set()
    for job in jobs:
        if job.node in given_up:
            cancel_job(tx, job, by_itself=True)
            stopped.add(job.id)
        elif job.workflow in held:
            put_off(tx, job)
            stopped.add(job.id)
    return stopped


def stopped_nodes(tx: Transaction, nodes: Collection[int]) -> Set[int]:
    """Return the ids of the nodes that were told to stop: those with a verdict."""
    return {id for (id,) in tx.execute(*_stopped(tx, nodes))}


def _stopped(tx: Transaction, nodes: Collection[int]) -> Query:
    query = f"SELECT id FROM nodes WHERE id {tx.among} AND verdict IS NOT NULL"
    return query, (tx.integers(sorted(nodes)),)


def lock_workflows(tx: Transaction, jobs: Iterable[Job]) -> dict[int, int | None]:
    """Lock the workflows of jobs until the transaction ends; return the ``held_at`` of each by its ``seq``.

    To avoid deadlocks, a caller that changes several jobs must first lock all of their workflows in one call.
    """
    seqs = {job.workflow for job in jobs if job.workflow is not None}
    return dict(tx.execute(*_locking(tx, seqs))) if seqs else {}


def _locking(tx: Transaction, seqs: Collection[int]) -> Query:
    # In the order of numbers, as `Graph.lock` does, so that transactions do not wait in a circle.
    query = f"SELECT seq, held_at FROM workflows WHERE seq {tx.among} ORDER BY seq{tx.for_update}"
    return query, (tx.integers(sorted(seqs)),)


def put_off(tx: Transaction, job: Job) -> None:
    """Make a workflow job pending until its workflow is released."""
    free(tx, [job])
    tx.move(job, JobState.PENDING.value)
    job.worker_id = None
    job.due_at = None
    write_states(tx, [job])
    tx.emit("job.pending", job, reason="held")

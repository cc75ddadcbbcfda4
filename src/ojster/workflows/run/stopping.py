"""Steps that must not start: those of held workflows, and those that their workflow has given up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set

from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.jobs.transitions import cancel_job, free, write_states
from ojster.storage.transaction import Transaction


def stop_steps(tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
    """Suspend jobs of held workflows, cancel jobs of nodes that were told to stop; return the ids of both.

    A job of a held workflow is ``pending`` until the workflow is released.
    """
    nodes = {job.node for job in jobs if job.node is not None}
    if not nodes:
        return frozenset()
    held = {seq for seq, held_at in lock_workflows(tx, jobs).items() if held_at is not None}
    given_up = stopped_nodes(tx, nodes)
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
    query = f"SELECT id FROM nodes WHERE id {tx.among} AND verdict IS NOT NULL"
    return {id for (id,) in tx.execute(query, (tx.integers(sorted(nodes)),))}


def lock_workflows(tx: Transaction, jobs: Iterable[Job]) -> dict[int, int | None]:
    """Lock the workflows of jobs until the transaction ends; return the ``held_at`` of each by its ``seq``.

    To avoid deadlocks, a caller that changes several jobs must first lock all of their workflows in one call.
    """
    seqs = {job.workflow for job in jobs if job.workflow is not None}
    if not seqs:
        return {}
    return dict(
        tx.execute(
            # In the order of numbers, as `Graph.lock` does, so that transactions do not wait in a circle.
            f"SELECT seq, held_at FROM workflows WHERE seq {tx.among} ORDER BY seq{tx.for_update}",
            (tx.integers(sorted(seqs)),),
        )
    )


def put_off(tx: Transaction, job: Job) -> None:
    """Make a workflow job pending until its workflow is released."""
    free(tx, [job])
    tx.move(job, JobState.PENDING.value)
    job.worker_id = None
    job.due_at = None
    write_states(tx, [job])
    tx.emit("job.pending", job, reason="held")

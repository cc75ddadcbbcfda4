"""Steps that must not start: those of suspended workflows, and those that their workflow has given up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set

from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.jobs.transitions import cancel_job, free, write_outcomes
from ojster.storage.transaction import Transaction
from ojster.workflows.node import NUMBER_BITS


def stop_steps(tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
    """Put off jobs of workflows that are held, cancel those that their workflow has given up; return their ids.

    A job of a held workflow is ``pending`` until the workflow is released.
    """
    nodes = {job.node for job in jobs if job.node is not None}
    if not nodes:
        return frozenset()
    held = {seq for seq, held_at in lock_workflows(tx, jobs).items() if held_at is not None}
    given_up = given_up_nodes(tx, nodes)
    stopped = set()
    for job in jobs:
        if job.node in given_up:
            cancel_job(tx, job)
            stopped.add(job.id)
        elif job.node is not None and job.node >> NUMBER_BITS in held:
            put_off(tx, job)
            stopped.add(job.id)
    return stopped


def given_up_nodes(tx: Transaction, nodes: Collection[int]) -> Set[int]:
    """Return which of these nodes were told to stop."""
    query = f"SELECT id FROM nodes WHERE id {tx.among} AND verdict IS NOT NULL"
    return {id for (id,) in tx.execute(query, (tx.integers(sorted(nodes)),))}


def lock_workflows(tx: Transaction, jobs: Iterable[Job]) -> dict[int, int | None]:
    """Let nobody else change the workflows of jobs until the transaction ends; return since when each is held.

    Whoever changes several jobs locks all of their workflows first, in one go, so that nobody waits in a circle.
    """
    seqs = {job.node >> NUMBER_BITS for job in jobs if job.node is not None}
    if not seqs:
        return {}
    return dict(
        tx.execute(
            f"SELECT seq, held_at FROM workflows WHERE seq {tx.among} ORDER BY seq{tx.for_update}",
            (tx.integers(sorted(seqs)),),
        )
    )


def put_off(tx: Transaction, job: Job) -> None:
    """Let a job of a workflow wait until the workflow is released."""
    free(tx, [job])
    tx.move(job, JobState.PENDING.value)
    job.worker_id = None
    job.due_at = None
    write_outcomes(tx, [job])
    tx.emit("job.pending", job, reason="held")

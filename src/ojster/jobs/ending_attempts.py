"""Attempts of workflow steps that have ended, but that their workers may still run.

When a step is cancelled, or exceeds its timeout, its job ends at once. Its workflow goes on only when the worker has
confirmed that the attempt has stopped, or when the lease is over: until then nothing may take the place of the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ojster.core.durations import SECOND
from ojster.core.job import Job
from ojster.core.job_table import JOB_COLUMNS
from ojster.core.states import FINISHED
from ojster.jobs.extension import hooks, lock_with
from ojster.storage.transaction import Transaction

TIMEOUT_GRACE: Final = 30 * SECOND
"""Longest wait for the confirmation of an attempt that has exceeded its timeout, in microseconds."""

MAX_OVERDUE: Final = 500
"""Maximum number of overdue confirmations processed in one transaction."""


def await_confirmation(tx: Transaction, job: Job) -> None:
    """Let the workflow of an ended job wait until the worker confirms the end, at most for the rest of the lease.

    The lease of a job with a timeout ends with it; the worker, which stops the attempt then, gets ``TIMEOUT_GRACE``.
    """
    has_lease = job.due_at is not None and job.due_at > tx.now
    until = job.due_at if has_lease else tx.now + TIMEOUT_GRACE
    tx.expect(until)
    tx.execute(
        """
        INSERT INTO ending_attempts (seq, worker_id, until)
        VALUES (:seq, :worker_id, :until)
        ON CONFLICT (seq) DO UPDATE SET worker_id = excluded.worker_id, until = excluded.until
        """,
        {"seq": job.seq, "worker_id": job.worker_id, "until": until},
    )


def confirm_ends(tx: Transaction, jobs: Iterable[Job], result: bytes | None = None) -> None:
    """Let the workflows of these locked jobs go on, if they wait for their workers' confirmation.

    ``result``: what the attempts came to if they succeeded although they were stopped, as JSON. The jobs stay
    cancelled or failed, but their effect is one that a workflow may have to undo.
    """
    ended = {job.seq: job for job in jobs if job.node is not None and job.state in FINISHED}
    if not ended:
        return
    query = f"DELETE FROM ending_attempts WHERE seq {tx.among} RETURNING seq"
    for (seq,) in tx.execute(query, (tx.integers(sorted(ended)),)):
        tx.effects.ended.append(ended[seq])
        for note in hooks(tx).succeeded_late if result is not None else ():
            note(tx, ended[seq], result)


def confirm_ends_of_worker(tx: Transaction, worker_id: str) -> None:
    """Let workflows go on that wait for the confirmation of a worker that has stopped."""
    _give_up(tx, "worker_id = :worker_id", {"worker_id": worker_id})


def confirm_overdue_ends(tx: Transaction) -> tuple[int | None, bool]:
    """Advance workflows whose stopped steps' leases expired; return the next expiry, and whether more have expired."""
    horizon = tx.lease_horizon
    condition = "until <= :ended_by ORDER BY until LIMIT :limit"
    number = _give_up(tx, condition, {"ended_by": horizon.ended_by, "limit": MAX_OVERDUE})
    ((next_due,),) = tx.execute("SELECT min(until) FROM ending_attempts")
    return None if next_due is None else horizon.next_expiry(next_due), number == MAX_OVERDUE


def _give_up(tx: Transaction, condition: str, parameters: dict[str, str | int]) -> int:
    seqs = [seq for (seq,) in tx.execute(f"SELECT seq FROM ending_attempts WHERE {condition}", parameters)]
    if seqs:
        # The jobs before their workflows, as in a report of a worker. Such a report may confirm the same end now: the
        # workflow must advance only once.
        rows = tx.execute(
            f"SELECT {JOB_COLUMNS} FROM jobs WHERE seq {tx.among} ORDER BY seq{tx.for_update}",
            (tx.integers(sorted(seqs)),),
        )
        jobs = [Job(*row) for row in rows]
        lock_with(tx, jobs)
        confirm_ends(tx, jobs)
    return len(seqs)


def forget_ends(tx: Transaction, jobs: Iterable[int]) -> None:
    """Forget that workflows wait for confirmations: the jobs, given by ``seq``, run again or are deleted."""
    tx.execute_many("DELETE FROM ending_attempts WHERE seq = ?", [(seq,) for seq in jobs])

"""What flows that have begun are spared: what limits their start, and deaths of workers before they came further."""

from __future__ import annotations

from collections.abc import Sequence, Set

from ojster.core.job import Job
from ojster.jobs.deadlines import total_deadline
from ojster.queues.limits import find_limit
from ojster.storage.transaction import Transaction
from ojster.workflows.node import Kind, body_number
from ojster.workflows.suspension import SuspensionKind


def lift_limits_of_starts(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Lift from the flows among started jobs what limits their start: they go on also if their worker dies at once.

    A limit that stays lets them wait from now on, whatever it does with those that have not started.
    """
    limited = {job.node: job for job in jobs if job.node is not None and (job.expires_at or job.limit_key)}
    if not limited:
        return
    containers = (tx.integers(sorted(node - body_number(0) for node in limited)),)
    for (id,) in tx.execute(f"SELECT id FROM nodes WHERE id {tx.among} AND kind = '{Kind.FLOW}'", containers):
        job = limited[body_number(id)]
        job.expires_at, job.suspension = total_deadline(tx, job), SuspensionKind.RESUMED
        limit = None if job.limit_key is None else find_limit(tx, job.limit_key)
        if limit is not None and limit.concurrency is None and limit.override is None:
            job.limit_key = None
        tx.execute(
            """
            UPDATE jobs
            SET expires_at = :expires_at, limit_key = :limit_key, suspension = :suspension
            WHERE seq = :seq
            """,
            {
                "expires_at": job.expires_at,
                "limit_key": job.limit_key,
                "suspension": job.suspension,
                "seq": job.seq,
            },
        )


def recorded_since_start(tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
    """Return the ids of those jobs that run flows and have recorded a local step in their present attempt."""
    # Whatever else a flow asks for, it soon waits for it, which forgets the deaths, too.
    query = f"""
        SELECT id
        FROM jobs
        WHERE seq {tx.among} AND EXISTS (
            SELECT 1 FROM flow_records WHERE flow = jobs.node AND kind = 'step' AND ended_at > jobs.started_at
        )
    """
    return {id for (id,) in tx.execute(query, (tx.integers([job.seq for job in jobs]),))}

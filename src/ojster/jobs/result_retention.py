"""The results of jobs that say themselves how long theirs is kept, and how large it may be.

A finished job keeps in ``due_at`` when its result is to be deleted, and a bit of ``flags`` says that it is the result
alone. The job itself is deleted after its retention, but not before its result.

Spec: ojs-results 6, 7
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.durations import MINUTE, SECOND
from ojster.core.job import NODE_BITS, Job
from ojster.core.job_flags import KEPT, RESULT_LIMITS, RESULT_PRUNED
from ojster.core.job_table import JOB_COLUMNS
from ojster.core.refusals import ResultTooLarge, size_details
from ojster.jobs.expiration import NEVER_EXPIRES_AT, delay_of, kept_until
from ojster.jobs.extension import hooks
from ojster.storage.transaction import Transaction

PERMANENT: Final = -1
"""The ``result_ttl`` of a result that is never deleted."""


STEP_DELAY_US: Final = 10 * MINUTE
"""Interval of looks whether the workflow of a step has ended, so that its result may be deleted, in microseconds."""


class _Limits(msgspec.Struct):
    """What a job says about its result, in its envelope: a time in seconds, and a size in bytes."""

    result_ttl: int | None = None
    result_size_limit: int | None = None


_limits: Final = msgspec.json.Decoder(_Limits).decode


def _limits_of(tx: Transaction, job: Job) -> _Limits:
    tx.load_envelopes([job])
    return _limits(job.envelope)


def refuse_size(tx: Transaction, job: Job, size: int) -> ResultTooLarge | None:
    """Return the error if a result of so many bytes is larger than its job allows."""
    if not job.flags & RESULT_LIMITS:
        return None
    most = _limits_of(tx, job).result_size_limit
    if most is None or size <= most:
        return None
    return ResultTooLarge(
        f"The result takes {size} bytes; the job's 'result_size_limit' is {most}. Store it elsewhere, and send a "
        "reference to it.",
        **size_details(most, size, "result"),
    )


def set_expiry(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Set ``due_at`` of finished jobs to the time at which they, or the results of completed ones, are deleted."""
    tx.load_envelopes(jobs)
    for job in jobs:
        times = [kept_until(tx.now, delay_of(job.envelope))] if job.flags & KEPT else []
        if job.flags & RESULT_LIMITS and job.state == "completed" and job.result is not None:
            ttl = _limits(job.envelope).result_ttl
            if ttl is not None:
                times.append(NEVER_EXPIRES_AT if ttl == PERMANENT else tx.now + ttl * SECOND)
        job.due_at = min(times, default=None)


def write_expiry(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Write when completed jobs, or their results, are deleted; a result that is not to be kept goes at once."""
    set_expiry(tx, jobs)
    tx.execute_many("UPDATE jobs SET due_at = ? WHERE seq = ?", [(job.due_at, job.seq) for job in jobs])
    if ephemeral := [job for job in jobs if job.node is None and job.due_at == tx.now and job.flags & RESULT_LIMITS]:
        _prune(tx, ephemeral)


def prune_results(tx: Transaction, room: int) -> int:
    """Delete the results whose time has come, at most ``room``; return their number.

    Those of steps are kept until their workflow and its forks have ended, because other steps may refer to them.
    """
    # Servers share the work: each prunes results of jobs that no other one has locked.
    rows = tx.execute(
        f"""
        SELECT {JOB_COLUMNS}
        FROM jobs
        WHERE state = 'completed' AND due_at <= :now AND flags & {RESULT_LIMITS} <> 0
        ORDER BY due_at
        LIMIT :room{tx.skip_locked}
        """,
        {"now": tx.now, "room": room},
    )
    jobs = [Job(*row) for row in rows]
    running = _unfinished(tx, {job.node >> NODE_BITS for job in jobs if job.node is not None})
    waiting = [job for job in jobs if job.node is not None and job.node >> NODE_BITS in running]
    tx.execute_many("UPDATE jobs SET due_at = ? WHERE seq = ?", [(tx.now + STEP_DELAY_US, job.seq) for job in waiting])
    _prune(tx, [job for job in jobs if job not in waiting])
    return len(jobs) - len(waiting)


def _unfinished(tx: Transaction, workflows: set[int]) -> set[int]:
    """Return the workflows that have not finished, or of which a fork has not, or a fork of that."""
    if not workflows:
        return set()
    rows = tx.execute(
        f"""
        SELECT DISTINCT origin
        FROM (
            WITH RECURSIVE runs (origin, id, finished_at) AS (
                SELECT seq, id, finished_at
                FROM workflows
                WHERE seq {tx.among}
                UNION ALL
                SELECT r.origin, f.id, f.finished_at
                FROM workflows AS f
                JOIN runs AS r ON f.forked_from = r.id
            )
            SELECT origin
            FROM runs
            WHERE finished_at IS NULL
        ) AS unfinished
        """,
        (tx.integers(sorted(workflows)),),
    )
    return {seq for (seq,) in rows}


def _prune(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Delete the results of jobs. From now on, ``due_at`` is the time at which the jobs themselves are deleted.

    A result that is ``null`` is known all the same: it does not count as deleted.
    """
    tx.load_envelopes(jobs)
    rows = []
    for job in jobs:
        kept = kept_until(job.finished_at or tx.now, delay_of(job.envelope)) if job.flags & KEPT else None
        pruned = 0 if job.result in (None, b"null") else RESULT_PRUNED
        rows.append((kept, job.flags & ~RESULT_LIMITS | pruned, job.seq))
    tx.execute_many("UPDATE jobs SET result = NULL, due_at = ?, flags = ? WHERE seq = ?", rows)
    for follow_up in hooks(tx).results_deleted:
        follow_up(tx, [job.seq for job in jobs])

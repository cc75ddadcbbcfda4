"""What falls due by itself? Schedules, retries, leases, time-outs, expiry, silent workers, cron jobs.

Any server may run it at any time: it is idempotent, works on bounded sets, and needs no leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.database.transaction import JOB_COLUMNS, Transaction
from ojster.engine.cron import fire_due
from ojster.engine.outcome import fail_attempt, finish, make_available
from ojster.engine.workers import reap_silent_workers
from ojster.model.envelope import Job
from ojster.model.failure import Failure
from ojster.model.states import JobState

MOST_AT_ONCE: Final = 500
"""How many jobs of a state are looked after in one transaction, which bounds how long it takes."""

_WAITING: Final = (JobState.SCHEDULED, JobState.RETRYABLE, JobState.AVAILABLE, JobState.PENDING, JobState.ACTIVE)


def upkeep(tx: Transaction, requests: Sequence[None]) -> list[int | None]:
    """Do all that is due at ``tx.now``; return when the next thing is due, at the latest ``tx.now`` if much is left."""
    for state in (JobState.SCHEDULED, JobState.RETRYABLE):
        _promote(tx, _due_jobs(tx, state))
    for state in (JobState.AVAILABLE, JobState.PENDING):
        _expire(tx, _due_jobs(tx, state))
    for job in _due_jobs(tx, JobState.ACTIVE):
        _end_overdue(tx, job)
    moments = [fire_due(tx), reap_silent_workers(tx), _next_due(tx)]
    known = [moment for moment in moments if moment is not None]
    next_due = min(known) if known else None
    return [next_due for _ in requests]


def _due_jobs(tx: Transaction, state: JobState) -> list[Job]:
    rows = tx.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE state = :state AND due_at <= :now "
        "ORDER BY due_at LIMIT :limit" + tx.for_update,
        {"state": state.value, "now": tx.now, "limit": MOST_AT_ONCE},
    )
    return [Job(*row) for row in rows]


def _promote(tx: Transaction, jobs: list[Job]) -> None:
    in_time = [job for job in jobs if job.expires_at is None or job.expires_at > tx.now]
    make_available(tx, in_time)
    _expire(tx, [job for job in jobs if job.expires_at is not None and job.expires_at <= tx.now])


def _expire(tx: Transaction, jobs: list[Job]) -> None:
    for job in jobs:
        finish(tx, job, JobState.DISCARDED)
        tx.emit("job.expired", job, expires_at=job.expires_at)


def _end_overdue(tx: Transaction, job: Job) -> None:
    """An active job that was not heard of in time: its time is up, or its worker is lost."""
    timeout = job.timeout or tx.settings.default_timeout
    if timeout is not None and job.started_at is not None and tx.now >= job.started_at + timeout:
        failure = Failure("timeout", f"The job ran longer than {timeout / 1e6:g} seconds.", code="timeout")
        fail_attempt(tx, job, failure)
    else:
        holder = f"The worker {job.worker_id}" if job.worker_id else "The worker"
        failure = Failure("visibility_timeout", f"{holder} held the job and was not heard of until its lease ended.")
        fail_attempt(tx, job, failure, immediately=True)


def _next_due(tx: Transaction) -> int | None:
    found = []
    for state in _WAITING:
        ((due_at,),) = tx.execute(
            "SELECT min(due_at) FROM jobs WHERE state = :state AND due_at IS NOT NULL", {"state": state.value}
        )
        if due_at is not None:
            found.append(due_at)
    return min(found) if found else None

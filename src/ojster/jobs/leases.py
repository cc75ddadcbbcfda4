"""Leases: who holds the lease of a job, and what happens when it expires.

Spec: ojs-worker-protocol 5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import Job
from ojster.core.job_flags import HAS_GRACE, STALLS
from ojster.core.tenant import called
from ojster.jobs.deadlines import timeout_failure, total_deadline
from ojster.jobs.extension import hooks
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Holder, LeaseReport
from ojster.jobs.queries import no_job
from ojster.jobs.transitions import Loss, fail_attempt, fail_lost_attempts
from ojster.storage.transaction import Transaction

LEASE_ERRORS: Final = frozenset(("visibility_timeout", "stalled"))
"""Types of the failures of attempts whose leases have expired."""


def refusal_of(job: Job | None, report: LeaseReport) -> OjsterError | None:
    """Return the error if a report does not come from the lease holder of an active job, else ``None``."""
    if job is None:
        return no_job(report.job_id)
    if job.state != "active":
        return Conflict(
            f"The job {job.id} is {job.state}, not active.",
            job_id=job.id,
            current_state=job.state,
            expected_state="active",
        )
    if report.attempt is not None and report.attempt != job.attempt:
        return Conflict(
            f"The job {job.id} is in attempt {job.attempt}; attempt {report.attempt} has lost its lease.",
            job_id=job.id,
            current_attempt=job.attempt,
        )
    if report.worker_id is not None and job.worker_id is not None and report.worker_id != job.worker_id:
        holder = f"The job {job.id} is leased to the worker {called(job.worker_id)}"
        if not report.worker_id:
            return Conflict(f"{holder}. Send its 'worker_id'.", job_id=job.id)
        return Conflict(f"{holder}, not to {called(report.worker_id)}.", job_id=job.id)
    return None


class AttemptReport(LeaseReport, Protocol):
    """A worker's report about one attempt, which began at ``started_at``; ``None``: whenever it did."""

    @property
    def started_at(self) -> int | None:
        """When the attempt began, in microseconds since the epoch."""


def refusal_of_attempt(job: Job | None, report: AttemptReport) -> OjsterError | None:
    """Return the error if the attempt is not the one that runs, or its worker does not hold the lease."""
    if refusal := refusal_of(job, report):
        return refusal
    if job is None or is_of_this_start(job, report):
        return None
    return Conflict(
        f"The attempt of the job {job.id} that the report is about has ended; another one has begun.", job_id=job.id
    )


def is_of_this_start(job: Job, report: AttemptReport) -> bool:
    """Return whether a report is about the attempt that began last."""
    return report.started_at in (None, job.started_at)


def check_holder(tx: Transaction, holder: Holder | None) -> None:
    """Raise the refusal if a worker does not hold the lease of a job for which it does something; lock the job.

    Nothing is checked if ``holder`` is ``None``, or names neither a worker nor an attempt.
    """
    if holder is None or (holder.worker_id is None and holder.attempt is None):
        return
    if refusal := refusal_of(tx.lock_jobs([holder.job_id]).get(holder.job_id), holder):
        raise refusal


def end_expired_attempts(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Fail the attempts of due active jobs: the job has exceeded its timeout, or its lease has expired."""
    expired: list[Job] = []
    for job in jobs:
        timeout = _longest_run(tx, job)
        deadline = total_deadline(tx, job)
        if deadline is not None and tx.now >= deadline:
            failure = timeout_failure("total", deadline - job.created_at, tx.now - job.created_at)
            fail_attempt(tx, job, failure, running=True)
        elif timeout is not None and job.started_at is not None and tx.now >= job.started_at + timeout:
            failure = timeout_failure("execution", job.timeout or timeout, tx.now - job.started_at)
            fail_attempt(tx, job, failure, running=True)
        else:
            expired.append(job)
    # A worker that has died renews no lease. Its jobs are not to blame, whichever ends first: lease or heartbeats.
    # A job that must give signs of life itself has a failure of its own for that.
    blameless = [job for job in expired if not job.flags & STALLS]
    died = {id for died in hooks(tx).died for id in died(tx, blameless)} if blameless else set()
    fail_lost_attempts(tx, [(job, death_of(job.worker_id)) for job in expired if job.id in died], Loss.WORKER)
    fail_lost_attempts(tx, [(job, _expiry_of(tx, job)) for job in expired if job.id not in died], Loss.LEASE)


def death_of(worker_id: str | None) -> Failure:
    """Return the failure of the attempts of a worker that has died."""
    return Failure("worker_death", f"The worker {called(worker_id or '')} stopped sending heartbeats.")


def _expiry_of(tx: Transaction, job: Job) -> Failure:
    if job.flags & STALLS and job.lease is not None and job.due_at is not None:
        return timeout_failure("stalled", job.lease, tx.now - (job.due_at - job.lease))
    holder = f"The worker {called(job.worker_id)}" if job.worker_id else "The worker"
    return Failure("visibility_timeout", f"{holder} did not renew the lease before it expired.")


def lease_end(tx: Transaction, job: Job, lease: int) -> int:
    """Return when the lease of an active job expires: the end of the lease or of a timeout, whichever is first."""
    end = tx.now + (job.lease or lease)
    timeout = _longest_run(tx, job)
    if timeout is not None and job.started_at is not None:
        end = min(end, job.started_at + timeout)
    if job.flags and (deadline := total_deadline(tx, job)) is not None:
        end = min(end, deadline)
    return end


class _Grace(msgspec.Struct):
    """The time to clean up in the envelope of a job, in seconds."""

    grace_period: int = 0


_grace: Final = msgspec.json.Decoder(_Grace).decode


def grace_period(job: Job) -> int:
    """Return the time that an attempt has to clean up after its timeout, in seconds; its envelope is loaded."""
    return _grace(job.envelope).grace_period


def _longest_run(tx: Transaction, job: Job) -> int | None:
    """Return how long an attempt may run, in microseconds: its timeout, and the time to clean up after it.

    Spec: ojs-timeouts 7.1
    """
    timeout = job.timeout or tx.settings.default_timeout
    if timeout is None or not job.flags & HAS_GRACE:
        return timeout
    tx.load_envelopes([job])
    return timeout + grace_period(job) * SECOND

"""What falls due by itself? Schedules, retries, leases, time-outs, expiry, silent workers, cron jobs.

Any server may run it at any time: it is idempotent, works on bounded sets, and needs no leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ojster.core.durations import MINUTE
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.tenant import called
from ojster.fleet.workers import reap_silent_workers
from ojster.jobs.extension import lock_with, settle
from ojster.jobs.failure import Failure
from ojster.jobs.transitions import fail_attempt, finish, lose_attempt, make_available
from ojster.queues.limits import open_limits
from ojster.schedules.cron import fire_due
from ojster.storage.system import find_maintenance
from ojster.storage.transaction import JOB_COLUMNS, Transaction, TryAgain
from ojster.workflows.suspensions import WAITING, end_wait
from ojster.workflows.workflows import look_after_workflows

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 500
"""How many jobs of a state are looked after in one transaction, which bounds how long it takes."""

PAUSE: Final = 100_000
"""When to look again, in microseconds, if what is due is locked by another transaction."""

_WAITING: Final = (JobState.SCHEDULED, JobState.RETRYABLE, JobState.AVAILABLE, JobState.PENDING, JobState.ACTIVE)


def upkeep(tx: Transaction, requests: Sequence[None]) -> list[int | None]:
    """Do all that is due at ``tx.now``; return when the next thing is due, at the latest ``tx.now`` if much is left."""
    more = False
    (maintenance,) = find_maintenance(tx, (None,))
    for state, act in (
        ("scheduled", _promote),
        ("retryable", _promote),
        ("available", _expire),
        ("pending", _end_waits),
        ("active", _end_overdue),
    ):
        if maintenance is None or act is not _promote:
            more = _look_after(tx, state, act) or more
    tx.tidy()
    next_workflow, more_workflows = _look_after_workflows(tx)
    more = more or more_workflows
    fired = fire_due(tx) if maintenance is None else None
    moments = [fired, reap_silent_workers(tx), open_limits(tx), _next_due(tx, maintenance is not None), next_workflow]
    next_due = min((moment for moment in moments if moment is not None), default=None)
    if next_due is not None and next_due <= tx.now and not more:
        next_due = tx.now + PAUSE  # somebody else is at what is due
    return [next_due for _ in requests]


def _look_after(tx: Transaction, state: str, act: Callable[[Transaction, list[Job]], None]) -> bool:
    """Do what is due for the jobs of a state, and tell whether there may be more.

    One job that cannot be looked after does not keep the others from it.
    """
    rows = tx.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE state = :state AND due_at <= :now "
        "ORDER BY due_at LIMIT :limit" + tx.skip_locked,
        {"state": state, "now": tx.now, "limit": MOST_AT_ONCE},
    )
    more = len(rows) == MOST_AT_ONCE
    if not rows:
        return more
    try:
        with tx.savepoint():
            jobs = [Job(*row) for row in rows]
            lock_with(tx, jobs)
            act(tx, jobs)
            settle(tx)
            return more
    except TryAgain:
        raise
    except Exception:
        log.exception("upkeep of %d %s jobs failed; they are looked after one by one", len(rows), state)
    for row in rows:
        try:
            with tx.savepoint():
                act(tx, [Job(*row)])
                settle(tx)
        except TryAgain:
            raise
        except Exception:
            log.exception("the %s job %s cannot be looked after; it is tried again in a minute", state, row[1])
            tx.execute("UPDATE jobs SET due_at = :later WHERE seq = :seq", {"later": tx.now + MINUTE, "seq": row[0]})
    return more


def _look_after_workflows(tx: Transaction) -> tuple[int | None, bool]:
    """Start and end workflows that are due; if that fails, the jobs are looked after all the same."""
    try:
        with tx.savepoint():
            return look_after_workflows(tx)
    except TryAgain:
        raise
    except Exception:
        log.exception("workflows that are due cannot be looked after; it is tried again in a minute")
        return tx.now + MINUTE, False


def _promote(tx: Transaction, jobs: list[Job]) -> None:
    in_time = [job for job in jobs if job.expires_at is None or job.expires_at > tx.now]
    make_available(tx, in_time)
    _expire(tx, [job for job in jobs if job.expires_at is not None and job.expires_at <= tx.now])


def _expire(tx: Transaction, jobs: list[Job]) -> None:
    for job in jobs:
        finish(tx, job, JobState.DISCARDED)
        tx.emit("job.expired", job, expires_at=job.expires_at)


def _end_waits(tx: Transaction, jobs: list[Job]) -> None:
    """End pending jobs whose time is up: they have expired, or nobody has resumed them."""
    for job in jobs:
        if job.hold in WAITING:
            end_wait(tx, job)
        else:
            _expire(tx, [job])


def _end_overdue(tx: Transaction, jobs: list[Job]) -> None:
    """End the attempts of active jobs that were not heard of in time: their time is up, or their worker is lost."""
    for job in jobs:
        timeout = job.timeout or tx.settings.default_timeout
        if timeout is not None and job.started_at is not None and tx.now >= job.started_at + timeout:
            failure = Failure("timeout", f"The job ran longer than {timeout / 1e6:g} seconds.", code="timeout")
            fail_attempt(tx, job, failure)
        else:
            holder = f"The worker {called(job.worker_id)}" if job.worker_id else "The worker"
            failure = Failure("visibility_timeout", f"{holder} was not heard of until its lease ended.")
            lose_attempt(tx, job, failure)


def _next_due(tx: Transaction, in_maintenance: bool) -> int | None:
    found = []
    for state in _WAITING:
        if in_maintenance and state in (JobState.SCHEDULED, JobState.RETRYABLE):
            continue  # it will be looked again when that is over
        ((due_at,),) = tx.execute(
            "SELECT min(due_at) FROM jobs WHERE state = :state AND due_at IS NOT NULL", {"state": state.value}
        )
        if due_at is not None:
            found.append(due_at)
    return min(found) if found else None

"""Maintenance task: due schedules, retries, leases, timeouts, expiry, silent workers, limits and cron jobs.

Any server may run it at any time: it is idempotent, works on bounded sets, and needs no leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from ojster.core.durations import MINUTE, SECOND
from ojster.core.job import Job
from ojster.core.job_table import JOB_COLUMNS
from ojster.core.states import JobState
from ojster.jobs.deadlines import expiry_failure
from ojster.jobs.extension import Due, hooks, lock_with, settle
from ojster.jobs.leases import end_expired_attempts
from ojster.jobs.transitions import discard, make_available
from ojster.queues.maintenance import find_maintenance
from ojster.storage.transaction import Held, Transaction, TryAgain

log = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 500
"""Maximum number of due jobs of each state processed in one transaction, which bounds its duration."""

LOCKED_RETRY_DELAY_US: Final = 100_000
"""Delay before the next run, in microseconds, if another transaction has locked all that is due."""

_WAITING: Final = (JobState.SCHEDULED, JobState.RETRYABLE, JobState.AVAILABLE, JobState.PENDING, JobState.ACTIVE)


def run_due(tx: Transaction, requests: Sequence[None]) -> list[int | None]:
    """Process everything due at ``tx.now``; return when to run again, or ``None`` if nothing will become due.

    The returned time is not after ``tx.now`` if a batch was full, which means that more may be due.
    """
    more = has_acted = False
    (maintenance,) = find_maintenance(tx, (None,))
    earliest = _earliest(tx)
    for state, act in (
        ("scheduled", _promote),
        ("retryable", _promote),
        ("available", _expire),
        ("pending", _end_waits),
        ("active", end_expired_attempts),
    ):
        if maintenance is None or act is not _promote:
            # Attempts end with their leases or timeouts, which workers may not have been able to report in time.
            until = tx.lease_horizon.ended_by if act is end_expired_attempts else tx.now
            moment = earliest[state]
            if has_acted or (moment is not None and moment <= until):  # what was done may make more due
                has_acted = True
                more = _process_due(tx, state, act, until) or more
    tx.tidy()
    moments = [_next_due(tx, _earliest(tx) if has_acted else earliest, maintenance is not None)]
    for process in hooks(tx).due:
        due = _process(tx, process, maintenance is not None)
        moments.append(due.at)
        more = more or due.has_more
    next_due = min((moment for moment in moments if moment is not None), default=None)
    if next_due is not None and next_due <= tx.now and not more:
        next_due = tx.now + LOCKED_RETRY_DELAY_US  # another transaction has locked what is due
    return [next_due for _ in requests]


def go_on(tx: Transaction, requests: Sequence[None]) -> list[Due]:
    """Go on with large work that is done in steps, by one step; return what is left.

    This is what ``run_due`` does, too, without its look at everything else.
    """
    left = [due for step in hooks(tx).go_on if (due := step(tx)).at is not None and due.at <= tx.now]
    return [Due(left[0].at if left else None, any(due.has_more for due in left)) for _ in requests]


def _process_due(tx: Transaction, state: str, act: Callable[[Transaction, list[Job]], None], until: int) -> bool:
    """Process the jobs of a state that are due at ``until`` or before; return whether more may be due.

    If processing them together fails, process them one by one, and postpone those that fail by a minute.
    """
    # No server leads: each takes what no other one has. A job that is locked is processed elsewhere, or its worker
    # reports on it; if it is still due then, the next look finds it.
    rows = tx.execute(
        f"""
        SELECT {JOB_COLUMNS}
        FROM jobs
        WHERE state = :state AND due_at <= :until
        ORDER BY due_at
        LIMIT :limit{tx.skip_locked}
        """,
        {"state": state, "until": until, "limit": MOST_AT_ONCE},
    )
    more = len(rows) == MOST_AT_ONCE
    if not rows:
        return more
    try:
        with tx.savepoint():
            jobs = [Job(*row) for row in rows]
            lock_with(tx, jobs)
            act(tx, jobs)
            _finish(tx)
            return more
    except Held as held:
        log.debug("processing %d %s jobs one by one: %s", len(rows), state, held)
    except TryAgain:
        raise
    except Exception:
        log.exception("maintenance of %d %s jobs failed; processing them one by one", len(rows), state)
    for seq, id, *_ in rows:
        try:
            with tx.savepoint():
                current = tx.execute(  # anew: what follows from those before may have changed it
                    # Locked since the first look, so this waits for nobody.
                    f"SELECT {JOB_COLUMNS} FROM jobs WHERE seq = :seq AND state = :state AND due_at <= :until"
                    + tx.for_update,
                    {"seq": seq, "state": state, "until": until},
                )
                jobs = [Job(*row) for row in current]
                lock_with(tx, jobs)
                act(tx, jobs)
                _finish(tx)
        except Held:
            tx.execute("UPDATE jobs SET due_at = :later WHERE seq = :seq", {"later": tx.now + SECOND, "seq": seq})
        except TryAgain:
            raise
        except Exception:
            log.exception("maintenance of the %s job %s failed; retrying in 60 seconds", state, id)
            tx.execute("UPDATE jobs SET due_at = :later WHERE seq = :seq", {"later": tx.now + MINUTE, "seq": seq})
    return more


def _finish(tx: Transaction) -> None:
    """Carry out all that follows, so that a held item postpones only itself."""
    settle(tx)
    for step in hooks(tx).finish:
        step(tx)


def _process(tx: Transaction, process: Callable[..., Due], in_maintenance: bool) -> Due:
    """Let a capability process what is due; if that fails, jobs and other capabilities are not affected."""
    try:
        with tx.savepoint():
            due: Due = process(tx, in_maintenance=in_maintenance)
            _finish(tx)
            return due
    except Held as held:
        log.info("due work is done in a second: %s", held)
        return Due(tx.now + SECOND)
    except TryAgain:
        raise
    except Exception:
        log.exception("due work failed; retrying it in a minute")
        return Due(tx.now + MINUTE)


def _promote(tx: Transaction, jobs: list[Job]) -> None:
    in_time = [job for job in jobs if job.expires_at is None or job.expires_at > tx.now]
    make_available(tx, in_time)
    _expire(tx, [job for job in jobs if job.expires_at is not None and job.expires_at <= tx.now])


def _expire(tx: Transaction, jobs: list[Job]) -> None:
    for job in jobs:
        ttl = ((job.expires_at or tx.now) - job.created_at) // 1000
        times = {"created_at": job.created_at, "expires_at": job.expires_at, "expired_at": tx.now}
        discard(tx, job, expiry_failure(tx, job), "job.expired", **times, ttl_ms=ttl)


def _end_waits(tx: Transaction, jobs: list[Job]) -> None:
    """End due pending jobs: expired jobs, and suspended jobs that were not resumed in time."""
    for job in jobs:
        if not any(end_wait(tx, job) for end_wait in hooks(tx).end_wait):
            _expire(tx, [job])


def _earliest(tx: Transaction) -> dict[str, int | None]:
    """Return when the first job of each state is due, all in one message."""
    query = "SELECT min(due_at) FROM jobs WHERE state = ? AND due_at IS NOT NULL"
    answers = tx.execute_together([(query, (state.value,)) for state in _WAITING])
    return {state.value: due_at for state, ((due_at,),) in zip(_WAITING, answers, strict=True)}


def _next_due(tx: Transaction, earliest: dict[str, int | None], in_maintenance: bool) -> int | None:
    moments = []
    for state in _WAITING:
        if in_maintenance and state in (JobState.SCHEDULED, JobState.RETRYABLE):
            continue  # these jobs wait until maintenance mode ends
        if (due_at := earliest[state.value]) is not None:
            moments.append(tx.lease_horizon.next_expiry(due_at) if state is JobState.ACTIVE else due_at)
    return min(moments) if moments else None

"""How does a job get from one state to another? The changes that operations are made of, whoever asked for them.

Each checks nothing, changes the job and its row, and records what happened. Jobs of workflows that have ended are noted
in ``tx.effects.ended``: whoever calls these functions lets ``ojster.engine.advance`` go on from there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from ojster.database.transaction import Transaction
from ojster.model.envelope import Job
from ojster.model.failure import Failure, append_failure, clean
from ojster.model.retry import Verdict, judge
from ojster.model.states import FINISHED, JobState

_WRITE_OUTCOME: Final = (
    "UPDATE jobs SET state = ?, attempt = ?, enqueued_at = ?, finished_at = ?, due_at = ?, retry_delay = ?, "
    "worker_id = ?, dead = ?, errors = ? WHERE seq = ?"
)


def fail_attempt(tx: Transaction, job: Job, failure: Failure, *, immediately: bool = False) -> None:
    """End an active job's attempt as failed: retry, discard or dead letter, as its policy and the handler say.

    With ``immediately`` a retry waits for no backoff, as after a lost worker.
    """
    tx.envelopes([job])
    policy = job.retry
    verdict = judge(
        policy,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        error_type=failure.type,
        code=failure.code,
        retryable=failure.retryable,
    )
    job.errors = append_failure(job.errors, failure, job.attempt, tx.now)
    tx.effects.tallies[job.queue].failed += 1
    error = {"type": clean(failure.type), "message": clean(failure.message[:1000]), "code": clean(failure.code)}
    tx.emit("job.failed", job, attempt=job.attempt, max_attempts=job.max_attempts, error=error)
    if verdict != Verdict.RETRY:
        finish(tx, job, JobState.DISCARDED, dead=verdict == Verdict.DEAD_LETTER)
        tx.emit("job.discarded", job, attempt=job.attempt, error=error, dead_letter=bool(job.dead))
        return
    if immediately:
        make_available(tx, [job])
        return
    tx.move(job, JobState.RETRYABLE.value)
    job.retry_delay = policy.delay(job.attempt, random.random())
    job.due_at = tx.now + job.retry_delay
    job.worker_id = None
    tx.expect(job.due_at)
    free_exclusive(tx, job)
    write_outcomes(tx, [job])
    tx.emit("job.retrying", job, attempt=job.attempt, delay_ms=job.retry_delay // 1000)


def make_available(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Put jobs into their queues, now."""
    moved = list(jobs)
    for job in moved:
        tx.move(job, JobState.AVAILABLE.value)
        job.enqueued_at = tx.now
        job.finished_at = None
        job.worker_id = None
        job.due_at = job.expires_at
        tx.expect(job.due_at)
        tx.effects.available[job.queue].add(job.id)
        tx.effects.tallies[job.queue].enqueued += 1
        tx.emit("job.enqueued", job, attempt=job.attempt)
    write_outcomes(tx, moved)


def cancel_job(tx: Transaction, job: Job) -> None:
    """Cancel an unfinished job. Its worker learns of it with the next heartbeat."""
    before = job.state
    finish(tx, job, JobState.CANCELLED)
    tx.emit("job.cancelled", job, previous_state=before)


def finish(tx: Transaction, job: Job, state: JobState, *, dead: bool = False) -> None:
    """Bring a job to a terminal state that is not ``completed``."""
    assert state in FINISHED
    free_exclusive(tx, job)
    tx.move(job, state.value)
    job.finished_at = tx.now
    job.due_at = None
    job.dead = int(dead)
    tx.effects.finished.append(job.id)
    write_outcomes(tx, [job])


def free_exclusive(tx: Transaction, job: Job) -> None:
    """Let those wait no longer who share the job's exclusive key."""
    if job.exclusive_key is not None:
        tx.effects.opened.add(job.queue)


def write_outcomes(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Write what an outcome changes of a job's row."""
    tx.execute_many(
        _WRITE_OUTCOME,
        [
            (
                job.state,
                job.attempt,
                job.enqueued_at,
                job.finished_at,
                job.due_at,
                job.retry_delay,
                job.worker_id,
                job.dead,
                job.errors,
                job.seq,
            )
            for job in jobs
        ],
    )

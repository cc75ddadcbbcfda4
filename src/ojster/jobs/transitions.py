"""How does a job get from one state to another? The changes that operations are made of, whoever asked for them.

Each checks nothing, changes the job and its row, and records what happened. Jobs of workflows that have ended are noted
in ``tx.effects.ended``: whoever calls these functions lets ``ojster.workflows.advance`` go on from there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence, Set
from operator import attrgetter
from typing import Final

from ojster.core.states import FINISHED, JobState
from ojster.core.timestamps import parse_timestamp
from ojster.events.reaction_rules import RetryWithDelays, delays_of, reactions_of
from ojster.jobs.envelope import Job
from ojster.jobs.expiration import BIT as EXPIRATION_BIT
from ojster.jobs.expiration import delay_of, kept_until
from ojster.jobs.failure import Failure, append_failure, clean
from ojster.jobs.retry import Verdict, judge
from ojster.queues.limits import block, free_limits, unmark
from ojster.storage.transaction import ColumnType, Transaction
from ojster.tenancy.quotas import free_tenants
from ojster.workflows.node import NUMBER_BITS

_OUTCOME: Final[dict[str, ColumnType]] = {
    "seq": "bigint",
    "state": "text",
    "attempt": "bigint",
    "enqueued_at": "bigint",
    "finished_at": "bigint",
    "due_at": "bigint",
    "retry_delay": "bigint",
    "worker_id": "text",
    "dead": "bigint",
    "errors": "bytea",
    "error_type": "text",
    "hold": "text",
}
"""What an outcome changes of a job's row, and by what the row is found."""

_VALUES: Final = attrgetter(*_OUTCOME)

LONGEST_ERROR_TYPE: Final = 500
"""How many characters of an error's type can be searched for."""


class Steered:
    """A job that was steered, and the state that it was in before."""

    __slots__ = ("before", "job")

    def __init__(self, job: Job, before: str) -> None:
        self.job = job
        self.before = before


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
    for tally in tx.tallies_of(job):
        tally.failed += 1
    job.error_type = clean(failure.type).replace("\0", "")[:LONGEST_ERROR_TYPE]
    error = {"type": clean(failure.type), "message": clean(failure.message[:1000]), "code": clean(failure.code)}
    tx.emit("job.failed", job, attempt=job.attempt, max_attempts=job.max_attempts, error=error)
    if failure.rate_limit_until is not None and job.limit_key is not None:
        block(tx, job.limit_key, parse_timestamp(failure.rate_limit_until), job.error_type)
    delayed = _delay_after_all(job) if verdict != Verdict.RETRY and job.reacts else None
    if verdict != Verdict.RETRY and delayed is None:
        finish(tx, job, JobState.DISCARDED, dead=verdict == Verdict.DEAD_LETTER)
        tx.emit("job.discarded", job, attempt=job.attempt, error=error, dead_letter=bool(job.dead))
        if job.dead:
            tx.emit("dead_letter.added", job, attempt=job.attempt, error=error)
        tx.note_event(job, "on_failure")
        return
    if immediately and delayed is None:
        make_available(tx, [job])
        return
    if stop_jobs(tx, [job]):
        return
    tx.move(job, JobState.RETRYABLE.value)
    job.retry_delay = policy.delay(job.attempt, random.random()) if delayed is None else delayed
    job.due_at = tx.now + job.retry_delay
    job.worker_id = None
    tx.expect(job.due_at)
    free(tx, [job])
    write_outcomes(tx, [job])
    tx.emit("job.retrying", job, attempt=job.attempt, delay_ms=job.retry_delay // 1000)


def _delay_after_all(job: Job) -> int | None:
    """Return when a job is tried again all of whose attempts have failed, if its reactions say so (seed 003)."""
    if job.attempt < job.max_attempts:
        return None  # the error is final
    for action in reactions_of(job.envelope).get("on_failure", ()):
        if isinstance(action, RetryWithDelays):
            delays = delays_of(action)
            used = job.attempt - job.max_attempts
            return delays[used] if used < len(delays) else None
    return None


def make_available(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Put jobs into their queues, now; jobs of workflows only if these are not held or were told to stop."""
    moved = list(jobs)
    if stopped := stop_jobs(tx, moved):
        moved = [job for job in moved if job.id not in stopped]
    free(tx, [job for job in moved if job.state == JobState.ACTIVE])
    for job in moved:
        if job.reacts and job.state == JobState.PENDING:
            tx.note_event(job, "on_unblock")
        tx.move(job, JobState.AVAILABLE.value)
        job.enqueued_at = tx.now
        job.finished_at = None
        job.worker_id = None
        job.due_at = job.expires_at
        tx.expect(job.due_at)
        tx.make_fetchable(job)
        tx.emit("job.enqueued", job, attempt=job.attempt)
    write_outcomes(tx, moved)
    unmark(tx, moved)


def stop_jobs(tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
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


def complete_job(tx: Transaction, job: Job, result: bytes | None, ran: int) -> None:
    """Complete a job that ran so long, in microseconds, and leave it to ``write_completed`` to write that."""
    tx.move(job, JobState.COMPLETED.value)
    job.finished_at = tx.now
    job.due_at = None
    job.result = result
    for tally in tx.tallies_of(job):
        tally.completed += 1
        tally.ran += ran
    tx.effects.finished.append(job.id)
    tx.emit("job.completed", job, attempt=job.attempt, duration_ms=ran // 1000)
    if job.reacts:
        tx.note_event(job, "on_success")


def write_completed(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Write that jobs are completed."""
    free(tx, jobs)
    tx.complete_jobs(jobs)
    if kept := [job for job in jobs if job.reacts & EXPIRATION_BIT]:
        note_expiration(tx, kept)
        tx.execute_many("UPDATE jobs SET due_at = ? WHERE seq = ?", [(job.due_at, job.seq) for job in kept])
    tx.effects.ended += [job for job in jobs if job.node is not None]


def note_expiration(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Note in finished jobs that say how long they are to be kept until when that is: it is when they are due."""
    tx.envelopes([job for job in jobs if job.envelope == b"{}"])
    for job in jobs:
        job.due_at = kept_until(tx.now, delay_of(job.envelope))


def cancel_job(tx: Transaction, job: Job) -> None:
    """Cancel an unfinished job. Its worker learns of it with the next heartbeat."""
    cancel_jobs(tx, [job])


def cancel_jobs(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Cancel unfinished jobs. Their workers learn of it with the next heartbeat."""
    for job in jobs:
        before = job.state
        end(tx, job, JobState.CANCELLED)
        tx.emit("job.cancelled", job, previous_state=before)
    write_outcomes(tx, jobs)


def finish(tx: Transaction, job: Job, state: JobState, *, dead: bool = False) -> None:
    """Bring a job to a terminal state that is not ``completed``."""
    end(tx, job, state, dead=dead)
    write_outcomes(tx, [job])


def end(tx: Transaction, job: Job, state: JobState, *, dead: bool = False) -> None:
    """Do as ``finish``, and leave it to the caller to write the outcome, with that of others."""
    assert state in FINISHED
    free(tx, [job])
    tx.move(job, state.value)
    job.finished_at = tx.now
    job.due_at = None
    if job.reacts & EXPIRATION_BIT:
        note_expiration(tx, [job])
    job.dead = int(dead)
    tx.effects.finished.append(job.id)
    if job.node is not None:
        tx.effects.ended.append(job)


def free(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Let those wait no longer who share something with jobs that stop: a key, a limit, a pool, a worker's GPUs."""
    for pool in tx.configuration.pools(tx).values():
        if pool.concurrency is not None and any(job.queue in pool.queues for job in jobs):
            tx.effects.opened.update(pool.queues)
    tx.effects.opened.update(job.queue for job in jobs if job.exclusive_key is not None or job.needs is not None)
    free_limits(tx, jobs)
    if tenants := {job.tenant for job in jobs if job.tenant}:
        free_tenants(tx, tenants)


def write_outcomes(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Write what an outcome changes of a job's row."""
    tx.update_rows("jobs", _OUTCOME, [_VALUES(job) for job in jobs])

"""State transitions of jobs.

Each function changes the job and its row and records an event. It does not check whether the change is allowed.
Workflow jobs that end are added to ``tx.effects.ended``: the caller must then call ``settle``.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence, Set
from enum import Enum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ojster.core.durations import MINUTE, SECOND
from ojster.core.job import Job
from ojster.core.job_flags import CANCEL_REQUESTED, KEPT, RESULT_LIMITS
from ojster.core.states import FINISHED, JobState
from ojster.jobs.deadlines import TOTAL_TIMEOUT_ERROR, total_deadline
from ojster.jobs.ending_attempts import await_confirmation
from ojster.jobs.extension import hooks
from ojster.jobs.failure import Failure, append_failure, clean
from ojster.jobs.job_json import retry_policy
from ojster.jobs.result_retention import set_expiry, write_expiry
from ojster.jobs.retry import RetryPolicy, Verdict, exhausted, judge
from ojster.jobs.topics import tell_worker
from ojster.storage.transaction import ColumnType, Transaction

_STATE_COLUMNS: Final[dict[str, ColumnType]] = {
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
    "suspension": "text",
}
"""Columns of ``jobs`` that a state change writes, with their types; ``seq`` identifies the row."""

_VALUES: Final = attrgetter(*_STATE_COLUMNS)

MAX_ERROR_TYPE_LENGTH: Final = 500
"""Maximum length of the searchable error type, in characters. Longer types are truncated."""


class ChangedJob:
    """A job that an operation changed, and its previous state."""

    __slots__ = ("before", "job")

    def __init__(self, job: Job, before: str) -> None:
        self.job = job
        self.before = before


class Loss(Enum):
    """How an attempt was lost: its lease expired, which counts as a failure, or its worker died, which does not."""

    LEASE = "lease"
    WORKER = "worker"


def fail_attempt(
    tx: Transaction, job: Job, failure: Failure, *, loss: Loss | None = None, running: bool = False
) -> None:
    """Fail the attempt of an active job: retry, discard or dead-letter it, by its retry policy and the handler's error.

    After a loss, the retry skips the backoff, unless it is not the first death of a worker. With ``running``, its
    worker may still run it: see ``end``.
    """
    tx.load_envelopes([job])
    policy = _policy_of(tx, job)
    verdict = _verdict(tx, job, failure, policy, loss)
    note_failure(tx, job, failure)
    tx.note_attempt(job, "failed", tx.now - (job.started_at or tx.now))
    error = failure.to_event(retryable=failure.retryable is not False and not policy.forbids(failure.type))
    ran = _duration(tx, job)
    tx.emit("job.failed", job, attempt=job.attempt, max_attempts=job.max_attempts, error=error, **ran)
    for follow_up in hooks(tx).failed:
        follow_up(tx, job, failure)
    delay = _delay(tx, job, failure, policy, loss, verdict)
    if delay is None:
        end_as = exhausted(policy) if verdict in (Verdict.RETRY, Verdict.EXHAUSTED) else verdict
        finish(tx, job, JobState.DISCARDED, dead=end_as == Verdict.DEAD_LETTER, running=running)
        last = {"total_attempts": job.attempt, "last_error": error, **ran}
        tx.emit("job.discarded", job, attempt=job.attempt, error=error, dead_letter=bool(job.dead), **last)
        if job.dead:
            tx.emit("dead_letter.added", job, attempt=job.attempt, error=error)
        tx.note_event(job, "on_failure")
        return
    if verdict == Verdict.RETRY and _skips_backoff(job, loss):
        make_available(tx, [job])
        return
    if stop_jobs(tx, [job]):
        return
    tx.move(job, JobState.RETRYABLE.value)
    job.retry_delay = delay
    job.due_at = tx.now + job.retry_delay
    job.worker_id = None
    tx.expect(job.due_at)
    free(tx, [job])
    write_states(tx, [job])
    tx.emit(
        "job.retrying",
        job,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        delay_ms=job.retry_delay // 1000,
        next_retry_at=job.due_at,
        error=error,
    )


def _duration(tx: Transaction, job: Job) -> dict[str, int]:
    """Return how long the attempt of a job ran, as data of an event; nothing if it never started."""
    return {} if job.started_at is None else {"duration_ms": (tx.now - job.started_at) // 1000}


def _policy_of(tx: Transaction, job: Job) -> RetryPolicy:
    """Return the retry policy of a job, completed by the settings."""
    policy = retry_policy(job)
    if policy.on_exhaustion is not None:
        return policy
    return msgspec.structs.replace(policy, on_exhaustion=tx.settings.on_exhaustion)


def _verdict(tx: Transaction, job: Job, failure: Failure, policy: RetryPolicy, loss: Loss | None) -> Verdict:
    died = loss is Loss.WORKER
    return judge(
        policy,
        attempt=job.losses if died else job.counted_attempts,
        max_attempts=tx.settings.most_losses + 1 if died else job.max_attempts,
        error_type=failure.type,
        code=failure.code,
        retryable=failure.retryable,
    )


def _delay(
    tx: Transaction, job: Job, failure: Failure, policy: RetryPolicy, loss: Loss | None, verdict: Verdict
) -> int | None:
    """Return the time until the next attempt of a failed job, in microseconds; ``None``: it gets none.

    It gets none that could not complete within the total timeout.
    """
    delay = None
    if verdict == Verdict.RETRY:
        if _skips_backoff(job, loss):
            delay = 0
        elif loss is Loss.WORKER:
            delay = _AFTER_DEATHS.delay(job.losses - 1, random.random())
        else:
            delay = max(policy.delay(job.counted_attempts, random.random()), failure.least_delay)
    elif verdict == Verdict.EXHAUSTED and job.flags and loss is not Loss.WORKER and failure.type != TOTAL_TIMEOUT_ERROR:
        delay = next((delay for ask in hooks(tx).last_retry if (delay := ask(job)) is not None), None)
    deadline = None if delay is None else total_deadline(tx, job)
    is_late = delay is not None and deadline is not None and tx.now + delay + (job.timeout or 0) > deadline
    return None if is_late else delay


def _skips_backoff(job: Job, loss: Loss | None) -> bool:
    """Whether a lost attempt is retried at once: it is, unless it is not the first death of a worker."""
    return loss is Loss.LEASE or (loss is Loss.WORKER and job.losses == 1)


_AFTER_DEATHS: Final = RetryPolicy(initial_interval=SECOND, backoff_coefficient=4.0, max_interval=5 * MINUTE)
"""The delays after the second and further deaths of workers."""


def note_failure(tx: Transaction, job: Job, failure: Failure) -> None:
    """Add a failure to the errors of a job; if it took too long, record the event that says so."""
    job.errors = append_failure(job.errors, failure, job.attempt, tx.now)
    job.error_type = clean(failure.type).replace("\0", "")[:MAX_ERROR_TYPE_LENGTH]
    if failure.facts and (kind := failure.facts.get("timeout_kind")) in _TIMEOUT_EVENTS:
        tx.emit(_TIMEOUT_EVENTS[kind], job, attempt=job.attempt, **failure.facts)


_TIMEOUT_EVENTS: Final = {
    "execution": "job.timeout",
    "total": "job.total_timeout",
    "enqueue_ttl": "job.ttl_expired",
    "stalled": "job.stalled",
}
"""Events about jobs that took too long, by ``timeout_kind``. Spec: ojs-timeouts 11"""


def discard(tx: Transaction, job: Job, failure: Failure, event: str, **more: Any) -> None:
    """Discard a job that does not run any more, for a reason that is its last error, and emit an event of it."""
    note_failure(tx, job, failure)
    finish(tx, job, JobState.DISCARDED)
    tx.emit(event, job, error=failure.to_event(retryable=False), **more)


def fail_lost_attempts(tx: Transaction, lost: Sequence[tuple[Job, Failure]], loss: Loss) -> None:
    """End the attempts of jobs whose workers are lost; what is locked with them is locked.

    If the worker has died, another job may be the cause: the attempt does not count towards ``max_attempts``, but
    deaths have a limit of their own. The job runs again at once after the first, and then after growing delays.
    Those before an attempt that has done lasting work are forgotten.
    """
    died = [job for job, _ in lost] if loss is Loss.WORKER else []
    again = [job for job in died if job.losses]
    further = {id for ask in hooks(tx).progressed for id in ask(tx, again)} if again else set()
    for job, failure in lost:
        before = job.losses if job.id in further else 0
        job.losses += (loss is Loss.WORKER) - before
        fail_attempt(tx, job, failure, loss=loss)
        job.attempt -= before
    write_losses(tx, died)
    for job, _ in lost:  # after all: what follows from one may end others of them
        for follow_up in hooks(tx).lose:
            follow_up(tx, job)


def write_losses(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Write how often the workers of jobs have died, and their attempts, which count these deaths."""
    tx.execute_many(
        "UPDATE jobs SET losses = ?, attempt = ? WHERE seq = ?", [(job.losses, job.attempt, job.seq) for job in jobs]
    )


def make_available(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Make jobs available now.

    A workflow job becomes pending instead if its workflow is held, and is cancelled if its node was told to stop.
    """
    moved = list(jobs)
    if stopped := stop_jobs(tx, moved):
        moved = [job for job in moved if job.id not in stopped]
    free(tx, [job for job in moved if job.state == JobState.ACTIVE])
    for job in moved:
        if job.flags and job.state == JobState.PENDING:
            tx.note_event(job, "on_unblock")
        tx.move(job, JobState.AVAILABLE.value)
        job.enqueued_at = tx.now
        job.finished_at = None
        job.worker_id = None
        job.due_at = job.expires_at
        tx.expect(job.due_at)
        tx.make_fetchable(job)
        tx.emit("job.enqueued", job, attempt=job.attempt)
    write_states(tx, moved)
    for follow_up in hooks(tx).enqueued:
        follow_up(tx, moved)


def stop_jobs(tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
    """Suspend or cancel those of the jobs that must not become available; return their ids."""
    given_up = [job for job in jobs if job.flags & CANCEL_REQUESTED]
    cancel_jobs(tx, given_up, by_themselves=True)
    stopped: set[str] = {job.id for job in given_up}
    for stop in hooks(tx).stop:
        stopped |= stop(tx, [job for job in jobs if job.id not in stopped])
    return stopped


def complete_job(tx: Transaction, job: Job, result: bytes | None, ran: int) -> None:
    """Complete a job that ran for ``ran`` microseconds. The caller must then call ``write_completed`` to store it."""
    tx.note_attempt(job, "completed", ran)
    tx.move(job, "completed")
    job.finished_at = tx.now
    job.due_at = None
    job.result = result
    tx.effects.finished.append(job.id)
    tx.emit("job.completed", job, attempt=job.attempt, duration_ms=ran // 1000)
    if job.flags:
        tx.note_event(job, "on_success")


def complete_plainly(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Do the same for plain jobs whose rows are written, and which have run since they were started."""
    told: list[dict[str, Any]] = []
    for job in jobs:
        ran = tx.now - (job.started_at or tx.now)
        tx.note_attempt(job, "completed", ran)
        told.append({"attempt": job.attempt, "duration_ms": ran // 1000})
        job.finished_at = tx.now
    tx.effects.finished += [job.id for job in jobs]
    tx.move_all(jobs, JobState.COMPLETED.value, "job.completed", told)
    free(tx, jobs)


def write_completed(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Write the rows of completed jobs."""
    free(tx, jobs)
    tx.complete_jobs(jobs)
    if kept := [job for job in jobs if job.flags & (KEPT | RESULT_LIMITS)]:
        write_expiry(tx, kept)
    tx.effects.ended += [job for job in jobs if job.node is not None]


_NOBODY: Final[Mapping[str, str | None]] = MappingProxyType({})


def request_cancellation(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Tell the workers of active jobs to stop them. A job that completes all the same is completed.

    Spec: ojs-bulk-operations 6.1
    """
    for job in jobs:
        job.flags |= CANCEL_REQUESTED
        if job.worker_id is not None:
            tell_worker(tx, job.worker_id)
    tx.execute_many("UPDATE jobs SET flags = ? WHERE seq = ?", [(job.flags, job.seq) for job in jobs])


def cancel_job(tx: Transaction, job: Job, *, by_itself: bool = False) -> None:
    """Cancel an unfinished job: see ``cancel_jobs``."""
    cancel_jobs(tx, [job], by_themselves=by_itself)


def cancel_jobs(
    tx: Transaction, jobs: Sequence[Job], *, by_themselves: bool = False, by: Mapping[str, str | None] = _NOBODY
) -> None:
    """Cancel unfinished jobs. Their workers are told at once, by the answers to their waiting heartbeats.

    With ``by_themselves``, the workers that run the jobs report it, so that they run no longer. ``by`` has the names of
    the callers, by job id, where they are known.
    """
    for job in jobs:
        before = job.state
        ran = _duration(tx, job) if before == JobState.ACTIVE else {}
        end(tx, job, JobState.CANCELLED, running=before == JobState.ACTIVE and not by_themselves)
        who = {} if (name := by.get(job.id)) is None else {"cancelled_by": name}
        tx.emit("job.cancelled", job, previous_state=before, **who, **ran)
    write_states(tx, jobs)


def finish(tx: Transaction, job: Job, state: JobState, *, dead: bool = False, running: bool = False) -> None:
    """Move a job to a terminal state other than ``completed``, and write its row."""
    end(tx, job, state, dead=dead, running=running)
    write_states(tx, [job])


def end(tx: Transaction, job: Job, state: JobState, *, dead: bool = False, running: bool = False) -> None:
    """Do the same as ``finish`` without writing the row: the caller writes several at once with ``write_states``.

    With ``running``, the worker may still run the attempt: a workflow waits for its confirmation before it goes on.
    """
    assert state in FINISHED
    if running and job.worker_id is not None:
        tell_worker(tx, job.worker_id)
    free(tx, [job])
    tx.move(job, state.value)
    if running and job.node is not None:
        await_confirmation(tx, job)
    job.finished_at = tx.now
    job.due_at = None
    if job.flags & KEPT:
        set_expiry(tx, [job])
    job.dead = int(dead)
    tx.effects.finished.append(job.id)
    if job.node is not None and not running:
        tx.effects.ended.append(job)


def free(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Wake the fetches that wait for what these jobs no longer use: a key, a limit, a pool, a worker's GPUs."""
    tx.effects.opened.update(job.queue for job in jobs if job.exclusive_key is not None)
    for follow_up in hooks(tx).freed:
        follow_up(tx, jobs)


def write_states(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Write the columns in ``_STATE_COLUMNS`` of jobs."""
    tx.update_rows("jobs", _STATE_COLUMNS, [_VALUES(job) for job in jobs])

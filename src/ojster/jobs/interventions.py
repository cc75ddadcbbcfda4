"""Cancel, retry, adjust and delete jobs from outside of their workers, dead letters included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Final

import msgspec

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.errors import Conflict, Forbidden, InvalidRequest, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.job_flags import CANCEL_REQUESTED, ENQUEUE_TTL, TOTAL_TIMEOUT
from ojster.core.json_objects import read_members
from ojster.core.refusals import CancellationRequested
from ojster.core.states import FINISHED, JobState
from ojster.jobs.authorship import creator_of, sign
from ojster.jobs.checkpoints import drop
from ojster.jobs.encoding import with_honest_meta
from ojster.jobs.extension import hooks, lock_with, settle
from ojster.jobs.names import WAIT_TYPE, refuse_reserved
from ojster.jobs.new_job import read_job
from ojster.jobs.options import PRIORITIES
from ojster.jobs.push import ensure_queues
from ojster.jobs.queries import no_job
from ojster.jobs.transitions import ChangedJob, cancel_jobs, make_available, request_cancellation
from ojster.storage.transaction import Transaction


class Cancellation(msgspec.Struct, frozen=True):
    """A job to cancel, and the name of the caller, if it is known. ``is_shown``: its caller gets the whole job."""

    job_id: str
    by: str | None = None
    is_shown: bool = False


def cancel(tx: Transaction, orders: Sequence[Cancellation]) -> list[ChangedJob | OjsterError]:
    """Cancel unfinished jobs; return each, or its refusal."""
    return _cancel(tx, orders, active_too=True)


def cancel_if_waiting(tx: Transaction, orders: Sequence[Cancellation]) -> list[ChangedJob | OjsterError]:
    """Cancel jobs that wait, and tell the workers of active ones to stop them; return each, or its refusal.

    Spec: ojs-bulk-operations 6.1
    """
    return _cancel(tx, orders, active_too=False)


def _cancel(tx: Transaction, orders: Sequence[Cancellation], *, active_too: bool) -> list[ChangedJob | OjsterError]:
    results: list[ChangedJob | OjsterError] = []
    ids = [order.job_id for order in orders]
    jobs = tx.lock_jobs(ids)
    before = {id: job.state for id, job in jobs.items() if job.state not in FINISHED}
    told = set() if active_too else {id for id, state in before.items() if state == JobState.ACTIVE}
    request_cancellation(tx, [jobs[id] for id in told])
    cancel_jobs(tx, [jobs[id] for id in before if id not in told], by={order.job_id: order.by for order in orders})
    for id in ids:
        job = jobs.get(id)
        if job is None:
            results.append(no_job(id))
        elif id in told:
            results.append(_told(job))
        elif id in before:
            results.append(ChangedJob(job, before.pop(id)))
        else:
            results.append(_wrong_state(job, "cancelled", "it is finished"))
    settle(tx)
    tx.load_envelopes([jobs[order.job_id] for order in orders if order.is_shown and order.job_id in jobs])
    return results


def refuse_cancellation(id: str, job: Job | None) -> OjsterError | None:
    """Return why ``cancel_if_waiting`` does not cancel a job; ``None`` if it does."""
    if job is None:
        return no_job(id)
    if job.state in FINISHED:
        return _wrong_state(job, "cancelled", "it is finished")
    return _told(job) if job.state == JobState.ACTIVE else None


def _told(job: Job) -> CancellationRequested:
    message = "Job is in active state; its worker is told to stop it."
    return CancellationRequested(message, job_id=job.id, current_state=job.state)


class Adjustment(msgspec.Struct, frozen=True):
    """A new priority of a job: its difference from the priority at its push (``by``), or the priority itself (``to``).

    Spec: ojs-priority 8.1
    """

    job_id: str
    by: int = 0
    to: int | None = None
    may_raise: Annotated[bool, SET_BY_SERVICE] = True


class Adjusted(msgspec.Struct, frozen=True):
    """A job with a new priority, and what it was before."""

    job: Job
    by: int
    previous_priority: int


def adjust(tx: Transaction, adjustments: Sequence[Adjustment]) -> list[Adjusted | OjsterError]:
    """Set the priority adjustments of unfinished jobs, in place of earlier ones; return each job, or its refusal."""
    results: list[Adjusted | OjsterError] = []
    jobs = tx.lock_jobs([adjustment.job_id for adjustment in adjustments])
    for adjustment in adjustments:
        job = jobs.get(adjustment.job_id)
        if job is None:
            results.append(no_job(adjustment.job_id))
        elif job.state in FINISHED:
            results.append(_wrong_state(job, "adjusted", "it is finished"))
        elif adjustment.to is not None and job.state not in _REORDERED:
            results.append(_wrong_state(job, "adjusted", "it does not wait in a queue"))
        else:
            try:
                results.append(_adjust(tx, job, adjustment))
            except OjsterError as refusal:
                results.append(refusal)
    return results


_REORDERED: Final = (JobState.AVAILABLE, JobState.SCHEDULED, JobState.PENDING)


def _adjust(tx: Transaction, job: Job, change: Adjustment) -> Adjusted:
    ((before,),) = tx.execute("SELECT priority_adjustment FROM jobs WHERE seq = :seq", {"seq": job.seq})
    previous, base = job.priority, job.priority - before
    wanted = base + change.by if change.to is None else change.to
    if wanted not in PRIORITIES:
        message = f"The priority would be {wanted}; it must be from {PRIORITIES[0]} to {PRIORITIES[-1]}."
        raise InvalidRequest(message, field="priority_adjustment" if change.to is None else "priority")
    if wanted > base and not change.may_raise:
        raise Forbidden("Only a caller that administers may raise the priority of a job.")
    job.priority, by = wanted, wanted - base
    tx.execute(
        "UPDATE jobs SET priority = :priority, priority_adjustment = :by WHERE seq = :seq",
        {"priority": wanted, "by": by, "seq": job.seq},
    )
    tx.load_envelopes([job])
    tx.emit("job.adjusted", job, priority=wanted, previous_priority=previous, priority_adjustment=by)
    return Adjusted(job, by, previous)


class DeadLetterRetry(msgspec.Struct, frozen=True):
    """A dead letter to run again, and the changes to make first.

    Parameters
    ----------
    args, queue:
        Replacements; ``None``: unchanged.
    meta, retry:
        Members that are merged into the metadata and the retry policy.

    Spec: ojs-dead-letter 6.4
    """

    id: str
    args: list[Any] | None = None
    queue: str | None = None
    meta: dict[str, Any] | None = None
    retry: dict[str, Any] | None = None

    @property
    def changes_something(self) -> bool:
        """Whether the job changes."""
        return self != DeadLetterRetry(self.id)


def retry_dead(tx: Transaction, revivals: Sequence[DeadLetterRetry]) -> list[Job | OjsterError]:
    """Run dead letters again as if they were new, without attempts; their errors are kept.

    Spec: ojs-core 6.3
    """
    results: list[Job | OjsterError] = []
    jobs = tx.lock_jobs([revival.id for revival in revivals])
    for revival in revivals:
        id = revival.id
        job = jobs.get(id)
        if job is None or (job.state != JobState.DISCARDED and not job.dead):
            results.append(_no_dead_letter(id, job))
            continue
        if job.type == WAIT_TYPE:
            results.append(_wrong_state(job, "retried", "it is a wait step, which has nothing to run"))
            continue
        if job.node is not None:
            results.append(_of_a_workflow(job, "retried"))
            continue
        tx.load_envelopes([job])
        try:
            if revival.changes_something:
                _revise(tx, job, revival)
        except OjsterError as refusal:
            results.append(refusal)
            continue
        _run_again(tx, job)
        results.append(job)
    return results


def _revise(tx: Transaction, job: Job, revival: DeadLetterRetry) -> None:
    """Change a job before it runs again. Its id and limits stay. Plain arguments may take the place of encoded ones.

    Raises
    ------
    InvalidRequest, InvalidPolicy, PayloadTooLarge
        The changed job is invalid, or its new queue does not take it.
    """
    members = read_members(job.envelope, "The job")
    for name in ("scheduled_at", "expires_at"):
        members.pop(name, None)
    changes: dict[str, Any] = {"queue": revival.queue or job.queue, "priority": job.priority}
    if revival.args is not None:
        changes["args"] = revival.args
    if revival.meta is not None:
        changes["meta"] = job.meta | revival.meta
    if revival.retry is not None:
        changes["retry"] = msgspec.json.decode(members.get("retry", b"{}")) | revival.retry
    members |= {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in changes.items()}
    if revival.args is not None:
        members = with_honest_meta(members)
    largest = 2 * tx.settings.largest_job
    revised = read_job(members, tx.now, largest=largest, tenant=job.tenant)
    if has_moved := revised.queue != job.queue:
        refuse_reserved(revised.queue)
        for check in hooks(tx).check_move:
            check(tx, job, revised.queue)
        tx.count(job.queue, job.tenant, job.state, -1)
        tx.count(revised.queue, job.tenant, job.state, 1)
        ensure_queues(tx, {revised.queue})
    job.queue, job.max_attempts = revised.queue, revised.max_attempts
    job.envelope = sign(revised.envelope, creator_of(job.envelope))
    job.needs, job.trace_id, job.unique_key = revised.needs, revised.trace_id, revised.unique_key
    tx.execute(
        """
        UPDATE jobs
        SET queue = :queue,
            max_attempts = :max_attempts,
            needs = :needs,
            trace_id = :trace_id,
            unique_key = :unique_key
        WHERE seq = :seq
        """,
        {
            "queue": job.queue,
            "max_attempts": job.max_attempts,
            "needs": job.needs,
            "trace_id": job.trace_id,
            "unique_key": job.unique_key,
            "seq": job.seq,
        },
    )
    tx.store_envelopes([job])
    if revival.args is not None:  # what the job has saved belongs to its old arguments
        drop(tx, job)
    for follow_up in hooks(tx).moved if has_moved else ():
        follow_up(tx, [job])


RETRIED_STATES: Final = (JobState.DISCARDED, JobState.RETRYABLE)
"""The states of jobs that ``retry`` runs again."""


def retry(tx: Transaction, ids: Sequence[str]) -> list[Job | OjsterError]:
    """Run discarded jobs again as if they were new, and retryable jobs at once."""
    return _retry(tx, ids, RETRIED_STATES)


def revive(tx: Transaction, ids: Sequence[str]) -> list[Job | OjsterError]:
    """Run discarded or cancelled jobs again as if they were new.

    Spec: ojs-admin-api 7.4
    """
    return _retry(tx, ids, (JobState.DISCARDED, JobState.CANCELLED))


def refuse_retry(id: str, job: Job | None, allowed: Collection[str] = RETRIED_STATES) -> OjsterError | None:
    """Return why a job cannot run again; ``None`` if it can."""
    if job is None:
        return no_job(id)
    if job.state not in allowed:
        return _wrong_state(job, "retried", f"only a {' or '.join(allowed)} one can be")
    if job.type == WAIT_TYPE:
        return _wrong_state(job, "retried", "it is a wait step, which has nothing to run")
    if job.node is not None and job.state != JobState.RETRYABLE:
        return _of_a_workflow(job, "retried")
    return None


def _retry(tx: Transaction, ids: Sequence[str], allowed: Collection[str]) -> list[Job | OjsterError]:
    results: list[Job | OjsterError] = []
    jobs = tx.lock_jobs(ids)
    lock_with(tx, jobs.values())
    for id in ids:
        job = jobs.get(id)
        if (refused := refuse_retry(id, job, allowed)) is not None:
            results.append(refused)
            continue
        assert job is not None
        if job.state == JobState.RETRYABLE:
            make_available(tx, [job])
        else:
            _run_again(tx, job)
        results.append(job)
    settle(tx)  # a workflow may have given up a job that waited for its retry
    return results


def _run_again(tx: Transaction, job: Job) -> None:
    """Make a finished job available as if it were new; its errors are kept.

    Spec: ojs-dead-letter 6.2
    """
    if job.dead:
        tx.emit("dead_letter.retried", job)
    job.attempt = 0
    job.losses = 0
    job.error_type = None
    job.retry_delay = None
    job.dead = 0
    job.suspension = None
    job.expires_at = None
    job.flags &= ~(ENQUEUE_TTL | TOTAL_TIMEOUT | CANCEL_REQUESTED)
    for follow_up in hooks(tx).revived:
        follow_up(tx, job)
    make_available(tx, [job])
    tx.execute(
        "UPDATE jobs SET started_at = NULL, expires_at = NULL, flags = :flags, losses = 0 WHERE seq = :seq",
        {"seq": job.seq, "flags": job.flags},
    )
    job.started_at = None


def delete(tx: Transaction, ids: Sequence[str]) -> list[Job | OjsterError]:
    """Delete finished jobs permanently."""
    return _delete(tx, ids, refuse_deletion)


def refuse_deletion(id: str, job: Job | None) -> OjsterError | None:
    """Return why a job cannot be deleted; ``None`` if it can."""
    if job is None:
        return no_job(id)
    if job.state not in FINISHED:
        return _wrong_state(job, "deleted", "it is not finished")
    return None if job.node is None else _of_a_workflow(job, "deleted")


def delete_dead(tx: Transaction, ids: Sequence[str]) -> list[Job | OjsterError]:
    """Delete discarded jobs permanently."""

    def refusal(id: str, job: Job | None) -> OjsterError | None:
        if job is None or job.state != JobState.DISCARDED:
            return _no_dead_letter(id, job)
        return refuse_deletion(id, job)

    return _delete(tx, ids, refusal)


def _delete(
    tx: Transaction, ids: Sequence[str], refusal: Callable[[str, Job | None], OjsterError | None]
) -> list[Job | OjsterError]:
    results: list[Job | OjsterError] = []
    jobs = tx.lock_jobs(ids)
    gone: list[Job] = []
    for id in ids:
        job = jobs.pop(id, None)
        if (refused := refusal(id, job)) is not None:
            results.append(refused)
            continue
        assert job is not None
        gone.append(job)
        results.append(job)
        if job.dead:
            tx.emit("dead_letter.deleted", job)
    delete_jobs(tx, [(job.seq, job.queue, job.tenant, job.state) for job in gone])
    return results


def delete_jobs(tx: Transaction, jobs: Sequence[tuple[int, str, str, str]]) -> None:
    """Delete jobs, given as ``(seq, queue, tenant, state)``, with all their data, and update the counts."""
    for _, queue, tenant, state in jobs:
        tx.count(queue, tenant, state, -1)
    seqs = [seq for seq, *_ in jobs]
    for table in ("jobs", "payloads", "checkpoints", "job_history", "job_logs"):
        tx.execute_many(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq in seqs])
    for delete_beside in hooks(tx).deleted:
        delete_beside(tx, seqs)
    # What other calls of this transaction have noted is written at its end, and nothing would delete it any more.
    gone = frozenset(seqs)
    tx.effects.history = [entry for entry in tx.effects.history if entry[0] not in gone]


def _wrong_state(job: Job, verb: str, rule: str) -> Conflict:
    return Conflict(
        f"The job {job.id} is {job.state} and cannot be {verb}: {rule}.", job_id=job.id, current_state=job.state
    )


def _of_a_workflow(job: Job, verb: str) -> Conflict:
    return Conflict(f"Job {job.id} belongs to a workflow and can only be {verb} with it.", job_id=job.id)


def _no_dead_letter(id: str, job: Job | None) -> OjsterError:
    if job is None:
        return NotFound(f"There is no dead letter {id}.", resource_type="dead_letter_job", resource_id=id)
    return Conflict(f"The job {id} is {job.state}; it is no dead letter.", job_id=id, current_state=job.state)

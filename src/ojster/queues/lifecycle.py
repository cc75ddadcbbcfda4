"""Creation and deletion of queues. A push creates its queue as well, so creation is for those that set it up first.

Spec: ojs-queue-config 5
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.errors import Conflict, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.states import UNFINISHED, JobState
from ojster.jobs.extension import hooks, lock_with, settle
from ojster.jobs.failure import Failure
from ojster.jobs.push import ensure_queues
from ojster.jobs.transitions import discard
from ojster.queues.configuration import Configuration, QueueConfig, apply, changed
from ojster.queues.limits import delete_limit, key_of_queue
from ojster.queues.queues import Queue, find_queue
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction

WAITING_STATES: Final = tuple(sorted(state.value for state in UNFINISHED - {JobState.ACTIVE}))
"""States of jobs that are discarded or moved with their queue."""


class Draining(msgspec.Struct, frozen=True):
    """Jobs of a queue that is deleted: they are moved to the queue ``target``, or discarded if that is ``None``."""

    ids: Sequence[str]
    target: str | None = None


@for_each
@returns_refusal
def create(tx: Transaction, wanted: Configuration) -> Queue | OjsterError:
    """Create queues with their configuration; return each, or the refusal, such as a `Conflict` if it exists."""
    name = wanted.queue
    if find_queue(tx, name) is not None:
        message = f"The queue {name!r} exists. Change it with PUT /queues/{name}/config."
        return Conflict(message, resource_type="queue", resource_id=name)
    changed(QueueConfig(), wanted)  # what is refused leaves no queue behind
    ensure_queues(tx, (name,))
    tx.emit_about("queue.created", name, name)
    if wanted != Configuration(name):
        apply(tx, wanted)
    queue = find_queue(tx, name)
    assert queue is not None
    return queue


@for_each
@returns_refusal
def drain(tx: Transaction, draining: Draining) -> int:
    """Discard or move those of the jobs that wait; for each, return their number, or why none of them is moved."""
    jobs = [job for job in tx.lock_jobs(draining.ids).values() if job.state in WAITING_STATES]
    if draining.target is None:
        lock_with(tx, jobs)
        _discard(tx, jobs)
    else:
        _move(tx, jobs, draining.target)
    settle(tx)
    return len(jobs)


def _discard(tx: Transaction, jobs: Sequence[Job]) -> None:
    failure = Failure("queue_deleted", "The queue of the job was deleted.", code="queue_deleted", retryable=False)
    for job in jobs:
        told = {"attempt": job.attempt, "total_attempts": job.attempt, "last_error": failure.to_event(retryable=False)}
        discard(tx, job, failure, "job.discarded", dead_letter=False, reason="queue_deleted", **told)
        tx.note_event(job, "on_failure")


def _move(tx: Transaction, jobs: Sequence[Job], target: str) -> None:
    for check in hooks(tx).check_move:
        for job in jobs:
            check(tx, job, target)
    ensure_queues(tx, (target,))
    for job in jobs:
        tx.count(job.queue, job.tenant, job.state, -1)
        if job.state == JobState.AVAILABLE:
            tx.make_taken(job)
        job.queue = target
        tx.count(job.queue, job.tenant, job.state, 1)
        if job.state == JobState.AVAILABLE:
            tx.make_fetchable(job)
    for follow_up in hooks(tx).moved:
        follow_up(tx, jobs)
    tx.execute_many("UPDATE jobs SET queue = ? WHERE seq = ?", [(target, job.seq) for job in jobs])


@for_each
def delete(tx: Transaction, name: str) -> OjsterError | None:
    """Delete empty queues with their configuration and limits; return ``None`` or the refusal for each.

    Finished jobs stay until their retention ends. A later push creates the queue again, without configuration.
    """
    # A change of the configuration, or a push to a queue with a maximum depth, takes the same lock: neither comes
    # between the count of the jobs and the deletion.
    if not tx.execute("SELECT name FROM queues WHERE name = :name" + tx.for_update, {"name": name}):
        return NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
    if left := _unfinished(tx, name):
        states = ", ".join(f"{number} {state}" for state, number in left.items())
        message = (
            f"The queue {name!r} has unfinished jobs ({states}). Let active ones end, and choose 'discard' or "
            "'move' as the 'strategy' for those that wait."
        )
        return Conflict(message, resource_type="queue", resource_id=name, jobs=left)
    tx.execute("DELETE FROM queues WHERE name = :name", {"name": name})
    delete_limit(tx, key_of_queue(name))
    tx.effects.configured = True
    tx.emit_about("queue.deleted", name, name)
    return None


def _unfinished(tx: Transaction, queue: str) -> dict[str, int]:
    counted: dict[str, int] = dict(
        tx.execute("SELECT state, jobs FROM job_counts WHERE queue = :queue", {"queue": queue})
    )
    return {state.value: counted[state.value] for state in UNFINISHED if counted.get(state.value)}

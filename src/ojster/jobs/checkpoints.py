"""Checkpoints: state that a handler saves for the next attempt of its job.

A job has at most one checkpoint. Its number is in the job's row, so jobs without a checkpoint cost nothing.

Spec: ojs-durable-execution
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.errors import Conflict, NotFound, OjsterError, PayloadTooLarge
from ojster.core.job import Job
from ojster.core.refusals import size_details
from ojster.core.states import FINISHED, JobState
from ojster.core.tenant import called
from ojster.jobs.queries import for_each_job, no_job
from ojster.storage.transaction import Transaction

MAX_CHECKPOINT_BYTES: Final = 1_048_576
"""Maximum size of a checkpoint's state, in bytes of JSON. Spec: ojs-durable-execution 9.1"""


class NewCheckpoint(msgspec.Struct, frozen=True):
    """A state to save, as JSON. Worker and attempt are checked if given."""

    job_id: str
    state: bytes
    worker_id: str | None = None
    attempt: int | None = None


class Checkpoint(msgspec.Struct, frozen=True):
    """A saved state, as JSON; ``sequence`` counts the checkpoints of the job, from 1."""

    job_id: str
    state: bytes
    sequence: int
    created_at: int


def save(tx: Transaction, items: Sequence[NewCheckpoint]) -> list[Checkpoint | OjsterError]:
    """Save states in place of earlier ones; return each checkpoint, or its refusal.

    Any unfinished job can have a checkpoint, also before it runs. A worker, if given, must hold the lease of the job.
    """
    jobs = tx.lock_jobs([item.job_id for item in items])
    results: list[Checkpoint | OjsterError] = []
    for item in items:
        job = jobs.get(item.job_id)
        if refusal := _refusal(job, item):
            results.append(refusal)
            continue
        assert job is not None
        job.checkpoint_number += 1
        tx.execute(
            """
            INSERT INTO checkpoints (seq, state, created_at)
            VALUES (:seq, :state, :now)
            ON CONFLICT (seq) DO UPDATE SET state = excluded.state, created_at = excluded.created_at
            """,
            {"seq": job.seq, "state": item.state, "now": tx.now},
        )
        _number(tx, job)
        tx.emit("job.checkpointed", job, sequence=job.checkpoint_number)
        results.append(Checkpoint(job.id, item.state, job.checkpoint_number, tx.now))
    return results


@for_each_job
def find_checkpoints(tx: Transaction, job: Job) -> Checkpoint | NotFound:
    """Return the checkpoint of each job, or ``NotFound``."""
    if not job.checkpoint_number:
        return _nothing(job.id)
    rows = tx.execute("SELECT state, created_at FROM checkpoints WHERE seq = :seq", {"seq": job.seq})
    return Checkpoint(job.id, rows[0][0], job.checkpoint_number, rows[0][1]) if rows else _nothing(job.id)


def clear(tx: Transaction, ids: Sequence[str]) -> list[bool | OjsterError]:
    """Delete the checkpoints of jobs; return whether each job had one."""
    jobs = tx.lock_jobs(ids)
    results: list[bool | OjsterError] = []
    for id in ids:
        job = jobs.get(id)
        if job is None:
            results.append(no_job(id))
            continue
        results.append(job.checkpoint_number > 0)
        drop(tx, job)
    return results


def drop(tx: Transaction, job: Job) -> None:
    """Delete the checkpoint of a job that the caller has locked, if it has one."""
    if job.checkpoint_number:
        job.checkpoint_number = 0
        tx.execute("DELETE FROM checkpoints WHERE seq = :seq", {"seq": job.seq})
        _number(tx, job)


def give_checkpoints(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Add their saved states to jobs that are handed out and have one.

    Spec: ojs-durable-execution 6.1
    """
    begun = {job.seq: job for job in jobs}
    for seq, state in tx.execute(
        f"SELECT seq, state FROM checkpoints WHERE seq {tx.among}", (tx.integers(sorted(begun)),)
    ):
        job = begun[seq]
        job.checkpoint = b'{"state":%b,"sequence":%d}' % (state, job.checkpoint_number)


def _number(tx: Transaction, job: Job) -> None:
    tx.execute(
        "UPDATE jobs SET checkpoint_number = :number WHERE seq = :seq",
        {"number": job.checkpoint_number, "seq": job.seq},
    )


def _refusal(job: Job | None, item: NewCheckpoint) -> OjsterError | None:
    if job is None:
        return no_job(item.job_id)
    if len(item.state) > MAX_CHECKPOINT_BYTES:
        return PayloadTooLarge(
            f"The state takes {len(item.state)} bytes; a checkpoint has at most {MAX_CHECKPOINT_BYTES}. "
            "Save large data elsewhere, and a reference to it here.",
            **size_details(MAX_CHECKPOINT_BYTES, len(item.state), "state"),
        )
    if job.state in FINISHED:
        return Conflict(
            f"Job {job.id} is {job.state}. Only an unfinished job can save a checkpoint.", current_state=job.state
        )
    if item.attempt is not None and item.attempt != job.attempt:
        return Conflict(
            f"The job {job.id} is in attempt {job.attempt}; attempt {item.attempt} has lost its lease.",
            current_attempt=job.attempt,
        )
    if item.worker_id is None:
        return None
    if job.state != JobState.ACTIVE or job.worker_id not in (None, item.worker_id):
        return Conflict(f"The worker {called(item.worker_id)} does not hold the job {job.id}.", current_state=job.state)
    return None


def _nothing(id: str) -> NotFound:
    return NotFound(f"The job {id} has no checkpoint.", resource_type="checkpoint", resource_id=id)

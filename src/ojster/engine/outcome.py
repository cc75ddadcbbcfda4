"""How does a job's attempt end? Acknowledged, failed, released, cancelled, or lost with its worker.

(ACK, FAIL and CANCEL: ojs-core.md sections 7.3, 7.4 and 7.6; visibility timeouts: ojs-worker-protocol.md section 5.)
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ojster.database.transaction import Transaction
from ojster.engine.advance import advance
from ojster.engine.leases import refusal_of
from ojster.engine.transitions import (
    fail_attempt,
    free,
    lock_workflows,
    make_available,
    stop_jobs,
    write_outcomes,
)
from ojster.engine.workflows import grow
from ojster.model.agents import OutputRefused, check_output, decode_state
from ojster.model.envelope import Job
from ojster.model.errors import OjsterError, PayloadTooLarge
from ojster.model.failure import Failure
from ojster.model.states import JobState
from ojster.model.timestamps import format_timestamp


class Acknowledgement(msgspec.Struct, frozen=True):
    """A worker's word that a job is done. ``result`` is JSON; worker and attempt are checked if they are given.

    ``append`` are steps, as JSON, that the job adds to its workflow.
    """

    job_id: str
    result: bytes | None = None
    worker_id: str | None = None
    attempt: int | None = None
    append: tuple[bytes, ...] = ()


class FailureReport(msgspec.Struct, frozen=True):
    """A worker's word that a job failed."""

    job_id: str
    failure: Failure
    worker_id: str | None = None
    attempt: int | None = None


class Release(msgspec.Struct, frozen=True):
    """A worker hands a job back unfinished; the attempt does not count. ``delay`` is in microseconds."""

    job_id: str
    worker_id: str | None = None
    attempt: int | None = None
    delay: int = 0


class Progress(msgspec.Struct, frozen=True):
    """How far a worker is with a job: a fraction from 0 to 1, and words for people (ojs-progress.md)."""

    job_id: str
    fraction: float
    message: str | None = None
    worker_id: str | None = None
    attempt: int | None = None


def acknowledge(tx: Transaction, acknowledgements: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
    """Complete active jobs; for each return the job, or why its acknowledgement was refused."""
    now, effects, largest = tx.now, tx.effects, tx.settings.largest_job
    jobs = tx.lock_jobs([ack.job_id for ack in acknowledgements])
    results: list[Job | OjsterError] = []
    completed: list[Job] = []
    for ack in acknowledgements:
        job = jobs.get(ack.job_id)
        if refusal := refusal_of(job, ack):
            results.append(refusal)
            continue
        assert job is not None
        if ack.result is not None and len(ack.result) > largest:
            results.append(
                PayloadTooLarge(
                    f"The result takes {len(ack.result)} bytes; at most {largest} are allowed.", limit=largest
                )
            )
            continue
        if job.agent is not None and (refused := _check_output(tx, job, ack.result)):
            results.append(refused)
            continue
        if ack.append:
            try:
                grow(tx, job, ack.append)
            except OjsterError as refusal:
                results.append(refusal)
                continue
        tx.move(job, "completed")
        job.finished_at = now
        job.due_at = None
        job.result = ack.result
        completed.append(job)
        results.append(job)
        ran = now - (job.started_at or now)
        for tally in tx.tallies_of(job):
            tally.completed += 1
            tally.ran += ran
        effects.finished.append(job.id)
        tx.emit("job.completed", job, attempt=job.attempt, duration_ms=ran // 1000)
    free(tx, completed)
    tx.complete_jobs(completed)
    effects.ended += [job for job in completed if job.node is not None]
    advance(tx)
    return results


def _check_output(tx: Transaction, job: Job, result: bytes | None) -> OutputRefused | None:
    """End an attempt as failed whose result has not the shape that was agreed on (ojs-ai-agents.md section 2.4)."""
    assert job.agent is not None
    if not decode_state(job.agent).checks_output:
        return None
    tx.envelopes([job])
    problems = check_output(job.envelope, result)
    if not problems:
        return None
    message = "The result does not have the shape that was agreed on: " + "; ".join(problems)
    lock_workflows(tx, [job])
    fail_attempt(tx, job, Failure(OutputRefused.code, message, OutputRefused.code, details={"violations": problems}))
    return OutputRefused(message, job_id=job.id, current_state=job.state, violations=problems)


def fail(tx: Transaction, reports: Sequence[FailureReport]) -> list[Job | OjsterError]:
    """End failed attempts: for each return the job, to be retried or discarded, or why the report was refused."""
    jobs = tx.lock_jobs([report.job_id for report in reports])
    lock_workflows(tx, jobs.values())
    results: list[Job | OjsterError] = []
    for report in reports:
        job = jobs.get(report.job_id)
        if refusal := refusal_of(job, report):
            results.append(refusal)
        else:
            assert job is not None
            fail_attempt(tx, job, report.failure)
            results.append(job)
    advance(tx)
    return results


def release(tx: Transaction, releases: Sequence[Release]) -> list[Job | OjsterError]:
    """Hand active jobs back without spending an attempt; for each return the job, or why it was refused."""
    jobs = tx.lock_jobs([item.job_id for item in releases])
    lock_workflows(tx, jobs.values())
    results: list[Job | OjsterError] = []
    for item in releases:
        job = jobs.get(item.job_id)
        if refusal := refusal_of(job, item):
            results.append(refusal)
            continue
        assert job is not None
        job.attempt -= 1
        if item.delay > 0 and stop_jobs(tx, [job]):
            pass
        elif item.delay > 0:
            tx.move(job, JobState.SCHEDULED.value)
            job.worker_id = None
            job.due_at = tx.now + item.delay
            tx.expect(job.due_at)
            free(tx, [job])
            write_outcomes(tx, [job])
            tx.emit("job.scheduled", job, scheduled_at=job.due_at, reason="released")
        else:
            make_available(tx, [job])
        results.append(job)
    advance(tx)
    return results


def report(tx: Transaction, items: Sequence[Progress]) -> list[Job | OjsterError]:
    """Note how far active jobs are; for each return the job, or why the report was refused."""
    jobs = tx.lock_jobs([item.job_id for item in items])
    results: list[Job | OjsterError] = []
    rows = []
    for item in items:
        job = jobs.get(item.job_id)
        if refusal := refusal_of(job, item):
            results.append(refusal)
            continue
        assert job is not None
        shown = {"progress": item.fraction, "message": item.message, "updated_at": format_timestamp(tx.now)}
        job.progress = msgspec.json.encode(shown)
        rows.append((job.progress, job.seq))
        tx.emit("job.progress", job, progress=item.fraction, message=item.message)
        results.append(job)
    tx.execute_many("UPDATE jobs SET progress = ? WHERE seq = ?", rows)
    return results

"""How does a job's attempt end? Acknowledged, failed, released, cancelled, or lost with its worker.

(ACK, FAIL and CANCEL: ojs-core.md sections 7.3, 7.4 and 7.6; visibility timeouts: ojs-worker-protocol.md section 5.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from ojster.agents.attributes import OutputRefused, check_output, decode_state
from ojster.collections.contents import put
from ojster.collections.items import NewItem, key_of_job
from ojster.core.errors import OjsterError, PayloadTooLarge
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp
from ojster.events.reaction_rules import COLLECTS, Collect, reactions_of
from ojster.files.file import RESULT, reference_to
from ojster.jobs.envelope import Job
from ojster.jobs.failure import Failure
from ojster.jobs.leases import refusal_of
from ojster.jobs.transitions import (
    complete_job,
    fail_attempt,
    free,
    lock_workflows,
    make_available,
    stop_jobs,
    write_completed,
    write_outcomes,
)
from ojster.storage.transaction import Transaction
from ojster.workflows.advance import advance
from ojster.workflows.node import NUMBER_BITS
from ojster.workflows.properties import refusal_of_changes
from ojster.workflows.property_values import Changes
from ojster.workflows.retry import rerun
from ojster.workflows.suspensions import put_on_hold
from ojster.workflows.workflows import grow, skip_rest


class Acknowledgement(msgspec.Struct, frozen=True):
    """A worker's word that a job is done. ``result`` is JSON; worker and attempt are checked if they are given.

    ``append`` are steps, as JSON, that the job adds to its workflow; ``changes`` those of its properties.
    ``result_file`` is the file of a result that is too large to be said.
    """

    job_id: str
    result: bytes | None = None
    worker_id: str | None = None
    attempt: int | None = None
    append: tuple[bytes, ...] = ()
    changes: Changes | None = None
    result_file: str | None = None


class FailureReport(msgspec.Struct, frozen=True):
    """A worker's word that a job failed."""

    job_id: str
    failure: Failure
    worker_id: str | None = None
    attempt: int | None = None
    changes: Changes | None = None


Then = Literal["queue", "wait", "retry", "skip"]
"""What is to become of a job that is released."""


class Release(msgspec.Struct, frozen=True):
    """A worker lets go of a job that has neither succeeded nor failed.

    Parameters
    ----------
    then:
        ``queue``: it runs again, and the attempt does not count. ``wait``: it waits until somebody resumes it.
        ``retry``: its workflow is run again, as a new one. ``skip``: it is done, and with it the whole workflow; what
        has not started is skipped.
    delay, not_before:
        Of ``queue``: how long not to run it, in microseconds, or before when not.
    again:
        Of ``wait``: whether it runs again when it is resumed; else it is done then.
    deadline, wait:
        Of ``wait``: when the attempt fails if nobody has resumed it, or after how many microseconds.
    result:
        Of ``skip``: its result, as JSON.
    changes:
        Changes of the properties of its workflow.
    """

    job_id: str
    worker_id: str | None = None
    attempt: int | None = None
    delay: int = 0
    then: Then = "queue"
    not_before: int | None = None
    again: bool = False
    deadline: int | None = None
    wait: int | None = None
    result: bytes | None = None
    changes: Changes | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far a worker is with a job: a fraction from 0 to 1, and words for people (ojs-progress.md)."""

    job_id: str
    fraction: float
    message: str | None = None
    worker_id: str | None = None
    attempt: int | None = None


def acknowledge(tx: Transaction, acknowledgements: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
    """Complete active jobs; for each return the job, or why its acknowledgement was refused."""
    now, largest = tx.now, tx.settings.largest_job
    jobs = tx.lock_jobs([ack.job_id for ack in acknowledgements])
    results: list[Job | OjsterError] = []
    completed: list[Job] = []
    for ack in acknowledgements:
        job = jobs.get(ack.job_id)
        if refusal := refusal_of(job, ack):
            results.append(refusal)
            continue
        assert job is not None
        if refusal := _too_large(ack.result, largest):
            results.append(refusal)
            continue
        if job.agent is not None and ack.result_file is None and (refused := _check_output(tx, job, ack.result)):
            results.append(refused)
            continue
        result = ack.result
        if ack.changes is not None or ack.append or ack.result_file is not None:
            try:
                with tx.savepoint():
                    _change_workflow(tx, job, ack)
                    result = _keep_result(tx, job, ack)
            except OjsterError as refused:
                results.append(refused)
                continue
        complete_job(tx, job, result, now - (job.started_at or now))
        completed.append(job)
        results.append(job)
    write_completed(tx, completed)
    advance(tx)
    return results


def _keep_result(tx: Transaction, job: Job, ack: Acknowledgement) -> bytes | None:
    """Return the result of a job; of one that is a file, what refers to that (ojs-workflows.md section 7.5)."""
    if ack.result_file is None:
        return ack.result
    if refusal := _must_be_at_hand(tx, job):
        raise refusal
    item = put(tx, key_of_job(job.seq), job.tenant, NewItem(RESULT, b"null", None, True, ack.result_file), job=job)
    assert item.file is not None
    return reference_to(item.file)


def _must_be_at_hand(tx: Transaction, job: Job) -> PayloadTooLarge | None:
    """Return why the result of a job may not be a file, if something looks into it."""
    tx.envelopes([job])
    if not _is_looked_into(tx, job):
        return None
    largest = tx.settings.largest_job
    message = f"Something looks into the result of the job, so it cannot be a file, and has at most {largest} bytes."
    return PayloadTooLarge(message, limit=largest)


def may_be_files(tx: Transaction, ids: Sequence[str]) -> list[bool]:
    """Return whether the results of jobs may be files: not where steps look into the results of others."""
    jobs = tx.find_jobs(ids)
    return [id in jobs and not _is_looked_into(tx, jobs[id]) for id in ids]


_LOOKS_INTO_RESULTS: Final = re.compile(rb'"(names|condition|over)":')
"""Stands in what is noted of a node that refers to other steps, decides by them, or is made of a list of theirs."""


def _is_looked_into(tx: Transaction, job: Job) -> bool:
    """Whether something that happens in a transaction looks into the result of a job, so that it must be at hand."""
    if job.agent is not None or b"job.result" in job.envelope or _is_collected(job):
        return True
    if job.node is None:
        return False
    low = job.node >> NUMBER_BITS << NUMBER_BITS
    specs = tx.execute(
        "SELECT spec FROM node_specs WHERE id BETWEEN :low AND :high",
        {"low": low, "high": low + (1 << NUMBER_BITS) - 1},
    )
    return any(_LOOKS_INTO_RESULTS.search(spec) for (spec,) in specs)


def _is_collected(job: Job) -> bool:
    """Whether the result of a job is put into a collection."""
    return bool(job.reacts & COLLECTS) and any(
        isinstance(action, Collect) and action.data is msgspec.UNSET and action.artifacts is None
        for action in reactions_of(job.envelope).get("on_success", ())
    )


def _change_workflow(tx: Transaction, job: Job, ack: Acknowledgement) -> None:
    """Change the properties of the workflow of a job, and add steps to it: both, or neither."""
    if ack.changes is None and not ack.append:
        return
    lock_workflows(tx, [job])
    if refusal := refusal_of_changes(tx, job, ack.changes):
        raise refusal
    if ack.append:
        grow(tx, job, ack.append)


def _too_large(result: bytes | None, largest: int) -> PayloadTooLarge | None:
    if result is None or len(result) <= largest:
        return None
    return PayloadTooLarge(f"The result takes {len(result)} bytes; at most {largest} are allowed.", limit=largest)


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
            continue
        assert job is not None
        if refusal := refusal_of_changes(tx, job, report.changes):
            results.append(refusal)
            continue
        fail_attempt(tx, job, report.failure)
        results.append(job)
    advance(tx)
    return results


def release(tx: Transaction, releases: Sequence[Release]) -> list[Job | OjsterError]:
    """Let go of active jobs that have neither succeeded nor failed; for each return it, or why it was refused."""
    jobs = tx.lock_jobs([item.job_id for item in releases])
    lock_workflows(tx, jobs.values())
    results: list[Job | OjsterError] = []
    for place, item in enumerate(releases):
        job = jobs.get(item.job_id)
        if refusal := refusal_of(job, item):
            results.append(refusal)
            continue
        assert job is not None
        if refusal := (_too_large(item.result, tx.settings.largest_job) or refusal_of_changes(tx, job, item.changes)):
            results.append(refusal)
            continue
        match item.then:
            case "queue":
                _queue(tx, job, item)
            case "wait":
                deadline = item.deadline if item.wait is None else tx.now + item.wait
                put_on_hold(tx, job, again=item.again, deadline=deadline)
            case "retry":
                rerun(tx, job)
            case "skip":
                skip_rest(tx, job)
                complete_job(tx, job, item.result, tx.now - (job.started_at or tx.now))
                write_completed(tx, [job])
        if item.then in ("retry", "skip"):  # which may have ended those that are still to come
            jobs |= tx.lock_jobs([later.job_id for later in releases[place + 1 :]])
        results.append(job)
    advance(tx)
    return results


def _queue(tx: Transaction, job: Job, item: Release) -> None:
    """Put a job back into its queue, now or later."""
    job.attempt -= 1
    due_at = tx.now + item.delay if item.not_before is None else item.not_before
    if due_at <= tx.now:
        make_available(tx, [job])
    elif not stop_jobs(tx, [job]):
        tx.move(job, JobState.SCHEDULED.value)
        job.worker_id = None
        job.due_at = due_at
        tx.expect(due_at)
        free(tx, [job])
        write_outcomes(tx, [job])
        tx.emit("job.scheduled", job, scheduled_at=due_at, reason="released")


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

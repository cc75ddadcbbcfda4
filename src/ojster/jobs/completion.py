"""The end of a job's attempt: acknowledged, failed or released; and its progress.

Spec: ojs-core 7.3, 7.4 and 7.6; ojs-worker-protocol 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.durations import SECOND
from ojster.core.errors import InvalidPayload, OjsterError, Unsupported
from ojster.core.job import Job
from ojster.core.json_objects import check_depth
from ojster.core.refusals import ResultTooLarge, size_details
from ojster.core.states import JobState
from ojster.jobs.ending_attempts import confirm_ends
from ojster.jobs.extension import hooks, lock_with, settle
from ojster.jobs.failure import Failure
from ojster.jobs.leases import is_of_this_start, refusal_of_attempt
from ojster.jobs.messages import Acknowledgement, EndOfAttempt, EndWithoutSuccess, FailureReport, Release
from ojster.jobs.progress import complete_progress
from ojster.jobs.result_retention import refuse_size
from ojster.jobs.transitions import (
    complete_job,
    complete_plainly,
    fail_attempt,
    free,
    make_available,
    stop_jobs,
    write_completed,
    write_states,
)
from ojster.storage.transaction import PlainEnd, Row, Transaction

UNKNOWN_TYPE: Final = "UnknownJobType"
"""The error type by which a worker says that it has no handler for a job."""

UNKNOWN_TYPE_DELAY: Final = 5 * SECOND
"""Delay after which a job is handed out again that a worker had no handler for, in microseconds."""


def acknowledge(tx: Transaction, acknowledgements: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
    """Complete active jobs; return each job, or the reason why its acknowledgement was refused."""
    plain = _complete_plainly(tx, acknowledgements)
    others = [ack for place, ack in enumerate(acknowledgements) if place not in plain]
    if plain and not others:
        settle(tx)
        return list(plain.values())
    answers = iter(_acknowledge_any(tx, others))
    return [plain[place] if place in plain else next(answers) for place in range(len(acknowledgements))]


def _complete_plainly(tx: Transaction, acks: Sequence[Acknowledgement]) -> dict[int, Job]:
    """Complete plain jobs with reports about the attempt that runs, at once; return them by place.

    If a single report is about another kind of job, nothing is done: the jobs of a call are locked in one order, and
    two calls that report several of the same jobs must not lock them in different ones. Neither is it if two reports
    are about the same job: the first decides. What this does to a job, and what it leaves to be refused, is specified
    by ``_acknowledge_any``.
    """
    largest = tx.settings.largest_job
    if len({ack.job_id for ack in acks}) < len(acks):
        return {}
    ends: dict[str, PlainEnd] = {}
    for ack in acks:
        if ack.seq is None or ack.worker_id is None or ack.attempt is None or ack.started_at is None:
            return {}
        if ack.append or ack.changes is not None or ack.result_file is not None:
            return {}
        if _refuse_value(ack.result, largest) is None:
            ends[ack.job_id] = (ack.seq, ack.attempt, ack.started_at, ack.worker_id, ack.result)
    written = {row[0]: row for row in tx.complete_plain_jobs([ends[job_id] for job_id in sorted(ends)])}
    plain = {place: _ended(ack, written[ack.seq]) for place, ack in enumerate(acks) if ack.seq in written}
    complete_plainly(tx, list(plain.values()))  # in the order of the reports, as are their events
    return plain


def _ended(ack: Acknowledgement, row: Row) -> Job:
    """Return a plain job that an acknowledgement has completed, as far as its end must know it; still active."""
    seq, type, queue, tenant, enqueued_at, exclusive_key, limit_key, needs, trace_id = row
    job = Job(seq, ack.job_id, type, queue, "active", 0, ack.attempt or 0, 0, 0, enqueued_at, ack.started_at)
    job.worker_id, job.result, job.tenant = ack.worker_id, ack.result, tenant
    job.exclusive_key, job.limit_key, job.needs, job.trace_id = exclusive_key, limit_key, needs, trace_id
    return job


def _acknowledge_any(tx: Transaction, acknowledgements: Sequence[Acknowledgement]) -> list[Job | OjsterError]:
    """Do the same with a look at each job first, whatever it is."""
    now, largest = tx.now, tx.settings.largest_job
    jobs = _lock_reported(tx, acknowledgements)
    results: list[Job | OjsterError] = []
    completed: list[Job] = []
    written = 0
    checks = hooks(tx).refuse_result
    for ack in acknowledgements:
        job = jobs.get(ack.job_id)
        refusal = refusal_of_attempt(job, ack)
        if job is not None and refusal is None:
            refusal = _refuse_value(ack.result, largest)
            if job.flags and ack.result is not None:
                refusal = refusal or refuse_size(tx, job, len(ack.result))
            for check in checks:
                refusal = refusal or check(tx, job, ack)
        if job is None or refusal is not None:
            assert refusal is not None
            _hear(tx, job, ack)
            results.append(refusal)
            continue
        result = ack.result
        if ack.append or ack.changes is not None or ack.result_file is not None:
            if ack.append:  # a new step may replace these jobs, or this one
                write_completed(tx, completed[written:])
                written = len(completed)
            try:
                with tx.savepoint():
                    result = _carry_out(tx, job, ack)
            except OjsterError as refused:
                results.append(refused)
                continue
            if ack.append:
                jobs |= tx.lock_jobs([later.job_id for later in acknowledgements[len(results) :]])
                job = jobs[ack.job_id]
                if (refusal := refusal_of_attempt(job, ack)) is not None:
                    results.append(refusal)
                    continue
        complete_job(tx, job, result, now - (job.started_at or now))
        completed.append(job)
        results.append(job)
    if reporting := [job for job in completed if job.progress is not None]:
        complete_progress(tx, reporting)
    write_completed(tx, completed[written:])
    settle(tx)
    return results


def _lock_reported(tx: Transaction, acks: Sequence[Acknowledgement]) -> dict[str, Job]:
    """Lock reported jobs, and read what their completion must know of their steps, unless it changes these first."""
    ids, nodes = [ack.job_id for ack in acks], [ack.node for ack in acks if ack.node is not None]
    if any(ack.append or ack.changes is not None or ack.result_file is not None for ack in acks):
        for lock_limits in hooks(tx).before_growth:
            lock_limits(tx, [ack.job_id for ack in acks if ack.append])
        jobs = tx.lock_jobs(ids)
        lock_with(tx, jobs.values())  # else each report would lock its workflow when its turn comes
        return jobs
    if not nodes:
        return tx.lock_jobs(ids)
    ahead = [foresight for foresee in hooks(tx).foresee if (foresight := foresee(tx, nodes)) is not None]
    jobs, rows = tx.lock_jobs_and_read(ids, [query for foresight in ahead for query in foresight.queries])
    for foresight in ahead:
        foresight.keep(rows[: len(foresight.queries)])
        rows = rows[len(foresight.queries) :]
    return jobs


def _carry_out(tx: Transaction, job: Job, ack: Acknowledgement) -> bytes | None:
    """Carry out what an acknowledgement says beside its result; return the result to store."""
    for act in hooks(tx).acknowledge:
        act(tx, job, ack)
    stored = (keep(tx, job, ack) for keep in hooks(tx).result_of)
    result = next((result for result in stored if result is not None), ack.result)
    if ack.result_file is not None and result is not None and job.flags:
        size = msgspec.json.decode(result, type=_OfFile).result_size_bytes
        if (refusal := refuse_size(tx, job, size)) is not None:
            raise refusal
    return result


class _OfFile(msgspec.Struct):
    """What a result says that is in a file."""

    result_size_bytes: int = 0


def _hear(tx: Transaction, job: Job | None, report: EndOfAttempt) -> None:
    """Take a report that comes too late as the confirmation that the attempt has stopped, or even succeeded."""
    if job is None or job.node is None or report.attempt not in (None, job.attempt):
        return
    if is_of_this_start(job, report) and report.worker_id in (None, job.worker_id):
        confirm_ends(tx, [job], _late_result(tx, report))


def _late_result(tx: Transaction, report: EndOfAttempt) -> bytes | None:
    """Return the result in a report of success; ``None``: it reports no success."""
    if isinstance(report, Acknowledgement) or (isinstance(report, Release) and report.then == "skip"):
        is_kept = report.result is not None and len(report.result) <= tx.settings.largest_job
        return report.result if is_kept else b"null"
    return None


def _refuse_end(tx: Transaction, job: Job, report: EndWithoutSuccess) -> OjsterError | None:
    return next((refusal for refuse in hooks(tx).refuse_end if (refusal := refuse(tx, job, report))), None)


def _refuse_value(result: bytes | None, largest: int) -> OjsterError | None:
    """Return the error if a result is too large, or nested so deeply that answers could not carry it."""
    if result is None:
        return None
    if len(result) > largest:
        message = f"The result takes {len(result)} bytes; at most {largest} are allowed."
        return ResultTooLarge(message, **size_details(largest, len(result), "result"))
    try:
        check_depth(result, "The result")
    except InvalidPayload as refusal:
        return refusal
    return None


def fail(tx: Transaction, reports: Sequence[FailureReport]) -> list[Job | OjsterError]:
    """Fail attempts; return each job, to be retried or discarded, or the reason why its report was refused."""
    jobs = tx.lock_jobs([report.job_id for report in reports])
    lock_with(tx, jobs.values())
    results: list[Job | OjsterError] = []
    for report in reports:
        job = jobs.get(report.job_id)
        if refusal := refusal_of_attempt(job, report):
            _hear(tx, job, report)
            results.append(refusal)
            continue
        assert job is not None
        if refusal := _refuse_end(tx, job, report):
            results.append(refusal)
            continue
        if _had_no_handler(report.failure):
            _queue(tx, job, Release(job.id, delay=UNKNOWN_TYPE_DELAY), reason="the worker has no handler for it")
        else:
            fail_attempt(tx, job, report.failure)
        results.append(job)
    settle(tx)
    return results


def _had_no_handler(failure: Failure) -> bool:
    """Whether a worker failed a job because it has no handler for its type; official SDKs say it in these ways."""
    if failure.type == UNKNOWN_TYPE or failure.code == "handler_not_found":
        return True
    return failure.retryable is False and failure.message.lower().startswith("no handler registered for job type")


def release(tx: Transaction, releases: Sequence[Release]) -> list[Job | OjsterError]:
    """Release active jobs that have neither succeeded nor failed; return each, or the reason why it was refused."""
    jobs = tx.lock_jobs([item.job_id for item in releases])
    lock_with(tx, jobs.values())
    results: list[Job | OjsterError] = []
    for place, item in enumerate(releases):
        job = jobs.get(item.job_id)
        if refusal := refusal_of_attempt(job, item):
            _hear(tx, job, item)
            results.append(refusal)
            continue
        assert job is not None
        if refusal := (_refuse_value(item.result, tx.settings.largest_job) or _refuse_end(tx, job, item)):
            results.append(refusal)
            continue
        if item.then == "queue":
            _queue(tx, job, item)
        elif not any(release_job(tx, job, item) for release_job in hooks(tx).release):
            results.append(Unsupported(f"A job cannot be released with 'then': {item.then!r} here."))
            continue
        if item.then in ("retry", "skip"):  # may have ended jobs that follow in the list
            jobs |= tx.lock_jobs([later.job_id for later in releases[place + 1 :]])
        results.append(job)
    settle(tx)
    return results


def _queue(tx: Transaction, job: Job, item: Release, *, reason: str = "released") -> None:
    """Put a job back into its queue, now or later. The attempt does not count."""
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
        write_states(tx, [job])
        tx.emit("job.scheduled", job, scheduled_at=due_at, reason=reason)

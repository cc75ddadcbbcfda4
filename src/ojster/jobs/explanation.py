"""Why a job waits: what each capability says of it, in the words of an operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ojster.core.calls import Whole
from ojster.core.job import Job
from ojster.core.states import FINISHED, JobState
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.jobs.extension import hooks
from ojster.jobs.queries import for_each_job
from ojster.jobs.reason import LimitUse, Reason
from ojster.storage.transaction import Transaction

MAX_COUNTED: Final = 10_000
"""Number of jobs before a job that are counted; more are said to be at least so many."""


class Explanation(Whole):
    """Why a job is in its state.

    Parameters
    ----------
    reasons:
        The reasons, the most important first.
    position:
        The place of a job that is available among those of its queue and tenant, 1 for the next one; at most
        ``MAX_COUNTED`` jobs are counted before it.
    limits:
        The limits of an unfinished job and of its queue, with their use.
    """

    job_id: str
    state: str
    reasons: list[Reason]
    position: int | None
    limits: list[LimitUse]


@for_each_job
def explain(tx: Transaction, job: Job) -> Explanation:
    """Return for each job why it waits, or ``NotFound``."""
    reasons = list(_of_state(job))
    limits: list[LimitUse] = []
    position: int | None = None
    if job.state not in FINISHED:
        limits = [use for limits_on in hooks(tx).limits_on for use in limits_on(tx, job)]
    if job.state == JobState.AVAILABLE:
        before = _count_before(tx, job)
        position = before + 1
        reasons += [reason for why_waiting in hooks(tx).why_waiting for reason in why_waiting(tx, job)]
        reasons += _of_exclusion(tx, job)
        reasons.append(_of_turn(before, is_next=not reasons))
    return Explanation(job.id, job.state, reasons, position, limits)


def _of_state(job: Job) -> Iterator[Reason]:
    due = None if job.due_at is None else format_timestamp(job.due_at)
    match job.state:
        case JobState.SCHEDULED:
            yield Reason("scheduled", f"It is scheduled for {due}.", until=due)
        case JobState.RETRYABLE:
            message = f"Attempt {job.attempt} of {job.possible_attempts} failed; the next one is at {due}."
            yield Reason("retry", message, until=due)
        case JobState.PENDING if job.started_at is not None:
            message = "It is suspended until somebody resumes it."
            if job.workflow is not None:  # a flow goes on when what it awaits comes
                message = "It is suspended: the status of its workflow says what it waits for."
            yield Reason("suspended", message, until=due)
        case JobState.PENDING:
            yield Reason("pending", "It waits for an approval: activate it.")
        case JobState.ACTIVE:
            worker = "a worker" if job.worker_id is None else f"the worker {called(job.worker_id)!r}"
            message = f"It runs on {worker}, attempt {job.attempt} of {job.possible_attempts}; its lease ends at {due}."
            yield Reason("active", message, until=due)
        case state if state in FINISHED:
            yield Reason("finished", f"It is {state} and runs no more, unless it is retried.")


def _of_exclusion(tx: Transaction, job: Job) -> Iterator[Reason]:
    if job.exclusive_key is None:
        return
    query = "SELECT id FROM jobs WHERE exclusive_key = :key AND state = 'active' LIMIT 1"
    for (other,) in tx.execute(query, {"key": job.exclusive_key}):
        yield Reason("exclusive", f"The job {other} runs, beside which it may not run.")


def _count_before(tx: Transaction, job: Job) -> int:
    """Return how many jobs are before it in its queue, at most ``MAX_COUNTED``."""
    ((before,),) = tx.execute(
        """
        SELECT count(*)
        FROM (
            SELECT 1
            FROM jobs
            WHERE queue = :queue
                AND state = 'available'
                AND tenant = :tenant
                AND (priority > :priority OR (priority = :priority AND seq < :seq))
            LIMIT :most
        ) AS before
        """,
        {"queue": job.queue, "tenant": job.tenant, "priority": job.priority, "seq": job.seq, "most": MAX_COUNTED},
    )
    return int(before)


def _of_turn(before: int, *, is_next: bool) -> Reason:
    if before:
        shown = f"{before:,}" if before < MAX_COUNTED else f"At least {before:,}"
        noun = "job" if before == 1 else "jobs"
        return Reason("turn", f"{shown} {noun} of its queue {'is' if before == 1 else 'are'} before it.")
    if is_next:
        return Reason("next", "It is the next job of its queue: it waits for a worker that is free.")
    return Reason("turn", "It is the next job of its queue.")

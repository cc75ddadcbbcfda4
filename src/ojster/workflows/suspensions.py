"""How does a job wait for somebody, and how does it go on? (seed 002: wait, resume; ojs-http-binding.md section 7.8)

A job that waits is ``pending``, holds no worker, and survives restarts, for it is nothing but its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.jobs.failure import Failure
from ojster.jobs.queries import no_job
from ojster.jobs.request import read_members
from ojster.jobs.transitions import (
    Steered,
    cancel_job,
    complete_job,
    fail_attempt,
    free,
    make_available,
    write_completed,
    write_outcomes,
)
from ojster.storage.transaction import Transaction
from ojster.workflows.advance import advance
from ojster.workflows.graph import Graph, Workflow, find_workflow, no_workflow
from ojster.workflows.node import NUMBER_BITS, Kind
from ojster.workflows.stopping import given_up_nodes, lock_workflows
from ojster.workflows.wait import ATTRIBUTE, WAIT_TYPE, decode_wait, read_wait
from ojster.workflows.workflows import find_step


class Hold(StrEnum):
    """What becomes of a job when it is resumed."""

    COMPLETE = "complete"
    """It is done: what it is resumed with is its result."""
    AGAIN = "again"
    """It runs again, and is told what it was resumed with."""
    DELAY = "delay"
    """It is done when its time has come, or when it is resumed before."""
    RESUMED = "resumed"
    """It was resumed, and runs again."""


WAITING: Final = (Hold.COMPLETE, Hold.AGAIN, Hold.DELAY)


class Resumption(msgspec.Struct, frozen=True):
    """Somebody lets a job go on that waits.

    Parameters
    ----------
    data:
        What it waited for, as JSON.
    failure:
        Why what it waited for will not come: the job fails, and is not tried again.
    """

    job_id: str
    data: bytes | None = None
    failure: Failure | None = None


class WorkflowResumption(msgspec.Struct, frozen=True):
    """Somebody lets the job of a workflow go on that waits.

    Parameters
    ----------
    step:
        The path of its step; not needed if only one waits.
    data, failure:
        See ``Resumption``.
    """

    workflow_id: str
    step: str | None = None
    data: bytes | None = None
    failure: Failure | None = None


def put_on_hold(tx: Transaction, job: Job, *, again: bool, deadline: int | None) -> None:
    """Let an active job wait until it is resumed, or until ``deadline``; its workflow is locked.

    With ``again`` the attempt does not count: it goes on with the next one.
    """
    if job.node is not None and given_up_nodes(tx, [job.node]):
        cancel_job(tx, job)
        return
    free(tx, [job])
    for tally in tx.tallies_of(job):
        tally.ran += tx.now - (job.started_at or tx.now)
    attempt = job.attempt
    tx.move(job, JobState.PENDING.value)
    job.hold = Hold.AGAIN if again else Hold.COMPLETE
    job.attempt -= again
    job.worker_id = None
    job.due_at = deadline
    tx.expect(deadline)
    write_outcomes(tx, [job])
    tx.emit("job.pending", job, attempt=attempt, reason="waiting")
    _note_change(tx, job)


def _note_change(tx: Transaction, job: Job) -> None:
    """Let those know who follow the workflow of a job."""
    if job.node is not None:
        rows = tx.execute(
            "UPDATE workflows SET version = version + 1 WHERE seq = :seq RETURNING id", {"seq": job.node >> NUMBER_BITS}
        )
        tx.effects.workflows |= {str(id): None for (id,) in rows}


def activate(tx: Transaction, items: Sequence[Resumption]) -> list[Steered | OjsterError]:
    """Let pending jobs go on: those that were enqueued so, and those that wait for something."""
    jobs = tx.lock_jobs([item.job_id for item in items])
    lock_workflows(tx, jobs.values())
    results: list[Steered | OjsterError] = []
    for item in items:
        job = jobs.get(item.job_id)
        if (refusal := _refusal(tx, job, item)) is not None:
            results.append(refusal)
            continue
        assert job is not None
        _resume(tx, job, item)
        results.append(Steered(job, JobState.PENDING))
    advance(tx)
    return results


def _refusal_of_answer(tx: Transaction, job: Job, item: Resumption) -> OjsterError | None:
    """Return what is wrong with an answer to somebody who has asked for one of a certain form."""
    if job.type != WAIT_TYPE or item.failure is not None:
        return None
    tx.envelopes([job])
    return read_wait(read_members(job.envelope, "The job")[ATTRIBUTE]).check(item.data)


def _refusal(tx: Transaction, job: Job | None, item: Resumption) -> OjsterError | None:
    if job is None:
        return no_job(item.job_id)
    if job.state != JobState.PENDING:
        why = "only a pending job can be"
    elif job.hold in WAITING:
        return _refusal_of_answer(tx, job, item)
    elif job.node is not None:
        why = "its workflow is held, and can be released"
    elif item.data is not None or item.failure is not None:
        why = "it waits for nothing that it could be given"
    else:
        return None
    return Conflict(
        f"The job {job.id} is {job.state} and cannot be activated: {why}.", job_id=job.id, current_state=job.state
    )


def _resume(tx: Transaction, job: Job, item: Resumption) -> None:
    """Let a pending job go on."""
    hold, job.hold = job.hold, None
    if hold is not None:
        tx.emit("job.resumed", job)
    if item.failure is not None:
        job.attempt += hold == Hold.AGAIN
        fail_attempt(tx, job, item.failure)
    elif hold in (Hold.COMPLETE, Hold.DELAY):
        _complete(tx, job, item.data)
    else:
        if hold == Hold.AGAIN:
            job.hold = Hold.RESUMED
            tx.execute(
                "INSERT INTO resumptions (seq, data) VALUES (:seq, :data) "
                "ON CONFLICT (seq) DO UPDATE SET data = excluded.data",
                {"seq": job.seq, "data": item.data or b"null"},
            )
        make_available(tx, [job])
        _note_change(tx, job)


def _complete(tx: Transaction, job: Job, result: bytes | None) -> None:
    """Complete a job that waited."""
    complete_job(tx, job, result, 0)
    write_completed(tx, [job])
    write_outcomes(tx, [job])


def resume_workflows(tx: Transaction, items: Sequence[WorkflowResumption]) -> list[str | OjsterError]:
    """Let jobs of workflows go on that wait; for each return the workflow's id, or why it cannot be resumed."""
    results: list[str | OjsterError] = []
    for item in items:
        try:
            job_id = _waiting_job(tx, item)
        except OjsterError as refusal:
            results.append(refusal)
            continue
        (resumed,) = activate(tx, [Resumption(job_id, item.data, item.failure)])
        results.append(resumed if isinstance(resumed, OjsterError) else item.workflow_id)
    return results


def _waiting_job(tx: Transaction, item: WorkflowResumption) -> str:
    """Return the id of the job that is to be resumed."""
    workflow = find_workflow(tx, item.workflow_id)
    if workflow is None:
        raise no_workflow(item.workflow_id)
    waiting = _waiting_jobs(tx, workflow)
    if item.step is not None:
        graph = Graph(tx)
        node = find_step(graph, workflow, item.step)
        while node.kind == Kind.FALLBACK:  # the step's own job may be meant
            node = graph.children(node)[0]
        waiting = [(id, place) for id, place in waiting if place == node.id]
    if not waiting:
        which = f"The workflow {workflow.id}" if item.step is None else f"The step {item.step!r}"
        raise Conflict(
            f"{which} cannot be resumed: only one that waits can be.",
            workflow_id=workflow.id,
            current_state=workflow.state,
        )
    if len(waiting) > 1:
        graph = Graph(tx)
        graph.load([place for _, place in waiting])
        steps = [graph.place_of(graph.nodes[place]) for _, place in waiting]
        raise Conflict(
            f"{len(waiting)} steps of the workflow {workflow.id} wait; say which 'step' is meant.",
            workflow_id=workflow.id,
            steps=steps,
        )
    return waiting[0][0]


def _waiting_jobs(tx: Transaction, workflow: Workflow) -> list[tuple[str, int]]:
    """Return the jobs of a workflow that wait to be resumed, and their nodes."""
    rows = tx.execute(
        "SELECT id, node FROM jobs WHERE node BETWEEN ? AND ? AND lower(state) = 'pending' "
        "AND hold IN ('complete', 'again') ORDER BY node",
        workflow.numbers,
    )
    return [(str(id), node) for id, node in rows]


def end_wait(tx: Transaction, job: Job) -> None:
    """End the wait of a job whose deadline has come: it is done, if it waited for that alone, or has waited in vain.

    If its time has not come yet, somebody is to be reminded of it.
    """
    if job.type == WAIT_TYPE and _remind(tx, job):
        return
    hold, job.hold = job.hold, None
    if hold == Hold.DELAY:
        _complete(tx, job, None)
        return
    job.attempt += hold == Hold.AGAIN
    final = False if job.type == WAIT_TYPE else None  # there is nobody who could try it again
    message = "Nobody resumed the job before its deadline."
    fail_attempt(tx, job, Failure("WaitTimeout", message, code="wait_timeout", retryable=final))


def _remind(tx: Transaction, job: Job) -> bool:
    """Remind somebody of a wait that goes on; return whether it does."""
    tx.envelopes([job])
    wait = decode_wait(read_members(job.envelope, "The job")[ATTRIBUTE])
    if not wait.remind or wait.is_over(job.created_at, tx.now):
        return False
    job.due_at = wait.due(job.created_at, tx.now)
    tx.expect(job.due_at)
    write_outcomes(tx, [job])
    tx.emit("job.reminded", job)
    tx.note_event(job, "on_reminder")
    return True


def give_resumptions(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Give jobs that are handed out what they were resumed with."""
    resumed = {job.seq: job for job in jobs if job.hold == Hold.RESUMED}
    if not resumed:
        return
    query = f"SELECT seq, data FROM resumptions WHERE seq {tx.among}"
    for seq, data in tx.execute(query, (tx.integers(sorted(resumed)),)):
        resumed[seq].resumed = data

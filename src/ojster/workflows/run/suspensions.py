"""Suspension of jobs: suspend, resume, deadlines and reminders.

A suspended job is ``pending``. It occupies no worker, and it survives restarts because its state is in the database.

Spec: ojs-http-binding 7.8
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import stored_members
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp
from ojster.jobs.deadlines import total_deadline
from ojster.jobs.failure import Failure
from ojster.jobs.names import WAIT_TYPE
from ojster.jobs.queries import no_job
from ojster.jobs.transitions import (
    ChangedJob,
    cancel_job,
    complete_job,
    fail_attempt,
    free,
    make_available,
    write_completed,
    write_states,
)
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.node import Kind, Node, body_number
from ojster.workflows.run.advance import advance
from ojster.workflows.run.early_answers import Resumption, keep_early_answer, take_early_answer
from ojster.workflows.run.flow_wakeups import note_changes, wake
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.steps import find_step, require, step_in_turn
from ojster.workflows.run.stopping import lock_workflows, stopped_nodes
from ojster.workflows.stored_workflow import StoredWorkflow, get_workflow
from ojster.workflows.suspension import SUSPENDED, SuspensionKind
from ojster.workflows.wait import ATTRIBUTE, WaitTarget, decode_wait, read_wait


class WorkflowResumption(msgspec.Struct, frozen=True):
    """A request to resume a suspended job of a workflow.

    Parameters
    ----------
    step:
        Path of the suspended step; optional if only one step is suspended.
    data, failure, by:
        See ``Resumption``.
    """

    workflow_id: str
    step: str | None = None
    data: bytes | None = None
    failure: Failure | None = None
    by: Annotated[str | None, SET_BY_SERVICE] = None


MAY_WAIT_LATER: Final = (JobState.ACTIVE, JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE)
"""States of a job that may wait for an answer later."""

MAX_RECORDED_ANSWER: Final = 65_536
"""Maximum size of an answer that is recorded with who gave it, in bytes. The step has longer ones as its result."""


def suspend_jobs(tx: Transaction, deadlines: Sequence[tuple[Job, int | None]], kind: SuspensionKind) -> None:
    """Suspend active jobs, each until it is resumed or its deadline has passed.

    The caller holds the locks of the jobs' workflows. Jobs that their workflow has told to stop are cancelled instead.

    Parameters
    ----------
    deadlines:
        Each job with the end of its suspension, in microseconds since the epoch; ``None``: no deadline.
    kind:
        What happens when they are resumed. If they run again, the current attempt does not count.
    """
    stopped = stopped_nodes(tx, {job.node for job, _ in deadlines if job.node is not None})
    for job, _ in deadlines:
        if job.node in stopped:
            cancel_job(tx, job, by_itself=True)
    suspended = [(job, deadline) for job, deadline in deadlines if job.node not in stopped]
    jobs = [job for job, _ in suspended]
    free(tx, jobs)
    for job, deadline in suspended:
        tx.note_attempt(job, "suspended", tx.now - (job.started_at or tx.now))
        attempt = job.attempt
        tx.move(job, JobState.PENDING.value)
        job.suspension = kind
        job.attempt -= kind in (SuspensionKind.AGAIN, SuspensionKind.FLOW)
        job.worker_id = None
        total = total_deadline(tx, job)
        job.due_at = deadline if total is None else min(deadline or total, total)
        tx.expect(job.due_at)
        tx.emit("job.pending", job, attempt=attempt, reason="waiting")
    write_states(tx, jobs)
    note_changes(tx, jobs)
    if kind in (SuspensionKind.AGAIN, SuspensionKind.COMPLETE):
        for job in jobs:
            if (answer := take_early_answer(tx, job)) is not None:
                _resume(tx, job, answer)


def activate(tx: Transaction, items: Sequence[Resumption]) -> list[ChangedJob | OjsterError]:
    """Resume pending jobs: suspended ones, and those that were pushed as pending.

    Return for each the job and its previous state, or the reason why it cannot be resumed.
    """
    jobs = tx.lock_jobs([item.job_id for item in items])
    lock_workflows(tx, jobs.values())
    results = [_activate(tx, jobs.get(item.job_id), item) for item in items]
    advance(tx)
    return results


def _activate(tx: Transaction, job: Job | None, item: Resumption) -> ChangedJob | OjsterError:
    if job is None:
        return no_job(item.job_id)
    if job.type == WAIT_TYPE and item.data is not None:
        signed = _wait_of(tx, job).signed(item.data, by=item.by, at=format_timestamp(tx.now))
        item = msgspec.structs.replace(item, data=signed)
    if _keep_early(tx, job, item):
        return ChangedJob(job, JobState(job.state))
    if (refusal := _refusal(tx, job, item)) is not None:
        return refusal
    _resume(tx, job, item)
    return ChangedJob(job, JobState.PENDING)


def _wait_of(tx: Transaction, job: Job) -> WaitTarget:
    """Return what a wait step waits for, which was checked when it was pushed."""
    tx.load_envelopes([job])
    return decode_wait(stored_members(job.envelope)[ATTRIBUTE])


def _keep_early(tx: Transaction, job: Job, item: Resumption) -> bool:
    """Keep the answer for a job that has not waited yet; return whether it was kept.

    One that has waited was answered already: a request that is made twice must not answer its next wait.
    """
    is_early = job.state in MAY_WAIT_LATER and job.suspension is None and job.type != WAIT_TYPE
    if not is_early or (item.data is None and item.failure is None) or _runs_flow(tx, job):
        return False
    return keep_early_answer(tx, item, node=job.node, seq=job.seq)


def _runs_flow(tx: Transaction, job: Job) -> bool:
    """Return whether a job runs a flow, which receives messages instead of answers."""
    rows = tx.execute(
        "SELECT p.id FROM nodes AS n JOIN nodes AS p ON p.id = n.parent WHERE n.id = :node AND p.kind = :flow",
        {"node": job.node, "flow": Kind.FLOW},
    )
    return any(body_number(parent) == job.node for (parent,) in rows)


def _refusal(tx: Transaction, job: Job, item: Resumption) -> OjsterError | None:
    if job.state != JobState.PENDING:
        why = "only a pending job can be activated"
    elif job.suspension == SuspensionKind.FLOW:
        why = "it runs a flow, which waits for its steps and messages; send it a message instead"
    elif job.suspension in SUSPENDED:
        is_answer = job.type == WAIT_TYPE and item.failure is None
        return _wait_of(tx, job).check(item.data) if is_answer else None
    elif job.node is not None:
        why = "its workflow is held; release the workflow instead"
    elif item.data is not None or item.failure is not None:
        why = "it is not suspended; activate it without a result or an error"
    else:
        return None
    return Conflict(
        f"The job {job.id} is {job.state} and cannot be activated: {why}.", job_id=job.id, current_state=job.state
    )


def _resume(tx: Transaction, job: Job, item: Resumption) -> None:
    """Resume a pending job: complete it, run it again, or fail its attempt."""
    suspension, job.suspension = job.suspension, None
    if suspension is not None:
        tx.emit("job.resumed", job, **({} if item.by is None else {"resumed_by": item.by}))
        _note_answer(tx, job, item)
    if item.failure is not None:
        job.attempt += suspension == SuspensionKind.AGAIN
        fail_attempt(tx, job, item.failure)
    elif suspension in (SuspensionKind.COMPLETE, SuspensionKind.DELAY):
        _complete(tx, job, item.data)
    else:
        if suspension == SuspensionKind.AGAIN:
            job.suspension = SuspensionKind.RESUMED
            tx.execute(
                """
                INSERT INTO resumptions (seq, data)
                VALUES (:seq, :data)
                ON CONFLICT (seq) DO UPDATE SET data = excluded.data
                """,
                {"seq": job.seq, "data": item.data or b"null"},
            )
        make_available(tx, [job])
        note_changes(tx, [job])


def _note_answer(tx: Transaction, job: Job, item: Resumption) -> None:
    """Record who has resumed a step, and with what, beside the reviews of gates."""
    if job.node is None:
        return
    has_answer = item.failure is None and item.data is not None and len(item.data) <= MAX_RECORDED_ANSWER
    tx.execute(
        """
        INSERT INTO node_reviews (node, at, author, action, notes, answer)
        VALUES (:node, :at, :author, :action, :notes, :answer)
        """,
        {
            "node": job.node,
            "at": tx.now,
            "author": item.by,
            "action": "answer" if item.failure is None else "decline",
            "notes": None if item.failure is None else item.failure.message,
            "answer": item.data if has_answer else None,
        },
    )


def _complete(tx: Transaction, job: Job, result: bytes | None) -> None:
    complete_job(tx, job, result, 0)
    write_completed(tx, [job])
    write_states(tx, [job])


@for_each
@returns_refusal
def resume_workflows(tx: Transaction, item: WorkflowResumption) -> str:
    """Resume suspended jobs of workflows; return each workflow's id, or the reason why it cannot be resumed."""
    job_id = _waiting_job(tx, item)
    if job_id is not None:
        (resumed,) = activate(tx, [Resumption(job_id, item.data, item.failure, item.by)])
        if isinstance(resumed, OjsterError):
            raise resumed
    return item.workflow_id


def _waiting_job(tx: Transaction, item: WorkflowResumption) -> str | None:
    """Return the id of the job to resume; ``None``: the answer is kept until the step waits."""
    workflow = get_workflow(tx, item.workflow_id)
    waiting = _waiting_jobs(tx, workflow)
    if item.step is not None:
        node = _step_of(LoadedGraph(tx), workflow, item.step)
        query = "SELECT id, node FROM jobs WHERE node = :node AND lower(state) = 'active'"  # it may wait later
        waiting = [(id, place) for id, place in waiting if place == node.id] or [
            (str(id), place) for id, place in tx.execute(query, {"node": node.id})
        ]
        if not waiting and _keep_for_step(tx, workflow, item):
            return None
    if not waiting:
        which = f"The workflow {workflow.id}" if item.step is None else f"The step {item.step!r}"
        advice = "" if item.step is not None else " Name the 'step' that waits later, and it gets the answer then."
        text = f"{which} cannot be resumed: it has no suspended job.{advice}"
        raise Conflict(text, workflow_id=workflow.id, current_state=workflow.state)
    if len(waiting) > 1:
        graph = LoadedGraph(tx)
        graph.load([place for _, place in waiting])
        steps = [graph.place_of(graph.nodes[place]) for _, place in waiting]
        raise Conflict(
            f"{len(waiting)} steps of the workflow {workflow.id} are suspended. Name one of them as 'step'.",
            workflow_id=workflow.id,
            steps=steps,
        )
    return waiting[0][0]


def _step_of(graph: LoadedGraph, workflow: StoredWorkflow, path: str) -> Node:
    """Return the node of a step that runs a job."""
    node = find_step(graph, workflow, path)
    while node.kind == Kind.FALLBACK:
        node = step_in_turn(graph, node)
    return node


def _keep_for_step(tx: Transaction, workflow: StoredWorkflow, item: WorkflowResumption) -> bool:
    """Keep an answer for a step that may wait later; return whether it was kept.

    Raises
    ------
    Conflict
        The step has an answer already.
    SchemaViolation
        The answer does not match the form of the step.
    """
    graph = LoadedGraph(tx)
    graph.lock([workflow.seq])  # a step that starts, or suspends, has the lock: it sees the answer, or has waited
    node = _step_of(graph, graph.workflows[workflow.seq], item.step or "")
    if node.kind != Kind.JOB or node.has_ended or (item.data is None and item.failure is None):
        return False
    jobs = tx.execute(
        "SELECT type, lower(state), suspension FROM jobs WHERE node = :node AND id = :id",
        {"node": node.id, "id": node.job_id},
    )
    if any(state not in MAY_WAIT_LATER or suspension is not None for _, state, suspension in jobs):
        return False
    container = graph.parent_of(node)
    if container is not None and container.kind == Kind.FLOW and body_number(container.id) == node.id:
        return False  # it runs a flow, which receives messages
    graph.load_specs([node])
    spec = graph.specs[node.id]
    wait = None if spec.request is UNSET else stored_members(spec.request).get(ATTRIBUTE)
    if wait is not None:
        form = read_wait(wait)
        if form.ends_by_time:
            return False
        if item.failure is None and item.data is not None:
            item = msgspec.structs.replace(item, data=form.signed(item.data, by=item.by, at=format_timestamp(tx.now)))
            require(form.check(item.data))
    if not keep_early_answer(tx, Resumption("", item.data, item.failure, item.by), node=node.id):
        text = f"The step {item.step!r} has an answer already, which is kept until it waits."
        raise Conflict(text, workflow_id=workflow.id, current_state=workflow.state)
    return True


def _waiting_jobs(tx: Transaction, workflow: StoredWorkflow) -> list[tuple[str, int]]:
    """Return id and node of the jobs of a workflow that wait for a resume; plain delays are left out."""
    # lower() hides the state from the planner. It is left with the index of nodes, which is narrow; the state alone
    # could lead it to an index with the jobs of all workflows.
    rows = tx.execute(
        """
        SELECT id, node
        FROM jobs
        WHERE node BETWEEN ? AND ? AND lower(state) = 'pending' AND suspension IN ('complete', 'again')
        ORDER BY node
        """,
        workflow.numbers,
    )
    return [(str(id), node) for id, node in rows]


def end_suspension(tx: Transaction, job: Job) -> None:
    """End the suspension of a job at its deadline, or trigger the reminder of a wait step that continues.

    A plain delay completes the job. Otherwise the attempt fails with the code ``wait_timeout``.
    """
    if job.type == WAIT_TYPE and (answer := take_early_answer(tx, job)) is not None:
        _resume(tx, job, answer)
        return
    if job.type == WAIT_TYPE and _remind(tx, job):
        return
    if job.suspension == SuspensionKind.FLOW:
        wake(tx, [job])
        return
    suspension, job.suspension = job.suspension, None
    if suspension == SuspensionKind.DELAY:
        _complete(tx, job, None)
        return
    job.attempt += suspension == SuspensionKind.AGAIN
    final = False if job.type == WAIT_TYPE else None  # no worker runs a wait step, so a retry is pointless
    message = "The job was not resumed before its deadline."
    fail_attempt(tx, job, Failure("WaitTimeout", message, code="wait_timeout", retryable=final))


def _remind(tx: Transaction, job: Job) -> bool:
    """Trigger the ``on_reminder`` reactions of a wait step; return whether its suspension continues."""
    wait = _wait_of(tx, job)
    if not wait.remind or wait.is_over(job.created_at, tx.now):
        return False
    job.due_at = wait.due(job.created_at, tx.now)
    tx.expect(job.due_at)
    write_states(tx, [job])
    tx.emit("job.reminded", job)
    tx.note_event(job, "on_reminder")
    return True


def add_resume_data(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Add to claimed jobs the data that they were resumed with."""
    resumed = {job.seq: job for job in jobs if job.suspension == SuspensionKind.RESUMED}
    if not resumed:
        return
    for job in resumed.values():
        # For a flow that was woken: its worker may have kept its function, and nobody has run it since this time.
        job.resumed = b"null" if job.started_before is None else b"%d" % job.started_before
    query = f"SELECT seq, data FROM resumptions WHERE seq {tx.among}"
    for seq, data in tx.execute(query, (tx.integers(sorted(resumed)),)):
        resumed[seq].resumed = data

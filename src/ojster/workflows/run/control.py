"""Creating and steering workflows. ``ojster.workflows.run.advance`` starts and ends their steps.

Spec: ojs-workflows 11.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.job import Job
from ojster.core.job_table import JOB_COLUMNS
from ojster.core.timestamps import format_timestamp
from ojster.workflows.node import NOT_STARTED, Kind, NodeState
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.cancellation import release_now
from ojster.workflows.run.start_quota import forget_deferred, park_starts
from ojster.workflows.run.steps import find_step, is_over, require, steering, step_in_turn, wrong_state
from ojster.workflows.run.stopping import put_off
from ojster.workflows.stored_workflow import StoredWorkflow, emit

_encode: Final = msgspec.json.Encoder().encode


class Review(msgspec.Struct, frozen=True):
    """A review of a step that needs approval.

    Parameters
    ----------
    step:
        Path of the step: the names or indices from the outermost container down to it, joined by dots.
    action:
        ``approve`` or ``reject``; ``None``: only record the notes.
    """

    workflow_id: str
    step: str
    action: Literal["approve", "reject"] | None = None
    notes: str | None = None
    author: str | None = None


def refuse_hold(workflow: StoredWorkflow) -> OjsterError | None:
    """Return why a workflow cannot be held; ``None`` if it can."""
    if workflow.finished_at is None:
        return None
    return wrong_state(workflow, f"The workflow {workflow.id} is {workflow.state}, and cannot be held.")


def hold_now(run: Advance, workflow: StoredWorkflow, _: object) -> None:
    """Hold a workflow that is locked; raise the refusal."""
    require(refuse_hold(workflow))
    if workflow.held_at is not None:
        return
    tx = run.tx
    workflow.held_at = tx.now
    run.graph.change(workflow)
    park_starts(tx, workflow)
    # lower() keeps the planner from an index scan over the available jobs of all queues.
    # Locked jobs are skipped, because here the workflow is locked before the jobs: two transactions could wait for each
    # other. A claim that has such a job looks at the workflow before it hands the job out, and puts the job off.
    waiting = tx.execute(
        f"""
        SELECT {JOB_COLUMNS}
        FROM jobs
        WHERE node BETWEEN ? AND ? AND lower(state) = 'available'
        ORDER BY id{tx.skip_locked}
        """,
        workflow.numbers,
    )
    for row in waiting:
        put_off(tx, Job(*row))
    emit(tx, "workflow.held", workflow)


hold_workflows: Final = steering(hold_now)
"""Hold workflows: no step starts until they are released; active jobs may finish."""


def refuse_release(workflow: StoredWorkflow) -> OjsterError | None:
    """Return why a workflow cannot be released; ``None`` if it can."""
    return None if workflow.held_at is not None else wrong_state(workflow, f"The workflow {workflow.id} is not held.")


def unhold_now(run: Advance, workflow: StoredWorkflow, _: object) -> None:
    """Release a workflow that is locked; raise the refusal."""
    require(refuse_release(workflow))
    release_now(run, workflow)


release_workflows: Final = steering(unhold_now)
"""Release held workflows."""


@steering
def review_steps(run: Advance, workflow: StoredWorkflow, item: Review) -> None:
    """Approve or reject a step that waits for approval, or record notes."""
    if item.action is None and not item.notes:
        raise InvalidRequest("The review is empty. At least one of 'action' and 'notes' must be given.")
    tx, graph = run.tx, run.graph
    node = find_step(graph, workflow, item.step)
    while node.kind == Kind.FALLBACK and not node.manual:  # the path may refer to the step's own gate
        turn = step_in_turn(graph, node)
        node = turn if turn.manual or turn.kind == Kind.FALLBACK else graph.children(node)[0]
    if not node.manual:
        raise wrong_state(workflow, f"The step {item.step!r} is not 'manual'. Only manual steps can be reviewed.")
    waits = node.state in NOT_STARTED and not node.approved
    if is_over(graph, node) or (item.action is not None and not waits):
        state = "approved" if node.approved and not node.has_ended else node.state
        raise wrong_state(workflow, f"The step {item.step!r} is {state}, and does not wait for an approval.")
    tx.execute(
        "INSERT INTO node_reviews (node, at, author, action, notes) VALUES (:node, :at, :author, :action, :notes)",
        {"node": node.id, "at": tx.now, "author": item.author, "action": item.action, "notes": item.notes},
    )
    graph.change(workflow)
    if item.action is not None:
        forget_deferred(tx, [node.id])  # its time limit
    said = {"by": item.author, "at": format_timestamp(tx.now), "notes": item.notes}
    if item.action == "approve":
        node.approved = 1
        if node.kind == Kind.GATE:
            node.result = _encode({"approved": True} | said)
        graph.touch(node)
        if node.state == NodeState.BLOCKED:
            run.start([node])
    elif item.action == "reject":
        message = f"It was rejected{f' by {item.author}' if item.author else ''}."
        run.end(node, NodeState.CANCELLED, error={"code": "rejected", "message": message} | said)

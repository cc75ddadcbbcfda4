"""Workflows that are due: their start, their timeout and their expiry."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from ojster.core.durations import DAY, MINUTE, SECOND
from ojster.jobs.extension import Due
from ojster.storage.transaction import Held, Transaction, TryAgain
from ojster.workflows.node import Node, NodeState
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.cancellation import abort, release_now
from ojster.workflows.run.creation import abandon, launch
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.retention import MAX_DUE_WORKFLOWS
from ojster.workflows.run.states import change_workflow
from ojster.workflows.run.turns import waits_for_turn
from ojster.workflows.stored_workflow import BRANCH_TIMEOUT, HIDDEN, StoredWorkflow, WorkflowState, emit

_encode: Final = msgspec.json.Encoder().encode

log = logging.getLogger(__name__)


def process_due_workflows(tx: Transaction) -> Due:
    """Start workflows that are due, and end those that have expired or timed out; return when the next one is due."""
    # No server leads: another one has a workflow that is locked, or a step of it ends now. If it is still due then, the
    # next look finds it.
    rows = tx.execute(
        f"SELECT seq, id FROM workflows WHERE due_at <= :now ORDER BY due_at LIMIT :limit{tx.skip_locked}",
        {"now": tx.now, "limit": MAX_DUE_WORKFLOWS},
    )
    for seq, id in rows:
        try:
            with tx.savepoint():
                _look_after(tx, seq)
        except Held:
            _look_later(tx, seq, SECOND)
        except TryAgain:
            raise
        except Exception:
            log.exception("maintenance of the workflow %s failed; retrying in 60 seconds", id)
            _look_later(tx, seq, MINUTE)
    ((next_due,),) = tx.execute("SELECT min(due_at) FROM workflows WHERE due_at IS NOT NULL")
    return Due(next_due, has_more=len(rows) == MAX_DUE_WORKFLOWS)


def _look_later(tx: Transaction, seq: int, delay: int) -> None:
    tx.execute("UPDATE workflows SET due_at = :later WHERE seq = :seq", {"later": tx.now + delay, "seq": seq})


def _look_after(tx: Transaction, seq: int) -> None:
    """Start, expire or time out a due workflow, unless one before it has ended it: its job may have replaced one."""
    graph = LoadedGraph(tx)
    graph.lock([seq])
    workflow = graph.workflows[seq]
    if workflow.due_at is None or workflow.due_at > tx.now:
        return
    run = Advance(graph)
    if workflow.state == HIDDEN:
        abandon(tx, workflow)
    elif workflow.state == WorkflowState.PENDING:
        _expire_or_launch(run, workflow)
    else:
        _time_out(run, workflow)
    run.go()


def _expire_or_launch(run: Advance, workflow: StoredWorkflow) -> None:
    if workflow.expires_at is not None and workflow.expires_at <= run.tx.now:
        change_workflow(workflow, WorkflowState.CANCELLED)
        workflow.cancelled_at = run.tx.now
        workflow.error = _encode({"code": "expired", "message": "The workflow was not started before it expired."})
        run.end(run.graph.root_of(workflow), NodeState.CANCELLED)
        emit(run.tx, "workflow.cancelled", workflow, reason="expired")
    elif workflow.previous_attempt is not None and run.tx.execute(
        "SELECT 1 FROM workflows WHERE id = :id AND finished_at IS NULL", {"id": workflow.previous_attempt}
    ):
        workflow.due_at = run.tx.now + SECOND  # the previous attempt has not finished
        run.graph.change(workflow)
    elif waits_for_turn(run.tx, workflow):
        run.graph.change(workflow)
    else:
        launch(run, workflow)


def _time_out(run: Advance, workflow: StoredWorkflow) -> None:
    workflow.due_at = None
    run.graph.change(workflow)
    root = run.graph.root_of(workflow)
    main = run.graph.children(root)[0]
    if main.has_ended:
        _time_out_branch(run, workflow, root)
        return
    seconds = (workflow.timeout or 0) / 1e6
    error = {"code": "workflow_timeout", "message": f"The workflow ran longer than {seconds:g} seconds."}
    workflow.error = _encode(error)
    if root.state == NodeState.READY:
        run.end(root, NodeState.FAILED, error=error)
    else:
        abort(run, workflow, main, NodeState.FAILED, error, active_too=True)
    if workflow.held_at is not None:  # else its branches would wait for a release, and keep target and locks
        release_now(run, workflow)


def _time_out_branch(run: Advance, workflow: StoredWorkflow, root: Node) -> None:
    """End the branch that runs; the next one, if any, runs then."""
    days = BRANCH_TIMEOUT // DAY
    error = {"code": "branch_timeout", "message": f"The branch ran longer than {days} days."}
    for branch in run.graph.children(root)[1:]:
        if branch.state in (NodeState.STARTED, NodeState.BLOCKED):
            abort(run, workflow, branch, NodeState.FAILED, error, active_too=True)
    if workflow.held_at is not None:
        workflow.due_at = run.tx.now + BRANCH_TIMEOUT
        release_now(run, workflow)

"""Cancellation of workflows and steps, and what it leaves out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import OjsterError
from ojster.core.job import NODE_BITS, Job
from ojster.core.job_table import JOB_COLUMNS
from ojster.core.states import FINISHED
from ojster.jobs.transitions import cancel_job, make_available
from ojster.storage.transaction import Transaction
from ojster.workflows.node import NOT_STARTED, Kind, Node, NodeState, body_of
from ojster.workflows.run.advance import ENDED_FLOWS, Advance
from ojster.workflows.run.flow_wakeups import ask_to_cancel
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.maps import park_map
from ojster.workflows.run.start_quota import go_on_with_starts
from ojster.workflows.run.states import change_node, change_workflow
from ojster.workflows.run.steps import StepAddress, find_step, is_over, require, steering, wrong_state
from ojster.workflows.stored_workflow import BRANCH_TIMEOUT, FINAL_STATES, StoredWorkflow, WorkflowState, emit


class WorkflowCancellation(msgspec.Struct, frozen=True):
    """A workflow to cancel.

    Parameters
    ----------
    stop_active:
        Whether to cancel its active jobs, too, which may finish otherwise.
    stop_flows:
        Whether to end its flows without letting them clean up; ``None``, the default: as ``stop_active``.
    by:
        The name of the caller, if it is known.
    """

    workflow_id: str
    stop_active: bool = False
    by: str | None = None
    stop_flows: bool | None = None


def refuse_cancellation(workflow: StoredWorkflow, *, stop_active: bool = False) -> OjsterError | None:
    """Return why a workflow cannot be cancelled; ``None`` if it can."""
    if workflow.state not in FINAL_STATES or _is_cut_short(workflow, stop_active=stop_active):
        return None
    return wrong_state(workflow, f"The workflow {workflow.id} is already in terminal state {workflow.state!r}.")


def _is_cut_short(workflow: StoredWorkflow, *, stop_active: bool) -> bool:
    """Return whether a cancellation stops the clean-up that an earlier one has begun."""
    return stop_active and workflow.state == WorkflowState.CANCELLED and workflow.finished_at is None


def cancel_now(run: Advance, workflow: StoredWorkflow, item: WorkflowCancellation) -> None:
    """Cancel a workflow that is locked: steps that have not started are cancelled; raise the refusal.

    Spec: ojs-workflows 11.3
    """
    stop_active = item.stop_active
    stop_flows = stop_active if item.stop_flows is None else item.stop_flows
    require(refuse_cancellation(workflow, stop_active=stop_active))
    if _is_cut_short(workflow, stop_active=stop_active):
        main = run.graph.parts_of(workflow)[0]  # it cleans up, which is cut short
        run.graph.change(workflow)
        if not main.has_ended:
            abort(run, workflow, main, NodeState.CANCELLED, _CANCELLED, active_too=True, flows_too=True)
        return
    was_pending = workflow.state == WorkflowState.PENDING
    root = _begin_to_cancel(run, workflow, item.by)
    if was_pending or root.state == NodeState.READY:
        run.end(root, NodeState.CANCELLED)
    else:
        main, *branches = run.graph.children(root)
        if main.has_ended:
            _go_on_to_cancel(run, workflow, root, branches, stop_active=stop_active)
        else:
            abort(run, workflow, main, NodeState.CANCELLED, _CANCELLED, active_too=stop_active, flows_too=stop_flows)
    if workflow.held_at is not None:
        release_now(run, workflow)


cancel_workflows: Final = steering(cancel_now)
"""Cancel workflows."""


def _begin_to_cancel(run: Advance, workflow: StoredWorkflow, by: str | None, **more: Any) -> Node:
    """Note that a workflow is cancelled, unless it is already, with ``more`` in its event; return its root."""
    if workflow.state not in FINAL_STATES:
        change_workflow(workflow, WorkflowState.CANCELLED)
        workflow.cancelled_at, workflow.cancelled_by = run.tx.now, by
    workflow.due_at = None
    run.graph.change(workflow)
    emit(run.tx, "workflow.cancelled", workflow, **more, **({} if by is None else {"cancelled_by": by}))
    return run.graph.root_of(workflow)


@steering
def terminate_workflows(run: Advance, workflow: StoredWorkflow, item: WorkflowCancellation) -> None:
    """End a workflow without letting anything clean up, its flows, compensations and branches too."""
    if workflow.finished_at is not None:
        raise wrong_state(workflow, f"The workflow {workflow.id} is {workflow.state}: nothing of it runs.")
    root = _begin_to_cancel(run, workflow, item.by, terminated=True)
    if root.state in NOT_STARTED:
        run.end(root, NodeState.CANCELLED)
    else:
        abort(run, workflow, root, NodeState.CANCELLED, _TERMINATED, active_too=True, flows_too=True)
    if workflow.held_at is not None:
        release_now(run, workflow)


_TERMINATED: Final = {"code": "cancelled", "message": "The workflow was terminated."}


def _go_on_to_cancel(
    run: Advance, workflow: StoredWorkflow, root: Node, branches: Sequence[Node], *, stop_active: bool
) -> None:
    """Let ``on_cancel`` run after ``on_error``, which is running.

    Both clean up, so neither is cut off; ``stop_active`` stops ``on_error``.
    """
    for node in branches:
        if node.name == "on_cancel" and node.state == NodeState.SKIPPED:
            change_node(node, NodeState.WAITING)
            node.finished_at = None
            root.unfinished += 1
            run.graph.touch(node)
            run.graph.touch(root)
    workflow.due_at = run.tx.now + BRANCH_TIMEOUT
    for node in branches if stop_active else ():
        if node.state == NodeState.STARTED:
            abort(run, workflow, node, NodeState.CANCELLED, _CANCELLED, active_too=True)


_CANCELLED: Final = {"code": "cancelled", "message": "The workflow was cancelled."}


@steering
def cancel_steps(run: Advance, workflow: StoredWorkflow, item: StepAddress) -> None:
    """Cancel a step and everything inside it, including active jobs."""
    node = find_step(run.graph, workflow, item.step)
    if node.has_ended or is_over(run.graph, node):
        raise wrong_state(workflow, f"The step {item.step!r} is {node.state}, and can no longer be cancelled.")
    error = {"code": "cancelled", "message": "The step was cancelled."}
    abort(run, workflow, node, NodeState.CANCELLED, error, active_too=True)


def abort(
    run: Advance,
    workflow: StoredWorkflow,
    target: Node,
    verdict: NodeState,
    error: dict[str, Any],
    *,
    active_too: bool = False,
    flows_too: bool = False,
    rest: Literal[NodeState.CANCELLED, NodeState.SKIPPED] = NodeState.CANCELLED,
) -> None:
    """Stop a node and everything inside it, and compensate the sagas inside it, unless it is the whole workflow.

    Parameters
    ----------
    verdict:
        The final state of ``target``.
    error:
        The error of nodes that have not started.
    active_too:
        Whether to cancel active jobs. By default they may finish, but are not retried.
    flows_too:
        Whether to end flows without asking them. By default those that have begun may clean up.
    rest:
        The final state of nodes that have not started. With ``skipped``, the containers around them complete.
    """
    undoes = target.kind != Kind.WORKFLOW
    inner = NodeState.CANCELLED if rest == NodeState.CANCELLED else NodeState.COMPLETED
    graph = run.graph
    inside: dict[int, list[Node]] = defaultdict(list)
    if target.state == NodeState.STARTED and target.kind != Kind.JOB:
        for node in graph.live_nodes(workflow):
            if node.parent is not None:
                inside[node.parent].append(node)
    working: list[Node] = []
    within = [target]
    for node in within:  # it grows: what is inside, at any depth, and nothing else of the workflow
        if undoes and node.kind == Kind.SAGA:  # what undoes it goes on
            inside[node.id] = [child for child in inside[node.id] if not child.position]
        within += inside[node.id]
    bodies = [body_of(node) for node in within if node.kind == Kind.FLOW and node.state == NodeState.STARTED]
    asked = set() if flows_too else ask_to_cancel(run.tx, bodies)
    waiting = [target]
    while waiting:
        node = waiting.pop()
        if node.state in NOT_STARTED:
            run.end(node, rest, error=error)
        elif node.kind == Kind.JOB:
            node.verdict = NodeState.CANCELLED.value
            graph.touch(node)
            working.append(node)
        else:
            if node is target or node.kind != Kind.SAGA or not undoes:
                node.verdict = (verdict if node is target else inner).value
                graph.touch(node)
            if node.kind == Kind.FLOW and body_of(node) in asked:
                continue
            if node.kind == Kind.MAP and park_map(run.tx, node) and not node.unfinished:
                run.close([node])
            waiting += inside[node.id]
    _cancel_jobs(run, working, active_too=active_too)


def _cancel_jobs(run: Advance, nodes: Sequence[Node], *, active_too: bool) -> None:
    """Cancel the jobs of nodes, including active ones if ``active_too``.

    A waiting job locked by another transaction is skipped: that transaction then waits for the workflow and finds the
    verdict of the job's node. If active ones are to stop, it is waited for: it may be a claim.
    """
    tx = run.tx
    ids = tx.integers([node.id for node in nodes])
    others, tx.effects.ended = tx.effects.ended, []
    waiting = (
        "state IN ('available', 'scheduled', 'retryable', 'pending') AND (suspension IS NULL OR suspension = 'resumed')"
    )
    # Wait for the lock of suspended jobs: no other transaction will check the verdicts of their nodes.
    on_hold = "state = 'pending' AND suspension IN ('complete', 'again', 'delay', 'flow')"
    steps = [(waiting, tx.skip_locked), (on_hold, tx.for_update)]
    if active_too:
        steps = [(f"(({waiting}) OR ({on_hold}) OR state = 'active')", tx.for_update)]
    for condition, lock in steps:
        if nodes:
            rows = tx.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs WHERE node {tx.among} AND {condition} ORDER BY id{lock}", (ids,)
            )
            for row in rows:
                cancel_job(tx, Job(*row))
    ended, tx.effects.ended = tx.effects.ended, others
    for job in ended:
        run.end_with_job(run.graph.nodes[job.node or 0], job)


def cancel_left(tx: Transaction) -> None:
    """Cancel what flows have asked for that ended in this transaction: nobody waits for it any more."""
    while flows := list(tx.known[ENDED_FLOWS]):
        tx.known[ENDED_FLOWS].clear()
        graph = LoadedGraph(tx)
        graph.lock({flow >> NODE_BITS for flow in flows})
        graph.load(flows)
        run = Advance(graph)
        for flow in flows:
            node = graph.nodes[flow]
            if not node.has_ended:
                abort(run, graph.workflow_of(node), node, NodeState(node.verdict or ""), _LEFT, active_too=True)
        run.go()


_LEFT: Final = {"code": "cancelled", "message": "The flow that has asked for this step has ended."}


def skip_rest(tx: Transaction, job: Job) -> None:
    """Skip the steps that have not started, so that the workflow completes: in its main part, or in a branch of it.

    The part is the one that the active job is in. In a flow, it is what the flow has asked for: the flow gets its
    result, and decides what comes next.
    """
    if job.node is None:
        return
    graph = LoadedGraph(tx)
    graph.lock([job.node >> NODE_BITS])
    workflow = graph.workflows[job.node >> NODE_BITS]
    parts = {part.id: part for part in graph.parts_of(workflow)}
    graph.load([job.node])
    for part, container in graph.lineage(graph.nodes[job.node]):
        if container.kind == Kind.FLOW and part.id != body_of(container):
            is_over = part.kind == Kind.JOB or part.verdict is not None
            break
        if container.id == workflow.root:
            part = parts[part.id]
            is_over = part.position == 0 and workflow.state != WorkflowState.RUNNING  # it is being cancelled
            break
    if is_over or part.has_ended:
        return
    run = Advance(graph)
    graph.change(workflow)
    abort(run, workflow, part, NodeState.COMPLETED, _NOT_NEEDED, rest=NodeState.SKIPPED)
    run.go()


_NOT_NEEDED: Final = {"code": "skipped", "message": "A step skipped the rest of the workflow."}


def cancel_with_worker(tx: Transaction, job: Job) -> None:
    """Cancel the workflow of a job whose worker is lost, if it wants that. The workflow is locked."""
    if job.node is None:
        return
    rows = tx.execute(
        "SELECT id FROM workflows WHERE seq = :seq AND on_lost_worker = 'cancel' AND state = 'running'",
        {"seq": job.workflow},
    )
    for (id,) in rows:
        if not _cleans_up(tx, job.node):
            current = tx.lock_jobs([job.id]).get(job.id)  # the end of another lost job may have replaced it
            if current is not None and current.state not in FINISHED:
                cancel_job(tx, current)
            ended, tx.effects.ended = tx.effects.ended, []
            cancel_workflows(tx, [WorkflowCancellation(str(id))])
            tx.effects.ended += ended


def _cleans_up(tx: Transaction, id: int) -> bool:
    """Return whether a node is inside a branch for errors or cancellation, or inside the compensation of a saga."""
    graph = LoadedGraph(tx)
    graph.load([id])
    lineage = graph.lineage(graph.nodes[id])
    return any(inner.position and container.kind in (Kind.SAGA, Kind.WORKFLOW) for inner, container in lineage)


def release_now(run: Advance, workflow: StoredWorkflow) -> None:
    """Release a workflow: start the jobs and nodes that became ready while it was held."""
    tx, graph = run.tx, run.graph
    workflow.held_at = None
    graph.change(workflow)
    emit(tx, "workflow.released", workflow)
    graph.write()
    # Wait for locked jobs: one that is skipped would stay pending for ever, because nothing looks for it after the
    # release.
    rows = tx.execute(
        f"""
        SELECT {JOB_COLUMNS}
        FROM jobs
        WHERE node BETWEEN ? AND ? AND state = 'pending' AND (suspension IS NULL OR suspension = 'resumed')
        ORDER BY id{tx.for_update}
        """,
        workflow.numbers,
    )
    make_available(tx, [Job(*row) for row in rows])
    run.start(node for node in graph.live_nodes(workflow) if node.state == NodeState.READY)
    go_on_with_starts(tx, workflow)

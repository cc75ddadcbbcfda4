"""Running the failed steps of a workflow again."""

from __future__ import annotations

from typing import Final

from ojster.collections.withdrawal import withdraw_items
from ojster.core.errors import Conflict, OjsterError
from ojster.storage.transaction import Later, Transaction
from ojster.workflows.node import SUCCESSFUL, Kind, Node, NodeState
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.creation import launch
from ojster.workflows.run.flow_wakeups import stays_cancelled
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.reset import Reset, apply
from ojster.workflows.run.states import change_workflow
from ojster.workflows.run.steps import StepAddress, find_step, require, steering, wrong_state
from ojster.workflows.run.turns import runs_instead
from ojster.workflows.stored_workflow import FINAL_STATES, StoredWorkflow, WorkflowState, emit
from ojster.workflows.targets import refuse_target


def retry_now(run: Advance, workflow: StoredWorkflow, _: object) -> None:
    """Retry a finished workflow that is locked; raise the refusal.

    The steps that did not succeed run again, with what followed their failure. The others keep their results.
    """
    require(_refuse_unfinished(workflow) or _refuse_again(run.tx, workflow, workflow.locks))
    reset = Reset(run.graph, workflow)
    reset.root()
    apply(run, workflow, reset)
    withdraw_items(run.tx, workflow.seq, reset.undone_jobs)
    _reopen(run, workflow)
    emit(run.tx, "workflow.retried", workflow, retries=workflow.retries)
    launch(run, workflow)


retry_workflows: Final = steering(retry_now)
"""Retry finished workflows."""


@steering
def retry_steps(run: Advance, workflow: StoredWorkflow, item: StepAddress) -> None:
    """Run a failed or cancelled step again, with what followed its end; the other steps go on."""
    graph, path = run.graph, item.step
    is_finished = workflow.finished_at is not None
    if is_finished:
        require(_refuse_again(run.tx, workflow, workflow.locks))
    elif workflow.state != WorkflowState.RUNNING:
        raise wrong_state(workflow, f"The workflow {workflow.id} is {workflow.state}. Retry it after it has finished.")
    step = find_step(graph, workflow, path)
    reset = Reset(graph, workflow)
    step = graph.nodes[step.id]
    if (reason := _refusal_of(graph, step, f"The step {path!r:.200}")) is not None:
        raise wrong_state(workflow, reason)
    reset.step(step)
    if (reason := reset.refusal(f"the step {path!r:.200}")) is not None:
        raise wrong_state(workflow, reason)
    nodes = apply(run, workflow, reset)
    withdraw_items(run.tx, workflow.seq, reset.undone_jobs)
    emit(run.tx, "workflow.step_retried", workflow, step_id=graph.step_id_of(step))
    if is_finished:
        _reopen(run, workflow)
        change_workflow(workflow, WorkflowState.RUNNING)
        workflow.due_at = None if workflow.timeout is None else run.tx.now + workflow.timeout
    for container in reset.opened:
        run.note_compensation(container)
    if graph.parts_of(workflow)[0].state == NodeState.COMPENSATED:  # only a branch runs again
        change_workflow(workflow, WorkflowState.COMPENSATING)
    graph.change(workflow)
    started = {node.id for node in nodes if node.state == NodeState.STARTED}
    run.decide([node for node in nodes if node.state == NodeState.WAITING and node.parent in started])


def _refusal_of(graph: LoadedGraph, step: Node, shown: str) -> str | None:
    """Return why a step cannot run again whatever follows it, if so; ``shown`` begins the sentence."""
    if not step.has_ended or step.state in SUCCESSFUL:
        state = "has not ended" if not step.has_ended else f"is {step.state}"
        return f"{shown} {state}. Only failed and cancelled steps can be retried."
    if step.was_left_out:
        return f"{shown} never ran, because a step before it did not succeed. Retry the step that failed."
    not_started: Node | None = None
    for inside, container in graph.lineage(step):
        if container.kind == Kind.FLOW and inside.position:
            return f"{shown} belongs to a flow, which has got its end. Retry the flow, or the workflow."
        if container.verdict is not None and not container.has_ended:
            return f"{shown} is in {_named(graph, container)}, which is being stopped. Retry it after its end."
        if container.started_at is None and container.state != NodeState.STARTED:
            not_started = container
    if not_started is None:
        return None
    return f"{shown} is in {_named(graph, not_started)}, which has not started. Retry that."


def _named(graph: LoadedGraph, container: Node) -> str:
    return repr(graph.place_of(container) or "a workflow")


def refuse_retry(tx: Transaction, workflow: StoredWorkflow) -> OjsterError | None:
    """Return why a workflow cannot be retried as a whole; ``None`` if it can. It takes no locks."""
    return _refuse_unfinished(workflow) or _refuse_again(tx, workflow, None)


def _refuse_unfinished(workflow: StoredWorkflow) -> OjsterError | None:
    if workflow.finished_at is not None:
        return None
    waits = "still has active jobs" if workflow.state in FINAL_STATES else "has not finished"
    return wrong_state(workflow, f"The workflow {workflow.id} {waits}. Retry it after it has finished.")


def _refuse_again(tx: Transaction, workflow: StoredWorkflow, locks: str | None) -> OjsterError | None:
    """Return why a finished workflow cannot run again; ``locks``: the targets that it will lock."""
    if workflow.state == WorkflowState.COMPLETED:
        return wrong_state(workflow, f"The workflow {workflow.id} is completed; there is nothing to retry.")
    if workflow.state == WorkflowState.RETRIED:
        return wrong_state(workflow, f"The workflow {workflow.id} was retried as {workflow.next_attempt}.")
    if workflow.turn_line and (busy := runs_instead(tx, workflow)) is not None:
        return Conflict(
            f"The workflow {workflow.id} takes turns with {busy}, another run of the cron job {workflow.cron_name!r}, "
            "which has not finished. Retry it afterwards.",
            workflow_id=workflow.id,
        )
    refusal = refuse_target(tx, workflow.tenant, workflow.target, workflow.target_key, locks)
    if refusal is None or isinstance(refusal, Later):
        return refusal
    return type(refusal)(f"The workflow {workflow.id} cannot be retried. {refusal.message}", **refusal.details)


def _reopen(run: Advance, workflow: StoredWorkflow) -> None:
    """Forget that a workflow has finished, and how, unless it is a flow whose timeout stays."""
    main = run.graph.parts_of(workflow)[0]
    if workflow.state == WorkflowState.FAILED and workflow.error is not None and stays_cancelled(run.tx, main):
        main.verdict = NodeState.FAILED.value
        run.graph.touch(main)
    else:
        workflow.error = None
    workflow.retries += 1
    workflow.resolved_bytes = 0
    workflow.finished_at = workflow.cancelled_at = workflow.kept_until = None

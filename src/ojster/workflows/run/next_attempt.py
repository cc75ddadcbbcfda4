"""Workflow retry: at the request of one of its jobs, a workflow runs again as a new one."""

from __future__ import annotations

import random
from typing import Final

import msgspec

from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import NODE_BITS, Job
from ojster.core.json_objects import Members, read_members
from ojster.jobs.failure import Failure
from ojster.jobs.new_job import read_job
from ojster.jobs.transitions import cancel_job, fail_attempt
from ojster.storage.transaction import Held, Later, Transaction
from ojster.workflows.definition import Definition, read_workflow_retry_policy
from ojster.workflows.definitions import find
from ojster.workflows.node import NodeState
from ojster.workflows.plan.nested_definitions import with_nested
from ojster.workflows.plan.request import read_workflow
from ojster.workflows.plan.values import NewWorkflow, read_spec
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.cancellation import abort
from ojster.workflows.run.creation import create
from ojster.workflows.run.graph import Graph
from ojster.workflows.run.states import change_workflow
from ojster.workflows.run.stopping import stopped_nodes
from ojster.workflows.stored_workflow import Workflow, WorkflowState, emit

_encode: Final = msgspec.json.Encoder().encode

_RETRIED: Final = {"code": "retried", "message": "The workflow is retried as a new workflow."}


def retry_as_new(tx: Transaction, job: Job) -> None:
    """End the workflow of an active job and start it again as a new workflow, after the backoff of its definition.

    If that is refused, because retries are exhausted or the workflow has no definition, the job fails without a retry.
    Its workflow then fails, too, and runs its ``on_error`` branch.
    """
    if job.node is not None and stopped_nodes(tx, [job.node]):
        cancel_job(tx, job, by_itself=True)
        return
    try:
        with tx.savepoint():
            _retry(tx, job)
    except OjsterError as refusal:
        failure = Failure("RetryRefused", refusal.message, code=refusal.details.get("reason", refusal.code))
        fail_attempt(tx, job, msgspec.structs.replace(failure, retryable=False))


def _retry(tx: Transaction, job: Job) -> None:
    if job.node is None:
        raise Conflict(f"The job {job.id} does not belong to a workflow to retry.", reason="no_workflow")
    graph = Graph(tx)
    graph.lock([job.node >> NODE_BITS])
    workflow = graph.workflows[job.node >> NODE_BITS]
    main = graph.parts_of(workflow)[0]
    if workflow.state != WorkflowState.RUNNING or main.has_ended:
        raise Conflict(f"The workflow {workflow.id} has ended and cannot be retried.", reason="wrong_state")
    new = _next_attempt(tx, workflow)
    key, workflow.target_key, workflow.locks = workflow.target_key, None, None
    workflow.next_attempt = new.id
    graph.change(workflow)
    graph.write()
    new.target_key = key
    (created,) = create(tx, [new])
    if isinstance(created, Later):
        raise Held(created.message)
    if isinstance(created, OjsterError):
        raise created
    tx.execute("UPDATE workflows SET held_at = :held WHERE id = :id", {"held": workflow.held_at, "id": new.id})
    _end(graph, workflow, job)


def _next_attempt(tx: Transaction, workflow: Workflow) -> NewWorkflow:
    """Return the new workflow that replaces a workflow."""
    definition = _definition_of(tx, workflow)
    policy = read_workflow_retry_policy(definition.members)
    if workflow.attempt >= policy.max_attempts:
        raise Conflict(
            f"Retries exhausted: the workflow {workflow.id} was attempt {workflow.attempt} of {policy.max_attempts}. "
            "Raise 'max_attempts' in its definition.",
            reason="retries_exhausted",
        )
    own: Members = read_members(workflow.start or b"{}", "The start of the workflow")
    own |= {"params": msgspec.Raw(workflow.params), "metadata": msgspec.Raw(workflow.metadata)}
    members = with_nested(tx, definition.members | own, workflow.tenant)
    new = read_workflow(members, tx.now, largest=tx.settings.largest_job, tenant=workflow.tenant)
    new.definition, new.definition_version = workflow.definition, workflow.definition_version
    new.target, new.locks, new.start = workflow.target, workflow.locks, workflow.start
    new.attempt, new.previous_attempt, new.created_by = workflow.attempt + 1, workflow.id, workflow.created_by
    new.cron_name, new.turn_line = workflow.cron_name, workflow.turn_line
    _keep_steps(tx, workflow, new)
    new.scheduled_at = tx.now + policy.delay(workflow.attempt, random.random())
    return new


def _keep_steps(tx: Transaction, workflow: Workflow, new: NewWorkflow) -> None:
    """Give a new attempt the jobs of the previous one, as completed by middleware and the rules of their queues."""
    first = workflow.root
    rows = tx.execute(
        "SELECT id, spec FROM node_specs WHERE id BETWEEN ? AND ?", (first, first + len(new.plan.nodes) - 1)
    )
    known = {id - first: read_spec(spec).request for id, spec in rows}
    own_id = msgspec.Raw(_encode(new.id))
    for node, spec in zip(new.plan.nodes, new.plan.specs, strict=True):
        request = known.get(node.id, msgspec.UNSET)
        if spec.request is msgspec.UNSET or request is msgspec.UNSET:
            continue
        members = read_members(request, "The step") | {"workflow_id": own_id}
        spec.request = msgspec.Raw(_encode(members))
        if node.id in new.plan.jobs:
            largest = tx.settings.largest_job
            new.plan.jobs[node.id] = read_job(members, tx.now, largest=largest, tenant=workflow.tenant, is_step=True)


def _definition_of(tx: Transaction, workflow: Workflow) -> Definition:
    if workflow.definition is None:
        raise Conflict(
            f"The workflow {workflow.id} cannot be retried: it has no definition. Start it from one.",
            reason="no_definition",
        )
    definition = find(tx, workflow.definition, workflow.definition_version)
    if (
        definition is None or definition.created_at > workflow.created_at
    ):  # a later definition may have the same name and version
        raise Conflict(
            f"The workflow {workflow.id} cannot be retried: its definition was deleted. Start a new workflow.",
            reason="definition_deleted",
        )
    return definition


def _end(graph: Graph, workflow: Workflow, job: Job) -> None:
    """End a workflow that was replaced: cancel its jobs, and start none of its branches."""
    run = Advance(graph)
    change_workflow(workflow, WorkflowState.RETRIED)
    workflow.due_at = None
    workflow.error = _encode(_RETRIED | {"message": f"{_RETRIED['message'][:-1]}: {workflow.next_attempt}."})
    graph.change(workflow)
    emit(graph.tx, "workflow.retried", workflow, attempt=workflow.attempt, next_workflow_id=workflow.next_attempt)
    main, *branches = graph.parts_of(workflow)
    for branch in branches:
        run.end(branch, NodeState.SKIPPED)
    cancel_job(graph.tx, job, by_itself=True)
    abort(run, workflow, main, NodeState.CANCELLED, _RETRIED, active_too=True)
    run.go()

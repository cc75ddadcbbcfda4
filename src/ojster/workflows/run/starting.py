"""Workflows that the server starts from what is stored: those of reactions and cron jobs, and their next attempts."""

from __future__ import annotations

import random
from typing import Final

import msgspec
from msgspec import UNSET

from ojster.core.errors import Conflict, NotFound, OjsterError, PayloadTooLarge
from ojster.core.job import NODE_BITS, Job
from ojster.core.json_objects import Members, read_members, stored_members, without_nulls
from ojster.core.tenant import NOBODY, qualify
from ojster.jobs.failure import Failure
from ojster.jobs.transitions import cancel_job, fail_attempt
from ojster.storage.transaction import Transaction
from ojster.workflows.definition import Definition, from_definition, read_start, read_workflow_retry_policy
from ojster.workflows.definitions import find
from ojster.workflows.node import NodeState
from ojster.workflows.orchestrator_request import ORCHESTRATOR_MEMBER, expand
from ojster.workflows.plan.nested_definitions import with_nested
from ojster.workflows.plan.planned_jobs import add_defaults
from ojster.workflows.plan.request import read_workflow
from ojster.workflows.plan.values import NewWorkflow, read_spec
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.cancellation import abort
from ojster.workflows.run.creation import create
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.states import change_workflow
from ojster.workflows.run.steps import require
from ojster.workflows.run.stopping import stopped_nodes
from ojster.workflows.stored_workflow import StoredWorkflow, WorkflowState, emit

_encode: Final = msgspec.json.Encoder().encode

MAX_NODES_STARTED: Final = 1_000
"""Maximum number of nodes of a workflow that the server starts: one transaction creates them, and others wait."""


class Starter(msgspec.Struct, frozen=True):
    """The tenant and the creator of a workflow that the server starts, and the cron job that it belongs to.

    Parameters
    ----------
    tenant:
        The tenant of the workflow; ``None``: the one that its metadata names.
    otherwise:
        The tenant if its metadata names none, either.
    created_by:
        The name of its creator's token, if it is known.
    cron_name, turn_line:
        See ``NewWorkflow``.
    """

    tenant: str | None
    otherwise: str = ""
    created_by: str | None = None
    cron_name: str | None = None
    turn_line: int = 0


def check_size(new: NewWorkflow) -> None:
    """Check that the server can create a workflow in one transaction.

    Raises
    ------
    PayloadTooLarge
        It has more than ``MAX_NODES_STARTED`` nodes.
    """
    if (nodes := len(new.plan.nodes)) > MAX_NODES_STARTED:
        raise PayloadTooLarge(
            f"The workflow has {nodes} steps and containers; cron jobs and reactions start at most "
            f"{MAX_NODES_STARTED}. Make it smaller, for example with a map, or start it with a request.",
            limit=MAX_NODES_STARTED,
        )


def start_workflow(tx: Transaction, members: Members, by: Starter) -> NewWorkflow:
    """Start the workflow that a request describes, with steps or from a definition; return it.

    No enqueue middleware runs: what it changes cannot be awaited in a transaction.

    Raises
    ------
    OjsterError
        It is refused. The caller undoes what was changed so far.
    Held
        Another transaction is in the way. It can be tried again.
    """
    members = without_nulls(members)  # as for a request to a server
    own, start = members, None
    whose = by.tenant or NOBODY
    if ORCHESTRATOR_MEMBER in members:
        members, _, _ = expand(members)
    if "definition" in members:
        start = read_start(members)
        definition = find(tx, qualify(whose, start.definition), start.definition_version)
        if definition is None:
            raise NotFound(f"There is no definition {start.definition!r}.", resource_type="definition")
        members, start = from_definition(definition, start, members)
    members = with_nested(tx, members, whose)
    new = read_workflow(members, tx.now, largest=tx.settings.largest_job, tenant=by.tenant, otherwise=by.otherwise)
    check_size(new)
    if start is not None:
        new = msgspec.structs.replace(new, **start.of(new.params, own, new.tenant))
    new.created_by, new.cron_name, new.turn_line = by.created_by, by.cron_name, by.turn_line
    add_defaults(tx, new.plan, new.tenant)
    (created,) = create(tx, [new])
    require(created if isinstance(created, OjsterError) else None)
    return new


# Next attempts: at the request of one of its jobs, a workflow runs again as a new one

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
    graph = LoadedGraph(tx)
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
    require(created if isinstance(created, OjsterError) else None)
    tx.execute("UPDATE workflows SET held_at = :held WHERE id = :id", {"held": workflow.held_at, "id": new.id})
    _end(graph, workflow, job)


def _next_attempt(tx: Transaction, workflow: StoredWorkflow) -> NewWorkflow:
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


def _keep_steps(tx: Transaction, workflow: StoredWorkflow, new: NewWorkflow) -> None:
    """Give a new attempt the jobs of the previous one, as completed by middleware and the rules of their queues.

    A step is found by its path. Numbers of nodes may differ: another version of a definition that is a step may have
    compensations, for which the whole workflow gets nodes.
    """
    own_id = msgspec.Raw(_encode(new.id))
    steps = {bytes(members["workflow_step"]): (node, spec) for node, spec, members in new.plan.requests()}
    low, high = workflow.numbers
    while steps and (rows := tx.execute(_SPECS, (low, high))):  # those that were added while it ran come last
        low = rows[-1][0] + 1
        for request in (read_spec(spec).request for _, spec in rows):
            members = {} if request is UNSET else stored_members(request)
            if (known := steps.pop(bytes(members.get("workflow_step", b"")), None)) is not None:
                members["workflow_id"] = own_id
                new.plan.replace(*known, members, tx.now, tx.settings.largest_job, workflow.tenant)


_SPECS: Final = "SELECT id, spec FROM node_specs WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1000"


def _definition_of(tx: Transaction, workflow: StoredWorkflow) -> Definition:
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


def _end(graph: LoadedGraph, workflow: StoredWorkflow, job: Job) -> None:
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

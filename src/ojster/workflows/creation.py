"""Creation and start of workflows.

Spec: ojs-workflows 11.1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.collections.contents import promise
from ojster.core.errors import Duplicate, OjsterError
from ojster.storage.transaction import Transaction
from ojster.tenancy.quotas import check_tenant_limits
from ojster.workflows.advance import Advance, emit
from ojster.workflows.graph import (
    Graph,
    Workflow,
    WorkflowState,
)
from ojster.workflows.plan_values import NewWorkflow
from ojster.workflows.states import change_workflow
from ojster.workflows.targets import refuse_target

_GIVEN_COLUMNS: Final = (
    "id",
    "type",
    "name",
    "scheduled_at",
    "expires_at",
    "timeout",
    "params",
    "metadata",
    "tenant",
    "definition",
    "definition_version",
    "target",
    "target_key",
    "start",
    "locks",
    "on_lost_worker",
    "attempt",
    "previous_attempt",
    "expiration_delay",
    "created_by",
)
"""Columns that take the value of the attribute of the same name of the new workflow."""

_INSERT: Final = (
    f"INSERT INTO workflows ({', '.join(_GIVEN_COLUMNS)}, state, created_at, due_at, nodes, jobs) "
    f"VALUES (:{', :'.join(_GIVEN_COLUMNS)}, 'pending', :now, :due_at, 0, 0) RETURNING seq"
)


def create(tx: Transaction, requests: Sequence[NewWorkflow]) -> list[str | OjsterError]:
    """Create workflows and start those that are due; for each, return its id or an error."""
    graph = Graph(tx)
    run = Advance(graph)
    results: list[str | OjsterError] = []
    for new in requests:
        if new.id_is_given and tx.execute("SELECT seq FROM workflows WHERE id = :id", {"id": new.id}):
            message = f"A workflow with the id {new.id} exists already. Use another id."
            results.append(Duplicate(message, existing_workflow_id=new.id))
            continue
        replaces_holder = new.previous_attempt is not None
        refusal = refuse_target(tx, new.tenant, new.target, new.target_key, new.locks, replaces_holder=replaces_holder)
        if refusal is not None:
            results.append(refusal)
            continue
        (refused,) = check_tenant_limits(tx, [list(new.plan.jobs.values())])
        if refused is not None:
            results.append(refused)
            continue
        workflow = _insert(tx, new)
        graph.workflows[workflow.seq] = workflow
        graph.plant(new.plan, workflow)
        promise(tx, workflow.seq, new.plan.promises)
        emit(tx, "workflow.created", workflow, total_steps=workflow.jobs)
        is_due = new.scheduled_at is None or new.scheduled_at <= tx.now
        if is_due and (new.expires_at is None or new.expires_at > tx.now):
            launch(run, workflow)
        results.append(new.id)
    run.go()
    return results


def _insert(tx: Transaction, new: NewWorkflow) -> Workflow:
    given = {column: getattr(new, column) for column in _GIVEN_COLUMNS}
    due_at = min((moment for moment in (new.scheduled_at, new.expires_at) if moment is not None), default=None)
    ((seq,),) = tx.execute(_INSERT, given | {"now": tx.now, "due_at": due_at})
    tx.execute_many(
        "INSERT INTO workflow_properties (workflow, name, value, version) VALUES (?, ?, ?, 1)",
        [(seq, name, bytes(value)) for name, value in new.properties.items()],
    )
    return Workflow(
        **given,
        seq=seq,
        state=WorkflowState.PENDING,
        version=0,
        created_at=tx.now,
        started_at=None,
        cancelled_at=None,
        finished_at=None,
        due_at=due_at,
        held_at=None,
        nodes=0,
        jobs=0,
        completed=0,
        failed=0,
        cancelled=0,
        retries=0,
        error=None,
    )


def launch(run: Advance, workflow: Workflow) -> None:
    """Start a workflow; if it is held, its steps start when it is released."""
    graph = run.graph
    change_workflow(workflow, WorkflowState.RUNNING)
    workflow.due_at = None if workflow.timeout is None else run.tx.now + workflow.timeout
    graph.change(workflow)
    graph.load([workflow.root])
    run.start([graph.nodes[workflow.root]])

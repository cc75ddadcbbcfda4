"""Creation and start of workflows.

A large workflow is created in several transactions, so that nobody else waits long: ``begin`` creates it hidden,
``plant`` adds nodes to it, and ``finish`` shows and starts it. If that does not come to its end, it is deleted.

Spec: ojs-workflows 11.1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ojster.collections.contents import promise
from ojster.core.durations import MINUTE, SECOND
from ojster.core.errors import BackendUnavailable, Duplicate, OjsterError
from ojster.jobs.idempotency import remember
from ojster.storage.call import for_each, returns_refusal, runs_first
from ojster.storage.transaction import Transaction
from ojster.tenancy.quotas import check_tenant_limits, lock_tenants
from ojster.workflows.plan.values import NewWorkflow, Plan
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.graph import LoadedGraph, workflow_row
from ojster.workflows.run.start_reply import id_alone
from ojster.workflows.run.states import change_workflow
from ojster.workflows.run.turns import waits_for_turn
from ojster.workflows.stored_workflow import HIDDEN, StoredWorkflow, WorkflowState, emit
from ojster.workflows.targets import refuse_target


@runs_first
def create(tx: Transaction, requests: Sequence[NewWorkflow]) -> list[str | OjsterError]:
    """Create workflows and start those that are due; for each, return its id or an error."""
    lock_tenants(tx, {new.tenant for new in requests})  # together: they are checked one by one
    graph = LoadedGraph(tx)
    run = Advance(graph)
    results: list[str | OjsterError] = []
    for new, seq in zip(requests, tx.new_numbers("workflows", len(requests)), strict=True):
        if (refusal := _refusal(graph, new)) is not None:
            results.append(refusal)
            continue
        workflow = _add(graph, seq, new, WorkflowState.PENDING, _due_at(new))
        graph.plant(new.plan, workflow)
        _show(run, workflow, new)
        results.append(new.id)
    run.go()
    return results


NODES_CREATED_AT_ONCE: Final = 200
"""Maximum number of nodes that a transaction creates for one workflow; larger ones are created in steps."""

EDGES_AT_ONCE: Final = 2_000
"""Maximum number of edges that a transaction creates, which are two numbers each."""

ABANDONED_AFTER: Final = MINUTE
"""Time after which a workflow is deleted to which no nodes are added although it is not complete, in microseconds."""


def parts_of(plan: Plan) -> Iterator[Plan]:
    """Yield the nodes and the edges of a plan in parts for ``plant``."""
    for start in range(0, len(plan.nodes), NODES_CREATED_AT_ONCE):
        part = slice(start, start + NODES_CREATED_AT_ONCE)
        yield Plan(plan.nodes[part], plan.specs[part])
    for start in range(0, len(plan.edges), EDGES_AT_ONCE):
        edges = plan.edges[start : start + EDGES_AT_ONCE]
        yield Plan(edges=edges, promised=plan.promised & set(edges))


@runs_first
@for_each
def begin(tx: Transaction, new: NewWorkflow) -> int | OjsterError:
    """Create workflows without nodes that nobody sees; for each, return its ``seq`` or an error."""
    graph = LoadedGraph(tx)
    if (refusal := _refusal(graph, new)) is not None:
        return refusal
    (seq,) = tx.new_numbers("workflows", 1)
    _add(graph, seq, new, HIDDEN, tx.now + ABANDONED_AFTER)
    graph.write()
    return seq


@for_each
@returns_refusal
def plant(tx: Transaction, part: tuple[int, Plan]) -> None:
    """Add nodes and edges to incomplete workflows, each given by its ``seq``; for each, return ``None`` or an error."""
    graph = LoadedGraph(tx)
    workflow = _incomplete(graph, part[0])
    graph.plant(part[1], workflow)
    workflow.due_at = tx.now + ABANDONED_AFTER
    graph.change(workflow)
    graph.write()


@for_each
@returns_refusal
def finish(tx: Transaction, complete: tuple[int, NewWorkflow]) -> str:
    """Show workflows, given by their ``seq``, and start those that are due; for each, return its id or an error."""
    seq, new = complete
    graph = LoadedGraph(tx)
    run = Advance(graph)
    workflow = _incomplete(graph, seq)
    change_workflow(workflow, WorkflowState.PENDING)
    workflow.due_at = _due_at(new)
    workflow.version = 0
    graph.change(workflow)
    _show(run, workflow, new)
    run.go()
    return new.id


def create_whole(tx: Transaction, new: NewWorkflow) -> str | OjsterError:
    """Create a workflow of any size in this transaction, and start it if it is due; return its id or an error.

    It is for transactions of callers, which hold nobody up but themselves.
    """
    if len(new.plan.nodes) <= NODES_CREATED_AT_ONCE:
        return create(tx, [new])[0]
    (begun,) = begin(tx, [new])
    if isinstance(begun, OjsterError):
        return begun
    for part in parts_of(new.plan):
        (refusal,) = plant(tx, [(begun, part)])
        if refusal is not None:
            return refusal
    return finish(tx, [(begun, new)])[0]


def abandon(tx: Transaction, workflow: StoredWorkflow) -> None:
    """Let retention delete an incomplete workflow to which nobody adds nodes any more."""
    tx.execute(
        "UPDATE workflows SET finished_at = :now, due_at = NULL WHERE seq = :seq", {"now": tx.now, "seq": workflow.seq}
    )


def _incomplete(graph: LoadedGraph, seq: int) -> StoredWorkflow:
    """Lock and return an incomplete workflow; raise the refusal if it was abandoned."""
    graph.lock([seq])
    workflow = graph.workflows.get(seq)
    if workflow is None or workflow.state != HIDDEN or workflow.finished_at:
        raise BackendUnavailable(
            f"The workflow was not created, because the server needed more than {ABANDONED_AFTER // SECOND} s for a "
            "part of it. Try again."
        )
    return workflow


def _refusal(graph: LoadedGraph, new: NewWorkflow) -> OjsterError | None:
    """Return why a workflow cannot be created, or ``None``."""
    tx = graph.tx
    if new.id_is_given or new.target is not None:
        graph.write_new_workflows()  # those before it may have its id, or its target
    if (full := tx.refuse_growth()) is not None:
        return full
    for (state,) in tx.execute("SELECT state FROM workflows WHERE id = :id", {"id": new.id}) if new.id_is_given else ():
        if state == HIDDEN:
            return BackendUnavailable(f"A workflow with the id {new.id} is being created or deleted. Try again later.")
        message = f"A workflow with the id {new.id} exists already. Use another id."
        return Duplicate(message, existing_workflow_id=new.id)
    replaces_holder = new.previous_attempt is not None
    refusal = refuse_target(tx, new.tenant, new.target, new.target_key, new.locks, replaces_holder=replaces_holder)
    if refusal is not None:
        return refusal
    (refused,) = check_tenant_limits(tx, [[*new.plan.jobs.values(), *new.plan.later_jobs]])
    return refused


def _show(run: Advance, workflow: StoredWorkflow, new: NewWorkflow) -> None:
    """Announce a workflow whose nodes exist, and start it if it is due."""
    tx = run.tx
    if new.key is not None:
        remember(tx, new.key, id_alone(new.id))
    promise(tx, workflow.seq, new.plan.promises)
    emit(tx, "workflow.created", workflow, total_steps=workflow.jobs)
    is_due = new.scheduled_at is None or new.scheduled_at <= tx.now
    if is_due and (new.expires_at is None or new.expires_at > tx.now):
        if waits_for_turn(tx, workflow):
            run.graph.change(workflow)
        else:
            launch(run, workflow)


def _due_at(new: NewWorkflow) -> int | None:
    return min((moment for moment in (new.scheduled_at, new.expires_at) if moment is not None), default=None)


def _add(graph: LoadedGraph, seq: int, new: NewWorkflow, state: str, due_at: int | None) -> StoredWorkflow:
    tx = graph.tx
    tx.execute_many(
        "INSERT INTO workflow_properties (workflow, name, value, version) VALUES (?, ?, ?, 1)",
        [(seq, name, bytes(value)) for name, value in new.properties.items()],
    )
    workflow = StoredWorkflow(*workflow_row(new))
    workflow.seq, workflow.state, workflow.created_at, workflow.due_at = seq, state, tx.now, due_at
    graph.add(workflow)
    return workflow


def launch(run: Advance, workflow: StoredWorkflow) -> None:
    """Start a workflow; if it is held, its steps start when it is released."""
    graph = run.graph
    change_workflow(workflow, WorkflowState.RUNNING)
    workflow.due_at = None if workflow.timeout is None else run.tx.now + workflow.timeout
    graph.change(workflow)
    run.start([graph.root_of(workflow)])

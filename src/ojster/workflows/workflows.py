"""Creating and steering workflows. ``ojster.workflows.advance`` starts and ends their steps.

Spec: ojs-workflows 11.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec

from ojster.collections.contents import delete_items, promise
from ojster.collections.items import key_of_workflow
from ojster.core.durations import MINUTE, SECOND
from ojster.core.errors import Conflict, Duplicate, InvalidRequest, NotFound, OjsterError
from ojster.core.ids import is_job_id
from ojster.core.job import NODE_BITS, Job
from ojster.core.states import FINISHED
from ojster.core.timestamps import format_timestamp
from ojster.jobs.interventions import delete_jobs
from ojster.jobs.queries import no_workflow
from ojster.jobs.transitions import cancel_job, make_available
from ojster.storage.transaction import JOB_COLUMNS, Later, Transaction, TryAgain
from ojster.tenancy.quotas import check_tenant_limits
from ojster.tenancy.tenant import tenants_retention
from ojster.workflows.advance import Advance, emit
from ojster.workflows.graph import (
    FINAL_STATES,
    FORGOTTEN,
    WORKFLOW_COLUMNS,
    Graph,
    Workflow,
    WorkflowState,
    delete_nodes,
    live_nodes,
)
from ojster.workflows.node import TWO_PART, Kind, Node, NodeState, count_ended_child, count_ended_predecessor
from ojster.workflows.plan import NewWorkflow, Planner
from ojster.workflows.states import change_node, change_workflow
from ojster.workflows.stopping import put_off
from ojster.workflows.targets import refuse_target

MAX_DUE_WORKFLOWS: Final = 100
"""Maximum number of due workflows processed in one transaction."""

_encode: Final = msgspec.json.Encoder().encode

log = logging.getLogger(__name__)

_UNFINISHED: Final = (NodeState.WAITING, NodeState.BLOCKED, NodeState.READY)


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


class StepAddress(msgspec.Struct, frozen=True):
    """A step of a workflow, identified by its path."""

    workflow_id: str
    step: str


# Creation


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
            _launch(run, workflow)
        results.append(new.id)
    run.go()
    return results


def _insert(tx: Transaction, new: NewWorkflow) -> Workflow:
    due_at = min((moment for moment in (new.scheduled_at, new.expires_at) if moment is not None), default=None)
    values = {
        "id": new.id,
        "type": new.type,
        "name": new.name,
        "now": tx.now,
        "due_at": due_at,
        "scheduled_at": new.scheduled_at,
        "expires_at": new.expires_at,
        "timeout": new.timeout,
        "params": new.params,
        "metadata": new.metadata,
        "tenant": new.tenant,
        "definition": new.definition,
        "definition_version": new.definition_version,
        "target": new.target,
        "target_key": new.target_key,
        "start": new.start,
        "locks": new.locks,
        "on_lost_worker": new.on_lost_worker,
        "attempt": new.attempt,
        "previous_attempt": new.previous_attempt,
        "expiration_delay": new.expiration_delay,
    }
    ((seq,),) = tx.execute(
        "INSERT INTO workflows (id, type, name, state, created_at, due_at, scheduled_at, expires_at, timeout, nodes, "
        "jobs, params, metadata, tenant, definition, definition_version, target, target_key, start, locks, "
        "on_lost_worker, attempt, previous_attempt, expiration_delay) VALUES "
        "(:id, :type, :name, 'pending', :now, :due_at, :scheduled_at, :expires_at, :timeout, 0, 0, :params, "
        ":metadata, :tenant, :definition, :definition_version, :target, :target_key, :start, :locks, "
        ":on_lost_worker, :attempt, :previous_attempt, :expiration_delay) RETURNING seq",
        values,
    )
    tx.execute_many(
        "INSERT INTO workflow_properties (workflow, name, value, version) VALUES (?, ?, ?, 1)",
        [(seq, name, bytes(value)) for name, value in new.properties.items()],
    )
    return Workflow(
        seq=seq,
        id=new.id,
        type=new.type,
        name=new.name,
        state=WorkflowState.PENDING,
        version=0,
        created_at=tx.now,
        started_at=None,
        cancelled_at=None,
        finished_at=None,
        due_at=due_at,
        scheduled_at=new.scheduled_at,
        expires_at=new.expires_at,
        timeout=new.timeout,
        held_at=None,
        nodes=0,
        jobs=0,
        completed=0,
        failed=0,
        cancelled=0,
        retries=0,
        params=new.params,
        metadata=new.metadata,
        error=None,
        tenant=new.tenant,
        definition=new.definition,
        definition_version=new.definition_version,
        target=new.target,
        target_key=new.target_key,
        start=new.start,
        locks=new.locks,
        on_lost_worker=new.on_lost_worker,
        attempt=new.attempt,
        previous_attempt=new.previous_attempt,
        expiration_delay=new.expiration_delay,
    )


def _launch(run: Advance, workflow: Workflow) -> None:
    """Start a workflow; if it is held, its steps start when it is released."""
    graph = run.graph
    change_workflow(workflow, WorkflowState.RUNNING)
    workflow.due_at = None if workflow.timeout is None else run.tx.now + workflow.timeout
    graph.change(workflow)
    graph.load([workflow.root])
    run.start([graph.nodes[workflow.root]])


# Cancellation


def cancel_workflows(tx: Transaction, ids: Sequence[str]) -> list[str | OjsterError]:
    """Cancel workflows: steps that have not started are cancelled, active jobs may finish.

    For each, return its id or an error.

    Spec: ojs-workflows 11.3
    """
    return [_steer(tx, id, _cancel) for id in ids]


def _cancel(run: Advance, workflow: Workflow) -> None:
    if workflow.state in FINAL_STATES:
        raise _wrong_state(workflow, f"The workflow {workflow.id} is already in terminal state {workflow.state!r}.")
    was_pending = workflow.state == WorkflowState.PENDING
    change_workflow(workflow, WorkflowState.CANCELLED)
    workflow.cancelled_at = run.tx.now
    workflow.due_at = None
    run.graph.change(workflow)
    emit(run.tx, "workflow.cancelled", workflow)
    run.graph.load([workflow.root])
    root = run.graph.nodes[workflow.root]
    if was_pending or root.state == NodeState.READY:
        run.end(root, NodeState.CANCELLED)
    else:
        main, *branches = run.graph.children(root)
        for node in branches if main.has_ended else [main]:
            if not node.has_ended:
                abort(run, workflow, node, NodeState.CANCELLED, _CANCELLED)
    if workflow.held_at is not None:
        _release_now(run, workflow)


_CANCELLED: Final = {"code": "cancelled", "message": "The workflow was cancelled."}


def cancel_steps(tx: Transaction, addresses: Sequence[StepAddress]) -> list[str | OjsterError]:
    """Cancel steps and everything inside them, including active jobs; return the workflows' ids, or errors."""
    return [_steer(tx, one.workflow_id, partial(_cancel_step, path=one.step)) for one in addresses]


def _cancel_step(run: Advance, workflow: Workflow, path: str) -> None:
    node = find_step(run.graph, workflow, path)
    if node.has_ended or _is_over(run.graph, node):
        raise _wrong_state(workflow, f"The step {path!r} is {node.state}, and can no longer be cancelled.")
    error = {"code": "cancelled", "message": "The step was cancelled."}
    abort(run, workflow, node, NodeState.CANCELLED, error, active_too=True)


def abort(
    run: Advance,
    workflow: Workflow,
    target: Node,
    verdict: NodeState,
    error: dict[str, Any],
    *,
    active_too: bool = False,
    rest: Literal[NodeState.CANCELLED, NodeState.SKIPPED] = NodeState.CANCELLED,
) -> None:
    """Stop a node and everything inside it, and compensate the sagas inside it.

    Parameters
    ----------
    verdict:
        The final state of ``target``.
    error:
        The error of nodes that have not started.
    active_too:
        Whether to cancel active jobs. By default they may finish, but are not retried.
    rest:
        The final state of nodes that have not started. With ``skipped``, the containers around them complete.
    """
    inner = NodeState.CANCELLED if rest == NodeState.CANCELLED else NodeState.COMPLETED
    graph = run.graph
    inside: dict[int, list[Node]] = defaultdict(list)
    if target.state == NodeState.STARTED and target.kind != Kind.JOB:
        for node in live_nodes(graph, workflow):
            if node.parent is not None:
                inside[node.parent].append(node)
    working: list[Node] = []
    waiting = [target]
    while waiting:
        node = waiting.pop()
        if node.state in _UNFINISHED:
            run.end(node, rest, error=error)
        elif node.kind == Kind.JOB:
            node.verdict = NodeState.CANCELLED.value
            graph.touch(node)
            working.append(node)
        else:
            if node is target or node.kind != Kind.SAGA:
                node.verdict = (verdict if node is target else inner).value
                graph.touch(node)
            waiting += [child for child in inside[node.id] if node.kind != Kind.SAGA or not child.position]
    _cancel_jobs(run, working, active_too=active_too)


def _cancel_jobs(run: Advance, nodes: Sequence[Node], *, active_too: bool) -> None:
    """Cancel the jobs of nodes, including active ones if ``active_too``.

    A waiting job locked by another transaction is skipped: that transaction then waits for the workflow and finds the
    verdict of the job's node.
    """
    tx = run.tx
    ids = tx.integers([node.id for node in nodes])
    others, tx.effects.ended = tx.effects.ended, []
    waiting = (
        "state IN ('available', 'scheduled', 'retryable', 'pending') AND (hold IS NULL OR hold = 'resumed')",
        tx.skip_locked,
    )
    # Wait for the lock of suspended jobs: no other transaction will check the verdicts of their nodes.
    on_hold = ("state = 'pending' AND hold IN ('complete', 'again', 'delay')", tx.for_update)
    for condition, lock in (waiting, on_hold, ("state = 'active'", tx.for_update))[: 2 + active_too]:
        if nodes:
            rows = tx.execute(
                f"SELECT {JOB_COLUMNS} FROM jobs WHERE node {tx.among} AND {condition} ORDER BY id{lock}", (ids,)
            )
            for row in rows:
                cancel_job(tx, Job(*row))
    ended, tx.effects.ended = tx.effects.ended, others
    for job in ended:
        run.end_with_job(run.graph.nodes[job.node or 0], job)


# Effects of jobs and lost workers on their workflows


def skip_rest(tx: Transaction, job: Job) -> None:
    """Skip the steps that have not started in the workflow of an active job, so that the workflow completes."""
    if job.node is None:
        return
    graph = Graph(tx)
    graph.lock([job.node >> NODE_BITS])
    workflow = graph.workflows[job.node >> NODE_BITS]
    graph.load([workflow.root])
    main = graph.children(graph.nodes[workflow.root])[0]
    if main.has_ended or workflow.state != WorkflowState.RUNNING:
        return  # a branch is running or the workflow is being cancelled
    run = Advance(graph)
    graph.change(workflow)
    abort(run, workflow, main, NodeState.COMPLETED, _NOT_NEEDED, rest=NodeState.SKIPPED)
    run.go()


_NOT_NEEDED: Final = {"code": "skipped", "message": "A step skipped the rest of the workflow."}


def cancel_with_worker(tx: Transaction, job: Job) -> None:
    """Cancel the workflow of a job whose worker is lost, if it wants that. The workflow is locked."""
    if job.node is None:
        return
    rows = tx.execute(
        "SELECT id FROM workflows WHERE seq = :seq AND on_lost_worker = 'cancel' AND state = 'running'",
        {"seq": job.node >> NODE_BITS},
    )
    for (id,) in rows:
        if not _cleans_up(tx, job.node):
            if job.state not in FINISHED:
                cancel_job(tx, job)
            ended, tx.effects.ended = tx.effects.ended, []
            _steer(tx, str(id), _cancel)
            tx.effects.ended += ended


def _cleans_up(tx: Transaction, id: int) -> bool:
    """Return whether a node is inside a branch for errors or cancellation, or inside the compensation of a saga."""
    graph = Graph(tx)
    graph.load([id])
    node = graph.nodes[id]
    while node.parent is not None:
        container = graph.container_of(node)
        if node.position and container.kind in (Kind.SAGA, Kind.WORKFLOW):
            return True
        node = container
    return False


# Hold and release


def hold_workflows(tx: Transaction, ids: Sequence[str]) -> list[str | OjsterError]:
    """Hold workflows: no step starts until they are released; active jobs may finish. Return ids or errors."""
    return [_steer(tx, id, _hold) for id in ids]


def _hold(run: Advance, workflow: Workflow) -> None:
    if workflow.finished_at is not None:
        raise _wrong_state(workflow, f"The workflow {workflow.id} is {workflow.state}, and cannot be held.")
    if workflow.held_at is not None:
        return
    tx = run.tx
    workflow.held_at = tx.now
    run.graph.change(workflow)
    # lower() keeps the planner from an index scan over the available jobs of all queues.
    waiting = tx.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE node BETWEEN ? AND ? AND lower(state) = 'available' "
        f"ORDER BY id{tx.skip_locked}",
        workflow.numbers,
    )
    for row in waiting:
        put_off(tx, Job(*row))
    emit(tx, "workflow.held", workflow)


def release_workflows(tx: Transaction, ids: Sequence[str]) -> list[str | OjsterError]:
    """Release held workflows; for each, return its id or an error."""
    return [_steer(tx, id, _release) for id in ids]


def _release(run: Advance, workflow: Workflow) -> None:
    if workflow.held_at is None:
        raise _wrong_state(workflow, f"The workflow {workflow.id} is not held.")
    _release_now(run, workflow)


def _release_now(run: Advance, workflow: Workflow) -> None:
    """Release a workflow: start the jobs and nodes that became ready while it was held."""
    tx, graph = run.tx, run.graph
    workflow.held_at = None
    graph.change(workflow)
    emit(tx, "workflow.released", workflow)
    graph.write()
    rows = tx.execute(
        f"SELECT {JOB_COLUMNS} FROM jobs WHERE node BETWEEN ? AND ? AND state = 'pending' "
        f"AND (hold IS NULL OR hold = 'resumed') ORDER BY id{tx.for_update}",
        workflow.numbers,
    )
    make_available(tx, [Job(*row) for row in rows])
    run.start(node for node in live_nodes(graph, workflow) if node.state == NodeState.READY)


# Approval


def review_steps(tx: Transaction, reviews: Sequence[Review]) -> list[str | OjsterError]:
    """Approve or reject steps that wait for approval, or record notes; return the workflows' ids, or errors."""
    return [_steer(tx, one.workflow_id, partial(_review, review=one)) for one in reviews]


def _review(run: Advance, workflow: Workflow, review: Review) -> None:
    if review.action is None and not review.notes:
        raise InvalidRequest("The review is empty. At least one of 'action' and 'notes' must be given.")
    tx, graph = run.tx, run.graph
    node = find_step(graph, workflow, review.step)
    while node.kind == Kind.FALLBACK and not node.manual:  # the path may refer to the step's own gate
        node = graph.children(node)[0]
    if not node.manual:
        raise _wrong_state(workflow, f"The step {review.step!r} is not 'manual'. Only manual steps can be reviewed.")
    waits = node.state in _UNFINISHED and not node.approved
    if _is_over(graph, node) or (review.action is not None and not waits):
        state = "approved" if node.approved and not node.has_ended else node.state
        raise _wrong_state(workflow, f"The step {review.step!r} is {state}, and does not wait for an approval.")
    tx.execute(
        "INSERT INTO node_reviews (node, at, author, action, notes) VALUES (:node, :at, :author, :action, :notes)",
        {"node": node.id, "at": tx.now, "author": review.author, "action": review.action, "notes": review.notes},
    )
    graph.change(workflow)
    said = {"by": review.author, "at": format_timestamp(tx.now), "notes": review.notes}
    if review.action == "approve":
        node.approved = 1
        if node.kind == Kind.GATE:
            node.result = _encode({"approved": True} | said)
        graph.touch(node)
        if node.state == NodeState.BLOCKED:
            run.start([node])
    elif review.action == "reject":
        message = f"It was rejected{f' by {review.author}' if review.author else ''}."
        run.end(node, NodeState.CANCELLED, error={"code": "rejected", "message": message} | said)


# Retry


def retry_workflows(tx: Transaction, ids: Sequence[str]) -> list[str | OjsterError]:
    """Retry finished workflows: run the steps that did not succeed again; completed steps keep their results.

    For each, return its id or an error.
    """
    return [_steer(tx, id, _retry) for id in ids]


def _retry(run: Advance, workflow: Workflow) -> None:
    if workflow.finished_at is None:
        waits = "still has active jobs" if workflow.state in FINAL_STATES else "has not finished"
        raise _wrong_state(workflow, f"The workflow {workflow.id} {waits}. Retry it after it has finished.")
    if workflow.state == WorkflowState.COMPLETED:
        raise _wrong_state(workflow, f"The workflow {workflow.id} is completed; there is nothing to retry.")
    if workflow.state == WorkflowState.RETRIED:
        raise _wrong_state(workflow, f"The workflow {workflow.id} was retried as {workflow.next_attempt}.")
    refusal = refuse_target(run.tx, workflow.tenant, workflow.target, workflow.target_key, workflow.locks)
    if isinstance(refusal, Later):
        raise TryAgain(refusal.message)
    if refusal is not None:
        raise type(refusal)(f"The workflow {workflow.id} cannot be retried. {refusal.message}", **refusal.details)
    graph = run.graph
    nodes = graph.load_whole(workflow)
    reset = _Reset(nodes)
    reset.root()
    nodes = graph.drop(reset.dropped, nodes)
    _recount(graph, workflow, nodes)
    for node in nodes:
        graph.touch(node)
    graph.write_nodes()
    jobs = [node for node in nodes if node.kind == Kind.JOB]
    workflow.jobs = len(jobs)
    workflow.completed = sum(node.state == NodeState.COMPLETED for node in jobs)
    workflow.failed = sum(node.state == NodeState.FAILED for node in jobs)
    workflow.cancelled = sum(node.state == NodeState.CANCELLED for node in jobs)
    workflow.retries += 1
    workflow.finished_at = workflow.cancelled_at = workflow.error = workflow.kept_until = None
    emit(run.tx, "workflow.retried", workflow, retries=workflow.retries)
    _launch(run, workflow)


class _Reset:
    """Resets the nodes of a workflow that did not succeed to their state before the start."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._children: dict[int, list[Node]] = defaultdict(list)
        self.dropped: list[Node] = []
        """Children of map nodes to delete, because the maps will create them again."""
        for node in nodes:
            if node.parent is None:
                self._root = node
            else:
                self._children[node.parent].append(node)
        for children in self._children.values():
            children.sort(key=lambda child: child.position)

    def root(self) -> None:
        """Reset a workflow: in its main container the nodes that did not succeed, in its branches all nodes."""
        self._clear(self._root)
        main, *branches = self._children[self._root.id]
        self._failed(main)
        for branch in branches:
            self._reset_all(branch)

    def _failed(self, node: Node) -> None:
        children = self._children[node.id]
        if node.kind == Kind.SAGA and node.state != NodeState.WAITING:
            steps, undoing = children
            if undoing.state == NodeState.COMPLETED:  # the compensation has undone all steps
                self._reset_all(node)
            else:
                self._clear(node)
                self._unless_succeeded(undoing if undoing.has_ended and not undoing.succeeded else steps)
            return
        self._clear(node)
        for child in children:
            self._unless_succeeded(child)

    def _unless_succeeded(self, node: Node) -> None:
        if node.state == NodeState.SKIPPED:
            self._reset_all(node)
        elif not node.succeeded or node.state == NodeState.CANCELLED:
            self._failed(node)

    def _reset_all(self, node: Node) -> None:
        self._clear(node)
        if node.kind == Kind.MAP:
            self._drop(node)
            node.total = 0
            return
        for child in self._children[node.id]:
            self._reset_all(child)

    def _drop(self, node: Node) -> None:
        for child in self._children[node.id]:
            self.dropped.append(child)
            self._drop(child)

    def _clear(self, node: Node) -> None:
        change_node(node, NodeState.WAITING)
        node.approved = 0
        node.verdict = node.result = node.error = node.started_at = node.finished_at = None


def _recount(graph: Graph, workflow: Workflow, nodes: Sequence[Node]) -> None:
    """Recompute the counters of nodes: their predecessors and their children, by state."""
    for node in nodes:
        node.waiting = node.failed_before = node.cancelled_before = node.unmet = 0
        node.completed = node.failed = node.cancelled = node.broken = node.lost = 0
        node.unfinished = node.total
    for source, target in graph.tx.execute(
        "SELECT source, target FROM node_edges WHERE source BETWEEN ? AND ?", workflow.numbers
    ):
        node, before = graph.nodes[target], graph.nodes[source]
        node.waiting += 1
        if before.has_ended:
            count_ended_predecessor(node, before)
    for node in nodes:
        if node.has_ended and node.parent is not None:
            count_ended_child(graph.nodes[node.parent], node)


# Growth


def grow(tx: Transaction, job: Job, steps: Sequence[bytes]) -> None:
    """Add steps to the container of an active job: at the end of a chain, in parallel in a group or graph.

    Nothing is added if the job's node was told to stop.

    Raises
    ------
    InvalidRequest
        The job has no workflow, or its container does not accept steps.
    InvalidWorkflow
        The steps are invalid.
    """
    if job.node is None:
        raise InvalidRequest(f"The job {job.id} belongs to no workflow. Only workflow jobs can append steps.")
    graph = Graph(tx)
    graph.lock([job.node >> NODE_BITS])
    graph.load([job.node])
    node = graph.nodes[job.node]
    container = graph.container_of(node)
    while container.kind == Kind.FALLBACK:
        container = graph.container_of(container)
    if container.kind in TWO_PART or _is_compensation(graph, container):
        raise InvalidRequest(
            f"The job {job.id} cannot append steps here. "
            "Append steps in a chain, a group or a graph that is not a compensation."
        )
    if node.verdict is not None:
        return  # it was told to stop, so nothing new starts
    workflow = graph.workflow_of(node)
    base = workflow.root
    graph.load_specs([container])
    siblings = graph.children_with_names(container)
    planner = Planner(
        tx.now,
        tx.settings.largest_job,
        workflow_id=workflow.id,
        tenant=workflow.tenant,
        metadata=workflow.metadata,
        first=workflow.nodes,
        outer=partial(_look_outside, graph, container),
    )
    planner.more(
        steps,
        _by_number(container),
        "$.append",
        graph.place_of(container),
        graph.specs[container.id].inherited,
        known={one.name: _by_number(one) for one in siblings if one.name is not None},
        last=_by_number(siblings[-1]) if container.kind == Kind.CHAIN else None,
    )
    added = graph.plant(planner.plan, workflow)
    promise(tx, workflow.seq, planner.plan.promises)
    for source, _ in planner.plan.edges:
        before = graph.nodes[base | source]
        before.followed = 1
        graph.touch(before)
    fresh = [one for one in added if one.parent == container.id]
    container.total += len(fresh)
    container.unfinished += len(fresh)
    graph.touch(container)
    run = Advance(graph)
    run.decide(fresh)
    run.go()


def _by_number(node: Node) -> Node:
    """Return a copy of a node for the planner, which identifies nodes by number, not by id."""
    number = (1 << NODE_BITS) - 1
    source = None if node.source is None else node.source & number
    return msgspec.structs.replace(node, id=node.number, source=source)


def _is_compensation(graph: Graph, container: Node) -> bool:
    """Return whether a container is the compensation of a saga."""
    return graph.container_of(container).kind == Kind.SAGA and container.position > 0


def _look_outside(graph: Graph, container: Node, name: str) -> int | None:
    """Return the number of the nearest step with a name that precedes steps added to a container, if any."""
    inner: Node | None = None
    node: Node | None = container
    while node is not None:
        place = node
        if place.kind in TWO_PART and inner is not None and inner.position:
            while place.kind in TWO_PART:
                place = graph.children(place)[0]
        if place.kind in (Kind.CHAIN, Kind.GRAPH) or place is not node:
            for found in graph.named_children(place, name):
                before = place is not node or inner is None or place.kind == Kind.GRAPH
                if found is not inner and (before or (inner is not None and found.position < inner.position)):
                    return found.number
        inner, node = node, None if node.parent is None else graph.container_of(node)
    return None


# Due workflows


def process_due_workflows(tx: Transaction) -> tuple[int | None, bool]:
    """Start workflows that are due, and end those that have expired or timed out.

    Return when the next workflow is due, and whether more may be due now.
    """
    rows = tx.execute(
        f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE due_at <= :now ORDER BY due_at LIMIT :limit{tx.skip_locked}",
        {"now": tx.now, "limit": MAX_DUE_WORKFLOWS},
    )
    for row in rows:
        try:
            with tx.savepoint():
                _look_after(tx, Workflow(*row))
        except TryAgain:
            raise
        except Exception:
            log.exception("maintenance of the workflow %s failed; retrying in 60 seconds", row[1])
            later = {"later": tx.now + MINUTE, "seq": row[0]}
            tx.execute("UPDATE workflows SET due_at = :later WHERE seq = :seq", later)
    ((next_due,),) = tx.execute("SELECT min(due_at) FROM workflows WHERE due_at IS NOT NULL")
    return next_due, len(rows) == MAX_DUE_WORKFLOWS


def _look_after(tx: Transaction, workflow: Workflow) -> None:
    """Start, expire or time out one due workflow."""
    graph = Graph(tx)
    graph.workflows[workflow.seq] = workflow
    run = Advance(graph)
    if workflow.state == WorkflowState.PENDING:
        _expire_or_launch(run, workflow)
    else:
        _time_out(run, workflow)
    run.go()


def _expire_or_launch(run: Advance, workflow: Workflow) -> None:
    if workflow.expires_at is not None and workflow.expires_at <= run.tx.now:
        change_workflow(workflow, WorkflowState.CANCELLED)
        workflow.cancelled_at = run.tx.now
        workflow.error = _encode({"code": "expired", "message": "The workflow was not started before it expired."})
        run.graph.load([workflow.root])
        run.end(run.graph.nodes[workflow.root], NodeState.CANCELLED)
        emit(run.tx, "workflow.cancelled", workflow, reason="expired")
    elif workflow.previous_attempt is not None and not _is_finished(run.tx, workflow.previous_attempt):
        workflow.due_at = run.tx.now + SECOND  # the previous attempt has not finished
        run.graph.change(workflow)
    else:
        _launch(run, workflow)


def _is_finished(tx: Transaction, id: str) -> bool:
    rows = tx.execute("SELECT finished_at FROM workflows WHERE id = :id", {"id": id})
    return not rows or rows[0][0] is not None


def _time_out(run: Advance, workflow: Workflow) -> None:
    workflow.due_at = None
    run.graph.change(workflow)
    run.graph.load([workflow.root])
    root = run.graph.nodes[workflow.root]
    main = run.graph.children(root)[0]
    if main.has_ended:
        return  # only a branch is still running
    seconds = (workflow.timeout or 0) / 1e6
    error = {"code": "workflow_timeout", "message": f"The workflow ran longer than {seconds:g} seconds."}
    workflow.error = _encode(error)
    if root.state == NodeState.READY:
        run.end(root, NodeState.FAILED, error=error)
    else:
        abort(run, workflow, main, NodeState.FAILED, error, active_too=True)


def forget_workflows(tx: Transaction, room: int) -> Counter[str]:
    """Delete workflows past their retention with their jobs and nodes, at most about ``room`` rows.

    Return the numbers of deleted ``rows``, ``jobs`` and ``workflows``.
    """
    done: Counter[str] = Counter()
    for condition, parameters in deletable_workflows(tx):
        for row in tx.execute(
            f"SELECT {WORKFLOW_COLUMNS} FROM workflows WHERE {condition} LIMIT :limit{tx.skip_locked}",
            parameters | {"limit": MAX_DUE_WORKFLOWS},
        ):
            done += _forget(tx, Workflow(*row), room - done["rows"])
            if done["rows"] >= room:
                return done
    return done


def count_deletable(tx: Transaction) -> Counter[str]:
    """Return the numbers of workflows, and of their jobs, that are past their retention."""
    found: Counter[str] = Counter()
    for condition, parameters in deletable_workflows(tx):
        where = condition.partition(" ORDER BY ")[0]
        ((workflows, jobs),) = tx.execute(f"SELECT count(*), sum(jobs) FROM workflows WHERE {where}", parameters)
        found += Counter(workflows=workflows, jobs=int(jobs or 0))
    return found


def deletable_workflows(tx: Transaction) -> list[tuple[str, dict[str, Any]]]:
    """Return the workflows that may be deleted now, as SQL conditions (with ORDER BY) and their parameters.

    A workflow is kept until its next attempt, if any, has finished, and while a collection contains its items.
    """
    now, usual = tx.now, tx.settings.retention
    free = (
        "NOT EXISTS (SELECT 1 FROM workflows AS n WHERE n.id = workflows.next_attempt AND n.finished_at IS NULL) "
        "AND NOT EXISTS (SELECT 1 FROM collection_items AS i WHERE i.workflow = workflows.seq AND i.removed_at IS NULL)"
    )
    found: list[tuple[str, dict[str, Any]]] = [
        ("state = :state ORDER BY finished_at", {"state": FORGOTTEN}),
        (f"kept_until <= :now AND {free} ORDER BY kept_until", {"now": now}),
    ]
    own = tenants_retention(tx)
    marks = {f"tenant_{number}": tenant for number, tenant in enumerate(sorted(own))}
    others = f" AND tenant NOT IN (:{', :'.join(marks)})" if marks else ""
    for state, period in (
        ("completed", usual.completed),
        ("cancelled", usual.cancelled),
        ("retried", usual.cancelled),
        ("failed", usual.discarded),
        ("compensated", usual.discarded),
    ):
        finished = f"state = :state AND finished_at < :before AND kept_until IS NULL AND {free}"
        if period is not None:
            parameters = {"state": state, "before": now - period, **marks}
            found.append((f"{finished}{others} ORDER BY finished_at", parameters))
        for tenant, delay in own.items():
            if delay:
                parameters = {"state": state, "before": now - delay, "tenant": tenant}
                found.append((f"{finished} AND tenant = :tenant ORDER BY finished_at", parameters))
    return found


def _forget(tx: Transaction, workflow: Workflow, room: int) -> Counter[str]:
    """Delete a workflow in parts: first its jobs, then its nodes, then itself, at most ``room`` rows in this call.

    The first call hides the workflow. Return the numbers of deleted ``rows``, ``jobs`` and ``workflows``.
    """
    low, high = workflow.numbers
    tx.execute(f"UPDATE workflows SET state = '{FORGOTTEN}' WHERE seq = :seq", {"seq": workflow.seq})
    jobs = tx.execute(
        "SELECT seq, queue, tenant, state FROM jobs WHERE node BETWEEN :low AND :high LIMIT :room",
        {"low": low, "high": high, "room": room},
    )
    delete_jobs(tx, [(seq, queue, tenant, state) for seq, queue, tenant, state in jobs])
    left = room - len(jobs)
    nodes = tx.execute(
        "SELECT id FROM nodes WHERE id BETWEEN :low AND :high ORDER BY id DESC LIMIT :left",
        {"low": low, "high": high, "left": left},
    )
    delete_nodes(tx, [id for (id,) in nodes])
    left -= len(nodes)
    if left > 0:
        for table in ("workflow_properties", "notes"):
            tx.execute(f"DELETE FROM {table} WHERE workflow = :seq", {"seq": workflow.seq})
        delete_items(tx, [key_of_workflow(workflow.seq)])
        tx.execute("DELETE FROM workflows WHERE seq = :seq", {"seq": workflow.seq})
    rows = len(jobs) + len(nodes) + (left > 0)
    return Counter(rows=rows, jobs=len(jobs), workflows=int(left > 0))


# Internal functions


def _steer(tx: Transaction, id: str, change: Any) -> str | OjsterError:
    """Lock a workflow and apply a change to it; return its id or an error."""
    query = f"SELECT seq FROM workflows WHERE id = :id AND state <> '{FORGOTTEN}'"
    rows = tx.execute(query, {"id": id}) if is_job_id(id) else []
    if not rows:
        return no_workflow(id)
    graph = Graph(tx)
    graph.lock([rows[0][0]])
    if not graph.workflows:
        return no_workflow(id)
    run = Advance(graph)
    try:
        change(run, graph.workflows[rows[0][0]])
    except OjsterError as refusal:
        return refusal
    run.go()
    return id


def find_step(graph: Graph, workflow: Workflow, path: str) -> Node:
    """Return the node with a path.

    Raises
    ------
    NotFound
        The workflow has no such step.
    """
    graph.load([workflow.root])
    node = graph.nodes[workflow.root]
    for place, name in enumerate(path.split(".")):
        found = _child_named(graph, node, name, is_first=place == 0)
        while found is None and node.kind in _IMPLICIT_CONTAINERS:
            node = graph.children(node)[0]
            found = _child_named(graph, node, name)
        if found is None:
            message = f"The workflow {workflow.id} has no step {path!r:.200}."
            raise NotFound(message, resource_type="workflow_step", resource_id=path)
        node = found
    return node


_IMPLICIT_CONTAINERS: Final = TWO_PART - {Kind.FALLBACK}
"""Containers with an implicit first child: its children are addressed as if they were in the container."""


def _child_named(graph: Graph, container: Node, name: str, *, is_first: bool = False) -> Node | None:
    """Return the child of a container with a name or an index, if any."""
    if container.kind in (Kind.JOB, Kind.GATE) or (container.kind == Kind.WORKFLOW and not is_first):
        return None
    children = graph.named_children(container, name)
    if container.kind in _IMPLICIT_CONTAINERS:
        children = [child for child in children if child.position and child.name == name]
    return next((child for child in children if child.name == name), next(iter(children), None))


def _is_over(graph: Graph, node: Node) -> bool:
    """Return whether a container around a node has ended, so that the node cannot change any more."""
    while node.parent is not None:
        node = graph.container_of(node)
        if node.has_ended:
            return True
    return False


def _wrong_state(workflow: Workflow, message: str) -> Conflict:
    return Conflict(message, workflow_id=workflow.id, current_state=workflow.state)

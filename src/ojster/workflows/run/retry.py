"""Running the failed steps of a workflow again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from ojster.core.errors import Conflict, OjsterError
from ojster.storage.transaction import Held, Later, Transaction
from ojster.workflows.node import (
    EXPANDED,
    SUCCESSFUL,
    Kind,
    Node,
    NodeState,
    count_ended_child,
    count_ended_predecessor,
)
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.creation import launch
from ojster.workflows.run.flow_wakeups import forget_last_failures, forget_records
from ojster.workflows.run.graph import Graph
from ojster.workflows.run.maps import forget_elements, go_on_with_map, parked_of
from ojster.workflows.run.states import change_node, change_workflow
from ojster.workflows.run.steps import StepAddress, find_step, steer, wrong_state
from ojster.workflows.run.turns import runs_instead
from ojster.workflows.stored_workflow import FINAL_STATES, Workflow, WorkflowState, emit
from ojster.workflows.targets import refuse_target


def retry_workflows(tx: Transaction, ids: Sequence[str]) -> list[str | OjsterError]:
    """Retry finished workflows: run the steps that did not succeed again, with what followed their failure.

    Other completed steps keep their results.

    For each, return its id or an error.
    """
    return [steer(tx, id, retry_now) for id in ids]


def retry_steps(tx: Transaction, addresses: Sequence[StepAddress]) -> list[str | OjsterError]:
    """Run failed or cancelled steps again, with what followed their end; the other steps go on.

    For each, return the id of its workflow or an error.
    """
    return [steer(tx, address.workflow_id, partial(_retry_step, path=address.step)) for address in addresses]


def retry_now(run: Advance, workflow: Workflow) -> None:
    """Retry a workflow that is locked; raise the refusal."""
    if (refusal := _refuse_unfinished(workflow)) is not None:
        raise refusal
    _check_retry(run, workflow)
    reset = _Reset(run.graph, workflow)
    reset.root()
    _apply(run, workflow, reset)
    _reopen(workflow)
    emit(run.tx, "workflow.retried", workflow, retries=workflow.retries)
    launch(run, workflow)


def _retry_step(run: Advance, workflow: Workflow, path: str) -> None:
    graph = run.graph
    is_finished = workflow.finished_at is not None
    if is_finished:
        _check_retry(run, workflow)
    elif workflow.state != WorkflowState.RUNNING:
        raise wrong_state(workflow, f"The workflow {workflow.id} is {workflow.state}. Retry it after it has finished.")
    step = find_step(graph, workflow, path)
    reset = _Reset(graph, workflow)
    step = graph.nodes[step.id]
    if (reason := _refusal_of(graph, step, f"The step {path!r:.200}")) is not None:
        raise wrong_state(workflow, reason)
    reset.step(step)
    if (reason := reset.refusal(f"the step {path!r:.200}")) is not None:
        raise wrong_state(workflow, reason)
    nodes = _apply(run, workflow, reset)
    emit(run.tx, "workflow.step_retried", workflow, step_id=graph.step_id_of(step))
    if is_finished:
        _reopen(workflow)
        change_workflow(workflow, WorkflowState.RUNNING)
        workflow.due_at = None if workflow.timeout is None else run.tx.now + workflow.timeout
    for container in reset.opened:
        run.note_compensation(container)
    if graph.parts_of(workflow)[0].state == NodeState.COMPENSATED:  # only a branch runs again
        change_workflow(workflow, WorkflowState.COMPENSATING)
    graph.change(workflow)
    started = {node.id for node in nodes if node.state == NodeState.STARTED}
    run.decide([node for node in nodes if node.state == NodeState.WAITING and node.parent in started])


def _refusal_of(graph: Graph, step: Node, shown: str) -> str | None:
    """Return why a step cannot run again whatever follows it, if so; ``shown`` begins the sentence."""
    if not step.has_ended or step.state in SUCCESSFUL:
        state = "has not ended" if not step.has_ended else f"is {step.state}"
        return f"{shown} {state}. Only failed and cancelled steps can be retried."
    if step.was_left_out:
        return f"{shown} never ran, because a step before it did not succeed. Retry the step that failed."
    not_started: Node | None = None
    container, inside = graph.parent_of(step), step
    while container is not None:
        if container.kind == Kind.FLOW and inside.position:
            return f"{shown} belongs to a flow, which has got its end. Retry the flow, or the workflow."
        inside = container
        if container.verdict is not None and not container.has_ended:
            return f"{shown} is in {_named(graph, container)}, which is being stopped. Retry it after its end."
        if container.started_at is None and container.state != NodeState.STARTED:
            not_started = container
        container = graph.parent_of(container)
    if not_started is None:
        return None
    return f"{shown} is in {_named(graph, not_started)}, which has not started. Retry that."


def _named(graph: Graph, container: Node) -> str:
    return repr(graph.place_of(container) or "a workflow")


def _apply(run: Advance, workflow: Workflow, reset: _Reset) -> list[Node]:
    """Write what was reset, and return the nodes of the workflow."""
    forget_elements(run.tx, reset.emptied)
    forget_last_failures(run.tx, reset.retried_flows)
    forget_records(run.tx, reset.restarted_flows)
    nodes = run.graph.drop(reset.dropped, reset.nodes)
    for container in reset.opened:
        go_on_with_map(run.tx, container)
    _recount(run.graph, workflow, nodes)
    return nodes


def refuse_retry(tx: Transaction, workflow: Workflow) -> OjsterError | None:
    """Return why a workflow cannot be retried as a whole; ``None`` if it can. It takes no locks."""
    return _refuse_unfinished(workflow) or _refuse_again(tx, workflow, None)


def _refuse_unfinished(workflow: Workflow) -> OjsterError | None:
    if workflow.finished_at is not None:
        return None
    waits = "still has active jobs" if workflow.state in FINAL_STATES else "has not finished"
    return wrong_state(workflow, f"The workflow {workflow.id} {waits}. Retry it after it has finished.")


def _check_retry(run: Advance, workflow: Workflow) -> None:
    """Raise the refusal if a finished workflow cannot run again."""
    refusal = _refuse_again(run.tx, workflow, workflow.locks)
    if isinstance(refusal, Later):
        raise Held(refusal.message)
    if refusal is not None:
        raise refusal


def _refuse_again(tx: Transaction, workflow: Workflow, locks: str | None) -> OjsterError | None:
    """Return why a finished workflow cannot run again; ``locks``: the targets that it will lock."""
    if workflow.state == WorkflowState.COMPLETED:
        return wrong_state(workflow, f"The workflow {workflow.id} is completed; there is nothing to retry.")
    if workflow.state == WorkflowState.RETRIED:
        return wrong_state(workflow, f"The workflow {workflow.id} was retried as {workflow.next_attempt}.")
    if workflow.takes_turns and (busy := runs_instead(tx, workflow)) is not None:
        return Conflict(
            f"The workflow {workflow.id} takes turns with {busy}, another run of the cron job {workflow.cron_name!r}, "
            "which has not finished. Retry it afterwards.",
            workflow_id=workflow.id,
        )
    refusal = refuse_target(tx, workflow.tenant, workflow.target, workflow.target_key, locks)
    if refusal is None or isinstance(refusal, Later):
        return refusal
    return type(refusal)(f"The workflow {workflow.id} cannot be retried. {refusal.message}", **refusal.details)


def _reopen(workflow: Workflow) -> None:
    """Forget that a workflow has finished."""
    workflow.retries += 1
    workflow.resolved_bytes = 0
    workflow.finished_at = workflow.cancelled_at = workflow.error = workflow.kept_until = None


class _Reset:
    """Resets nodes to their state before the start, with everything that followed their end.

    What followed belongs to the attempt that ended: steps that were cancelled or skipped because of it, and those that
    ran, such as a rollback, a report, a fallback, a callback or a branch. They would otherwise be stale, or run beside
    the new attempt.
    """

    def __init__(self, graph: Graph, workflow: Workflow) -> None:
        self.nodes = graph.load_whole(workflow)
        self._graph = graph
        self._root = graph.nodes[workflow.root]
        self._children: dict[int, list[Node]] = defaultdict(list)
        self._followers: dict[int, list[Node]] = defaultdict(list)
        self._cleared: list[Node] = []
        """Nodes whose followers have not been reset yet."""
        self._in_part: set[int] = set()
        """The ids of nodes that were reset without everything inside them."""
        self._began: dict[int, int] = {}
        """When the containers that are to end again began, by id."""
        self._running: Node | None = None
        """A node that follows a reset one, and runs."""
        self._undone: Node | None = None
        """A saga that has begun to undo what is to run again."""
        self.dropped: list[Node] = []
        """Children of map nodes to delete, because the maps will create them again."""
        self.emptied: list[int] = []
        """The ids of these maps."""
        self.opened: list[Node] = []
        """Containers that had ended, and go on."""
        self.retried_flows: list[int] = []
        """Flows that go on where they failed, by the node that runs the function."""
        self.restarted_flows: list[int] = []
        """Flows that begin anew, likewise."""
        for node in self.nodes:
            if node.parent is not None:
                self._children[node.parent].append(node)
        for children in self._children.values():
            children.sort(key=lambda child: child.position)
        for source, target in graph.tx.execute(
            "SELECT source, target FROM node_edges WHERE source BETWEEN ? AND ? ORDER BY source, target",
            workflow.numbers,
        ):
            self._followers[source].append(graph.nodes[target])

    def step(self, step: Node) -> None:
        """Reset a step. The containers around it that had ended go on."""
        self._failed(step)
        self._follow()
        for id, began in self._began.items():
            container = self._graph.nodes[id]
            change_node(container, NodeState.STARTED)
            container.started_at = began  # its end is not that of a container that never started
            self.opened.append(container)

    def root(self) -> None:
        """Reset a workflow: the nodes that did not succeed, and what followed them."""
        self._clear(self._root, in_part=True)
        self._failed(self._children[self._root.id][0])
        self._follow()

    def refusal(self, step: str) -> str | None:
        """Return why a step cannot run again now, if what followed its end is still at work."""
        if self._undone is not None:
            return f"The compensation that follows the failure of {step} has begun. Retry the workflow when it ends."
        if self._running is not None:
            shown = repr(self._graph.place_of(self._running))
            return f"What follows the failure of {step} has begun: {shown}. Retry the step when that has ended."
        return None

    def _follow(self) -> None:
        """Reset what followed the nodes that were reset, and open the containers around them."""
        while self._cleared:
            node = self._cleared.pop()
            for after in self._followers.get(node.id, ()):
                self._follower(after)
            container = self._graph.parent_of(node)
            if container is not None and container.has_ended:
                self._open(container)

    def _follower(self, node: Node) -> None:
        if node.state == NodeState.WAITING and node.id not in self._in_part:
            return
        container = self._graph.parent_of(node)
        if container is not None and container.kind == Kind.SAGA and node.started_at is not None:
            self._undone = container
            if container.has_ended:
                self._reset_all(container)
        elif node.state == NodeState.STARTED:
            self._running = node
        else:
            self._reset_all(node)

    def _open(self, container: Node) -> None:
        """Let a container that has ended end again; one that has never started waits for what is before it."""
        began = container.started_at
        if began is None:
            self._reset_all(container)
            return
        self._clear(container, in_part=True)
        self._began[container.id] = began

    def _failed(self, node: Node) -> None:
        """Reset a node, and those inside it that did not succeed."""
        children = self._children[node.id]
        if node.kind == Kind.FLOW and node.state != NodeState.WAITING:  # its function decides what runs again
            self._clear(node, in_part=True)
            self._unless_succeeded(children[0])
            self.retried_flows.append(children[0].id)
            return
        if node.kind == Kind.SAGA and node.state != NodeState.WAITING:
            steps, undoing = children
            if undoing.state == NodeState.COMPLETED:  # the compensation has undone all steps
                self._reset_all(node)
            else:
                self._clear(node, in_part=True)
                self._unless_succeeded(undoing if undoing.has_ended and not undoing.succeeded else steps)
            return
        self._clear(node, in_part=True)
        for child in children:
            self._unless_succeeded(child)

    def _unless_succeeded(self, node: Node) -> None:
        if not node.succeeded or node.state == NodeState.CANCELLED:
            self._failed(node)

    def _reset_all(self, node: Node) -> None:
        self._clear(node)
        if node.kind in EXPANDED:
            self._graph.load_specs([node])
            mirrors = [self._graph.nodes[self._root.id | number] for number in self._graph.specs[node.id].mirrors]
            for emptied in (node, *mirrors):  # what undoes the elements is planned with them
                self._drop(emptied)
                emptied.total = 0
            self.emptied.append(node.id)
            return
        if node.kind == Kind.FLOW:
            first, *asked = self._children[node.id]
            for child in asked:
                self.dropped.append(child)
                self._drop(child)
            self._children[node.id] = [first]
            node.total = 1
            self.restarted_flows.append(first.id)
        for child in self._children[node.id]:
            self._reset_all(child)

    def _drop(self, node: Node) -> None:
        for child in self._children.pop(node.id, ()):
            self.dropped.append(child)
            self._drop(child)

    def _clear(self, node: Node, *, in_part: bool = False) -> None:
        change_node(node, NodeState.WAITING)
        node.approved = 0
        node.verdict = node.result = node.error = node.started_at = node.finished_at = None
        (self._in_part.add if in_part else self._in_part.discard)(node.id)
        self._began.pop(node.id, None)
        self._cleared.append(node)


def _recount(graph: Graph, workflow: Workflow, nodes: Sequence[Node]) -> None:
    """Recompute the counters of nodes and of their workflow, by state, and write them."""
    for node in nodes:
        if not node.has_ended:  # the others keep what decided them: ``Node.succeeded`` reads it
            node.waiting = node.failed_before = node.cancelled_before = node.unmet = 0
        node.completed = node.failed = node.cancelled = node.broken = node.lost = 0
        node.unfinished = node.total
    for source, target in graph.tx.execute(
        "SELECT source, target FROM node_edges WHERE source BETWEEN ? AND ?", workflow.numbers
    ):
        node = graph.nodes[target]
        if node.has_ended:
            continue
        node.waiting += 1
        ended = _ended_with(graph, graph.nodes[source])
        if ended is not None:
            count_ended_predecessor(node, ended)
    for node in nodes:
        if node.has_ended and node.parent is not None:
            count_ended_child(graph.nodes[node.parent], node)
    for id, missing in parked_of(graph.tx, workflow).items():
        if graph.nodes[id].state == NodeState.STARTED:
            graph.nodes[id].unfinished -= missing
    for node in nodes:
        graph.touch(node)
    graph.write_nodes()
    jobs = [node for node in nodes if node.kind == Kind.JOB]
    workflow.jobs = len(jobs)
    workflow.completed = sum(node.state == NodeState.COMPLETED for node in jobs)
    workflow.failed = sum(node.state == NodeState.FAILED for node in jobs)
    workflow.cancelled = sum(node.state == NodeState.CANCELLED for node in jobs)


def _ended_with(graph: Graph, node: Node) -> Node | None:
    """Return a node that has ended, or else the container that ended without having started it, if any."""
    current: Node | None = node
    while current is not None and not current.has_ended:
        current = graph.parent_of(current)
    return current

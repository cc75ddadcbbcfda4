"""Running the failed steps of a workflow again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ojster.core.errors import OjsterError
from ojster.storage.transaction import Held, Later, Transaction
from ojster.workflows.advance import Advance
from ojster.workflows.creation import launch
from ojster.workflows.graph import Graph
from ojster.workflows.maps import forget_elements, go_on_with_map, parked_of
from ojster.workflows.node import (
    SUCCESSFUL,
    TWO_PART,
    Kind,
    Node,
    NodeState,
    count_ended_child,
    count_ended_predecessor,
)
from ojster.workflows.states import change_node, change_workflow
from ojster.workflows.steps import StepAddress, find_step, steer, wrong_state
from ojster.workflows.stored_workflow import FINAL_STATES, Workflow, WorkflowState, emit
from ojster.workflows.targets import refuse_target


def retry_workflows(tx: Transaction, ids: Sequence[str]) -> list[str | OjsterError]:
    """Retry finished workflows: run the steps that did not succeed again; completed steps keep their results.

    For each, return its id or an error.
    """
    return [steer(tx, id, _retry) for id in ids]


def retry_steps(tx: Transaction, addresses: Sequence[StepAddress]) -> list[str | OjsterError]:
    """Run failed or cancelled steps again, with what was cancelled because of them; the others go on.

    For each, return the id of its workflow or an error.
    """
    return [steer(tx, one.workflow_id, partial(_retry_step, path=one.step)) for one in addresses]


def _retry(run: Advance, workflow: Workflow) -> None:
    if workflow.finished_at is None:
        waits = "still has active jobs" if workflow.state in FINAL_STATES else "has not finished"
        raise wrong_state(workflow, f"The workflow {workflow.id} {waits}. Retry it after it has finished.")
    _check_retry(run, workflow)
    nodes = run.graph.load_whole(workflow)
    reset = _Reset(nodes)
    reset.root()
    forget_elements(run.tx, reset.emptied)
    _recount(run.graph, workflow, run.graph.drop(reset.dropped, nodes))
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
    nodes = graph.load_whole(workflow)
    step = graph.nodes[step.id]
    if not step.has_ended or step.state in SUCCESSFUL:
        state = "has not ended" if not step.has_ended else f"is {step.state}"
        raise wrong_state(workflow, f"The step {path!r:.200} {state}. Only failed and cancelled steps can be retried.")
    if (idle := _not_started_around(graph, step)) is not None:
        message = f"The step {path!r:.200} is in {graph.place_of(idle) or 'a workflow'!r}, which has not started."
        raise wrong_state(workflow, f"{message} Retry that.")
    reset = _Reset(nodes)
    opened = reset.step(step, _followers(graph, workflow))
    if _is_handled(graph, step, opened):
        message = f"What follows the failure of the step {path!r:.200} has begun. Retry the workflow when it ends."
        raise wrong_state(workflow, message)
    forget_elements(run.tx, reset.emptied)
    nodes = graph.drop(reset.dropped, nodes)
    for container in opened:
        go_on_with_map(run.tx, container)
    _recount(graph, workflow, nodes)
    emit(run.tx, "workflow.step_retried", workflow, step_id=step.name or str(step.position))
    if is_finished:
        _reopen(workflow)
        change_workflow(workflow, WorkflowState.RUNNING)
        workflow.due_at = None if workflow.timeout is None else run.tx.now + workflow.timeout
    graph.change(workflow)
    started = {node.id for node in nodes if node.state == NodeState.STARTED}
    run.decide([node for node in nodes if node.state == NodeState.WAITING and node.parent in started])


def _not_started_around(graph: Graph, step: Node) -> Node | None:
    """Return the outermost container around a step that has not started; ``None``: all have."""
    found = None
    container = graph.parent_of(step)
    while container is not None:
        if container.started_at is None and container.state != NodeState.STARTED:
            found = container
        container = graph.parent_of(container)
    return found


def _is_handled(graph: Graph, step: Node, opened: Sequence[Node]) -> bool:
    """Whether a compensation, a fallback, a callback or a branch follows the end of a step or its containers."""
    ids = {node.id for node in opened}
    outer = [container for node in (step, *opened) if (container := graph.parent_of(node)) is not None]
    return any(node.kind == Kind.SAGA for node in opened) or any(
        node.kind in TWO_PART and node.id not in ids for node in outer
    )


def _followers(graph: Graph, workflow: Workflow) -> Mapping[int, Sequence[Node]]:
    """Return the nodes that follow each node directly."""
    found: dict[int, list[Node]] = defaultdict(list)
    for source, target in graph.tx.execute(
        "SELECT source, target FROM node_edges WHERE source BETWEEN ? AND ? ORDER BY source, target", workflow.numbers
    ):
        found[source].append(graph.nodes[target])
    return found


def _check_retry(run: Advance, workflow: Workflow) -> None:
    """Raise the refusal if a finished workflow cannot run again."""
    if workflow.state == WorkflowState.COMPLETED:
        raise wrong_state(workflow, f"The workflow {workflow.id} is completed; there is nothing to retry.")
    if workflow.state == WorkflowState.RETRIED:
        raise wrong_state(workflow, f"The workflow {workflow.id} was retried as {workflow.next_attempt}.")
    refusal = refuse_target(run.tx, workflow.tenant, workflow.target, workflow.target_key, workflow.locks)
    if isinstance(refusal, Later):
        raise Held(refusal.message)
    if refusal is not None:
        raise type(refusal)(f"The workflow {workflow.id} cannot be retried. {refusal.message}", **refusal.details)


def _reopen(workflow: Workflow) -> None:
    """Forget that a workflow has finished."""
    workflow.retries += 1
    workflow.resolved_bytes = 0
    workflow.finished_at = workflow.cancelled_at = workflow.error = workflow.kept_until = None


class _Reset:
    """Resets the nodes of a workflow that did not succeed to their state before the start."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._children: dict[int, list[Node]] = defaultdict(list)
        self.dropped: list[Node] = []
        """Children of map nodes to delete, because the maps will create them again."""
        self.emptied: list[int] = []
        """The ids of these maps."""
        for node in nodes:
            if node.parent is None:
                self._root = node
            else:
                self._children[node.parent].append(node)
        for children in self._children.values():
            children.sort(key=lambda child: child.position)
        self._nodes = {node.id: node for node in nodes}

    def step(self, step: Node, followers: Mapping[int, Sequence[Node]]) -> list[Node]:
        """Reset a step and what was cancelled or skipped because of it, in other containers, too.

        Return the containers around these steps that had ended. They are started again.
        """
        opened: list[Node] = []
        self._failed(step)
        waiting = [step]
        while waiting:
            node = waiting.pop()
            for after in followers.get(node.id, ()):
                if after.state in (NodeState.CANCELLED, NodeState.SKIPPED):
                    self._reset_all(after)
                    waiting.append(after)
            if node.parent is not None and self._nodes[node.parent].has_ended:
                container = self._nodes[node.parent]
                self._open(container, opened)
                waiting.append(container)
        if self._root in opened:
            for branch in self._children[self._root.id][1:]:
                if branch not in opened:
                    self._reset_all(branch)
        return opened

    def _open(self, container: Node, opened: list[Node]) -> None:
        """Let a container go on that has ended; one that has never started waits for what is before it."""
        began = container.started_at
        if began is None:
            self._reset_all(container)
            return
        self._clear(container)
        change_node(container, NodeState.STARTED)
        container.started_at = began  # its end is not that of a container that never started
        opened.append(container)

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
            self.emptied.append(node.id)
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

"""What runs again in a workflow: nodes are reset to their state before the start, with all that followed their end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence, Set

from ojster.workflows.node import (
    EXPANDED,
    Kind,
    Node,
    NodeState,
    count_ended_child,
    count_ended_predecessor,
)
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.early_answers import forget_early_answers
from ojster.workflows.run.flow_wakeups import forget_last_failures, forget_records
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.maps import forget_elements, go_on_with_map, parked_of
from ojster.workflows.run.states import change_node
from ojster.workflows.stored_workflow import StoredWorkflow


class Reset:
    """Resets nodes to their state before the start, with everything that followed their end.

    What followed belongs to the attempt that ended: steps that were cancelled or skipped because of it, and those that
    ran, such as a rollback, a report, a fallback, a callback or a branch. They would otherwise be stale, or run beside
    the new attempt.
    """

    def __init__(self, graph: LoadedGraph, workflow: StoredWorkflow) -> None:
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
        self.begun: list[int] = []
        """The ids of reset nodes that had started: what they ask for now is another question."""
        self.undone_jobs: list[str] = []
        """The ids of completed jobs whose success counts no more, of reset and of dropped nodes."""
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

    def rerun(self, step: Node | None) -> None:
        """Reset a whole workflow that runs anew from a step on, with what did not succeed; ``None``: from its start."""
        self._clear(self._root, in_part=True)
        main = self._children[self._root.id][0]
        if step is not None:
            self._unless_succeeded(main)
        self._reset_all(main if step is None else step)
        self._follow()

    def rerun_flow(self, kept: Set[int], again: Node | None) -> None:
        """Reset a workflow that is a flow, with the steps that it has asked for.

        Parameters
        ----------
        kept:
            The ids of the steps that it keeps; the others are dropped.
        again:
            One of them that runs again; ``None``: none does.
        """
        flow = self._children[self._root.id][0]
        body, *asked = self._children[flow.id]
        for node in (self._root, flow):
            self._clear(node, in_part=True)
        self._clear(body)
        for child in asked:
            if child.id not in kept:
                self._drop_whole(child)
        left = [body, *(child for child in asked if child.id in kept)]
        for position, child in enumerate(left):
            child.position = position
        if again is not None:
            self._reset_all(again)
        self._children[flow.id] = left
        flow.total = len(left)
        rows = [(child.position, child.id) for child in left]
        self._graph.tx.execute_many("UPDATE nodes SET position = ? WHERE id = ?", rows)
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
                self._drop_whole(child)
            self._children[node.id] = [first]
            node.total = 1
            self.restarted_flows.append(first.id)
        for child in self._children[node.id]:
            self._reset_all(child)

    def _drop_whole(self, node: Node) -> None:
        self._note_success(node)
        self.dropped.append(node)
        self._drop(node)

    def _drop(self, node: Node) -> None:
        for child in self._children.pop(node.id, ()):
            self._drop_whole(child)

    def _note_success(self, node: Node) -> None:
        if node.state == NodeState.COMPLETED and node.job_id is not None:
            self.undone_jobs.append(node.job_id)

    def _clear(self, node: Node, *, in_part: bool = False) -> None:
        self._note_success(node)
        change_node(node, NodeState.WAITING)
        node.approved = 0
        if node.started_at is not None:
            self.begun.append(node.id)
        node.verdict = node.result = node.error = node.started_at = node.finished_at = None
        (self._in_part.add if in_part else self._in_part.discard)(node.id)
        self._began.pop(node.id, None)
        self._cleared.append(node)


def apply(run: Advance, workflow: StoredWorkflow, reset: Reset) -> list[Node]:
    """Write what was reset, and return the nodes of the workflow."""
    forget_elements(run.tx, reset.emptied)
    forget_early_answers(run.tx, reset.begun)
    forget_last_failures(run.tx, reset.retried_flows)
    forget_records(run.tx, reset.restarted_flows)
    nodes = run.graph.drop(reset.dropped, reset.nodes)
    for container in reset.opened:
        go_on_with_map(run.tx, container)
    _recount(run.graph, workflow, nodes)
    return nodes


def _recount(graph: LoadedGraph, workflow: StoredWorkflow, nodes: Sequence[Node]) -> None:
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
        before = graph.nodes[source]
        # A container that ended without having started it takes its place.
        line = [before, *(container for _, container in graph.lineage(before))]
        ended = next((around for around in line if around.has_ended), None)
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

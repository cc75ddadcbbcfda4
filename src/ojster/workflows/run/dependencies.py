"""Dependencies that are added to steps of a workflow that have not started."""

from __future__ import annotations

import msgspec

from ojster.core.errors import InvalidRequest, NotFound
from ojster.workflows.node import NOT_STARTED, Followed, Inputs, Kind, Node, NodeState, count_ended_predecessor
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.states import change_node
from ojster.workflows.run.steps import find_step, is_over, steering, wrong_state
from ojster.workflows.stored_workflow import StoredWorkflow


class NewDependencies(msgspec.Struct, frozen=True):
    """Steps of a graph that a step beside them is to wait for.

    Parameters
    ----------
    step:
        Path of the step.
    depends_on:
        Ids of the others, in the same graph.
    """

    workflow_id: str
    step: str
    depends_on: tuple[str, ...]


@steering
def add_dependencies(run: Advance, workflow: StoredWorkflow, item: NewDependencies) -> None:
    """Let a step wait for others, as if they had been declared so."""
    graph = run.graph
    step = find_step(graph, workflow, item.step)
    if is_over(graph, step) or step.state not in NOT_STARTED:
        state = "over" if step.state in NOT_STARTED else step.state
        raise wrong_state(
            workflow, f"The step {item.step!r:.200} is {state}. Only a step that has not started can wait for others."
        )
    container = graph.container_of(step)
    if container.kind != Kind.GRAPH:
        raise InvalidRequest(
            f"The step {item.step!r:.200} is in a {container.kind}. Only the steps of a graph can have 'depends_on'.",
            field="depends_on",
        )
    if graph.container_of(container).kind == Kind.SAGA:
        raise InvalidRequest(
            f"The step {item.step!r:.200} is in a graph with compensations, whose order is fixed. Declare the "
            "dependency when the workflow is started.",
            field="depends_on",
        )
    for name in item.depends_on:
        _connect(graph, _sibling(graph, container, step, name), step)
    if step.state != NodeState.WAITING and step.waiting:
        change_node(step, NodeState.WAITING)
    _give_results(graph, step)
    graph.touch(step)
    graph.change(workflow)
    if step.state == NodeState.WAITING:
        run.decide([step])


def _sibling(graph: LoadedGraph, container: Node, step: Node, name: str) -> Node:
    """Return the step of a graph with an id, which must be able to end before ``step`` starts."""
    before = next((child for child in graph.named_children(container, name) if child.name == name), None)
    if before is None:
        known = ", ".join(sorted(child.name for child in graph.children_with_names(container) if child.name)[:10])
        message = f"There is no step {name!r:.60} in this graph; there are {known or 'none with an id'}."
        raise NotFound(message, resource_type="workflow_step", resource_id=name)
    if before.id == step.id or _leads_to(graph, container, step, before):
        message = f"The steps {graph.place_of(step)!r:.200} and {name!r:.60} would wait for each other."
        raise InvalidRequest(message, field="depends_on")
    return before


def _leads_to(graph: LoadedGraph, container: Node, step: Node, goal: Node) -> bool:
    """Return whether a step of a container must start before another one can end."""
    seen = {step.id}
    front = [step]
    while front:
        sources = {node.id for node in front} | {inner.id for node in front for inner in graph.followed_inside(node)}
        around = [graph.container_of(node) for node in front if node.parent is not None]
        front = [node for node in (*graph.successors(sources), *around) if node.id not in seen]
        if any(node.id == goal.id for node in front):
            return True
        # What follows the common container starts after all of its steps, and leads back to none of them.
        front = [node for node in {node.id: node for node in front}.values() if node.id != container.id]
        seen.update(node.id for node in front)
    return False


def _connect(graph: LoadedGraph, before: Node, step: Node) -> None:
    """Let a step wait for another one, unless it does so already."""
    if any(node.id == step.id for node in graph.successors([before.id])):
        return
    graph.connect(before, step)
    before.followed |= Followed.HERE
    graph.touch(before)
    step.waiting += 1
    if before.has_ended:
        count_ended_predecessor(step, before)


def _give_results(graph: LoadedGraph, step: Node) -> None:
    """Let the jobs of a step receive the results of those that it depends on, as declared dependencies do."""
    if step.inputs is not None:
        return
    inherited, receiving, waiting = step.source, [step], [step]
    while waiting:
        for child in graph.children(waiting.pop()):
            if child.source == inherited:
                receiving.append(child)
                waiting.append(child)
    step.inputs = Inputs.NEEDED.value
    for node in receiving:
        node.source = step.id
    graph.tx.execute("UPDATE nodes SET inputs = :inputs WHERE id = :id", {"inputs": step.inputs, "id": step.id})
    ids = graph.tx.integers([node.id for node in receiving])
    graph.tx.execute(f"UPDATE nodes SET source = ? WHERE id {graph.tx.among}", (step.id, ids))

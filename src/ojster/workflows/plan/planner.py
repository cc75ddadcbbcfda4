"""Planning: a request for a workflow, or for steps of a workflow that exists, becomes a plan.

The way is straight: ``StepReader`` turns members into steps and checks each of them; ``Planner`` turns steps into
nodes; ``PlanOrder`` resolves what they refer to, and ``UndoPlan`` completes what undoes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from ojster.collections.contents import Promise
from ojster.core.json_objects import Members
from ojster.workflows.node import EXPANDED, LEAVES, Inputs, Kind, Node
from ojster.workflows.plan.members import Problem, in_order, refusal_of
from ojster.workflows.plan.order import Pending, PlanOrder
from ojster.workflows.plan.reader import StepReader
from ojster.workflows.plan.steps import JobStep, MapStep, RequestedAddition, RequestedStep, SagaStep, UndoingStep
from ojster.workflows.plan.undo import UndoPlan
from ojster.workflows.plan.values import AddedSteps, Plan, PlanContext, Planned, Spec


def plan_workflow(context: PlanContext, type: str, members: Members, inherited: Members) -> Planned:
    """Return the plan of a whole workflow.

    Parameters
    ----------
    type, members:
        The type of the outermost container, and the members of the request.
    inherited:
        The options that its steps inherit.

    Raises
    ------
    InvalidWorkflow
        Steps break a rule.
    """
    reader = StepReader(context)
    planner = Planner(context, 0, lambda name: None)
    try:
        planner.workflow(reader.workflow(type, members, inherited))
    except Problem as problem:
        reader.problems.append(problem)
    except msgspec.DecodeError as error:
        reader.problems.append(Problem("$", f"A value cannot be read: {error}."))
    return _planned(reader, planner)


def plan_addition(context: PlanContext, raw_steps: Sequence[bytes | msgspec.Raw], added: AddedSteps) -> Planned:
    """Return the plan of steps that are added to an existing container.

    Raises
    ------
    InvalidWorkflow
        The steps break a rule.
    """
    reader = StepReader(context, bindings=added.bindings, first=added.first)
    planner = Planner(context, added.first, added.outer)
    try:
        requested = reader.addition(raw_steps, added)
        planner.addition(requested, added, len(reader.problems))
    except Problem as problem:
        reader.problems.append(problem)
    return _planned(reader, planner)


_INPUTS: Final = {
    Kind.CHAIN: Inputs.BEFORE,
    Kind.BATCH: Inputs.MEMBERS,
    Kind.WORKFLOW: Inputs.MEMBERS,
    Kind.FALLBACK: None,
}
"""Containers whose children follow one another, or their first child, and the results that these receive from it."""


def _planned(reader: StepReader, planner: Planner) -> Planned:
    if problems := in_order(reader.problems, planner.problems):
        raise refusal_of(problems)
    return Planned(planner.plan, reader.unknown, reader.kept)


class Planner:
    """Turns steps into nodes.

    Parameters
    ----------
    first:
        The number of the first node.
    outer:
        Returns the number of a named node outside of the plan, for steps that are added to a workflow.
    """

    def __init__(
        self,
        context: PlanContext,
        first: int,
        outer: Callable[[str], int | None],
        problems: list[tuple[int, Problem]] | None = None,
    ) -> None:
        self.plan = Plan()
        self.problems = [] if problems is None else problems
        """Problems of the order: see ``in_order``."""
        self._context = context
        self._order = PlanOrder(self.plan, self.problems, first, outer)
        self._undo = UndoPlan(self.plan, self._order, context)

    # Entry points

    def workflow(self, requested: RequestedStep) -> None:
        """Plan a whole workflow.

        Raises
        ------
        Problem
            It has too many nodes, with what undoes its steps.
        """
        self._plan(requested, None)
        self._finish(requested.closed_after)

    def addition(self, requested: RequestedAddition, added: AddedSteps, of_steps: int) -> None:
        """Plan more children of an existing container, after ``of_steps`` problems of single steps.

        Raises
        ------
        Problem
            The workflow has too many nodes, with what undoes its steps.
        """
        container, order = added.container, self._order
        order.extended = container
        order.places[container.id] = added.place
        order.names[container.id] = dict(added.known)
        order.children[container.id] = []
        self._undo.extend(container, added.mirrors, added.heads)
        self._children(requested.steps, container, added.last)
        order.read_before = requested.closed_after
        order.link(container)
        if added.mirrors:
            self._compensate(requested.compensations, order.children[container.id], added.mirrors[0][0])
        order.read_before = of_steps
        order.find_names(container, 0)
        self._finish(of_steps)

    def _finish(self, of_steps: int) -> None:
        """Resolve the names that are left, refuse cycles, and complete what undoes containers."""
        self._order.finish()
        self._order.refuse_cycles()
        if not of_steps and not self.problems:
            self._undo.complete()

    # Steps of any kind

    def _add(self, node: Node, parent: Node | None, spec: Spec, path: str, place: str) -> None:
        node.id = self._order.first + len(self.plan.nodes)
        if parent is not None:
            node.parent, node.source = parent.id, parent.source
        self._order.add(node, spec, path, place)

    def _plan(self, step: RequestedStep, parent: Node | None) -> Node:
        """Plan a step of any kind, with the steps inside it."""
        node, own_name = step.node, step.node.name
        self._add(node, parent, step.spec, step.path, step.place)
        self._inside(step, node)
        self._order.await_names(node, step.spec, f"{step.path}.if", step.condition_names)
        if step.depends_on:
            self._order.dependency_names[node.id] = step.depends_on
        if step.role is not None:
            node.name = step.role  # not before: what is inside refers to a step by its own name
        if own_name is not None and parent is not None:
            self._order.names[parent.id][own_name] = node
        return node

    def _inside(self, step: RequestedStep, node: Node) -> None:
        """Plan what is in a step, and what its kind demands."""
        mark = len(self._order.pending)
        match step:
            case JobStep():
                return self._job(step, node)
            case MapStep():
                return self._map(step, node)
            case SagaStep():
                self._saga(step, node)
            case _ if node.kind in LEAVES:
                return None
            case _:
                self._children(step.children, node, None)
        self._order.read_before = step.closed_after
        self._order.link(node)
        return self._order.close(node, mark)

    def _children(self, steps: Sequence[RequestedStep], container: Node, before: Node | None) -> None:
        """Plan the children of a container, the first of which follows ``before``; see ``_INPUTS``."""
        kind = Kind(container.kind)
        for step in steps:
            child = self._plan(step, container)
            if before is not None and kind in _INPUTS:
                self._order.after(child, [before], _INPUTS[kind])
            if before is None or kind == Kind.CHAIN:
                before = child

    # Steps of one kind

    def _job(self, step: JobStep, node: Node) -> None:
        self.plan.promises += [Promise(node.id, step.place, promised) for promised in step.provided]
        self._order.promised += [(node.id, promised.name, promised.category) for promised in step.provided]
        self._order.await_references(node, step.spec, step.references)
        self.plan.add_job(node, step.spec, step.job)

    def _saga(self, step: SagaStep, node: Node) -> None:
        """Plan a container, and what undoes it if it does not succeed."""
        done = self._plan(step.children[0], node)
        undoing = step.undoing
        place = f"{step.place}.{undoing.name}" if step.place else undoing.name or ""
        self._add(undoing, node, Spec(is_undoing=True), step.path, place)
        # The results of all elements of a map, given to what undoes each of them, would grow with their square.
        self._order.after(undoing, [done], None if done.kind in EXPANDED else Inputs.MEMBERS)
        inside = len(self._order.pending)
        self._compensate(step.compensations, self._order.children[done.id], undoing)
        self._order.read_before = step.closed_after
        self._order.close(undoing, inside)
        self._undo.add(node, done, undoing)

    def _compensate(self, compensations: Sequence[UndoingStep], steps: Sequence[Node], undoing: Node) -> None:
        """Plan what undoes ``steps`` in the container ``undoing``."""
        for compensation in compensations:
            mark = len(self._order.pending)
            unit = self._plan(compensation.step, undoing)
            self._undo.add_unit(compensation, steps[compensation.index], unit, mark)

    def _map(self, step: MapStep, node: Node) -> None:
        """Plan a map's template beside the plan, to see what is wrong with it, and what outside of it it refers to."""
        self._order.await_references(node, step.spec, step.references)
        trial = Planner(self._context, node.id + 1, lambda name: None, self.problems)
        order = trial._order
        order.children[node.id], order.names[node.id], order.places[node.id] = [], {}, step.place
        trial._plan(step.template, node)
        trial._compensate(step.compensations, order.children[node.id], node)
        self._order.pending += [Pending(node, step.spec, pending.path, pending.names) for pending in order.pending]
        self._order.promised += [(node.id, name, category) for _, name, category in order.promised]
        self._order.sought += [(node.id, lookup, path) for _, lookup, path in order.sought]
        own = {promise.item.name: Promise(node.id, step.place, promise.item) for promise in trial.plan.promises}
        self.plan.promises += own.values()

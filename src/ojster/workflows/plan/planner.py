"""Planning: a request for a workflow, or for steps of a workflow that exists, becomes a plan.

The way is straight: ``StepReader`` turns members into steps and checks each of them; ``Planner`` turns steps into
nodes; ``PlanOrder`` resolves what they refer to, and ``UndoPlan`` completes what undoes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from ojster.collections.contents import Promise
from ojster.core.json_objects import Members
from ojster.workflows.node import EXPANDED, Inputs, Kind, Node, Rule
from ojster.workflows.plan.members import Problem, in_order, refusal_of
from ojster.workflows.plan.order import Pending, PlanOrder
from ojster.workflows.plan.reader import StepReader
from ojster.workflows.plan.steps import (
    AnyStep,
    BatchStep,
    FallbackStep,
    FlowStep,
    GateStep,
    JobStep,
    ListStep,
    MapStep,
    RequestedAddition,
    RequestedWorkflow,
    SagaStep,
    UndoingStep,
    UnreadStep,
)
from ojster.workflows.plan.undo import UndoPlan
from ojster.workflows.plan.values import AddedSteps, LaterJob, Plan, PlanContext, Planned, Spec


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
        requested = reader.workflow(type, members, inherited)
        planner.workflow(requested, len(reader.problems))
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

    def workflow(self, requested: RequestedWorkflow, of_steps: int) -> None:
        """Plan a whole workflow, after ``of_steps`` problems of single steps.

        Raises
        ------
        Problem
            It has too many nodes, with what undoes its steps.
        """
        root = self._node(Kind.WORKFLOW, None, 0, Spec(), "$", "")
        main = self._plan(requested.main, root)
        for branch in requested.branches:
            self._callback(branch, main, root)
        self._order.read_before = of_steps
        self._order.close(root, 0)
        self._finish(of_steps)

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

    def _node(self, kind: Kind, parent: Node | None, position: int, spec: Spec, path: str, place: str) -> Node:
        number = self._order.first + len(self.plan.nodes)
        node = Node(number, None, position, kind.value)
        if parent is not None:
            node.parent, node.source = parent.id, parent.source
            self._order.children[parent.id].append(node)
        self.plan.nodes.append(node)
        self.plan.specs.append(spec)
        self._order.paths[number] = path
        if kind != Kind.JOB:
            self._order.children[number] = []
            self._order.names[number] = {}
            self._order.places[number] = place
        return node

    def _plan(self, step: AnyStep, parent: Node) -> Node:
        """Plan a step of any kind, with the steps inside it."""
        node = self._node(step.kind, parent, step.position, step.spec, step.path, step.place)
        node.name, node.rule = step.name, step.rule
        node.tolerated, node.manual = int(step.tolerated), int(step.manual)
        self._inside(step, node)
        self._order.await_names(node, step.spec, f"{step.path}.if", step.condition_names)
        if step.depends_on:
            self._order.dependency_names[node.id] = step.depends_on
        if step.role is not None:
            node.name = step.role  # not before: what is inside refers to a step by its own name
        if step.name is not None:
            self._order.names[parent.id][step.name] = node
        return node

    def _inside(self, step: AnyStep, node: Node) -> None:
        """Plan what is in a step, and what its kind demands."""
        mark = len(self._order.pending)
        match step:
            case JobStep():
                return self._job(step, node)
            case GateStep() | UnreadStep():
                return None
            case MapStep():
                return self._map(step, node)
            case ListStep():
                self._children(step.steps, node, None)
            case BatchStep():
                self._batch(step, node)
            case SagaStep():
                self._saga(step, node)
            case FlowStep():
                self._plan(step.job, node)
            case FallbackStep():
                self._fallback(step, node)
            case _:
                assert_never(step)
        return self._close(step, node, mark)

    def _close(self, step: AnyStep, container: Node, mark: int) -> None:
        self._order.read_before = step.closed_after
        if container.kind in (Kind.CHAIN, Kind.GROUP, Kind.GRAPH):
            self._order.link(container)
        self._order.close(container, mark)

    def _children(self, steps: Sequence[AnyStep], container: Node, before: Node | None) -> None:
        """Plan the children of a container; those of a chain follow each other, the first of them ``before``."""
        for step in steps:
            child = self._plan(step, container)
            if container.kind == Kind.CHAIN:
                if before is not None:
                    self._order.after(child, [before], Inputs.BEFORE)
                before = child

    # Steps of one kind

    def _job(self, step: JobStep, node: Node) -> None:
        self.plan.promises += [Promise(node.id, step.place, promised) for promised in step.provided]
        self._order.promised += [(node.id, promised.name, promised.category) for promised in step.provided]
        self._order.await_references(node, step.spec, step.references)
        if step.spec.has_references:
            self.plan.later_jobs.append(LaterJob(step.job.tenant, step.job.scheduled_at))
        else:
            self.plan.jobs[node.id] = step.job

    def _batch(self, step: BatchStep, node: Node) -> None:
        group = self._plan(step.jobs, node)
        for callback in step.callbacks:
            self._callback(callback, group, node)

    def _callback(self, callback: AnyStep, main: Node, parent: Node) -> None:
        """Plan a step that runs depending on how ``main`` ended, which is beside it."""
        self._order.after(self._plan(callback, parent), [main], Inputs.MEMBERS)

    def _fallback(self, step: FallbackStep, node: Node) -> None:
        first, second = self._plan(step.first, node), self._plan(step.second, node)
        self._order.after(second, [first], None)

    def _saga(self, step: SagaStep, node: Node) -> None:
        """Plan a container, and what undoes it if it does not succeed."""
        done = self._plan(step.done, node)
        place = f"{step.place}.{step.undoing_name}" if step.place else step.undoing_name
        undoing = self._node(step.undoing_kind, node, 1, Spec(is_undoing=True), step.path, place)
        undoing.name, undoing.rule = step.undoing_name, Rule.FAILED.value
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

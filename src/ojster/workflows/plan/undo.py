"""Plans of how a container is undone: the compensations of its steps, and copies of those of the containers inside it.

Each container with a compensation inside it, at any depth, is the first part of a saga; the second part undoes it. The
second part mirrors the first: the last step is undone first, and what ran in parallel is undone in parallel. It holds
the compensations of the container's own steps, and a copy of the second part of each saga among these steps, which
undoes that step if it has succeeded and something after it fails.

Spec: ojs-workflows 14
"""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Sequence
from copy import copy
from typing import Final

import msgspec
from msgspec import UNSET

from ojster.core.json_objects import stored_members
from ojster.jobs.models import Models
from ojster.workflows.node import EXPANDED, LEAVES, MAX_NODES, MERGED, Followed, Kind, Node, Rule
from ojster.workflows.plan.members import Problem
from ojster.workflows.plan.order import PlanOrder
from ojster.workflows.plan.steps import UndoingStep
from ojster.workflows.plan.values import Mirrors, Plan, PlanContext, Spec

_encode: Final = msgspec.json.Encoder().encode


class Undone(msgspec.Struct, frozen=True):
    """A container ``done``, and the containers that undo it, the innermost first; ``heads``: see ``AddedSteps``.

    ``settled_by``: of each of them but the first, the numbers of the steps around ``done`` whose own compensations undo
    all that is inside them.
    """

    done: Node
    mirrors: Sequence[Node]
    settled_by: Sequence[Sequence[int]] = ()
    heads: Sequence[Sequence[Node]] = ()


class UndoPlan:
    """Completes the plans of how containers are undone, after all steps are planned and in order."""

    def __init__(self, plan: Plan, order: PlanOrder, context: PlanContext) -> None:
        self.units: dict[int, list[Node]] = {}
        """What undoes each step in the container around it, by number."""
        self.containers: list[Undone] = []
        """The innermost first."""
        self._extended: Undone | None = None
        self._plan = plan
        self._order = order
        self._models = Models(context.now, context.largest)
        self._tenant = context.tenant
        self._sagas: dict[int, Undone] = {}
        self._done: dict[int, Node] = {}
        """The containers that are undone, by the numbers of those that undo them."""

    def add(self, saga: Node, done: Node, undoing: Node) -> None:
        """Add a saga; those inside it come before it."""
        undone = Undone(done, [undoing])
        self.containers.append(undone)
        self._sagas[saga.id] = undone
        self._done[undoing.id] = done
        self.spec_of(done).mirrors = [undoing.id]

    def extend(self, container: Node, mirrors: Mirrors, heads: Sequence[Sequence[Node]]) -> None:
        """Undo the steps that are added to an existing container in those that undo it; see ``AddedSteps``."""
        for mirror, place, _ in mirrors:
            self._order.places[mirror.id] = place
            self._order.names[mirror.id], self._order.children[mirror.id] = {}, []
        if mirrors:
            settled_by = [settled for _, _, settled in mirrors[1:]]
            self._extended = Undone(container, [mirror for mirror, _, _ in mirrors], settled_by, heads)

    def add_unit(self, compensation: UndoingStep, step: Node, unit: Node, mark: int) -> None:
        """Add the compensation of a step, which may refer to the step in the names recorded since ``mark``."""
        spec = self.spec_of(unit)
        spec.compensates, spec.once_started = step.id, compensation.own.once_started
        self.units[step.id] = [unit]
        self._order.name_undone(mark, compensation.own.id, step)

    def spec_of(self, node: Node) -> Spec:
        """Return the specification of a planned node."""
        return self._plan.specs[node.id - self._order.first]

    def complete(self) -> None:
        """Copy what undoes inner containers into what undoes those around them, and put it in order."""
        for undone in self.containers:
            self._fill(undone)
        if self._extended is not None:
            self._fill(self._extended)

    def _fill(self, undone: Undone) -> None:
        first, *others = undone.mirrors
        steps = self._undo_order(undone.done)
        for step in steps:
            units = self.units.setdefault(step.id, [])
            inner = self._sagas.get(step.id)
            if inner is not None and (inner.done.kind in EXPANDED or self._order.children[inner.mirrors[0].id]):
                is_own = bool(units)
                name = step.name or str(step.position)
                # What undoes the step as a whole undoes it once it has completed.
                whole = [step.id] if is_own else []
                units.append(self._copy_whole(inner.mirrors[0], first, f"{name}-inside" if is_own else name, 0, whole))
        self._arrange(undone.done, steps, first)
        added = [unit for step in steps for unit in self.units[step.id]]
        known = {unit.id for unit in added}
        added += [node for node in self._order.children[first.id] if node.id not in known]
        self._order.children[first.id] = added
        is_new = undone.done.id >= self._order.first
        for position, unit in enumerate(added, 0 if is_new else first.total):
            unit.position = position
        if is_new:
            first.total = first.unfinished = len(added)
        copied = [added]
        for mirror, settled_by in zip(others, undone.settled_by, strict=True):
            copied.append(
                [self._copy_whole(unit, mirror, unit.name or "", unit.position, settled_by) for unit in copied[-1]]
            )
            self._copy_order(copied[0], copied[-1])
        for units, heads in zip(copied, undone.heads, strict=False):
            self._put_before(units, heads)

    # Order

    def _undo_order(self, container: Node) -> list[Node]:
        """Return the children of a container, the last first."""
        children = {child.id: child for child in self._order.children[container.id]}
        if container.kind != Kind.GRAPH:
            return list(children.values())[::-1]
        before = {id: [earlier for earlier in self._order.before.get(id, ()) if earlier in children] for id in children}
        return [children[id] for id in graphlib.TopologicalSorter(before).static_order()][::-1]

    def _arrange(self, done: Node, steps: Sequence[Node], undoing: Node) -> None:
        """Let steps be undone after those that came after them; ``steps``: the last first."""
        numbers = {step.id for step in steps}
        preceding = {step.id: [id for id in self._order.before.get(step.id, ()) if id in numbers] for step in steps}
        following: dict[int, list[int]] = {}
        for id, earlier in preceding.items():
            for predecessor in earlier:
                following.setdefault(predecessor, []).append(id)
        last: dict[int, list[Node]] = {}
        """What undoes each step, or else what undoes the steps after it."""
        for step in steps:
            after = {unit.id: unit for id in following.get(step.id, ()) for unit in last[id]}
            units = self.units[step.id]
            if not units and len(after) > 1 and len(preceding[step.id]) > 1:  # joins them, lest arrows multiply
                units = [self._join(undoing, step)]
            for unit in units:
                self._order.after(unit, after.values(), None)
            last[step.id] = units or list(after.values())

    def _join(self, undoing: Node, step: Node) -> Node:
        """Add a group without steps, which ends when all before it have ended."""
        node = Node(self._next_number(step), undoing.id, 0, Kind.GROUP.value, step.name or str(step.position))
        self._add(node, Spec(is_undoing=True), undoing)
        return node

    def _copy_order(self, originals: Sequence[Node], copies: Sequence[Node]) -> None:
        numbers = {original.id: other for original, other in zip(originals, copies, strict=True)}
        for original in originals:
            earlier = [numbers[id] for id in self._order.before.get(original.id, ()) if id in numbers]
            self._order.after(numbers[original.id], earlier, None)

    def _put_before(self, units: Sequence[Node], heads: Sequence[Node]) -> None:
        """Undo added steps before those that are there."""
        followed = {id for unit in units for id in self._order.before.get(unit.id, ())}
        last = [unit for unit in units if unit.id not in followed]
        if len(last) > 1 and len(heads) > 1:  # one after the other, lest arrows multiply
            for earlier_unit, other in itertools.pairwise(units):
                if earlier_unit.id not in self._order.before.get(other.id, ()):
                    self._order.after(other, [earlier_unit], None)
            last = list(units[-1:])
        for head in heads:
            self._order.after(head, last, None)

    # Copies

    def _copy_whole(self, original: Node, parent: Node, name: str, position: int, settled_by: Sequence[int]) -> Node:
        """Copy a node of an undoing container, with everything inside it, into the one around it.

        ``settled_by``: numbers of the steps after which nothing is left to undo for the copies.
        """
        numbers: dict[int, Node] = {}
        top = self._copy(original, parent, name, self._place_in(parent, name), numbers)
        top.position, top.followed = position, top.followed & ~Followed.HERE
        if self._done.get(original.id) is not None:
            top.rule = Rule.SUCCEEDED.value  # not only after a failure: it runs in its turn
        for id, node in numbers.items():
            spec = self.spec_of(node)
            if spec.compensates is not None or spec.is_undoing:
                spec.settled_by = list(dict.fromkeys([*spec.settled_by, *settled_by]))
            if node.source in numbers and node.source not in self._done:  # else it gets what the original gets
                node.source = numbers[node.source].id
            spec.names = {name: numbers[at].id if at in numbers else at for name, at in spec.names.items()}
            spec.mirrors = [numbers[at].id for at in spec.mirrors if at in numbers]
            earlier = self._order.before.get(id, ()) if node is not top else ()
            self._order.after(node, [numbers[predecessor] for predecessor in earlier if predecessor in numbers], None)
            if id in self._done:
                self._done[node.id] = self._done[id]
                self.spec_of(self._done[id]).mirrors.append(node.id)
        return top

    def _copy(self, original: Node, parent: Node, name: str | None, place: str, numbers: dict[int, Node]) -> Node:
        node = copy(original)
        node.id, node.parent, node.name, node.waiting = self._next_number(original), parent.id, name, 0
        known = self.spec_of(original)
        spec = msgspec.structs.replace(known)
        if spec.compensates is not None:
            spec.settled_by = [*known.settled_by, original.id]
        numbers[original.id] = node
        self._add(node, spec, parent, place)
        if spec.request is not UNSET:
            self._place_job(node, spec, place)
        inner = self._order.children.get(original.id, ()) if node.kind not in LEAVES else ()
        for child in inner:
            is_shown = original.kind not in MERGED or child.position
            inside = f"{place}.{child.name or child.position}" if is_shown else place
            self._copy(child, node, child.name, inside, numbers)
        return node

    def _place_job(self, node: Node, spec: Spec, place: str) -> None:
        """Give the job of a copied node its own place in the workflow."""
        assert spec.request is not UNSET
        request = stored_members(spec.request)
        request["workflow_step"] = msgspec.Raw(_encode(place))
        spec.request = msgspec.Raw(_encode(request))
        job = self._models.read(request, self._tenant)
        self._plan.add_job(node, spec, job)

    def _next_number(self, like: Node) -> int:
        number = self._order.first + len(self._plan.nodes)
        if number >= MAX_NODES:
            path = self._order.paths.get(like.id, "$")
            raise Problem(path, f"The workflow has more than {MAX_NODES} nodes, with the compensations.")
        return number

    def _add(self, node: Node, spec: Spec, parent: Node, place: str = "") -> None:
        self._order.add(node, spec, self._order.paths.get(parent.id, "$"), place)

    def _place_in(self, parent: Node, name: str) -> str:
        around = self._order.places[parent.id]
        return f"{around}.{name}" if around else name

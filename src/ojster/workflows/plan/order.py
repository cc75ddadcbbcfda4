"""The order of planned nodes."""

from __future__ import annotations

import graphlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from ojster.collections.items import Lookup
from ojster.core.references import is_index
from ojster.workflows.node import TWO_PART, Followed, Inputs, Kind, Node, count_ended_predecessor
from ojster.workflows.plan.members import Problem
from ojster.workflows.plan.steps import References
from ojster.workflows.plan.values import Plan, Spec

MAX_COMPARED_PROMISES: Final = 200_000
"""Maximum number of pairs of a lookup and a promised item that are compared in one request."""

Promise = tuple[int, str, str | None]
"""A promised item: number of the node, name and category."""


class Pending(msgspec.Struct):
    """Names of steps that are not resolved. The next container to close looks for them among its children.

    ``inner`` is the child of that container in which the names are used; ``spec`` receives the numbers of the steps.
    """

    inner: Node
    spec: Spec
    path: str
    names: set[str]


class PlanOrder:
    """The order of planned nodes: edges, names, and what references demand.

    Attributes
    ----------
    children, names:
        The children of each container, and those with names.
    paths, places:
        The place of each node in the request, and of each container in the workflow.
    problems, read_before:
        The problems of the order, each with the number of problems of steps that come before it; and that number for
        the next one. See ``in_order``.
    dependency_names:
        The ids in ``depends_on``, by number of the node.
    pending:
        Names that are not resolved.
    promised:
        Promised items: number of the node, name and category.
    sought:
        Lookups in the workflow's collection: number of the node, lookup, and its place in the request.
    extended:
        The existing container to which steps are added.
    """

    def __init__(
        self, plan: Plan, problems: list[tuple[int, Problem]], first: int, outer: Callable[[str], int | None]
    ) -> None:
        self.plan = plan
        self.problems = problems
        self.read_before = 0
        self.first = first
        self.outer = outer
        self.children: dict[int, list[Node]] = {}
        self.names: dict[int, dict[str, Node]] = {}
        self.paths: dict[int, str] = {}
        self.places: dict[int, str] = {}
        self.before: dict[int, dict[int, None]] = {}
        self.dependency_names: dict[int, Sequence[str]] = {}
        self.pending: list[Pending] = []
        self.promised: list[Promise] = []
        self.extended: Node | None = None
        self.sought: list[tuple[int, Lookup, str]] = []
        self.crosses = False
        """Whether a step waits for one in another container."""

    def add(self, node: Node, spec: Spec, path: str, place: str) -> None:
        """Add a node to the plan."""
        self.plan.nodes.append(node)
        self.plan.specs.append(spec)
        self.paths[node.id] = path
        if node.parent is not None:
            self.children[node.parent].append(node)
        if node.kind != Kind.JOB:
            self.children[node.id], self.names[node.id], self.places[node.id] = [], {}, place

    def after(self, node: Node, before: Iterable[Node], inputs: Inputs | None) -> None:
        """Let a node start after others have ended."""
        for earlier in before:
            self._connect(earlier, node)
            earlier.followed |= Followed.HERE
            if earlier.has_ended:
                count_ended_predecessor(node, earlier)
        if inputs is not None:
            self.give(node, inputs)

    def _connect(self, earlier: Node, node: Node) -> None:
        self.before.setdefault(node.id, {})[earlier.id] = None
        self.plan.edges.append((earlier.id, node.id))
        node.waiting += 1

    def give(self, node: Node, inputs: Inputs) -> None:
        """Set which results a node and the nodes inside it receive."""
        inherited = node.source
        node.inputs, node.source = inputs.value, node.id
        waiting = [node]
        while waiting:
            for child in self.children.get(waiting.pop().id, ()):
                if child.source == inherited:
                    child.source = node.id
                    waiting.append(child)

    def link(self, container: Node) -> None:
        """Make the children of a graph successors of those that they depend on."""
        siblings = self.names[container.id]
        for node in self.children[container.id]:
            for name in self.dependency_names.get(node.id, ()):
                before = siblings.get(name)
                path = f"{self.paths[node.id]}.depends_on"
                if before is None:
                    known = ", ".join(sorted(siblings)[:10]) or "none with an id"
                    self._report(path, f"There is no step {name!r:.60} here; there are {known}.")
                elif before is node:
                    self._report(path, f"The step {name!r:.60} depends on itself.")
                elif before.id not in self.before.get(node.id, {}):
                    self.after(node, [before], Inputs.NEEDED)

    def close(self, container: Node, mark: int) -> None:
        """Finish a container: count its children, and resolve names recorded since ``mark`` among them."""
        container.total = container.unfinished = len(self.children[container.id])
        self.find_names(container, mark)

    def await_references(self, node: Node, spec: Spec, references: References | None) -> None:
        """Record the steps and the promised items that a value of a node refers to."""
        if references is not None:
            self.await_names(node, spec, references.path, references.names)
            self.sought += [(node.id, lookup, references.path) for lookup in references.lookups]

    def await_names(self, node: Node, spec: Spec, path: str, names: Iterable[str]) -> None:
        """Record names of steps that are used in a node, at a place of the request."""
        if names:
            self.pending.append(Pending(node, spec, path, set(names)))

    def find_names(self, container: Node, mark: int) -> None:
        """Resolve names that are used inside a container among its children."""
        left = []
        for pending in self.pending[mark:]:
            for name in sorted(pending.names):
                producer = self.among(container, pending.inner, name)
                if producer is None or producer is pending.inner:
                    continue
                pending.names.discard(name)
                pending.spec.names[name] = producer.id
                self.put_in_order(container, pending.inner, producer, name, pending.path)
            if pending.names:
                pending.inner = container
                left.append(pending)
        self.pending[mark:] = left

    def among(self, container: Node, inner: Node, name: str) -> Node | None:
        """Return a named step of a container; for later children of a two-part container, one of its first child."""
        if container.kind in TWO_PART:
            if inner.position == 0:
                return None
            if container.kind == Kind.FALLBACK and name == container.name:
                return self.children[container.id][0]
            while container.kind in TWO_PART:
                container = self.children[container.id][0]
            inner = container  # all of the first child comes before
        if is_index(name):  # an index means an earlier step here, or else one further out
            index = int(name)
            if inner is not container and (container.kind != Kind.CHAIN or index >= inner.position):
                return None
            children = self.children.get(container.id, [])
            place = index - children[0].position if children else 0  # the container may have earlier children
            return children[place] if 0 <= place < len(children) else None
        return self.names.get(container.id, {}).get(name)

    def put_in_order(self, container: Node, inner: Node, producer: Node, name: str, path: str) -> None:
        """Ensure that a referenced step ends first; in a graph, add the dependency."""
        match container.kind:
            case Kind.GRAPH if producer.id not in self.before.get(inner.id, {}):
                self.after(inner, [producer], Inputs.NEEDED)
            case Kind.CHAIN if producer.position > inner.position:
                self._report(path, f"The step {name!r:.60} comes later than this one.")
            case Kind.GROUP | Kind.MAP:
                self._report(path, f"The step {name!r:.60} runs at the same time as this one.")

    def finish(self) -> None:
        """Resolve the remaining names outside of the plan, and let steps wait for promised items."""
        for pending in self.pending:
            for name in sorted(pending.names):
                number = self.outer(name)
                if number is None:
                    self._report(pending.path, f"There is no step {name!r:.60} before this one.")
                else:
                    pending.spec.names[name] = number
        self._follow_promises()

    def _follow_promises(self) -> None:
        """Let steps start after those that promise what they look up."""
        by_name: dict[str, list[Promise]] = {}
        patterns: list[Promise] = []
        for promise in self.promised:
            if "{" in promise[1]:
                patterns.append(promise)
            else:
                by_name.setdefault(promise[1], []).append(promise)
        compared, ordered = 0, set[tuple[int, int]]()
        different = {  # lookups that match the same find the same promises
            (
                consumer,
                lookup.name,
                lookup.name_startswith,
                lookup.name_endswith,
                lookup.name_contains,
                lookup.category,
            ): (
                lookup,
                path,
            )
            for consumer, lookup, path in self.sought
        }
        for (consumer, *_), (lookup, path) in different.items():
            promises = self.promised if lookup.name is None else [*by_name.get(lookup.name, ()), *patterns]
            compared += len(promises)
            if compared > MAX_COMPARED_PROMISES:
                self._report(
                    path, f"Lookups are compared with more than {MAX_COMPARED_PROMISES} promised items in all."
                )
                return
            for producer, name, category in promises:
                pair = (consumer, producer)
                if producer != consumer and pair not in ordered and lookup.may_match(name, category):
                    ordered.add(pair)
                    self.put_in_order_across(consumer, producer, name, path)

    def name_undone(self, mark: int, id: str | None, step: Node) -> None:
        """Let the names recorded since ``mark``, in the compensation of a step, refer to this step by its id."""
        for pending in self.pending[mark:]:
            if id is not None and id in pending.names:
                pending.names.discard(id)
                pending.spec.names[id] = step.id
        self.pending[mark:] = [pending for pending in self.pending[mark:] if pending.names]

    def refuse_cycles(self) -> None:
        """Refuse steps that wait for each other, directly or through the containers around them."""
        try:
            graphlib.TopologicalSorter(self._starts_and_ends() if self.crosses else self.before).prepare()
        except graphlib.CycleError as error:
            cycle: list[int] = error.args[1]
            if self.crosses:
                cycle = [id for id, _ in itertools.groupby(moment >> 1 for moment in cycle)]
            nodes = [self.plan.nodes[id - self.first] for id in cycle]
            names = " → ".join(node.name or str(node.position) for node in nodes)
            self._report(self.paths[cycle[0]], f"These steps wait for each other: {names}.")

    def _starts_and_ends(self) -> dict[int, list[int]]:
        """Return what precedes the start (``2 * number``) and the end (``2 * number + 1``) of each node.

        Steps start after their container has started, and it ends after they have ended.
        """
        before: dict[int, list[int]] = {}
        for node in self.plan.nodes:
            start, end = 2 * node.id, 2 * node.id + 1
            before.setdefault(end, []).append(start)
            before[start] = [2 * id + 1 for id in self.before.get(node.id, ())]
            if node.parent is not None:
                before[start].append(2 * node.parent)
                before.setdefault(2 * node.parent + 1, []).append(end)
        return before

    def put_in_order_across(self, consumer: int, producer: int, name: str, path: str) -> None:
        """Ensure that a step that promises an item ends before a step that looks it up, wherever both are.

        The one waits for the other alone, not for the containers between them. What runs depending on how another part
        of its container ended, like a callback, is no such step: the container around both parts waits.
        """
        inner, outer = self.ancestry(consumer), self.ancestry(producer)
        level = 0
        while level < min(len(inner), len(outer)) and inner[level].id == outer[level].id:
            level += 1
        if not 0 < level < min(len(inner), len(outer)):
            self._report(path, f"{name!r:.60} is promised by this step or by one inside it.")
            return
        container, before, after = inner[level - 1], outer[level], inner[level]
        known = len(self.plan.edges)
        if container.kind in TWO_PART:
            if before.position >= after.position:
                self._report(path, f"The step that promises {name!r:.60} comes later than this step.")
        elif container.kind != Kind.GRAPH or (inner[-1] is after and outer[-1] is before):
            self.put_in_order(container, after, before, before.name or str(before.position), path)
            if container.kind == Kind.GRAPH and self.plan.edges[known:]:
                self.plan.promised.add((before.id, after.id))
        elif before.id not in self.before.get(after.id, ()):
            self._cross(_decided_alone(inner[level:]), outer[level:])

    def _cross(self, consumer: Node, line: Sequence[Node]) -> None:
        """Let a node start after one in another container has ended; ``line``: that one, after those around it."""
        producer = line[-1]
        if producer.id in self.before.get(consumer.id, ()):
            return
        self.crosses = True
        self._connect(producer, consumer)
        self.plan.promised.add((producer.id, consumer.id))
        producer.followed |= Followed.ELSEWHERE
        line[0].followed |= Followed.HERE
        for container in line[:-1]:
            container.followed |= Followed.INSIDE

    def ancestry(self, number: int) -> list[Node]:
        """Return a node and all containers around it, the outermost first."""
        line = []
        current: int | None = number
        while current is not None and 0 <= current - self.first < len(self.plan.nodes):
            line.append(self.plan.nodes[current - self.first])
            current = line[-1].parent
        if current is not None and self.extended is not None:  # steps added to an existing container
            line.append(self.extended)
        return line[::-1]

    def _report(self, path: str, message: str) -> None:
        self.problems.append((self.read_before, Problem(path, message)))


def _decided_alone(line: Sequence[Node]) -> Node:
    """Return the last node of a line whose start does not depend on how another part of its container ends."""
    for container, node in itertools.pairwise(line):
        if container.kind in TWO_PART and node.position:
            return container
    return line[-1]

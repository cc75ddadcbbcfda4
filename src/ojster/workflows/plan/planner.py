"""Planning: steps of a request become nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET

from ojster.collections.contents import Promise
from ojster.collections.items import read_provided
from ojster.core.errors import OjsterError
from ojster.core.json_objects import Members, raw_list, read_members
from ojster.core.origins import origin_members
from ojster.core.references import INDEX, ITEM, STEP_NAME
from ojster.jobs.names import refuse_reserved
from ojster.jobs.preparation import Models
from ojster.workflows.node import EXPANDED, FLOW_JOB, MAX_NODES, Inputs, Kind, Node, Rule
from ojster.workflows.plan.members import MAX_REPORTED_PROBLEMS, Problem, others_in, refusal_of, text, unknown_in
from ojster.workflows.plan.nested_definitions import MEMBER as DEFINITION
from ojster.workflows.plan.nested_definitions import MEMBERS as OF_DEFINITIONS
from ojster.workflows.plan.nested_definitions import as_map
from ojster.workflows.plan.nodes import Here, name_of, read_rules, spec_of, steps_in
from ojster.workflows.plan.order import PlanOrder
from ojster.workflows.plan.rules import (
    BRANCHES,
    CALLBACKS,
    CONTAINER_MEMBERS,
    CONTAINERS,
    GATE_MEMBERS,
    LISTS,
    NODE_MEMBERS,
    OF_STEPS,
    OWN_MEMBERS,
    adjusted,
    failure_policy,
    flow_job,
    gate_limit,
    idle_in,
    inherit,
    is_job,
    job_request,
    options_of,
    promise,
    refuse_rule,
    trace_members,
)
from ojster.workflows.plan.sdk_dialect import is_graph
from ojster.workflows.plan.undo import MIRROR_KINDS, Mirrors, UndoPlan, holds_compensation, is_undone, own_compensation
from ojster.workflows.plan.values import LaterJob, Plan, Spec

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode
_NULL: Final = msgspec.Raw(b"null")

MAX_LEVELS: Final = 16
"""Maximum nesting depth of containers, including the outermost."""

MAX_MAP_ELEMENTS: Final = 100_000
"""Maximum number of elements of a map."""


class Planner:
    """Turns steps into nodes.

    Parameters
    ----------
    workflow_id:
        The id of the workflow, given to its jobs.
    tenant:
        The tenant of the workflow.
    metadata:
        The metadata of the workflow; jobs carry the trace context in it.
    first:
        The number of the first node.
    outer:
        Returns the number of a named node outside of the plan, for steps that are added to a workflow.
    bindings:
        Values bound by a map for the planned steps.
    """

    def __init__(
        self,
        now: int,
        largest: int,
        *,
        workflow_id: str,
        tenant: str = "",
        metadata: bytes = b"{}",
        first: int = 0,
        outer: Callable[[str], int | None] = lambda name: None,
        bindings: Mapping[str, msgspec.Raw] | None = None,
        problems: list[Problem] | None = None,
    ) -> None:
        self.plan = Plan()
        self.problems = [] if problems is None else problems
        self.unknown: list[Problem] = []
        """The members that mean nothing, each at its place."""
        self._models = Models(now, largest)
        self._tenant = tenant
        self._carried = trace_members(metadata)
        self._origin = origin_members(metadata)
        self._workflow_id = msgspec.Raw(_encode(workflow_id))
        self._order = PlanOrder(self.plan, self.problems, first, outer, bindings or {})
        self._places = self._order.places
        self._undo = UndoPlan(self.plan, self._order, self._models, tenant)

    # Entry points

    def root(self, type: str, members: Members, inherited: Members) -> None:
        """Plan a whole workflow."""
        root = self._node(Kind.WORKFLOW, None, 0, Spec(), "$", "")
        main = self._container(type, members, Here(root, 0, "$", "", inherited, 1), Spec())
        for name, rule in BRANCHES.items():
            if name in members and bytes(members[name]) != b"null":
                here = Here(root, len(self._order.children[root.id]), f"$.{name}", name, inherited, 1)
                branch = self._branch(members[name], here)
                if branch is not None:
                    branch.name, branch.rule = name, rule.value
                    self._order.after(branch, [main], Inputs.MEMBERS)
        self._order.close(root, 0)
        self._finish()

    def _finish(self) -> None:
        """Resolve the names that are left, refuse cycles, and complete what undoes containers."""
        self._order.finish()
        self._order.refuse_cycles()
        if not self.problems:
            self._undo.complete()

    def more(
        self,
        steps: Sequence[bytes | msgspec.Raw],
        container: Node,
        path: str,
        place: str,
        inherited: Members,
        *,
        known: Mapping[str, Node] | None = None,
        last: Node | None = None,
        level: int = 1,
        mirrors: Mirrors = (),
        heads: Sequence[Sequence[Node]] = (),
    ) -> None:
        """Plan more children of an existing container.

        Parameters
        ----------
        path, place:
            The place of the steps in the request, and the place of the container in the workflow.
        known:
            The container's named children.
        last:
            The last child, if the container is a chain.
        level:
            Number of levels of containers down to this one.
        mirrors, heads:
            The existing containers that undo this one, and the children of each that are undone first: what undoes the
            new steps precedes them.

        Raises
        ------
        InvalidWorkflow
            The steps break a rule.
        """
        self._order.extended = container
        self._places[container.id] = place
        self._order.names[container.id] = dict(known or {})
        self._order.children[container.id] = []
        self._undo.extend(container, mirrors, heads)
        try:
            self._list_children(container, steps, path, inherited, level, last, can_be_undone=bool(mirrors))
            self._order.link(container)
            if mirrors:
                self._undo.compensate(self._attempt, container, mirrors[0][0], inherited, level)
            self._order.find_names(container, 0)
            self._finish()
        except Problem as problem:
            self.problems.append(problem)
        if self.problems:
            raise refusal_of(self.problems)

    # Steps

    def _node(self, kind: Kind, parent: Node | None, position: int, spec: Spec, path: str, place: str) -> Node:
        number = self._order.first + len(self.plan.nodes)
        if number >= MAX_NODES:
            raise Problem(path, f"The workflow has more than {MAX_NODES} nodes.")
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
            self._places[number] = place
        return node

    def _inside(self, parent: Node, position: int | str) -> str:
        """Return the place of a child."""
        around = self._places[parent.id]
        return f"{around}.{position}" if around else str(position)

    def _attempt(self, raw: bytes | msgspec.Raw, here: Here) -> Node | None:
        """Plan a step. A problem is recorded, so that the remaining steps are checked too."""
        try:
            return self._step(raw, here)
        except Problem as problem:
            self.problems.append(problem)
        except OjsterError as error:
            self.problems.append(Problem(here.path, error.message))
        except msgspec.DecodeError as error:
            self.problems.append(Problem(here.path, f"A value cannot be read: {error}."))
        if len(self.problems) >= MAX_REPORTED_PROBLEMS:
            raise self.problems.pop()
        return None

    def _step(self, raw: bytes | msgspec.Raw, here: Here) -> Node:
        """Plan a step of any kind: a job, a gate or a container, alone or with a fallback."""
        members = read_members(raw, here.path)
        if b"null" in bytes(raw):
            members = {name: value for name, value in members.items() if name not in OF_STEPS or value != _NULL}
        if not NODE_MEMBERS & members.keys() and is_job(members):
            return self._job(members, here, Spec())
        own = own_compensation(members, here.path, is_allowed=here.can_be_undone)
        name = name_of(self._order, members, here)
        if name is not None:
            here.place = self._inside(here.parent, name)
        spec = spec_of(members, here.path)
        type = "graph" if is_graph(members) else text(members, "type", here.path) or ""
        node = self._planned(type, members, here, spec, name)
        if "provides" in members and node.kind != Kind.JOB:
            raise Problem(f"{here.path}.provides", "Only a job without a fallback can have 'provides'.")
        read_rules(self._order, node, members, spec, here)
        node.name = name
        if own is not None:
            self._undo.own[node.id] = own
        if name is not None:
            self._order.names[here.parent.id][name] = node
            if "id" in members:
                self._order.with_id.add(node.id)
        return node

    def _planned(self, type: str, members: Members, here: Here, spec: Spec, name: str | None) -> Node:
        if "fallback" in members and bytes(members["fallback"]) != b"null":
            return self._undoable(members, here, spec, partial(self._with_fallback, members, name=name))
        nested = not type and DEFINITION in members
        if type in CONTAINERS or nested:
            known = CONTAINER_MEMBERS | (OF_DEFINITIONS if nested else OWN_MEMBERS[type])
            spec.others, unknown = others_in(members, known, here.path, f"A {type or DEFINITION}")
            self.unknown += unknown
            here.inherited = inherit(here.inherited, members, here.path)
            here.level += 1
            return self._nested(members, here, spec) if nested else self._container(type, members, here, spec)
        if type != Kind.GATE:
            return self._job(members, here, spec)
        spec.others, unknown = others_in(members, GATE_MEMBERS, here.path, "A gate")
        self.unknown += unknown
        spec.timeout = gate_limit(members, here.path)
        node = self._node(Kind.GATE, here.parent, here.position, spec, here.path, here.place)
        node.manual = 1
        return node

    def _undoable(self, members: Members, here: Here, spec: Spec, plan: Callable[[Here, Spec], Node]) -> Node:
        """Plan a container; if it has compensations inside it, as the first part of a saga."""
        return self._saga(here, spec, plan) if holds_compensation(members) else plan(here, spec)

    def _job(self, members: Members, here: Here, spec: Spec) -> Node:
        request = job_request(members, here.path)
        if here.inherited or "priority_adjustment" in members:
            options = adjusted(options_of(request, here.inherited, here.path), members, here.path)
            request["options"] = msgspec.Raw(_encode(options))
        provided = read_provided(members["provides"]) if "provides" in members else []
        if provided:
            promise(request, provided, here.path)
        if self._carried or self._origin:
            own = read_members(request["meta"], f"{here.path}.meta") if "meta" in request else {}
            request["meta"] = msgspec.Raw(_encode(self._carried | own | self._origin))
        request["workflow_id"] = self._workflow_id
        request["workflow_step"] = msgspec.Raw(_encode(here.place))
        spec.request = msgspec.Raw(_encode(request))
        node = self._node(Kind.JOB, here.parent, here.position, spec, here.path, here.place)
        self.unknown += idle_in(request, here.path)
        self.plan.promises += [Promise(node.id, here.place, promised) for promised in provided]
        self._order.promised += [(node.id, promised.name, promised.category) for promised in provided]
        if not here.gives_values:
            spec.has_references = self._order.refer(node, spec, request.get("args", b""), here.path)
        job = self._models.read(request, self._tenant)
        refuse_reserved(job.queue)
        if job.pending:
            raise Problem(here.path, "A step cannot be 'pending'; use 'manual' to make it wait for an approval.")
        self.unknown += [Problem(here.path, warning) for warning in job.warnings]
        if spec.has_references:
            self.plan.later_jobs.append(LaterJob(job.tenant, job.scheduled_at))
        else:
            self.plan.jobs[node.id] = job
        return node

    def _with_fallback(self, members: Members, here: Here, spec: Spec, *, name: str | None) -> Node:
        """Plan a step and its fallback. Members of the step other than its job apply to both together."""
        mark = len(self._order.pending)
        node = self._node(Kind.FALLBACK, here.parent, here.position, spec, here.path, here.place)
        node.name = name
        inherited = adjusted(here.inherited, members, here.path)
        own = {name: value for name, value in members.items() if name not in NODE_MEMBERS}
        if "priority_adjustment" in members:
            own["priority_adjustment"] = members["priority_adjustment"]
        first = self._step(_encode(own), Here(node, 0, here.path, self._inside(node, 0), here.inherited, here.level))
        path, place = f"{here.path}.fallback", self._inside(node, "fallback")
        refuse_rule(members["fallback"], path)
        second = self._step(members["fallback"], Here(node, 1, path, place, inherited, here.level, can_be_undone=True))
        second.name, second.rule = "fallback", Rule.FAILED.value
        self._order.after(second, [first], None)
        self._order.close(node, mark)
        return node

    # Containers

    def _container(self, type: str, members: Members, here: Here, spec: Spec) -> Node:
        if here.level > MAX_LEVELS:
            raise Problem(here.path, f"Containers are nested deeper than {MAX_LEVELS} levels.")
        match type:
            case "map":
                return self._undoable(members, here, spec, partial(self._map, members))
            case "batch":
                return self._undoable(members, here, spec, partial(self._batch, members))
            case "saga":
                return self._saga_with_policy(members, here, spec)
            case "flow":
                return self._flow(members, here, spec)
        steps = steps_in(members, LISTS[type], here.path)
        plan = partial(self._list_container, Kind(type), steps, f"{here.path}.{LISTS[type]}")
        return self._undoable(members, here, spec, plan)

    def _list_container(self, kind: Kind, steps: Sequence[msgspec.Raw], path: str, here: Here, spec: Spec) -> Node:
        """Plan a chain, a group or a graph with its children; ``path`` is their place in the request."""
        mark = len(self._order.pending)
        spec.inherited = here.inherited
        node = self._node(kind, here.parent, here.position, spec, here.path, here.place)
        self._list_children(node, steps, path, here.inherited, here.level, None, can_be_undone=True)
        self._order.link(node)
        self._order.close(node, mark)
        return node

    def _list_children(
        self,
        container: Node,
        steps: Sequence[bytes | msgspec.Raw],
        path: str,
        inherited: Members,
        level: int,
        before: Node | None,
        *,
        can_be_undone: bool = False,
    ) -> None:
        for index, raw in enumerate(steps):
            position = container.total + index
            place = self._inside(container, position)
            gives = container.kind == Kind.FLOW
            here = Here(container, position, f"{path}[{index}]", place, inherited, level, can_be_undone, gives)
            child = self._attempt(raw, here)
            if child is not None and container.kind == Kind.CHAIN and before is not None:
                self._order.after(child, [before], Inputs.BEFORE)
            before = child or before

    def _flow(self, members: Members, here: Here, spec: Spec) -> Node:
        """Plan a flow: the job that runs its function. The function adds the other steps."""
        mark = len(self._order.pending)
        spec.inherited = here.inherited
        node = self._node(Kind.FLOW, here.parent, here.position, spec, here.path, here.place)
        gives = here.gives_values or (here.path == "$" and "params" not in members)
        path, place = f"{here.path}.job", self._inside(node, FLOW_JOB)
        inside = Here(node, 0, path, place, here.inherited, here.level, gives_values=gives)
        self._job(flow_job(members, here.path), inside, Spec()).name = FLOW_JOB
        self._order.close(node, mark)
        return node

    def _batch(self, members: Members, here: Here, spec: Spec) -> Node:
        steps_in(members, "jobs", here.path)
        callbacks = read_members(members.get("callbacks", b"{}"), f"{here.path}.callbacks")
        self.unknown += unknown_in(callbacks, frozenset(CALLBACKS), f"{here.path}.callbacks", "The object")
        wanted = [name for name in CALLBACKS if bytes(callbacks.get(name, b"null")) != b"null"]
        if not wanted:
            shown = ", ".join(CALLBACKS)
            raise Problem(f"{here.path}.callbacks", f"A batch needs one of {shown}; without callbacks, use a group.")
        mark = len(self._order.pending)
        node = self._node(Kind.BATCH, here.parent, here.position, spec, here.path, here.place)
        inner = Here(node, 0, here.path, here.place, here.inherited, here.level)
        group = self._container("group", {"jobs": members["jobs"]}, inner, Spec())
        for position, name in enumerate(wanted, 1):
            path, place = f"{here.path}.callbacks.{name}", self._inside(node, name)
            refuse_rule(callbacks[name], path)
            there = Here(node, position, path, place, here.inherited, here.level, True)
            callback = self._attempt(callbacks[name], there)
            if callback is not None:
                callback.name, callback.rule = name, CALLBACKS[name].value
                self._order.after(callback, [group], Inputs.MEMBERS)
        self._order.close(node, mark)
        return node

    def _saga_with_policy(self, members: Members, here: Here, spec: Spec) -> Node:
        """Plan the steps of a saga, which is undone even if nothing in it has a compensation."""
        policy = failure_policy(members, here.path)
        steps = steps_in(members, "steps", here.path)

        def plan(inner: Here, spec: Spec) -> Node:
            if policy == "compensate":
                inner.inherited = {"retry": msgspec.Raw(b'{"max_attempts":1}')} | inner.inherited
            done = self._list_container(Kind.CHAIN, steps, f"{here.path}.steps", inner, spec)
            for child in self._order.children[done.id] if policy == "skip" else ():
                child.tolerated = 1
            return done

        return self._saga(here, spec, plan)

    def _saga(self, here: Here, spec: Spec, plan: Callable[[Here, Spec], Node]) -> Node:
        """Plan a container, and what undoes it if it does not succeed."""
        mark = len(self._order.pending)
        saga = self._node(Kind.SAGA, here.parent, here.position, spec, here.path, here.place)
        done = plan(Here(saga, 0, here.path, here.place, here.inherited, here.level), Spec())
        kind = MIRROR_KINDS.get(Kind(done.kind), Kind.GRAPH)
        name = "compensate" if done.kind != Kind.BATCH else "compensate_all"  # its jobs are a saga at the same place
        undoing = self._node(kind, saga, 1, Spec(is_undoing=True), here.path, self._inside(saga, name))
        undoing.name, undoing.rule = name, Rule.FAILED.value
        # The results of all elements of a map, given to what undoes each of them, would grow with their square.
        self._order.after(undoing, [done], None if done.kind in EXPANDED else Inputs.MEMBERS)
        inside = len(self._order.pending)
        self._undo.compensate(self._attempt, done, undoing, here.inherited, here.level)
        self._order.close(undoing, inside)
        self._order.close(saga, mark)
        self._undo.add(saga, done, undoing)
        return saga

    def _nested(self, members: Members, here: Here, spec: Spec) -> Node:
        """Plan a step that is a definition: a map with one element, its parameters."""
        spec.display_name = spec.display_name or text(members, DEFINITION, here.path)
        return self._undoable(members, here, spec, partial(self._map, as_map(members, here.path), kind=Kind.DEFINITION))

    def _map(self, members: Members, here: Here, spec: Spec, kind: Kind = Kind.MAP) -> Node:
        over, template = members.get("over"), members.get("do")
        if over is None or template is None:
            raise Problem(here.path, "A map needs 'over', a list or a reference to one, and 'do', a step for each.")
        item = (text(members, "as", here.path) or ITEM) if kind == Kind.MAP else "params"
        is_free = STEP_NAME.fullmatch(item) and not item.isdigit() and item not in ("steps", "params", INDEX)
        if kind == Kind.MAP and not is_free:
            raise Problem(f"{here.path}.as", f"{item!r:.40} cannot be the name of an element.")
        spec.over, spec.template, spec.item, spec.inherited = over, template, item, here.inherited
        spec.bindings, spec.params_schema = self._order.bindings, members.get("params_schema", UNSET)
        node = self._node(kind, here.parent, here.position, spec, here.path, here.place)
        has_references = self._order.refer(node, spec, over, f"{here.path}.over")
        if bytes(over)[:1] != b"[" and not (has_references and bytes(over)[:1] == b"{"):
            raise Problem(f"{here.path}.over", "It must be an array, or a reference to one.")
        if bytes(over)[:1] == b"[" and (elements := len(raw_list(over))) > MAX_MAP_ELEMENTS:
            raise Problem(f"{here.path}.over", f"It has {elements} elements; at most {MAX_MAP_ELEMENTS} are allowed.")
        self._try_template(node, spec, here)
        return node

    def _try_template(self, node: Node, spec: Spec, here: Here) -> None:
        """Plan a map's template once, to validate it and to find the outside steps that it names."""
        assert spec.template is not UNSET
        made, edges, mark = len(self.plan.nodes), len(self.plan.edges), len(self._order.pending)
        undone = len(self._undo.containers)
        promised, sought, kept = len(self._order.promised), len(self._order.sought), len(self.plan.promises)
        later = len(self.plan.later_jobs)
        self._order.known.append(self._order.known[-1] | {spec.item, INDEX})
        place = self._inside(node, 0)
        self._attempt(spec.template, Here(node, 0, f"{here.path}.do", place, here.inherited, here.level, True))
        self._undo.compensate(self._attempt, node, node, here.inherited, here.level)
        self._order.known.pop()
        for pending in self._order.pending[mark:]:
            pending.inner, pending.spec = node, spec
        self._order.promised[promised:] = [
            (node.id, name, category) for _, name, category in self._order.promised[promised:]
        ]
        self._order.sought[sought:] = [(node.id, lookup, where) for _, lookup, where in self._order.sought[sought:]]
        own = {promise.item.name: Promise(node.id, here.place, promise.item) for promise in self.plan.promises[kept:]}
        self.plan.promises[kept:] = own.values()
        del self.plan.later_jobs[later:]
        for number in range(self._order.first + made, self._order.first + len(self.plan.nodes)):
            self.plan.jobs.pop(number, None)
            self._order.before.pop(number, None)
            self._order.dependency_names.pop(number, None)
        self._undo.forget(self._order.first + made, undone)
        del self.plan.nodes[made:], self.plan.specs[made:], self.plan.edges[edges:]
        self._order.children[node.id], self._order.names[node.id] = [], {}

    def _branch(self, raw: msgspec.Raw, here: Here) -> Node | None:
        """Plan a branch: one step, or an array of steps as a chain."""
        if bytes(raw)[:1] != b"[":
            refuse_rule(raw, here.path)
            return self._attempt(raw, here)
        steps = steps_in({here.place: raw}, here.place, "$")
        plan = partial(self._list_container, Kind.CHAIN, steps, here.path)
        return self._saga(here, Spec(), plan) if any(map(is_undone, steps)) else plan(here, Spec())

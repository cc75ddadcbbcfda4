"""Reading: the members of a request become steps of each kind, checked one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET

from ojster.collections.items import read_provided
from ojster.core.errors import OjsterError
from ojster.core.json_objects import Members, raw_list, read_members
from ojster.core.origins import origin_members
from ojster.core.references import INDEX, ITEM, STEP_NAME
from ojster.jobs.code import ATTRIBUTE as CODE
from ojster.jobs.models import Models
from ojster.jobs.names import refuse_reserved
from ojster.workflows.node import EXPANDED, FLOW_JOB, MAX_NODES, Kind, Node, Rule
from ojster.workflows.plan.alike_steps import AlikeSteps
from ojster.workflows.plan.compensations import holds_compensation, is_undone, own_compensation
from ojster.workflows.plan.job_requests import (
    carry_params,
    flow_job,
    idle_in,
    job_request,
    options_of,
    promise,
    trace_members,
)
from ojster.workflows.plan.members import MAX_REPORTED_PROBLEMS, Problem, others_in, problems_at, text, unknown_in
from ojster.workflows.plan.nested_definitions import MEMBER as DEFINITION
from ojster.workflows.plan.nested_definitions import MEMBERS as OF_DEFINITIONS
from ojster.workflows.plan.nested_definitions import as_map
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
    inherit,
    is_job,
    refuse_idle,
    refuse_rule,
    time_limit,
)
from ojster.workflows.plan.sdk_dialect import is_graph
from ojster.workflows.plan.step_members import (
    BoundValues,
    Here,
    Siblings,
    name_of,
    read_rules,
    references_of,
    spec_of,
    steps_in,
)
from ojster.workflows.plan.steps import JobStep, MapStep, RequestedAddition, RequestedStep, SagaStep, UndoingStep
from ojster.workflows.plan.values import AddedSteps, PlanContext, Spec

_encode: Final = msgspec.json.Encoder().encode

_NULL: Final = msgspec.Raw(b"null")

MAX_LEVELS: Final = 16
"""Maximum nesting depth of containers, including the outermost."""

MAX_MAP_ELEMENTS: Final = 100_000
"""Maximum number of elements of a map."""

_MIRROR_KINDS: Final[dict[str, Kind]] = {
    Kind.CHAIN: Kind.CHAIN,
    Kind.GROUP: Kind.GROUP,
    **dict.fromkeys(EXPANDED, Kind.GROUP),
}
"""Kinds of the containers that undo a container of a kind; ``graph`` for all others."""


class StepReader:
    """Reads steps, and collects their problems.

    Parameters
    ----------
    bindings:
        Values bound by a map for these steps.
    first:
        The number of the first node.
    """

    def __init__(
        self, context: PlanContext, *, bindings: Mapping[str, msgspec.Raw] | None = None, first: int = 0
    ) -> None:
        self.problems: list[Problem] = []
        self.unknown: list[Problem] = []
        self.kept: list[Problem] = []
        """The members that mean nothing, each at its place."""
        self._models = Models(context.now, context.largest)
        self._tenant = context.tenant
        self._carried = trace_members(context.metadata)
        self._origin = origin_members(context.metadata)
        self._workflow_id = msgspec.Raw(_encode(context.workflow_id))
        self._bound = BoundValues(frozenset(bindings or ()), dict(bindings or {}))
        self._nodes = first

    # Entry points

    def workflow(self, type: str, members: Members, inherited: Members) -> RequestedStep:
        """Return a whole workflow.

        Raises
        ------
        Problem
            Its outermost container cannot be read, or too many problems were found.
        """
        self._count_node("$")
        root = Here(Siblings(Kind.WORKFLOW, ""), 0, "$", "", inherited, 1)
        parts = [self._container(type, members, root.inside(root.siblings, 0, "$", ""), Spec())]
        for name, rule in BRANCHES.items():
            if name in members and bytes(members[name]) != b"null":
                here = root.inside(root.siblings, len(parts), f"$.{name}", name)
                parts.append(self._in_role(name, rule, members[name], here, self._branch))
        return RequestedStep(*root.of(Kind.WORKFLOW), Spec(), children=parts, closed_after=len(self.problems))

    def addition(self, raw_steps: Sequence[bytes | msgspec.Raw], added: AddedSteps) -> RequestedAddition:
        """Return steps that are added to an existing container.

        Raises
        ------
        Problem
            Too many problems were found.
        """
        kind = Kind(added.container.kind)
        siblings = Siblings(kind, added.place, dict.fromkeys(added.known))
        here = Here(siblings, added.container.total, added.path, added.place, added.inherited, added.level)
        here.can_be_undone, here.gives_values = bool(added.mirrors), kind == Kind.FLOW
        steps = self._steps(raw_steps, here)
        closed_after = len(self.problems)
        compensations: Sequence[UndoingStep] = ()
        if added.mirrors:
            mirror, place, _ = added.mirrors[0]
            compensations = self._compensations(steps, Siblings(Kind(mirror.kind), place), here)
        return RequestedAddition(steps, compensations, closed_after)

    # Steps of any kind

    def _count_node(self, path: str) -> None:
        if self._nodes >= MAX_NODES:
            raise Problem(path, f"The workflow has more than {MAX_NODES} nodes.")
        self._nodes += 1

    def _steps(self, raw_steps: Sequence[bytes | msgspec.Raw], first: Here) -> list[RequestedStep]:
        """Return the steps of a list; ``first``: the place of the first, with the path of the list."""
        siblings, steps = first.siblings, list[RequestedStep]()
        alike = AlikeSteps(self._models, self._tenant, self._workflow_id)
        for index, raw in enumerate(raw_steps):
            position = first.position + index
            here = first.inside(siblings, position, f"{first.path}[{index}]", position)
            here.can_be_undone, here.gives_values = first.can_be_undone, first.gives_values
            steps.append(self._listed(raw, here, alike))
        return steps

    def _listed(self, raw: bytes | msgspec.Raw, here: Here, alike: AlikeSteps) -> RequestedStep:
        """Return a step of a list. One that is like others of the list is not read again."""
        copy = alike.copy(bytes(raw), here) if self._nodes < MAX_NODES else None
        if copy is not None:
            self._nodes += 1
            return copy
        remarks = self._remarks
        step = self._attempt(raw, here)
        if self._remarks == remarks:
            alike.learn(bytes(raw), step)
        return step

    @property
    def _remarks(self) -> int:
        """The number of remarks about the steps so far."""
        return len(self.problems) + len(self.unknown) + len(self.kept)

    def _attempt(
        self,
        raw: bytes | msgspec.Raw,
        here: Here,
        read: Callable[[bytes | msgspec.Raw, Here], RequestedStep] | None = None,
    ) -> RequestedStep:
        """Return a step. A problem is recorded, so that the remaining steps are checked too."""
        try:
            return self._step(raw, here) if read is None else read(raw, here)
        except (Problem, OjsterError, msgspec.DecodeError) as error:
            self._report(error, here.path)
        return RequestedStep(*here.of(Kind.JOB), Spec())

    def _in_role(
        self,
        role: str,
        rule: Rule,
        raw: bytes | msgspec.Raw,
        here: Here,
        read: Callable[[bytes | msgspec.Raw, Here], RequestedStep],
    ) -> RequestedStep:
        """Return a step that has a certain part in its container, and starts by the rule of that."""
        step = self._attempt(raw, here, read)
        step.role, step.node.rule = role, rule.value
        return step

    def _report(self, error: Problem | OjsterError | msgspec.DecodeError, path: str) -> None:
        if isinstance(error, OjsterError):
            error = Problem(path, error.message)
        elif isinstance(error, msgspec.DecodeError):
            error = Problem(path, f"A value cannot be read: {error}.")
        self.problems.append(error)
        if len(self.problems) >= MAX_REPORTED_PROBLEMS:
            raise self.problems.pop()

    def _step(self, raw: bytes | msgspec.Raw, here: Here) -> RequestedStep:
        """Return a step of any kind: a job, a gate or a container, alone or with a fallback."""
        members = read_members(raw, here.path)
        if b"null" in bytes(raw):
            members = {name: value for name, value in members.items() if name not in OF_STEPS or value != _NULL}
        if not NODE_MEMBERS & members.keys() and is_job(members):
            return self._job(members, here, Spec())
        own = own_compensation(members, here.path, is_allowed=here.can_be_undone)
        name = name_of(members, here)
        if name is not None:
            here.place = here.siblings.place_of(name)
        step = self._of_kind(members, here, spec_of(members, here.path), name)
        try:
            if "provides" in members and step.node.kind != Kind.JOB:
                raise Problem(f"{here.path}.provides", "Only a job without a fallback can have 'provides'.")
            read_rules(step, members, here, self._bound)
        except (Problem, OjsterError, msgspec.DecodeError) as error:
            self._report(error, here.path)
            return step
        step.node.name, step.has_id, step.own = name, "id" in members, own
        if name is not None:
            here.siblings.named[name] = step
        return step

    def _of_kind(self, members: Members, here: Here, spec: Spec, name: str | None) -> RequestedStep:
        type = "graph" if is_graph(members) else text(members, "type", here.path) or ""
        if "fallback" in members and bytes(members["fallback"]) != b"null":
            return self._undoable(members, here, spec, partial(self._with_fallback, members, name=name))
        nested = not type and DEFINITION in members
        if type in CONTAINERS or nested:
            known = CONTAINER_MEMBERS | (OF_DEFINITIONS if nested else OWN_MEMBERS[type])
            spec.others, unknown = others_in(members, known, here.path, f"A {type or DEFINITION}")
            self.unknown += unknown
            here.inherited = inherit(here.inherited, members, here.path)
            here.level += 1
            if not nested:
                return self._container(type, members, here, spec)
            spec.display_name = spec.display_name or text(members, DEFINITION, here.path)
            as_one = partial(self._map, as_map(members, here.path), kind=Kind.DEFINITION)
            return self._undoable(members, here, spec, as_one)
        if type != Kind.GATE:
            return self._job(members, here, spec)
        spec.others, unknown = others_in(members, GATE_MEMBERS, here.path, "A gate")
        self.unknown += unknown
        refuse_idle(members, here.path, "gate")
        spec.timeout = time_limit(members, here.path)
        self._count_node(here.path)
        gate = RequestedStep(*here.of(Kind.GATE), spec)
        gate.node.manual = 1
        return gate

    def _undoable(
        self, members: Members, here: Here, spec: Spec, read: Callable[[Here, Spec], RequestedStep]
    ) -> RequestedStep:
        """Return a container; if it has compensations inside it, as the first part of a saga."""
        return self._saga(here, spec, read) if holds_compensation(members) else read(here, spec)

    def _job(self, members: Members, here: Here, spec: Spec) -> JobStep:
        request = job_request(members, here.path)
        if CODE in request and "params" in self._bound.values:
            carry_params(request, self._bound.values["params"])
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
        self._count_node(here.path)
        self.kept += idle_in(request, here.path)
        references = None
        if not here.gives_values:
            references = references_of(spec, request.get("args", b""), here.path, self._bound)
            spec.has_references = references is not None
        job = self._models.read(request, self._tenant)
        refuse_reserved(job.queue)
        if job.pending:
            raise Problem(here.path, "A step cannot be 'pending'; use 'manual' to make it wait for an approval.")
        self.kept += [Problem(here.path, warning) for warning in job.warnings]
        return JobStep(*here.of(Kind.JOB), spec, job=job, references=references, provided=provided)

    def _with_fallback(self, members: Members, here: Here, spec: Spec, *, name: str | None) -> RequestedStep:
        """Return a step and its fallback. Members of the step other than its job apply to both together."""
        self._count_node(here.path)
        siblings = Siblings(Kind.FALLBACK, here.place)
        inherited = adjusted(here.inherited, members, here.path)
        own = {name: value for name, value in members.items() if name not in NODE_MEMBERS}
        if "priority_adjustment" in members:
            own["priority_adjustment"] = members["priority_adjustment"]
        parts = [self._attempt(_encode(own), here.inside(siblings, 0, here.path, 0))]
        there = here.inside(siblings, 1, f"{here.path}.fallback", "fallback", can_be_undone=True)
        there.inherited = inherited
        parts.append(self._in_role("fallback", Rule.FAILED, members["fallback"], there, self._ruled))
        step = RequestedStep(*here.of(Kind.FALLBACK), spec, children=parts, closed_after=len(self.problems))
        step.node.name = name
        return step

    # Containers

    def _container(self, type: str, members: Members, here: Here, spec: Spec) -> RequestedStep:
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
        raw_steps = steps_in(members, LISTS[type], here.path)
        read = partial(self._list, Kind(type), raw_steps, f"{here.path}.{LISTS[type]}")
        return self._undoable(members, here, spec, read)

    def _list(self, kind: Kind, raw_steps: Sequence[msgspec.Raw], path: str, here: Here, spec: Spec) -> RequestedStep:
        """Return a chain, a group or a graph; ``path`` is the place of its steps in the request."""
        spec.inherited = here.inherited
        self._count_node(here.path)
        first = Here(Siblings(kind, here.place), 0, path, here.place, here.inherited, here.level, can_be_undone=True)
        steps = self._steps(raw_steps, first)
        return RequestedStep(*here.of(kind), spec, children=steps, closed_after=len(self.problems))

    def _flow(self, members: Members, here: Here, spec: Spec) -> RequestedStep:
        """Return a flow with the job that runs its function. The function adds the other steps."""
        spec.inherited = here.inherited
        self._count_node(here.path)
        inside = here.inside(Siblings(Kind.FLOW, here.place), 0, f"{here.path}.job", FLOW_JOB)
        inside.gives_values = here.gives_values or (here.path == "$" and "params" not in members)
        job = self._job(flow_job(members, here.path), inside, Spec())
        job.role = FLOW_JOB
        return RequestedStep(*here.of(Kind.FLOW), spec, children=[job], closed_after=len(self.problems))

    def _batch(self, members: Members, here: Here, spec: Spec) -> RequestedStep:
        steps_in(members, "jobs", here.path)
        with problems_at(f"{here.path}.callbacks"):
            raw_callbacks = read_members(members.get("callbacks", b"{}"), "'callbacks'")
        self.unknown += unknown_in(raw_callbacks, frozenset(CALLBACKS), f"{here.path}.callbacks", "The object")
        wanted = [name for name in CALLBACKS if bytes(raw_callbacks.get(name, b"null")) != b"null"]
        if not wanted:
            shown = ", ".join(CALLBACKS)
            raise Problem(f"{here.path}.callbacks", f"A batch needs one of {shown}; without callbacks, use a group.")
        self._count_node(here.path)
        siblings = Siblings(Kind.BATCH, here.place)
        inner = Here(siblings, 0, here.path, here.place, here.inherited, here.level)
        parts = [self._container("group", {"jobs": members["jobs"]}, inner, Spec())]
        for position, name in enumerate(wanted, 1):
            there = here.inside(siblings, position, f"{here.path}.callbacks.{name}", name, can_be_undone=True)
            parts.append(self._in_role(name, CALLBACKS[name], raw_callbacks[name], there, self._ruled))
        return RequestedStep(*here.of(Kind.BATCH), spec, children=parts, closed_after=len(self.problems))

    def _saga_with_policy(self, members: Members, here: Here, spec: Spec) -> SagaStep:
        """Return a saga, which is undone even if nothing in it has a compensation."""
        policy = failure_policy(members, here.path)
        raw_steps = steps_in(members, "steps", here.path)

        def read(inner: Here, spec: Spec) -> RequestedStep:
            if policy == "compensate":
                inner.inherited = {"retry": msgspec.Raw(b'{"max_attempts":1}')} | inner.inherited
            done = self._list(Kind.CHAIN, raw_steps, f"{here.path}.steps", inner, spec)
            for child in done.children if policy == "skip" else ():
                child.node.tolerated = 1
            return done

        return self._saga(here, spec, read)

    def _saga(self, here: Here, spec: Spec, read: Callable[[Here, Spec], RequestedStep]) -> SagaStep:
        """Return a container, and what undoes it if it does not succeed."""
        self._count_node(here.path)
        done = read(Here(here.siblings, 0, here.path, here.place, here.inherited, here.level), Spec())
        name = "compensate" if done.node.kind != Kind.BATCH else "compensate_all"  # its jobs are a saga at this place
        undoing = Node(0, None, 1, _MIRROR_KINDS.get(done.node.kind, Kind.GRAPH).value, name, Rule.FAILED.value)
        self._count_node(here.path)
        siblings = Siblings(Kind(undoing.kind), Siblings(Kind.SAGA, here.place).place_of(name))
        return SagaStep(
            *here.of(Kind.SAGA),
            spec,
            children=[done],
            undoing=undoing,
            compensations=self._compensations(done.children, siblings, here),
            closed_after=len(self.problems),
        )

    def _compensations(self, steps: Sequence[RequestedStep], undoing: Siblings, here: Here) -> list[UndoingStep]:
        """Return what undoes the steps of a container; ``undoing``: the container that it is in."""
        compensations: list[UndoingStep] = []
        for index, step in enumerate(steps):
            if (own := step.own) is not None:
                name = step.role or step.node.name or str(step.node.position)
                unit = self._attempt(own.request, here.inside(undoing, step.node.position, own.path, name))
                unit.role = name
                compensations.append(UndoingStep(index, own, unit))
        return compensations

    def _map(self, members: Members, here: Here, spec: Spec, kind: Kind = Kind.MAP) -> MapStep:
        over, template = members.get("over"), members.get("do")
        if over is None or template is None:
            raise Problem(here.path, "A map needs 'over', a list or a reference to one, and 'do', a step for each.")
        item = (text(members, "as", here.path) or ITEM) if kind == Kind.MAP else "params"
        is_free = STEP_NAME.fullmatch(item) and not item.isdigit() and item not in ("steps", "params", INDEX)
        if kind == Kind.MAP and not is_free:
            raise Problem(f"{here.path}.as", f"{item!r:.40} cannot be the name of an element.")
        spec.over, spec.template, spec.item, spec.inherited = over, template, item, here.inherited
        spec.bindings, spec.params_schema = self._bound.values, members.get("params_schema", UNSET)
        self._count_node(here.path)
        references = references_of(spec, over, f"{here.path}.over", self._bound)
        if bytes(over)[:1] != b"[" and (references is None or bytes(over)[:1] != b"{"):
            raise Problem(f"{here.path}.over", "It must be an array, or a reference to one.")
        if bytes(over)[:1] == b"[" and (elements := len(raw_list(over))) > MAX_MAP_ELEMENTS:
            raise Problem(f"{here.path}.over", f"It has {elements} elements; at most {MAX_MAP_ELEMENTS} are allowed.")
        bound, nodes = self._bound, self._nodes
        self._bound = BoundValues(bound.names | {item, INDEX}, bound.values)
        siblings = Siblings(kind, here.place)
        first = self._attempt(template, here.inside(siblings, 0, f"{here.path}.do", 0, can_be_undone=True))
        step = MapStep(
            *here.of(kind),
            spec,
            references=references,
            template=first,
            compensations=self._compensations([first], siblings, here),
        )
        self._bound, self._nodes = bound, nodes  # the nodes of the elements are counted when they are planned
        return step

    def _ruled(self, raw: bytes | msgspec.Raw, here: Here) -> RequestedStep:
        """Return a step that starts by the rule of its position."""
        refuse_rule(raw, here.path)
        return self._step(raw, here)

    def _branch(self, raw: bytes | msgspec.Raw, here: Here) -> RequestedStep:
        """Return a branch: one step, or an array of steps as a chain."""
        if bytes(raw)[:1] != b"[":
            return self._ruled(raw, here)
        raw_steps = steps_in({here.place: msgspec.Raw(raw)}, here.place, "$")
        read = partial(self._list, Kind.CHAIN, raw_steps, here.path)
        return self._saga(here, Spec(), read) if any(map(is_undone, raw_steps)) else read(here, Spec())

"""Plans of workflows: a request becomes numbered nodes with rules, and edges between them.

Chains, groups, batches, sagas, graphs, maps, fallbacks and branches all become nodes of one kind of graph
(``ojster.workflows.node``). Invalid requests are refused here, before anything runs, with the place in the request.

Spec: ojs-workflows; ojs-http-binding 14
"""

from __future__ import annotations

import difflib
import graphlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.collections.items import INTERNAL, Lookup, Provided, read_lookup, read_provided
from ojster.core.errors import InvalidWorkflow, OjsterError
from ojster.core.ids import is_job_id, new_id
from ojster.core.json_objects import Members, read_members
from ojster.core.references import (
    INDEX,
    ITEM,
    STEP_NAME,
    Unresolvable,
    is_index,
    lookups_in,
    may_hold_references,
    references_in,
)
from ojster.events.reaction_rules import ATTRIBUTE as REACTIONS
from ojster.events.reaction_rules import Collect
from ojster.jobs.code import ATTRIBUTE, CODE_TYPE
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.jobs.expiration import read_expiration_delay
from ojster.jobs.options import PRIORITIES, read_moment, read_options, read_span
from ojster.jobs.request import NewJob, read_job, read_owner
from ojster.jobs.retry import parse_retry_policy
from ojster.workflows.conditions import InvalidCondition, check_condition
from ojster.workflows.node import MAX_NODES, TWO_PART, Inputs, Kind, Node, Rule, count_ended_predecessor
from ojster.workflows.property_values import read_properties
from ojster.workflows.wait import ATTRIBUTE as WAITS_FOR
from ojster.workflows.wait import WAIT_TYPE

MAX_LEVELS: Final = 16
"""Maximum nesting depth of containers, including the outermost."""

MAX_MAP_ELEMENTS: Final = 100_000
"""Maximum number of elements of a map."""

MAX_REPORTED_PROBLEMS: Final = 20
"""Maximum number of problems of a request that are reported."""

LONGEST_NAME: Final = 255
MAX_PARAMS_BYTES: Final = 262_144

CONTAINERS: Final = frozenset({"chain", "group", "batch", "saga", "graph", "map"})
"""Types of workflows and containers; they are not job types."""

_SPECIAL: Final = CONTAINERS | {"gate", ""}

_LISTS: Final = {"chain": "steps", "saga": "steps", "graph": "steps", "group": "jobs", "batch": "jobs"}
_CALLBACKS: Final = {"on_complete": Rule.FINISHED, "on_success": Rule.IF_SUCCEEDED, "on_failure": Rule.FAILED}
_BRANCHES: Final = {"on_error": Rule.ERRORED, "on_cancel": Rule.CANCELLED}
_USERS_RULES: Final = (Rule.SUCCEEDED.value, Rule.FINISHED.value, Rule.FAILED.value)
_POLICIES: Final = ("compensate", "retry", "skip")

_NODE_MEMBERS: Final = frozenset(
    {
        "id",
        "name",
        "depends_on",
        "when",
        "if",
        "allow_failure",
        "manual",
        "display_name",
        "step",
        "group",
        "fallback",
        "compensate",
        "compensate_type",
        "compensate_args",
        "priority_adjustment",
        "provides",
    }
)
_CONTAINER_MEMBERS: Final = _NODE_MEMBERS | {"type", "options"}
_TIMES: Final = ("timeout", "timeout_ms", "scheduled_at", "delay_until", "expires_at")
_WORKFLOW_MEMBERS: Final = frozenset(
    {
        "id",
        "type",
        "name",
        "options",
        "priority",
        "priority_adjustment",
        "params",
        "metadata",
        "meta",
        "timeout",
        "timeout_ms",
        "scheduled_at",
        "delay_until",
        "expires_at",
        "on_error",
        "on_cancel",
        "on_lost_worker",
        "properties",
        "retry",
        "specversion",
        EXPIRATION,
    }
)
_CHILDREN: Final = frozenset({"steps", "jobs", "callbacks", "do"})
_OWN_MEMBERS: Final = {
    "chain": {"steps"},
    "graph": {"steps"},
    "group": {"jobs"},
    "batch": {"jobs", "callbacks"},
    "saga": {"steps", "failure_policy"},
    "map": {"over", "as", "do"},
    "gate": set[str](),
}

_ALIASES: Final = {
    "after": "depends_on",
    "compensation": "compensate",
    "condition": "if",
    "depends": "depends_on",
    "if_": "if",
    "needs": "depends_on",
}
"""Names that other systems use for members of steps, and their names here."""

_JOB_MEMBERS: Final = frozenset({"type", "args", "meta", "options", "workflow_id", "workflow_step"})

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode
_raw_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Spec(msgspec.Struct, omit_defaults=True):
    """What a node needs when it starts, and what is shown of it. Written once, and read only when needed.

    Parameters
    ----------
    request:
        The enqueue request of a job.
    has_references:
        Whether its arguments contain references.
    names:
        The numbers of the nodes for the names that follow ``steps.`` in references and conditions.
    condition:
        Condition for the node to start; otherwise it is skipped.
    over, template, item, inherited:
        Of a map: the list, the step for each element, the name of the element, and the options that the steps inherit.
    bindings:
        Values bound by the maps around it.
    compensates:
        The number of the step that a compensation undoes.
    """

    request: msgspec.Raw | UnsetType = UNSET
    has_references: bool = False
    names: dict[str, int] = {}
    condition: str | None = None
    display_name: str | None = None
    step: str | None = None
    group: str | None = None
    over: msgspec.Raw | UnsetType = UNSET
    template: msgspec.Raw | UnsetType = UNSET
    item: str = ITEM
    inherited: dict[str, msgspec.Raw] = {}
    bindings: dict[str, msgspec.Raw] = {}
    compensates: int | None = None

    def to_json(self) -> bytes:
        """Return the spec as stored."""
        return _encode(self)


read_spec: Final[Callable[[bytes], Spec]] = msgspec.json.Decoder(Spec).decode


class Plan(msgspec.Struct):
    """Nodes that can be created. Their ids are only their numbers, without the ``seq`` of the workflow.

    Parameters
    ----------
    nodes, specs:
        In the same order; the number of a node is its index plus the number of the first.
    edges:
        Numbers of a node and of its successor.
    jobs:
        The jobs of nodes with known arguments, by number.
    promises:
        Items that steps will put into the workflow's collection, each with the place of its step.
    """

    nodes: list[Node] = []
    specs: list[Spec] = []
    edges: list[tuple[int, int]] = []
    jobs: dict[int, NewJob] = {}
    promises: list[tuple[str, Provided]] = []


class NewWorkflow(msgspec.Struct):
    """A workflow that passed validation and can be created. Times are microseconds since the epoch."""

    id: str
    type: str
    plan: Plan
    name: str | None = None
    id_is_given: bool = False
    params: bytes = b"{}"
    metadata: bytes = b"{}"
    timeout: int | None = None
    scheduled_at: int | None = None
    expires_at: int | None = None
    tenant: str = ""
    definition: str | None = None
    """The stored name of the definition that it is started from."""
    definition_version: int | None = None
    target: str | None = None
    target_key: str | None = None
    """Key that no other unfinished workflow may have: see ``ojster.workflows.definition``."""
    start: bytes | None = None
    """Its other members as JSON, without definition, parameters and metadata."""
    locks: str | None = None
    on_lost_worker: str | None = None
    properties: dict[str, msgspec.Raw] = {}
    expiration_delay: int | None = None
    attempt: int = 1
    previous_attempt: str | None = None


class Problem(Exception):
    """An error at one place of a request."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


def read_workflow(
    members: Members, now: int, *, largest: int, tenant: str | None = None, otherwise: str = ""
) -> NewWorkflow:
    """Return the workflow that a request describes.

    Parameters
    ----------
    members:
        The request, as ``read_members`` returns it.
    now:
        Time at which the request was accepted, in microseconds since the epoch; relative times count from it.
    largest:
        Maximum size of a job as JSON, in bytes.
    tenant:
        The tenant of the workflow and its jobs; ``None``: the tenant that its ``metadata`` names.
    otherwise:
        The tenant if ``tenant`` is ``None`` and ``metadata`` names none.

    Raises
    ------
    InvalidWorkflow
        It breaks a rule; ``validation_errors`` in the details list the rules and places.

    Spec: ojs-multi-tenancy 15.2
    """
    problems: list[Problem] = []
    try:
        return _read_workflow(members, now, largest, tenant, otherwise, problems)
    except Problem as problem:
        problems.append(problem)
    except msgspec.DecodeError as error:
        problems.append(Problem("$", f"A value cannot be read: {error}."))
    raise refusal_of(problems)


def refusal_of(problems: Sequence[Problem]) -> InvalidWorkflow:
    """Return the error that reports the problems, at most ``MAX_REPORTED_PROBLEMS`` of them."""
    shown = [{"path": problem.path, "message": problem.message} for problem in problems[:MAX_REPORTED_PROBLEMS]]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return InvalidWorkflow(
        f"The workflow is invalid at {problems[0].path}: {problems[0].message}{more}", validation_errors=shown
    )


def _read_workflow(
    members: Members, now: int, largest: int, tenant: str | None, otherwise: str, problems: list[Problem]
) -> NewWorkflow:
    type = _type_of_workflow(members)
    _refuse_unknown(members, _WORKFLOW_MEMBERS | _OWN_MEMBERS[type], "$", f"A workflow of type {type!r}")
    given_id = _text(members, "id", "$")
    if given_id is not None and not is_job_id(given_id):
        raise Problem("$.id", "The id must be a UUIDv7 in lower case with hyphens; leave it out to have one generated.")
    id = given_id or new_id()
    params = _object(members, "params")
    if len(params) > MAX_PARAMS_BYTES:
        raise Problem("$.params", f"The parameters take {len(params)} bytes; at most {MAX_PARAMS_BYTES} are allowed.")
    times: dict[str, Any] = {name: _decode(members[name]) for name in (*_TIMES, "priority") if name in members}
    for name in ("timeout", "timeout_ms"):
        if times.get(name) == 0:
            raise Problem(f"$.{name}", "It must be positive. Leave it out for no limit.")
    try:
        timeout = read_span(times, "timeout")
        scheduled_at = read_moment(times, "scheduled_at") or read_moment(times, "delay_until")
        expires_at = read_moment(times, "expires_at")
        read_options(_encode({"priority": times.get("priority")}))
    except OjsterError as error:
        place = str(error.details.get("field", "options")).replace("options", "$", 1)
        raise Problem(place, error.message) from None
    name = "metadata" if "metadata" in members else "meta"
    try:
        owner, metadata = read_owner(_object(members, name), tenant, otherwise)
    except OjsterError as error:
        raise Problem(f"$.{name}.tenant_id", error.message) from None
    if "retry" in members:
        _check_workflow_retry(members["retry"])
    try:
        properties = read_properties(_object(members, "properties"))
    except OjsterError as error:
        raise Problem("$.properties", error.message) from None
    expiration_delay = None
    if EXPIRATION in members:
        try:
            expiration_delay = read_expiration_delay(members[EXPIRATION])
        except OjsterError as error:
            raise Problem(f"$.{EXPIRATION}", error.message) from None
    planner = Planner(now, largest, workflow_id=id, tenant=owner, metadata=metadata, problems=problems)
    inherited = _inherit({}, members, "$")
    if "priority" in members:
        inherited = _adjusted(inherited | {"priority": members["priority"]}, members, "$")
    planner.root(type, members, inherited)
    if problems:
        raise refusal_of(problems)
    return NewWorkflow(
        id=id,
        id_is_given=given_id is not None,
        type=type,
        plan=planner.plan,
        name=_text(members, "name", "$"),
        params=params,
        metadata=metadata,
        timeout=timeout,
        scheduled_at=None if scheduled_at is None else scheduled_at.at(now),
        expires_at=None if expires_at is None else expires_at.at(now),
        tenant=owner,
        on_lost_worker=_choice(members, "on_lost_worker", LOST_WORKER),
        properties=properties,
        expiration_delay=expiration_delay,
    )


LOST_WORKER: Final = ("retry", "cancel")
"""What happens to a workflow when a worker is lost: the job is retried by its policy, or all is cancelled."""


def _choice(members: Members, name: str, allowed: Sequence[str]) -> str | None:
    value = _text(members, name, "$")
    if value is not None and value not in allowed:
        raise Problem(f"$.{name}", f"'{name}' must be one of {', '.join(allowed)}, not {value!r:.40}.")
    return value


def _check_workflow_retry(raw: msgspec.Raw) -> None:
    try:
        parse_retry_policy(_decode(raw))
    except OjsterError as error:
        raise Problem("$.retry", error.message) from None


def _type_of_workflow(members: Members) -> str:
    type = _text(members, "type", "$")
    if type is None:
        if not _is_graph(members):
            raise Problem("$.type", "The type is missing: chain, group, batch, saga, graph or map.")
        return "graph"
    if type not in CONTAINERS:
        shown = ", ".join(sorted(CONTAINERS))
        raise Problem("$.type", f"Unknown workflow type {type!r:.40}; use one of {shown}.")
    return type


def _is_graph(members: Members) -> bool:
    """Whether a request without a type is a graph: at least one step has ``depends_on``."""
    steps = bytes(members.get("steps", b""))
    if "type" in members or "job_type" in members or b'"depends_on"' not in steps or steps[:1] != b"[":
        return False
    return any("depends_on" in read_members(step) for step in _raw_list(steps) if bytes(step)[:1] == b"{")


def _is_job(members: Members) -> bool:
    """Whether a step is certainly neither a container nor a gate."""
    type = bytes(members.get("type", b'""'))
    return type.isascii() and b"\\" not in type and type[1:-1].decode() not in _SPECIAL


class _Here(msgspec.Struct):
    """The place of a step, and what it inherits.

    Parameters
    ----------
    path:
        Its place in the request, for errors.
    place:
        Its place in the workflow: the names or positions of the containers around it and its own.
    inherited:
        The options of the containers around it.
    level:
        The number of containers around it.
    can_be_undone:
        Whether ``compensate`` is allowed there.
    """

    parent: Node
    position: int
    path: str
    place: str
    inherited: Members
    level: int
    can_be_undone: bool = False


class _Pending(msgspec.Struct):
    """Names of steps that are not resolved. The next container to close looks for them among its children.

    ``inner`` is the child of that container in which the names are used; ``spec`` receives the numbers of the steps.
    """

    inner: Node
    spec: Spec
    path: str
    names: set[str]


def _trace_members(metadata: bytes) -> Members:
    """Return the members that jobs carry from the trace of the caller that started their workflow.

    Spec: ojs-distributed-tracing 6.3
    """
    if b"traceparent" not in metadata:
        return {}
    given = read_members(metadata, "The metadata")
    carried = {name: given[name] for name in ("traceparent", "tracestate", "baggage") if name in given}
    return carried | {"ojs.workflow.trace_origin": given["traceparent"]} if "traceparent" in given else {}


class Planner:
    """FairnessState steps into nodes.

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
        self.plan = Plan([], [], [], {}, [])
        self.problems = [] if problems is None else problems
        self._now = now
        self._largest = largest
        self._tenant = tenant
        self._carried = _trace_members(metadata)
        self._workflow_id = msgspec.Raw(_encode(workflow_id))
        self._first = first
        self._outer = outer
        self._bindings = dict(bindings or {})
        self._known: list[frozenset[str]] = [frozenset(self._bindings)]
        """Names bound by the maps around the current place."""
        self._children: dict[int, list[Node]] = {}
        self._names: dict[int, dict[str, Node]] = {}
        self._with_id: set[int] = set()
        """Nodes named by an ``id``, which takes precedence over a ``name``."""
        self._places: dict[int, str] = {}
        self._paths: dict[int, str] = {}
        self._before: dict[int, dict[int, None]] = {}
        self._dependency_names: dict[int, list[str]] = {}
        """The ids in ``depends_on``, by number of the node."""
        self._pending: list[_Pending] = []
        self._promised: list[tuple[int, str, str | None]] = []
        """Promised items: number of the node, name and category."""
        self._extended: Node | None = None
        """The existing container to which steps are added."""
        self._sought: list[tuple[int, Lookup, str]] = []
        """Lookups in the workflow's collection: number of the node, lookup, and its place in the request."""

    # Entry points

    def root(self, type: str, members: Members, inherited: Members) -> None:
        """Plan a whole workflow."""
        root = self._node(Kind.WORKFLOW, None, 0, Spec(), "$", "")
        main = self._container(type, members, _Here(root, 0, "$", "", inherited, 1), Spec())
        for name, rule in _BRANCHES.items():
            if name in members and bytes(members[name]) != b"null":
                here = _Here(root, len(self._children[root.id]), f"$.{name}", name, inherited, 1)
                branch = self._branch(members[name], here)
                if branch is not None:
                    branch.name, branch.rule = name, rule.value
                    self._after(branch, [main], Inputs.MEMBERS)
        self._close(root, 0)
        self._finish()

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

        Raises
        ------
        InvalidWorkflow
            The steps break a rule.
        """
        self._extended = container
        self._places[container.id] = place
        self._names[container.id] = dict(known or {})
        self._children[container.id] = []
        try:
            self._list_children(container, steps, path, inherited, 1, last)
            self._link(container)
            self._find_names(container, 0)
            self._finish()
        except Problem as problem:
            self.problems.append(problem)
        if self.problems:
            raise refusal_of(self.problems)

    # Steps

    def _node(self, kind: Kind, parent: Node | None, position: int, spec: Spec, path: str, place: str) -> Node:
        number = self._first + len(self.plan.nodes)
        if number >= MAX_NODES:
            raise Problem(path, f"The workflow has more than {MAX_NODES} nodes.")
        node = Node(number, None, position, kind.value)
        if parent is not None:
            node.parent, node.source = parent.id, parent.source
            self._children[parent.id].append(node)
        self.plan.nodes.append(node)
        self.plan.specs.append(spec)
        self._paths[number] = path
        if kind != Kind.JOB:
            self._children[number] = []
            self._names[number] = {}
            self._places[number] = place
        return node

    def _inside(self, parent: Node, position: int | str) -> str:
        """Return the place of a child."""
        around = self._places[parent.id]
        return f"{around}.{position}" if around else str(position)

    def _attempt(self, raw: bytes | msgspec.Raw, here: _Here) -> Node | None:
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

    def _step(self, raw: bytes | msgspec.Raw, here: _Here) -> Node:
        """Plan a step of any kind: a job, a gate or a container, alone or with a fallback."""
        members = read_members(raw, here.path)
        if not _NODE_MEMBERS & members.keys() and _is_job(members):
            return self._job(members, here, Spec())
        if not here.can_be_undone and _compensation_of(msgspec.Raw(_encode(members)), here.path) is not None:
            raise Problem(here.path, "'compensate' is allowed only in steps of a chain, a saga, a group or a graph.")
        name = self._name_of(members, here)
        if name is not None:
            here.place = self._inside(here.parent, name)
        spec = self._spec(members, here.path)
        type = "graph" if _is_graph(members) else _text(members, "type", here.path) or ""
        if "fallback" in members and bytes(members["fallback"]) != b"null":
            node = self._with_fallback(members, here, spec, name)
        elif type in CONTAINERS:
            _refuse_unknown(members, _CONTAINER_MEMBERS | _OWN_MEMBERS[type], here.path, f"A {type}")
            here.inherited = _inherit(here.inherited, members, here.path)
            here.level += 1
            node = self._container(type, members, here, spec)
        elif type == Kind.GATE:
            _refuse_unknown(members, _CONTAINER_MEMBERS, here.path, "A gate")
            node = self._node(Kind.GATE, here.parent, here.position, spec, here.path, here.place)
            node.manual = 1
        else:
            node = self._job(members, here, spec)
        if "provides" in members and node.kind != Kind.JOB:
            raise Problem(f"{here.path}.provides", "Only a job without a fallback can have 'provides'.")
        self._conduct(node, members, spec, here)
        node.name = name
        if name is not None:
            self._names[here.parent.id][name] = node
            if "id" in members:
                self._with_id.add(node.id)
        return node

    def _job(self, members: Members, here: _Here, spec: Spec) -> Node:
        request = {name: value for name, value in members.items() if name not in _NODE_MEMBERS}
        if children := _CHILDREN & request.keys():
            shown = ", ".join(sorted(CONTAINERS))
            raise Problem(here.path, f"Only a container can have {min(children)!r}; its type must be one of {shown}.")
        if bytes(request.get("type", b"")) == b'"wait"':
            _wait(request)
        if "body" in request and _text(request, "type", here.path) in (None, CODE_TYPE):
            _carry_code(request)
        if "job_type" in request:  # Spec: ojs-workflows 14
            request.setdefault("type", request.pop("job_type"))
        if here.inherited or "priority_adjustment" in members:
            options = _adjusted(_options_of(request, here), members, here.path)
            request["options"] = msgspec.Raw(_encode(options))
        provided = read_provided(members["provides"]) if "provides" in members else []
        if provided:
            _promise(request, provided, here.path)
        if self._carried:
            own = read_members(request["meta"], f"{here.path}.meta") if "meta" in request else {}
            request["meta"] = msgspec.Raw(_encode(self._carried | own))
        request["workflow_id"] = self._workflow_id
        request["workflow_step"] = msgspec.Raw(_encode(here.place))
        spec.request = msgspec.Raw(_encode(request))
        node = self._node(Kind.JOB, here.parent, here.position, spec, here.path, here.place)
        _refuse_misspelt(request, here.path)
        self.plan.promises += [(here.place, one) for one in provided]
        self._promised += [(node.id, one.name, one.category) for one in provided]
        spec.has_references = self._refer(node, spec, request.get("args", b""), here.path)
        job = read_job(request, self._now, largest=self._largest, tenant=self._tenant)
        if job.pending:
            raise Problem(here.path, "A step cannot be 'pending'; use 'manual' to make it wait for an approval.")
        if not spec.has_references:
            self.plan.jobs[node.id] = job
        return node

    def _with_fallback(self, members: Members, here: _Here, spec: Spec, name: str | None) -> Node:
        """Plan a step and its fallback. Members of the step other than its job apply to both together."""
        mark = len(self._pending)
        node = self._node(Kind.FALLBACK, here.parent, here.position, spec, here.path, here.place)
        node.name = name
        inherited = _adjusted(here.inherited, members, here.path)
        own = {name: value for name, value in members.items() if name not in _NODE_MEMBERS}
        if "priority_adjustment" in members:
            own["priority_adjustment"] = members["priority_adjustment"]
        first = self._step(_encode(own), _Here(node, 0, here.path, self._inside(node, 0), here.inherited, here.level))
        path = f"{here.path}.fallback"
        second = self._step(
            members["fallback"], _Here(node, 1, path, self._inside(node, "fallback"), inherited, here.level)
        )
        second.name, second.rule = "fallback", Rule.FAILED.value
        self._after(second, [first], None)
        self._close(node, mark)
        return node

    # Containers

    def _container(self, type: str, members: Members, here: _Here, spec: Spec) -> Node:
        if here.level > MAX_LEVELS:
            raise Problem(here.path, f"Containers are nested deeper than {MAX_LEVELS} levels.")
        match type:
            case "map":
                return self._map(members, here, spec)
            case "batch":
                return self._batch(members, here, spec)
            case "saga":
                return self._saga(Kind.CHAIN, members, here, spec)
        steps = self._list(members, _LISTS[type], here.path)
        if any(_compensation_of(step, here.path) for step in steps):
            return self._saga(Kind(type), members, here, spec)
        return self._list_container(Kind(type), steps, f"{here.path}.{_LISTS[type]}", here, spec)

    def _list_container(self, kind: Kind, steps: Sequence[msgspec.Raw], path: str, here: _Here, spec: Spec) -> Node:
        """Plan a chain, a group or a graph with its children; ``path`` is their place in the request."""
        mark = len(self._pending)
        spec.inherited = here.inherited
        node = self._node(kind, here.parent, here.position, spec, here.path, here.place)
        self._list_children(node, steps, path, here.inherited, here.level, None, can_be_undone=here.can_be_undone)
        self._link(node)
        self._close(node, mark)
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
            here = _Here(container, position, f"{path}[{index}]", place, inherited, level, can_be_undone)
            child = self._attempt(raw, here)
            if child is not None and container.kind == Kind.CHAIN and before is not None:
                self._after(child, [before], Inputs.BEFORE)
            before = child or before

    def _batch(self, members: Members, here: _Here, spec: Spec) -> Node:
        self._list(members, "jobs", here.path)
        callbacks = read_members(members.get("callbacks", b"{}"), f"{here.path}.callbacks")
        _refuse_unknown(callbacks, frozenset(_CALLBACKS), f"{here.path}.callbacks", "The object")
        wanted = [name for name in _CALLBACKS if bytes(callbacks.get(name, b"null")) != b"null"]
        if not wanted:
            shown = ", ".join(_CALLBACKS)
            raise Problem(f"{here.path}.callbacks", f"A batch needs one of {shown}; without callbacks, use a group.")
        mark = len(self._pending)
        node = self._node(Kind.BATCH, here.parent, here.position, spec, here.path, here.place)
        inner = _Here(node, 0, here.path, here.place, here.inherited, here.level)
        group = self._container("group", {"jobs": members["jobs"]}, inner, Spec())
        for position, name in enumerate(wanted, 1):
            path = f"{here.path}.callbacks.{name}"
            place = self._inside(node, name)
            _refuse_rule(callbacks[name], path)
            callback = self._attempt(callbacks[name], _Here(node, position, path, place, here.inherited, here.level))
            if callback is not None:
                callback.name, callback.rule = name, _CALLBACKS[name].value
                self._after(callback, [group], Inputs.MEMBERS)
        self._close(node, mark)
        return node

    def _saga(self, kind: Kind, members: Members, here: _Here, spec: Spec) -> Node:
        """Plan steps and their compensations."""
        policy = _text(members, "failure_policy", here.path) or "compensate"
        if policy not in _POLICIES:
            raise Problem(f"{here.path}.failure_policy", f"The policy must be one of {', '.join(_POLICIES)}.")
        inherited = here.inherited
        if bytes(members.get("type", b"")) == b'"saga"' and policy == "compensate":
            inherited = {"retry": msgspec.Raw(b'{"max_attempts":1}')} | inherited
        name = "jobs" if kind == Kind.GROUP else "steps"
        steps = self._list(members, name, here.path)
        mark = len(self._pending)
        saga = self._node(Kind.SAGA, here.parent, here.position, spec, here.path, here.place)
        path = f"{here.path}.{name}" if name in members else here.path
        inner = _Here(saga, 0, here.path, here.place, inherited, here.level, can_be_undone=True)
        done = self._list_container(kind, steps, path, inner, Spec())
        for child in self._children[done.id] if policy == "skip" else ():
            child.tolerated = 1
        undoing = self._node(Kind.CHAIN, saga, 1, Spec(), here.path, self._inside(saga, "compensate"))
        undoing.name, undoing.rule = "compensate", Rule.FAILED.value
        self._after(undoing, [done], Inputs.MEMBERS)
        inside = len(self._pending)
        self._compensations(steps, done, undoing, path, here)
        self._close(undoing, inside)
        self._close(saga, mark)
        return saga

    def _compensations(self, steps: Sequence[msgspec.Raw], done: Node, undoing: Node, path: str, here: _Here) -> None:
        """Plan the compensations of steps, in reverse order."""
        before: Node | None = None
        for step in self._undo_order(done):
            raw = _compensation_of(steps[step.position], path)
            if raw is None:
                continue
            position = len(self._children[undoing.id])
            place = self._inside(undoing, step.name or step.position)
            where = f"{path}[{step.position}].compensate"
            node = self._attempt(raw, _Here(undoing, position, where, place, here.inherited, here.level))
            if node is not None:
                self.plan.specs[node.id - self._first].compensates = step.id
                node.name = step.name or str(step.position)
                if before is not None:
                    self._after(node, [before], None)
                before = node

    def _undo_order(self, container: Node) -> list[Node]:
        """Return the children of a container in reverse order of execution."""
        children = {child.id: child for child in self._children[container.id]}
        if container.kind != Kind.GRAPH:
            return list(children.values())[::-1]
        before = {id: self._before.get(id, {}) for id in children}
        try:
            order = list(graphlib.TopologicalSorter(before).static_order())
        except graphlib.CycleError:  # ``_finish`` rejects it
            order = list(children)
        return [children[id] for id in reversed(order)]

    def _map(self, members: Members, here: _Here, spec: Spec) -> Node:
        over, template = members.get("over"), members.get("do")
        if over is None or template is None:
            raise Problem(here.path, "A map needs 'over', a list or a reference to one, and 'do', a step for each.")
        item = _text(members, "as", here.path) or ITEM
        if not STEP_NAME.fullmatch(item) or item.isdigit() or item in ("steps", "params", INDEX):
            raise Problem(f"{here.path}.as", f"{item!r:.40} cannot be the name of an element.")
        spec.over, spec.template, spec.item, spec.inherited = over, template, item, here.inherited
        spec.bindings = self._bindings
        node = self._node(Kind.MAP, here.parent, here.position, spec, here.path, here.place)
        has_references = self._refer(node, spec, over, f"{here.path}.over")
        if bytes(over)[:1] != b"[" and not (has_references and bytes(over)[:1] == b"{"):
            raise Problem(f"{here.path}.over", "It must be an array, or a reference to one.")
        if bytes(over)[:1] == b"[" and (elements := len(_raw_list(over))) > MAX_MAP_ELEMENTS:
            raise Problem(f"{here.path}.over", f"It has {elements} elements; at most {MAX_MAP_ELEMENTS} are allowed.")
        self._try_template(node, spec, here)
        return node

    def _try_template(self, node: Node, spec: Spec, here: _Here) -> None:
        """Plan a map's template once, to validate it and to find the outside steps that it names."""
        assert spec.template is not UNSET
        made, edges, mark = len(self.plan.nodes), len(self.plan.edges), len(self._pending)
        promised, sought, kept = len(self._promised), len(self._sought), len(self.plan.promises)
        self._known.append(self._known[-1] | {spec.item, INDEX})
        place = self._inside(node, 0)
        self._attempt(spec.template, _Here(node, 0, f"{here.path}.do", place, here.inherited, here.level))
        self._known.pop()
        for pending in self._pending[mark:]:
            pending.inner, pending.spec = node, spec
        self._promised[promised:] = [(node.id, name, category) for _, name, category in self._promised[promised:]]
        self._sought[sought:] = [(node.id, lookup, where) for _, lookup, where in self._sought[sought:]]
        del self.plan.promises[kept:]
        for number in range(self._first + made, self._first + len(self.plan.nodes)):
            self.plan.jobs.pop(number, None)
            self._before.pop(number, None)
            self._dependency_names.pop(number, None)
        del self.plan.nodes[made:], self.plan.specs[made:], self.plan.edges[edges:]
        self._children[node.id], self._names[node.id] = [], {}

    def _branch(self, raw: msgspec.Raw, here: _Here) -> Node | None:
        """Plan a branch: one step, or an array of steps as a chain."""
        if bytes(raw)[:1] != b"[":
            _refuse_rule(raw, here.path)
            return self._attempt(raw, here)
        steps = self._list({here.place: raw}, here.place, "$")
        if any(_compensation_of(step, here.path) for step in steps):
            return self._saga(Kind.CHAIN, {"steps": raw}, here, Spec())
        return self._list_container(Kind.CHAIN, steps, here.path, here, Spec())

    # Members of nodes

    def _spec(self, members: Members, path: str) -> Spec:
        display_name = _text(members, "display_name", path)
        return Spec(
            display_name=display_name if display_name is not None else _text(members, "name", path),
            step=_text(members, "step", path),
            group=_text(members, "group", path),
        )

    def _conduct(self, node: Node, members: Members, spec: Spec, here: _Here) -> None:
        """Read the rule, the condition, the dependencies and the flags of a node."""
        path = here.path
        node.tolerated = int(_flag(members, "allow_failure", path))
        node.manual = int(_flag(members, "manual", path)) or node.manual
        rule = _text(members, "when", path)
        if rule is not None:
            if rule not in _USERS_RULES:
                raise Problem(f"{path}.when", f"'when' must be one of {', '.join(_USERS_RULES)}, not {rule!r:.40}.")
            node.rule = rule
        condition = _text(members, "if", path)
        if condition is not None:
            try:
                names = check_condition(condition, self._known[-1])
            except InvalidCondition as error:
                raise Problem(f"{path}.if", str(error)) from None
            spec.condition, spec.bindings = condition, self._bindings
            if names:
                self._pending.append(_Pending(node, spec, f"{path}.if", set(names)))
        if "depends_on" in members:
            if here.parent.kind != Kind.GRAPH:
                raise Problem(f"{path}.depends_on", "Only the steps of a graph can have 'depends_on'.")
            try:
                wishes = _decode(members["depends_on"], type=list[str] | None)
            except msgspec.ValidationError:
                raise Problem(f"{path}.depends_on", "It must be an array of step ids.") from None
            self._dependency_names[node.id] = list(dict.fromkeys(wishes or []))

    def _name_of(self, members: Members, here: _Here) -> str | None:
        """Return the name by which others refer to a step: its ``id``, else its ``name`` if that is a valid id."""
        if here.parent.kind == Kind.MAP:
            return None  # all elements would have the same name
        taken = self._names[here.parent.id]
        id = _text(members, "id", here.path)
        if id is not None:
            if not STEP_NAME.fullmatch(id) or id.isdigit() or len(id) > LONGEST_NAME:
                raise Problem(
                    f"{here.path}.id",
                    f"The id {id!r:.60} must begin with a letter and have only letters, digits, '_' and '-'.",
                )
            if id in taken and taken[id].id not in self._with_id and taken[id].id >= self._first:
                taken.pop(id).name = None  # an ``id`` takes precedence over a ``name``
            if id in taken:
                raise Problem(f"{here.path}.id", f"There is another step with the id {id!r:.60}.")
            return id
        name = _text(members, "name", here.path)
        if name is None or len(name) > LONGEST_NAME or not STEP_NAME.fullmatch(name) or name.isdigit():
            return None
        return None if name in taken else name

    def _list(self, members: Members, name: str, path: str) -> list[msgspec.Raw]:
        raw = bytes(members.get(name, b"null"))
        if raw[:1] != b"[":
            raise Problem(f"{path}.{name}", f"'{name}' must be an array of steps.")
        steps = _raw_list(raw)
        if not steps:
            raise Problem(f"{path}.{name}", f"{name} array must contain at least one element")
        return steps

    # Order of nodes

    def _after(self, node: Node, before: Iterable[Node], inputs: Inputs | None) -> None:
        for one in before:
            self._before.setdefault(node.id, {})[one.id] = None
            self.plan.edges.append((one.id, node.id))
            one.followed = 1
            node.waiting += 1
            if one.has_ended:
                count_ended_predecessor(node, one)
        if inputs is not None:
            self._give(node, inputs)

    def _give(self, node: Node, inputs: Inputs) -> None:
        """Set which results a node and the nodes inside it receive."""
        inherited = node.source
        node.inputs, node.source = inputs.value, node.id
        waiting = [node]
        while waiting:
            for child in self._children.get(waiting.pop().id, ()):
                if child.source == inherited:
                    child.source = node.id
                    waiting.append(child)

    def _link(self, container: Node) -> None:
        """Make the children of a graph successors of those that they depend on."""
        siblings = self._names[container.id]
        for node in self._children[container.id]:
            for name in self._dependency_names.get(node.id, ()):
                before = siblings.get(name)
                path = f"{self._paths[node.id]}.depends_on"
                if before is None:
                    known = ", ".join(sorted(siblings)[:10]) or "none with an id"
                    self.problems.append(Problem(path, f"There is no step {name!r:.60} here; there are {known}."))
                elif before is node:
                    self.problems.append(Problem(path, f"The step {name!r:.60} depends on itself."))
                elif before.id not in self._before.get(node.id, {}):
                    self._after(node, [before], Inputs.NEEDED)

    def _close(self, container: Node, mark: int) -> None:
        """Finish a container: count its children, and resolve names recorded since ``mark`` among them."""
        container.total = container.unfinished = len(self._children[container.id])
        self._find_names(container, mark)

    def _refer(self, node: Node, spec: Spec, raw: bytes | msgspec.Raw, path: str) -> bool:
        """Record the steps that references name; return whether there are any references or lookups."""
        if not may_hold_references(raw):
            return False
        try:
            references = list(references_in(raw))
        except Unresolvable as error:
            raise Problem(path, str(error)) from None
        lookups = self._seek(node, raw, path)
        known = {"steps", "params", *self._known[-1]}
        for reference in references:
            if reference.root not in known:
                shown = ", ".join(sorted(known))
                raise Problem(path, f"The reference {reference.text!r:.100} must begin with one of {shown}.")
        names = {reference.step for reference in references if reference.step is not None}
        if names:
            self._pending.append(_Pending(node, spec, path, names))
        if references:
            spec.bindings = self._bindings
        return bool(references) or lookups

    def _seek(self, node: Node, raw: bytes | msgspec.Raw, path: str) -> bool:
        """Record a node's lookups in the workflow's collection; return whether it has any lookup."""
        found = list(lookups_in(raw))
        for one in found:
            if may_hold_references(one):
                continue  # its references are resolved when the node starts
            try:
                lookups, _ = read_lookup(one)
            except OjsterError as error:
                raise Problem(path, error.message) from None
            self._sought += [(node.id, lookup, path) for lookup in lookups if lookup.collection == INTERNAL]
        return bool(found)

    def _find_names(self, container: Node, mark: int) -> None:
        """Resolve names that are used inside a container among its children."""
        left = []
        for pending in self._pending[mark:]:
            for name in sorted(pending.names):
                found = self._among(container, pending.inner, name)
                if found is None or found is pending.inner:
                    continue
                pending.names.discard(name)
                pending.spec.names[name] = found.id
                self._order(container, pending.inner, found, name, pending.path)
            if pending.names:
                pending.inner = container
                left.append(pending)
        self._pending[mark:] = left

    def _among(self, container: Node, inner: Node, name: str) -> Node | None:
        """Return a named step of a container; for later children of a two-part container, one of its first child."""
        if container.kind in TWO_PART:
            if inner.position == 0:
                return None
            if container.kind == Kind.FALLBACK and name == container.name:
                return self._children[container.id][0]
            while container.kind in TWO_PART:
                container = self._children[container.id][0]
            inner = container  # all of the first child comes before
        if is_index(name):  # an index means an earlier step here, or else one further out
            index = int(name)
            if inner is not container and (container.kind != Kind.CHAIN or index >= inner.position):
                return None
            children = self._children.get(container.id, [])
            place = index - children[0].position if children else 0  # the container may have earlier children
            return children[place] if 0 <= place < len(children) else None
        return self._names.get(container.id, {}).get(name)

    def _order(self, container: Node, inner: Node, found: Node, name: str, path: str) -> None:
        """Ensure that a referenced step ends first; in a graph, add the dependency."""
        match container.kind:
            case Kind.GRAPH if found.id not in self._before.get(inner.id, {}):
                self._after(inner, [found], Inputs.NEEDED)
            case Kind.CHAIN if found.position > inner.position:
                self.problems.append(Problem(path, f"The step {name!r:.60} comes later than this one."))
            case Kind.GROUP | Kind.MAP:
                self.problems.append(Problem(path, f"The step {name!r:.60} runs at the same time as this one."))

    def _finish(self) -> None:
        """Resolve the remaining names outside of the plan, and reject cycles."""
        for pending in self._pending:
            for name in sorted(pending.names):
                number = self._outer(name)
                if number is None:
                    self.problems.append(Problem(pending.path, f"There is no step {name!r:.60} before this one."))
                else:
                    pending.spec.names[name] = number
        for consumer, lookup, path in self._sought:
            for producer, name, category in self._promised:
                if producer != consumer and lookup.may_match(name, category):
                    self._order_across(consumer, producer, name, path)
        try:
            graphlib.TopologicalSorter(self._before).prepare()
        except graphlib.CycleError as error:
            names = [self._label(id) for id in error.args[1]]
            where = self._paths[error.args[1][0]]
            self.problems.append(Problem(where, f"These steps wait for each other: {' → '.join(names)}."))

    def _order_across(self, consumer: int, producer: int, name: str, path: str) -> None:
        """Ensure that a step that promises an item ends before a step that looks it up, wherever both are."""
        inner, found = self._ancestry(consumer), self._ancestry(producer)
        level = 0
        while level < min(len(inner), len(found)) and inner[level].id == found[level].id:
            level += 1
        if not 0 < level < min(len(inner), len(found)):
            self.problems.append(Problem(path, f"{name!r:.60} is promised by this step or by one inside it."))
            return
        container, before, after = inner[level - 1], found[level], inner[level]
        if container.kind in TWO_PART:
            if before.position >= after.position:
                self.problems.append(Problem(path, f"The step that promises {name!r:.60} comes later than this step."))
        else:
            self._order(container, after, before, before.name or str(before.position), path)

    def _ancestry(self, number: int) -> list[Node]:
        """Return a node and all containers around it, the outermost first."""
        line = []
        current: int | None = number
        while current is not None and 0 <= current - self._first < len(self.plan.nodes):
            line.append(self.plan.nodes[current - self._first])
            current = line[-1].parent
        if current is not None and self._extended is not None:  # steps added to an existing container
            line.append(self._extended)
        return line[::-1]

    def _label(self, id: int) -> str:
        node = self.plan.nodes[id - self._first]
        return node.name or str(node.position)


# Reading members


def _text(members: Members, name: str, path: str) -> str | None:
    raw = members.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    if bytes(raw)[:1] != b'"':
        raise Problem(f"{path}.{name}", f"'{name}' must be a string.")
    return str(_decode(raw))


def _refuse_rule(raw: msgspec.Raw, path: str) -> None:
    """Reject ``when`` where the position of a step decides when it starts."""
    if b'"when"' in bytes(raw) and "when" in read_members(raw, path):
        raise Problem(f"{path}.when", "'when' is not allowed here: the position of this step decides when it starts.")


def _carry_code(request: Members) -> None:
    """Turn a step with a ``body`` into a job that carries this code."""
    request["type"] = msgspec.Raw(_encode(CODE_TYPE))
    request.setdefault("args", msgspec.Raw(b"[]"))
    code = {name: request.pop(name) for name in ("body", "modules") if name in request}
    request[ATTRIBUTE] = msgspec.Raw(_encode(code))


def _wait(request: Members) -> None:
    """Turn a step of the type ``wait`` into a wait job."""
    wait = {name: request.pop(name) for name in ("delay", "until", "form", "remind") if name in request}
    request["type"] = msgspec.Raw(_encode(WAIT_TYPE))
    request[WAITS_FOR] = msgspec.Raw(_encode(wait))
    request.setdefault("args", msgspec.Raw(b"[]"))


def _promise(request: Members, provided: Sequence[Provided], path: str) -> None:
    """Add reactions to a step's job that put what it provides into the workflow's collection on success."""
    reactions = read_members(request.get(REACTIONS, b"{}"), f"{path}.{REACTIONS}")
    actions: list[Any] = list(_raw_list(reactions.get("on_success", b"[]")))
    actions += [Collect(one.name, INTERNAL, one.category, one.data, artifacts=one.artifact) for one in provided]
    reactions["on_success"] = msgspec.Raw(_encode(actions))
    request[REACTIONS] = msgspec.Raw(_encode(reactions))


def _refuse_misspelt(request: Members, path: str) -> None:
    """Reject members that look like misspelt members of steps; a job keeps all others."""
    for name in sorted(request.keys() - _JOB_MEMBERS):
        meant = _ALIASES.get(name) or next(iter(difflib.get_close_matches(name, _NODE_MEMBERS, 1, 0.8)), None)
        if meant is not None:
            raise Problem(f"{path}.{name}", f"Unknown member {name!r:.60}; did you mean {meant!r}?")


def _flag(members: Members, name: str, path: str) -> bool:
    raw = bytes(members.get(name, b"false"))
    if raw not in (b"true", b"false", b"null"):
        raise Problem(f"{path}.{name}", f"'{name}' must be true or false.")
    return raw == b"true"


def _object(members: Members, name: str) -> bytes:
    raw = bytes(members.get(name, b"{}"))
    if raw == b"null":
        return b"{}"
    if raw[:1] != b"{":
        raise Problem(f"$.{name}", f"'{name}' must be an object.")
    read_members(raw, name)
    try:
        _decode(raw)
    except msgspec.DecodeError as error:
        raise Problem(f"$.{name}", f"'{name}' cannot be read: {error}.") from None
    return raw


def _refuse_unknown(members: Members, known: frozenset[str], path: str, what: str) -> None:
    for name in members:
        if name not in known:
            shown = ", ".join(sorted(known))
            raise Problem(f"{path}.{name}", f"{what} has no member {name!r:.60}; it can have {shown}.")


def _compensation_of(step: msgspec.Raw, path: str) -> bytes | None:
    """Return the compensation of a step: ``compensate``, or ``compensate_type`` with ``compensate_args``.

    Spec: ojs-workflows 14
    """
    if b'"compensate' not in bytes(step):
        return None
    members = read_members(step, path)
    if bytes(members.get("compensate", b"null")) != b"null":
        return bytes(members["compensate"])
    if bytes(members.get("compensate_type", b"null")) != b"null":
        args = members.get("compensate_args", msgspec.Raw(b"[]"))
        return _encode({"type": members["compensate_type"], "args": args})
    return None


def _inherit(inherited: Members, members: Members, path: str) -> Members:
    """Return the options that the steps of a container inherit."""
    if "options" in members and bytes(members["options"]) != b"null":
        own = read_members(members["options"], f"{path}.options")
        try:
            read_options(_encode(own))
        except OjsterError as error:
            raise Problem(f"{path}.options", error.message) from None
        inherited = inherited | own
    return _adjusted(inherited, members, path)


def _adjusted(options: Members, members: Members, path: str) -> Members:
    """Return options with the priority raised or lowered relative to the inherited one."""
    raw = members.get("priority_adjustment")
    if raw is None or bytes(raw) == b"null":
        return options
    adjustment, base = _decode(raw), _decode(options.get("priority", b"0"))
    if type(adjustment) is not int or type(base) is not int or base + adjustment not in PRIORITIES:
        raise Problem(
            f"{path}.priority_adjustment",
            f"It must be an integer, and the priority must stay between {PRIORITIES[0]} and {PRIORITIES[-1]}.",
        )
    return options | {"priority": msgspec.Raw(b"%d" % (base + adjustment))}


def _options_of(request: Members, here: _Here) -> Members:
    """Return the options of a job: its own, at the top level or in ``options``, override inherited ones."""
    own = dict(here.inherited)
    for name in {*here.inherited, "priority"}:
        if name in request:
            own[name] = request.pop(name)
    raw = request.get("options")
    if raw is not None and bytes(raw) != b"null":
        own |= read_members(raw, f"{here.path}.options")
    return own

"""Models of planned workflows: a request that differs from earlier ones in arguments alone is not planned again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.ids import UUID, new_id
from ojster.core.json_objects import Members, opening_brackets, stored_members
from ojster.core.references import may_hold_references
from ojster.jobs.models import Met, differs_in_more
from ojster.jobs.new_job import MARK, MAX_JOB_DEPTH, NewJob
from ojster.storage.memory import Local
from ojster.workflows.node import Node
from ojster.workflows.plan.members import Problem, refusal_of
from ojster.workflows.plan.request import read_params, read_workflow
from ojster.workflows.plan.values import LaterJob, NewWorkflow, Plan, Spec

_encode: Final = msgspec.json.Encoder().encode

LARGEST_SHAPE: Final = 8_000
"""Maximum size of a request that is compared with others, in bytes."""

MOST_MODELS: Final = 500
"""Maximum number of models in a process: each tenant has its own."""

MOST_MET: Final = 10_000
"""Maximum number of shapes that are known to have been requested."""

_OWN_ID: Final = re.compile(f'"({UUID})"'.encode())
"""An id as clients make them. A workflow with another one is planned for itself."""

_Any = msgspec.Raw | UnsetType

_Key = tuple[str | None, str, bytes]
"""The tenant of a request, the tenant if it names none, and its shape."""


class _Step(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A step with no more members than these. Of lists of steps, the order is the one in which steps are numbered."""

    type: _Any = UNSET
    id: _Any = UNSET
    name: _Any = UNSET
    args: _Any = UNSET
    meta: _Any = UNSET
    options: _Any = UNSET
    depends_on: _Any = UNSET
    when: _Any = UNSET
    allow_failure: _Any = UNSET
    display_name: _Any = UNSET
    steps: list[_Step] | UnsetType = UNSET
    jobs: list[_Step] | UnsetType = UNSET
    callbacks: _Callbacks | UnsetType = UNSET


class _Callbacks(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The callbacks of a batch, in the order in which they are numbered."""

    on_complete: _Step | UnsetType = UNSET
    on_success: _Step | UnsetType = UNSET
    on_failure: _Step | UnsetType = UNSET


class _Whole(_Step, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A workflow; its parameters are read apart."""

    metadata: _Any = UNSET
    timeout: _Any = UNSET
    timeout_ms: _Any = UNSET
    priority: _Any = UNSET


_decode_whole: Final = msgspec.json.Decoder(_Whole).decode

_TAKEN: Final = msgspec.Raw(b"~")
"""What stands in a shape for arguments; no request can have it."""


def _shape_of(members: Members) -> tuple[bytes, list[bytes]] | None:
    """Return what many requests have in common, and the arguments of steps; ``None``: it is not certain."""
    if not members.keys() <= _NAMES or sum(map(len, members.values())) > LARGEST_SHAPE:
        return None
    raw = _encode({name: value for name, value in members.items() if name not in ("id", "params")})
    try:
        whole = _decode_whole(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if len(_encode(whole)) != len(raw):  # a name occurs twice, or there are spaces
        return None
    args: list[bytes] = []
    _take_args(whole, args)
    return _encode(whole), args


_NAMES: Final = (frozenset(_Whole.__struct_fields__) - {"args"}) | {"params"}


def _take_args(step: _Step, taken: list[bytes]) -> None:
    """Move the arguments of jobs that refer to nothing from a step and those inside it to a list."""
    if step.steps is UNSET and step.jobs is UNSET:
        args = b"" if step.args is UNSET else bytes(step.args)
        if _are_plain(args):
            taken.append(args)
            step.args = _TAKEN
        return
    for inner in _inside(step):
        _take_args(inner, taken)


def _inside(step: _Step) -> Iterator[_Step]:
    for steps in (step.steps, step.jobs):
        if steps is not UNSET:
            yield from steps
    if step.callbacks is not UNSET:
        callbacks = step.callbacks
        for callback in (callbacks.on_complete, callbacks.on_success, callbacks.on_failure):
            if callback is not UNSET:
                yield callback


def _are_plain(args: bytes) -> bool:
    return args[:1] == b"[" and MARK not in args and not may_hold_references(args)


class _StepModel:
    """A job step of a plan, of which copies are made.

    Parameters
    ----------
    job:
        The job as it was read.
    is_first:
        Whether nothing precedes the step and what it is in. The jobs of others are made when they start.
    """

    __slots__ = ("_after", "_before", "_between", "_brackets", "_end", "_job", "_request", "_size", "_spec", "is_first")

    def __init__(self, spec: Spec, job: NewJob, workflow_id: bytes, *, is_first: bool) -> None:
        self.is_first = is_first
        self._spec = spec
        self._job = job
        members = _members_of(spec)
        del members["workflow_id"]
        args = bytes(members.pop("args"))
        self._request = _encode(members)[1:]
        self._before, rest = job.envelope.split(job.id.encode(), 1)
        self._between, rest = rest.split(args, 1)
        self._after, self._end = rest.split(workflow_id)
        self._size = len(job.envelope) - len(args)
        self._brackets = MAX_JOB_DEPTH - opening_brackets(job.envelope) + opening_brackets(args)

    def takes(self, args: bytes, largest: int) -> bool:
        """Return whether the job with these arguments is certainly neither too large nor nested too deeply."""
        return self._size + len(args) <= largest and opening_brackets(args) <= self._brackets

    def spec(self, args: bytes, workflow_id: bytes) -> Spec:
        spec = copy(self._spec)
        spec.request = msgspec.Raw(b'{"args":%b,"workflow_id":"%b",%b' % (args, workflow_id, self._request))
        return spec

    def job(self, args: bytes, workflow_id: bytes) -> NewJob:
        job = copy(self._job)
        job.id = new_id()
        parts = (self._before, job.id.encode(), self._between, args, self._after, workflow_id, self._end)
        job.envelope = b"".join(parts)
        return job


class _Model:
    """A workflow as it was planned, of which copies are made.

    Parameters
    ----------
    jobs:
        The job steps whose arguments differ, in the order of their nodes.
    """

    def __init__(self, new: NewWorkflow, jobs: Sequence[Node]) -> None:
        self._new = new
        plan = new.plan
        workflow_id = new.id.encode()
        later_nodes: set[int] = set()
        for node in plan.nodes:  # containers come before what is in them
            if node.waiting or node.parent in later_nodes:
                later_nodes.add(node.id)
        self._jobs = [
            (
                node.id,
                _StepModel(plan.specs[node.id], plan.jobs[node.id], workflow_id, is_first=node.id not in later_nodes),
            )
            for node in jobs
        ]
        self._others = [number for number, spec in enumerate(plan.specs) if spec.has_references]
        later = sum(not step.is_first for _, step in self._jobs)
        self._later_jobs = [*plan.later_jobs, *[LaterJob(new.tenant, None)] * later]

    def copy(self, args: Sequence[bytes], params: bytes, own_id: str | None, largest: int) -> NewWorkflow | None:
        """Return the workflow with other arguments and parameters; ``None``: a job may be too large or too deep."""
        id = own_id or new_id()
        raw_id = id.encode()
        plan = self._new.plan
        specs = plan.specs.copy()
        jobs: dict[int, NewJob] = {}
        for (number, step), own in zip(self._jobs, args, strict=True):
            if not step.takes(own, largest):
                return None
            specs[number] = step.spec(own, raw_id)
            if step.is_first:
                jobs[number] = step.job(own, raw_id)
        for number in self._others:
            spec = specs[number] = copy(specs[number])
            members = _members_of(spec) | {"workflow_id": msgspec.Raw(b'"%b"' % raw_id)}
            spec.request = msgspec.Raw(_encode(members))
        new = copy(self._new)
        new.id, new.id_is_given, new.params, new.notes = id, own_id is not None, params, []
        new.plan = Plan(plan.nodes, specs, plan.edges, plan.promised, jobs, self._later_jobs)
        return new


class RecentWorkflows:
    """Models of workflows whose requests are alike, but for arguments and parameters."""

    def __init__(self) -> None:
        self._models: dict[_Key, _Model] = {}
        self._met = Met(MOST_MET)

    def read(
        self, members: Members, now: int, *, largest: int, tenant: str | None = None, otherwise: str = ""
    ) -> NewWorkflow:
        """Return the workflow that a request describes, as ``read_workflow`` does."""
        read = partial(read_workflow, members, now, largest=largest, tenant=tenant, otherwise=otherwise)
        own_id = _OWN_ID.fullmatch(members.get("id", b""))
        if ("id" in members and own_id is None) or (shape := _shape_of(members)) is None:
            return read()
        common, args = shape
        key = (tenant, otherwise, common)
        if (model := self._models.get(key)) is not None:
            try:
                params = read_params(members)
            except Problem as problem:
                raise refusal_of([problem]) from None
            return model.copy(args, params, own_id and own_id[1].decode(), largest) or read()
        new = read()
        if self._met.has(key) and (jobs := _jobs_of(new, args)) is not None:
            if len(self._models) >= MOST_MODELS:
                del self._models[next(iter(self._models))]
            self._models[key] = _Model(copy(new), jobs)  # the caller may change the workflow
        return new


recent_workflows: Final = Local(RecentWorkflows)


def _jobs_of(new: NewWorkflow, args: Sequence[bytes]) -> list[Node] | None:
    """Return the nodes of jobs that have these arguments, in their order.

    ``None``: others with the same shape may differ in more.
    """
    plan = new.plan
    if new.unknown or plan.promises or any(job.scheduled_at is not None for job in plan.later_jobs):
        return None
    if any(differs_in_more(job) or job.scheduled_at or job.expires_at for job in plan.jobs.values()):
        return None
    nodes = [node for node in plan.nodes if node.id in plan.jobs]
    of_nodes = [bytes(_members_of(plan.specs[node.id])["args"]) for node in nodes]
    return nodes if of_nodes == args else None


def _members_of(spec: Spec) -> Members:
    assert spec.request is not UNSET
    return stored_members(spec.request)

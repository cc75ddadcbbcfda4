"""The enqueue requests of the jobs of steps."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.collections.collect import Collect
from ojster.collections.items import INTERNAL, PromisedItem
from ojster.core.durations import MILLISECOND
from ojster.core.job_flags import REACTIONS
from ojster.core.json_objects import Members, raw_list, read_members
from ojster.jobs.code import ATTRIBUTE, CODE_TYPE
from ojster.jobs.names import WAIT_TYPE
from ojster.workflows.plan.members import Problem, text
from ojster.workflows.plan.rules import CHILDREN, CONTAINERS, NODE_MEMBERS, is_job, refuse_idle, time_limit
from ojster.workflows.wait import ATTRIBUTE as WAITS_FOR

_encode: Final = msgspec.json.Encoder().encode

_NULL: Final = msgspec.Raw(b"null")

_ALIASES: Final = {
    "after": "depends_on",
    "compensation": "compensate",
    "condition": "if",
    "depends": "depends_on",
    "dependencies": "depends_on",
    "if_": "if",
    "needs": "depends_on",
    "needs_input": "manual",
    "workflow_data": "allow_failure",
}
"""Names that other systems use for members of steps, and their names here."""

_JOB_MEMBERS: Final = frozenset({"type", "args", "meta", "options", "workflow_id", "workflow_step"})


def job_request(members: Members, path: str) -> Members:
    """Return the enqueue request in the members of a step that is a job."""
    request = {name: value for name, value in members.items() if name not in NODE_MEMBERS}
    if children := CHILDREN & request.keys():
        shown = ", ".join(sorted(CONTAINERS))
        raise Problem(path, f"Only a container can have {min(children)!r}; its type must be one of {shown}.")
    if bytes(request.get("type", b"")) == b'"wait"':
        refuse_idle({name: members[name] for name in ("priority_adjustment",) if name in members}, path, "wait")
        wait(request, path)
    if "body" in request and text(request, "type", path) in (None, CODE_TYPE):
        carry_code(request)
    if "job_type" in request:  # Spec: ojs-workflows 14
        named = request.pop("job_type")
        if request.setdefault("type", named) != named and bytes(named) != b"null":
            raise Problem(f"{path}.job_type", "'type' and 'job_type' contradict each other. Leave one of them out.")
    return request


def flow_job(members: Members, path: str) -> Members:
    """Return the job that runs the function of a flow. It is a plain one: what goes around it belongs to the flow."""
    if "job" not in members:
        raise Problem(f"{path}.job", "A flow needs a 'job' that runs its function, with 'type' and 'args'.")
    job = read_members(members["job"], f"{path}.job")
    if wrong := sorted(NODE_MEMBERS & job.keys()) or ["type"] * (not is_job(job)):
        raise Problem(f"{path}.job.{wrong[0]}", "The job of a flow has only 'type', 'args', 'meta' and 'options'.")
    return job


def carry_code(request: Members) -> None:
    """Turn a step with a ``body`` into a job that carries this code."""
    request["type"] = msgspec.Raw(_encode(CODE_TYPE))
    if request.get("args", _NULL) == _NULL:
        request["args"] = msgspec.Raw(b"[]")
    code = {name: request.pop(name) for name in ("body", "modules") if name in request}
    request[ATTRIBUTE] = msgspec.Raw(_encode(code))


def carry_params(request: Members, params: msgspec.Raw) -> None:
    """Add the parameters of the definition around a step to the code of its job, which sees no others."""
    code = read_members(request[ATTRIBUTE], ATTRIBUTE)
    request[ATTRIBUTE] = msgspec.Raw(_encode(code | {"params": params}))


def wait(request: Members, path: str) -> None:
    """Turn a step of the type ``wait`` into a wait job; refuse what has no effect on it."""
    options = {}
    if "options" in request and bytes(request["options"]) != b"null":
        options = read_members(request["options"], f"{path}.options")
    refuse_idle(options, path, "wait")
    refuse_idle(request, path, "wait")
    limit = time_limit(options | request, path)
    wait: Members = {name: request.pop(name) for name in ("delay", "until", "form", "remind") if name in request}
    if limit is not None:
        wait["timeout_ms"] = msgspec.Raw(b"%d" % (limit // MILLISECOND))
    for name in ("timeout", "timeout_ms"):
        request.pop(name, None)
        options.pop(name, None)
    if "options" in request:
        request["options"] = msgspec.Raw(_encode(options))
    request["type"] = msgspec.Raw(_encode(WAIT_TYPE))
    request[WAITS_FOR] = msgspec.Raw(_encode(wait))
    if request.get("args", _NULL) == _NULL:
        request["args"] = msgspec.Raw(b"[]")


def options_of(request: Members, inherited: Members, path: str) -> Members:
    """Return the options of a job: its own, at the top level or in ``options``, override inherited ones."""
    own = dict(inherited)
    for name in {*inherited, "priority"}:
        if name in request:
            own[name] = request.pop(name)
    raw = request.get("options")
    if raw is not None and bytes(raw) != b"null":
        own |= read_members(raw, f"{path}.options")
    return own


def promise(request: Members, provided: Sequence[PromisedItem], path: str) -> None:
    """Add reactions to a step's job that put what it provides into the workflow's collection on success."""
    reactions = read_members(request.get(REACTIONS, b"{}"), f"{path}.{REACTIONS}")
    actions: list[Any] = list(raw_list(reactions.get("on_success", b"[]")))
    actions += [
        Collect(promised.name, INTERNAL, promised.category, promised.data, artifacts=promised.artifact)
        for promised in provided
    ]
    reactions["on_success"] = msgspec.Raw(_encode(actions))
    request[REACTIONS] = msgspec.Raw(_encode(reactions))


_OF_OTHER_STEPS: Final = {
    "as": "a map",
    "over": "a map",
    "body": "a step without a type, which carries code",
    "modules": "a step that carries code",
    "delay": "a wait",
    "until": "a wait",
    "form": "a wait",
    "remind": "a wait",
    "failure_policy": "a saga",
    "definition": "a step without a type",
    "definition_version": "a step that is a definition",
    "params": "a step that is a definition",
    "params_schema": "a definition",
    "on_error": "a workflow",
    "on_cancel": "a workflow",
    "on_lost_worker": "a workflow",
}
"""Members that have no effect in a job, and what they belong to."""


def idle_in(request: Members, path: str) -> list[Problem]:
    """Return a problem for each member that belongs to another kind of step, or looks like a misspelt member of steps.

    A job keeps them, as it keeps all others that the server does not know.
    """
    problems: list[Problem] = []
    for name in sorted(request.keys() - _JOB_MEMBERS):
        if name in _OF_OTHER_STEPS and bytes(request[name]) != b"null":
            what = f"{name!r} belongs to {_OF_OTHER_STEPS[name]}, and has no effect in a job."
            problems.append(Problem(f"{path}.{name}", what))
            continue
        meant = _ALIASES.get(name) or next(iter(difflib.get_close_matches(name, NODE_MEMBERS, 1, 0.8)), None)
        if meant is not None:
            problems.append(Problem(f"{path}.{name}", f"Unknown member {name!r:.60}; did you mean {meant!r}?"))
    return problems


def trace_members(metadata: bytes) -> Members:
    """Return the members that jobs carry from the trace of the caller that started their workflow.

    Spec: ojs-distributed-tracing 6.3
    """
    if b"traceparent" not in metadata:
        return {}
    members = read_members(metadata, "The metadata")
    carried = {name: members[name] for name in ("traceparent", "tracestate", "baggage") if name in members}
    return carried | {"ojs.workflow.trace_origin": members["traceparent"]} if "traceparent" in members else {}

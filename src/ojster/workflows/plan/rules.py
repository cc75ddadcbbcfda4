"""Members that steps can have, and what follows from them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence, Set
from typing import Any, Final

import msgspec

from ojster.agents import attributes
from ojster.collections.collect import Collect
from ojster.collections.items import INTERNAL, PromisedItem
from ojster.core.durations import MILLISECOND
from ojster.core.errors import OjsterError
from ojster.core.job_flags import REACTIONS
from ojster.core.json_objects import Members, raw_list, read_members
from ojster.fleet import ml_resources
from ojster.jobs.code import ATTRIBUTE, CODE_TYPE
from ojster.jobs.names import WAIT_TYPE
from ojster.jobs.options import PRIORITIES
from ojster.jobs.options_wire import OPTION_NAMES, read_options, read_span
from ojster.workflows.node import Rule
from ojster.workflows.plan.members import Problem, text
from ojster.workflows.wait import ATTRIBUTE as WAITS_FOR

_encode: Final = msgspec.json.Encoder().encode

_decode: Final = msgspec.json.decode


CONTAINERS: Final = frozenset({"chain", "group", "batch", "saga", "graph", "map", "flow"})
"""Types of workflows and containers; they are not job types."""

_SPECIAL: Final = CONTAINERS | {"gate", ""}

LISTS: Final = {"chain": "steps", "saga": "steps", "graph": "steps", "group": "jobs", "batch": "jobs"}

CALLBACKS: Final = {"on_complete": Rule.FINISHED, "on_success": Rule.IF_SUCCEEDED, "on_failure": Rule.FAILED}

BRANCHES: Final = {"on_error": Rule.ERRORED, "on_cancel": Rule.CANCELLED}

USERS_RULES: Final = (Rule.SUCCEEDED.value, Rule.FINISHED.value, Rule.FAILED.value)

POLICIES: Final = ("compensate", "retry", "skip")

NODE_MEMBERS: Final = frozenset(
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
        "visible",
        "fallback",
        "compensate",
        "compensate_type",
        "compensate_args",
        "compensate_when",
        "priority_adjustment",
        "provides",
    }
)

CONTAINER_MEMBERS: Final = NODE_MEMBERS | {"type", "options"}

GATE_MEMBERS: Final = (CONTAINER_MEMBERS - {"options", "priority_adjustment"}) | {"timeout", "timeout_ms"}

CHILDREN: Final = frozenset({"steps", "jobs", "callbacks", "do"})

OF_STEPS: Final = (
    NODE_MEMBERS
    | CHILDREN
    | {
        "as",
        "body",
        "delay",
        "failure_policy",
        "form",
        "job_type",
        "modules",
        "options",
        "over",
        "remind",
        "type",
        "until",
    }
)
"""Members of steps that count as absent if they are ``null``; jobs keep the others."""

OWN_MEMBERS: Final = {
    "chain": {"steps"},
    "graph": {"steps"},
    "group": {"jobs"},
    "batch": {"jobs", "callbacks"},
    "saga": {"steps", "failure_policy"},
    "map": {"over", "as", "do"},
    "flow": {"job"},
    "gate": set[str](),
}

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


def is_job(members: Members) -> bool:
    """Whether a step is certainly neither a container nor a gate."""
    type = bytes(members.get("type", b'""'))
    return type.isascii() and b"\\" not in type and type[1:-1].decode() not in _SPECIAL


def trace_members(metadata: bytes) -> Members:
    """Return the members that jobs carry from the trace of the caller that started their workflow.

    Spec: ojs-distributed-tracing 6.3
    """
    if b"traceparent" not in metadata:
        return {}
    members = read_members(metadata, "The metadata")
    carried = {name: members[name] for name in ("traceparent", "tracestate", "baggage") if name in members}
    return carried | {"ojs.workflow.trace_origin": members["traceparent"]} if "traceparent" in members else {}


def refuse_rule(raw: msgspec.Raw, path: str) -> None:
    """Reject ``when`` where the position of a step decides when it starts."""
    if b'"when"' in bytes(raw) and "when" in read_members(raw, path):
        raise Problem(f"{path}.when", "'when' is not allowed here: the position of this step decides when it starts.")


def job_request(members: Members, path: str) -> Members:
    """Return the enqueue request in the members of a step that is a job."""
    request = {name: value for name, value in members.items() if name not in NODE_MEMBERS}
    if children := CHILDREN & request.keys():
        shown = ", ".join(sorted(CONTAINERS))
        raise Problem(path, f"Only a container can have {min(children)!r}; its type must be one of {shown}.")
    if bytes(request.get("type", b"")) == b'"wait"':
        refuse_idle(members.keys() & {"priority_adjustment"}, path, "wait")
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
    request.setdefault("args", msgspec.Raw(b"[]"))
    code = {name: request.pop(name) for name in ("body", "modules") if name in request}
    request[ATTRIBUTE] = msgspec.Raw(_encode(code))


_OPTIONS_OF_WAITS: Final = frozenset({"timeout", "timeout_ms", "tags", "metadata"})
"""The options of a job that have an effect on a wait, which no worker runs."""

_OF_WORKERS: Final = frozenset({"requires", "version", "priority_adjustment"})
"""Members of steps, beside options, that only say which worker runs a job, and when."""

_EXTENSIONS: Final = (attributes.PREFIX, ml_resources.PREFIX)
"""Prefixes of the attributes of jobs that are for workers and their models."""

_MEANT_OF_WAITS: Final = {
    "deadline": "timeout' (in seconds) or 'until",
    "delay_ms": "delay",
    "delay_until": "until",
    "duration": "delay",
    "not_before": "until",
    "scheduled_at": "until",
    "seconds": "delay",
    "wait": "delay",
    "wait_ms": "delay",
}
"""What is meant by names that a wait does not have."""


def time_limit(members: Members, path: str) -> int | None:
    """Return the ``timeout`` or ``timeout_ms`` of a wait or a gate, in microseconds; ``None``: there is none."""
    times: dict[str, Any] = {name: _decode(members[name]) for name in ("timeout", "timeout_ms") if name in members}
    try:
        return read_span(times, "timeout")
    except OjsterError as error:
        raise Problem(f"{path}.timeout", error.message) from None


def refuse_idle(names: Set[str], path: str, what: str) -> None:
    """Refuse the members of a wait or a gate that have an effect only on jobs that workers run."""
    of_extensions = {name for name in names if name.startswith(_EXTENSIONS)}
    idle = (OPTION_NAMES | _MEANT_OF_WAITS.keys() | _OF_WORKERS | of_extensions) - _OPTIONS_OF_WAITS
    for name in sorted(names & idle):
        meant = f" Use '{_MEANT_OF_WAITS[name]}'." if name in _MEANT_OF_WAITS and what == "wait" else " Leave it out."
        raise Problem(f"{path}.{name}", f"{name!r} has no effect on a {what}, which no worker runs.{meant}")


def gate_limit(members: Members, path: str) -> int | None:
    """Return the time limit of a gate, in microseconds, or ``None``; refuse what has no effect on it."""
    refuse_idle(members.keys(), path, "gate")
    return time_limit(members, path)


def wait(request: Members, path: str) -> None:
    """Turn a step of the type ``wait`` into a wait job; refuse what has no effect on it."""
    options = {}
    if "options" in request and bytes(request["options"]) != b"null":
        options = read_members(request["options"], f"{path}.options")
    refuse_idle(request.keys() | options.keys(), path, "wait")
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
    request.setdefault("args", msgspec.Raw(b"[]"))


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


def compensation_of(members: Members) -> bytes | None:
    """Return the compensation of a step: ``compensate``, or ``compensate_type`` with ``compensate_args``.

    Spec: ojs-workflows 14
    """
    if bytes(members.get("compensate", b"null")) != b"null":
        return bytes(members["compensate"])
    if bytes(members.get("compensate_type", b"null")) != b"null":
        args = members.get("compensate_args", msgspec.Raw(b"[]"))
        return _encode({"type": members["compensate_type"], "args": args})
    return None


def inherit(inherited: Members, members: Members, path: str) -> Members:
    """Return the options that the steps of a container inherit."""
    if "options" in members and bytes(members["options"]) != b"null":
        own = read_members(members["options"], f"{path}.options")
        try:
            read_options(_encode(own))
        except OjsterError as error:
            raise Problem(f"{path}.options", error.message) from None
        inherited = inherited | own
    return adjusted(inherited, members, path)


def adjusted(options: Members, members: Members, path: str) -> Members:
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


def failure_policy(members: Members, path: str) -> str:
    """Return the ``failure_policy`` of a saga.

    Spec: ojs-workflows 14.3
    """
    policy = text(members, "failure_policy", path) or POLICIES[0]
    if policy not in POLICIES:
        raise Problem(f"{path}.failure_policy", f"The policy must be one of {', '.join(POLICIES)}.")
    return policy

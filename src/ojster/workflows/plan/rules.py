"""Members that steps can have, and what follows from them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.agents import attributes
from ojster.core.json_objects import Members, read_members, without_nulls
from ojster.fleet import ml_resources
from ojster.jobs.options import PRIORITIES
from ojster.jobs.options_wire import OPTION_NAMES, read_options, read_span
from ojster.workflows.node import Rule
from ojster.workflows.plan.members import Problem, problems_at, text

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
        "definition",
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


def is_job(members: Members) -> bool:
    """Whether a step is certainly neither a container nor a gate."""
    type = bytes(members.get("type", b'""'))
    return type.isascii() and b"\\" not in type and type[1:-1].decode() not in _SPECIAL


def refuse_rule(raw: bytes | msgspec.Raw, path: str) -> None:
    """Reject ``when`` where the position of a step decides when it starts."""
    if b'"when"' in bytes(raw) and "when" in without_nulls(read_members(raw, path)):
        raise Problem(f"{path}.when", "'when' is not allowed here: the position of this step decides when it starts.")


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
    with problems_at(f"{path}.timeout"):
        return read_span(times, "timeout")


_SAY_NOTHING: Final = {"requires": {}, "priority_adjustment": 0}
"""Values of members that say the same as if these were absent."""


def refuse_idle(members: Members, path: str, what: str) -> None:
    """Refuse the members of a wait or a gate that have an effect only on jobs that workers run."""
    names = {
        name
        for name, raw in without_nulls(members).items()
        if name not in _SAY_NOTHING or _decode(raw) != _SAY_NOTHING[name]
    }
    of_extensions = {name for name in names if name.startswith(_EXTENSIONS)}
    idle = (OPTION_NAMES | _MEANT_OF_WAITS.keys() | _OF_WORKERS | of_extensions) - _OPTIONS_OF_WAITS
    for name in sorted(names & idle):
        meant = f" Use '{_MEANT_OF_WAITS[name]}'." if name in _MEANT_OF_WAITS and what == "wait" else " Leave it out."
        raise Problem(f"{path}.{name}", f"{name!r} has no effect on a {what}, which no worker runs.{meant}")


def inherit(inherited: Members, members: Members, path: str) -> Members:
    """Return the options that the steps of a container inherit."""
    if "options" in members and bytes(members["options"]) != b"null":
        with problems_at(f"{path}.options"):
            own = read_members(members["options"], "'options'")
            read_options(_encode(own))
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


def failure_policy(members: Members, path: str) -> str:
    """Return the ``failure_policy`` of a saga.

    Spec: ojs-workflows 14.3
    """
    policy = text(members, "failure_policy", path) or POLICIES[0]
    if policy not in POLICIES:
        raise Problem(f"{path}.failure_policy", f"The policy must be one of {', '.join(POLICIES)}.")
    return policy

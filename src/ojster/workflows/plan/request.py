"""Plans of workflows: a request becomes numbered nodes with rules, and edges between them.

Chains, groups, batches, sagas, graphs, maps, fallbacks and branches all become nodes of one kind of graph
(``ojster.workflows.node``). Invalid requests are refused here, before anything runs, with the place in the request.

Spec: ojs-workflows; ojs-http-binding 14
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.errors import OjsterError
from ojster.core.ids import LONGEST_WORKFLOW_ID, is_workflow_id, new_id
from ojster.core.json_objects import MAX_VALUE_DEPTH, Members, without_nulls
from ojster.core.property_values import read_properties
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.jobs.expiration import read_expiration_delay
from ojster.jobs.new_job import read_owner
from ojster.jobs.options import Moment
from ojster.jobs.options_wire import read_moment, read_options, read_span
from ojster.jobs.policy_wire import parse_retry_policy
from ojster.workflows.definition import OF_DEFINITIONS, SINGLE_WORKFLOW_MEMBERS
from ojster.workflows.plan.members import (
    Problem,
    choice,
    json_object,
    others_in,
    problems_at,
    refusal_of,
    text,
    unknown_in,
)
from ojster.workflows.plan.planner import plan_workflow
from ojster.workflows.plan.rules import CONTAINERS, OWN_MEMBERS, adjusted, inherit
from ojster.workflows.plan.sdk_dialect import is_graph, read_callbacks
from ojster.workflows.plan.values import NewWorkflow, PlanContext

MAX_PARAMS_BYTES: Final = 262_144

_TIMES: Final = ("timeout", "timeout_ms", "scheduled_at", "delay_until", "expires_at")

MEMBERS: Final = frozenset(
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
"""Members that workflows of every type can have."""

_encode: Final = msgspec.json.Encoder().encode

_decode: Final = msgspec.json.decode


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
    try:
        return _read_workflow(members, now, largest, tenant, otherwise)
    except Problem as problem:
        raise refusal_of([problem]) from None
    except msgspec.DecodeError as error:
        raise refusal_of([Problem("$", f"A value cannot be read: {error}.")]) from None


def refuse_unknown(members: Members, now: int, *, largest: int, tenant: str | None = None) -> None:
    """Refuse a definition, or the workflow in a file, that has members which no workflow has, or breaks another rule.

    Raises
    ------
    InvalidWorkflow
        It does. The error names the members that it can have.
    """
    try:
        type = _type_of_workflow(members)
    except Problem as problem:
        raise refusal_of([problem]) from None
    known = MEMBERS | OWN_MEMBERS[type]
    hidden = SINGLE_WORKFLOW_MEMBERS - {"metadata", "meta", "name"}
    if problems := unknown_in(members, known, "$", f"A definition of type {type!r}", hidden):
        raise refusal_of(problems)
    if unknown := read_workflow(members, now, largest=largest, tenant=tenant).unknown:
        raise refusal_of(unknown)


def _read_workflow(members: Members, now: int, largest: int, tenant: str | None, otherwise: str) -> NewWorkflow:
    members = without_nulls(members)
    if "type" not in members:
        members = read_callbacks(members)
    type = _type_of_workflow(members)
    known = MEMBERS | OWN_MEMBERS[type]
    others, unknown = others_in(members, known, "$", f"A workflow of type {type!r}", hidden=OF_DEFINITIONS)
    given_id = text(members, "id", "$")
    if given_id is not None and not is_workflow_id(given_id):
        raise Problem("$.id", _INVALID_ID)
    id = given_id or new_id()
    params = read_params(members)
    timeout, scheduled_at, expires_at = _read_times(members)
    name = "metadata" if "metadata" in members else "meta"
    with problems_at(f"$.{name}.tenant_id"):
        owner, metadata = read_owner(json_object(members, name), tenant, otherwise)
    if "retry" in members:
        with problems_at("$.retry"):
            parse_retry_policy(_decode(members["retry"]))
    with problems_at("$.properties"):
        properties = read_properties(json_object(members, "properties", deepest=1 + MAX_VALUE_DEPTH))
    expiration_delay = None
    if EXPIRATION in members:
        with problems_at(f"$.{EXPIRATION}"):
            expiration_delay = read_expiration_delay(members[EXPIRATION])
    inherited = inherit({}, members, "$")
    if "priority" in members:
        inherited = adjusted(inherited | {"priority": members["priority"]}, members, "$")
    planned = plan_workflow(PlanContext(now, largest, id, owner, metadata), type, members, inherited)
    return NewWorkflow(
        id=id,
        id_is_given=given_id is not None,
        type=type,
        plan=planned.plan,
        name=text(members, "name", "$"),
        params=params,
        metadata=metadata,
        timeout=timeout,
        scheduled_at=None if scheduled_at is None else scheduled_at.at(now),
        expires_at=None if expires_at is None else expires_at.at(now),
        tenant=owner,
        on_lost_worker=choice(members, "on_lost_worker", LOST_WORKER),
        properties=properties,
        expiration_delay=expiration_delay,
        others=_encode(others) if others else None,
        unknown=[*unknown, *planned.unknown, *planned.kept],
    )


def read_params(members: Members) -> bytes:
    """Return the parameters of a workflow, as JSON.

    Raises
    ------
    Problem, OjsterError
        They are no object, or too large.
    """
    params = json_object(members, "params")
    if len(params) > MAX_PARAMS_BYTES:
        raise Problem("$.params", f"The parameters take {len(params)} bytes; at most {MAX_PARAMS_BYTES} are allowed.")
    return params


def _read_times(members: Members) -> tuple[int | None, Moment | None, Moment | None]:
    """Return the timeout in microseconds, if there is one, and when the workflow is scheduled and expires.

    A timeout of 0 is none.
    """
    times: dict[str, Any] = {name: _decode(members[name]) for name in (*_TIMES, "priority") if name in members}
    times = {name: value for name, value in times.items() if value != 0 or name not in ("timeout", "timeout_ms")}
    try:
        timeout = read_span(times, "timeout")
        scheduled_at = read_moment(times, "scheduled_at") or read_moment(times, "delay_until")
        expires_at = read_moment(times, "expires_at")
        read_options(_encode({"priority": times.get("priority")}))
    except OjsterError as error:
        place = str(error.details.get("field", "options")).replace("options", "$", 1)
        raise Problem(place, error.message) from None
    return timeout, scheduled_at, expires_at


_INVALID_ID: Final = (
    f"The id must be at most {LONGEST_WORKFLOW_ID} printable characters, without a slash and without spaces at its "
    "ends; leave it out to have one generated."
)

LOST_WORKER: Final = ("retry", "cancel")
"""What happens to a workflow when a worker is lost: the job is retried by its policy, or all is cancelled."""


def _type_of_workflow(members: Members) -> str:
    type = text(members, "type", "$")
    if type is None:
        if not is_graph(members):
            raise Problem("$.type", "The type is missing: chain, group, batch, saga, graph, map or flow.")
        return "graph"
    if type not in CONTAINERS:
        shown = ", ".join(sorted(CONTAINERS))
        raise Problem("$.type", f"Unknown workflow type {type!r:.40}; use one of {shown}.")
    return type


def without_definition(name: str) -> Problem:
    """Return the problem of a member that only workflows of definitions have."""
    more = "Set the retry policies of jobs in 'options'." if name == "retry" else "Send its name, or leave this out."
    return Problem(f"$.{name}", f"{name!r} needs a 'definition'. {more}")

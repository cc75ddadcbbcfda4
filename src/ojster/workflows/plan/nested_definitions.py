"""Definitions as steps of workflows: ``{"definition": "release", "params": {…}}``.

Such a step is completed with the steps of the definition before its workflow is planned, and copies them, as a workflow
does that is started from a definition. It becomes a node that plans these steps when it starts, like a map with one
element: its parameters, which may refer to earlier steps, are the ``params`` of the steps inside.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.json_objects import Members, raw_list, read_members, without_nulls
from ojster.core.references import may_hold_references
from ojster.core.tenant import qualify
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.definition import Definition, check_params
from ojster.workflows.definitions import find
from ojster.workflows.plan.members import Problem, json_object, problems_at, refusal_of, text
from ojster.workflows.plan.rules import BRANCHES, CONTAINERS, OWN_MEMBERS

MEMBER: Final = "definition"
"""The member of a step that names its definition."""

MAX_NESTED_DEFINITIONS: Final = 8
"""Maximum nesting depth of definitions in one another."""

_MARK: Final = b'"definition"'
HOLDERS: Final = ("steps", "jobs", "callbacks", "do", "fallback", "compensate", "on_error", "on_cancel")
"""Members of workflows and steps in which there may be steps."""

_OF_STEPS: Final = frozenset({"type", "options"}).union(*(OWN_MEMBERS[type] for type in CONTAINERS))
"""Members of a definition that a step takes from it; others but its metadata only a whole workflow can have."""

_FOR_BRANCHES: Final = "Give the step a 'fallback', or steps after it 'when', instead."
_FOR_OTHERS: Final = "Set it for the workflow that has the step, and leave it out of the definition."

_encode: Final = msgspec.json.Encoder().encode


class Nested(msgspec.Struct, frozen=True):
    """A request whose steps may be definitions of a tenant; ``name``: of the definition that it is to become."""

    members: Members
    tenant: str
    name: str | None = None


def has_definitions(members: Members) -> bool:
    """Return whether a step of a request may be a definition."""
    return any(_MARK in bytes(members[name]) for name in HOLDERS if name in members)


@for_each
@returns_refusal
def complete_nested(tx: Transaction, request: Nested) -> Members:
    """Return requests in which each step that is a definition has its steps, or the refusal."""
    return with_nested(tx, request.members, request.tenant, request.name)


def with_nested(tx: Transaction, members: Members, tenant: str, name: str | None = None) -> Members:
    """Return a request in which each step that is a definition has its steps: see ``Nested``.

    Raises
    ------
    InvalidWorkflow
        A definition does not exist or cannot be a step, or its parameters do not match its schema.
    """
    try:
        return _Completion(tx, tenant).inside(members, "$", () if name is None else (name,))
    except Problem as problem:
        raise refusal_of([problem]) from None


class _Completion:
    def __init__(self, tx: Transaction, tenant: str) -> None:
        self._tx = tx
        self._tenant = tenant

    def inside(self, members: Members, path: str, around: tuple[str, ...]) -> Members:
        """Return the members of a workflow or a step; ``around``: the names of the definitions around it."""
        changed: Members = {}
        for name in HOLDERS:
            raw = bytes(members.get(name, b"null"))
            if _MARK not in raw:
                continue
            where = f"{path}.{name}"
            if raw[:1] == b"[":
                steps = [self._step(step, f"{where}[{i}]", around) for i, step in enumerate(raw_list(raw))]
                changed[name] = msgspec.Raw(_encode(steps))
            elif name == "callbacks" and raw[:1] == b"{":
                callbacks = read_members(raw, where)
                completed = {event: self._step(step, f"{where}.{event}", around) for event, step in callbacks.items()}
                changed[name] = msgspec.Raw(_encode(completed))
            else:
                changed[name] = self._step(msgspec.Raw(raw), where, around)
        return members | changed if changed else members

    def _step(self, raw: msgspec.Raw, path: str, around: tuple[str, ...]) -> msgspec.Raw:
        if _MARK not in bytes(raw) or bytes(raw)[:1] != b"{":
            return raw
        members = read_members(raw, path)
        present = without_nulls(members)
        if MEMBER not in present or "type" in present or "job_type" in present:
            return msgspec.Raw(_encode(self.inside(members, path, around)))
        return msgspec.Raw(_encode(self._complete(present, path, around)))

    def _complete(self, members: Members, path: str, around: tuple[str, ...]) -> Members:
        name = text(members, MEMBER, path) or ""
        try:
            version = msgspec.json.decode(members.get("definition_version", b"null"), type=int | None)
        except msgspec.ValidationError:
            raise Problem(f"{path}.definition_version", "'definition_version' must be a whole number.") from None
        definition = find(self._tx, qualify(self._tenant, name), version)
        if definition is None:
            which = "" if version is None else f"version {version} of the "
            raise Problem(f"{path}.definition", f"There is no {which}definition {name!r:.60}.")
        if name in around or len(around) >= MAX_NESTED_DEFINITIONS:
            line = " → ".join((*around, name))
            raise Problem(f"{path}.definition", f"Definitions contain each other, or too many do: {line:.200}.")
        if set_by_server := sorted({"do", "params_schema"} & members.keys()):
            message = f"{set_by_server[0]!r} comes from the definition {name!r:.60}. Leave it out."
            raise Problem(f"{path}.{set_by_server[0]}", message)
        if others := sorted(definition.members.keys() - _OF_STEPS - {"metadata"}):
            raise Problem(
                f"{path}.definition",
                f"The definition {name!r:.60} has {others[0]!r}, which only a whole workflow can have. "
                + (_FOR_BRANCHES if others[0] in BRANCHES else _FOR_OTHERS),
            )
        params = json_object(members, "params", path)
        if not may_hold_references(params):
            with problems_at(f"{path}.params"):
                check_params(definition, params)
        own: Members = {member: raw for member, raw in members.items() if member != "params"}
        own["definition_version"] = msgspec.Raw(_encode(definition.version))
        own["params"] = msgspec.Raw(params)
        body = {name: raw for name, raw in definition.members.items() if name in _OF_STEPS}
        own["do"] = msgspec.Raw(_encode(self.inside(body, f"{path}.do", (*around, name))))
        if definition.params_schema is not None:
            own["params_schema"] = msgspec.Raw(definition.params_schema)
        own.update(
            self.inside({member: own[member] for member in ("fallback", "compensate") if member in own}, path, around)
        )
        return own


def as_map(members: Members, path: str) -> Members:
    """Return the members of the map with one element that a completed step is.

    Raises
    ------
    Problem
        It is not completed.
    """
    if "do" not in members:
        raise Problem(path, "A step that is a definition can be planned only by a server, which knows the definition.")
    params = bytes(members.get("params", b"{}"))
    kept = {name: members[name] for name in ("do", "params_schema") if name in members}
    return kept | {"over": msgspec.Raw(b"[%b]" % params)}


def refuse_params(name: str, schema: bytes | msgspec.Raw, params: bytes | msgspec.Raw) -> None:
    """Check parameters whose references are resolved.

    Raises
    ------
    SchemaViolation
        They do not match the schema of the definition.
    """
    check_params(Definition(name, 1, b"{}", bytes(schema), {}), bytes(params))


MEMBERS: Final[frozenset[str]] = frozenset({MEMBER, "definition_version", "params", "params_schema", "do"})
"""The members of a completed step beside those of every step."""

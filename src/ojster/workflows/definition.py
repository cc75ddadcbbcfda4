"""Workflow definitions: named and versioned templates of workflows.

A definition has the members of a workflow request, except those of a single workflow such as parameters, target and
times. A workflow copies its definition when it is started: later versions do not change it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.ids import is_segment
from ojster.core.json_objects import MAX_NESTING_DEPTH, Members, is_same_json, read_members, with_plain_numbers
from ojster.core.json_schema import compile_schema
from ojster.core.parsing import read_value
from ojster.core.refusals import SchemaViolation
from ojster.core.tenant import called
from ojster.jobs.policy_wire import parse_retry_policy
from ojster.jobs.retry import RetryPolicy
from ojster.workflows.locks import compile_lock

LONGEST_DEFINITION_NAME: Final = 128
LONGEST_TARGET: Final = 1_024
LARGEST_DEFINITION: Final = 1_048_576
"""Maximum size of a definition as JSON, in bytes."""

_NAME: Final = re.compile(r"[A-Za-z0-9].*")

SINGLE_WORKFLOW_MEMBERS: Final = frozenset(
    {
        "id",
        "definition",
        "definition_version",
        "params",
        "scheduled_at",
        "delay_until",
        "expires_at",
        "expiration_delay",
        "metadata",
        "meta",
        "name",
        "priority",
        "specversion",
        "properties",
        "target",
        "locks",
    }
)
"""Members of a single workflow, which a definition must not have."""

OF_DEFINITIONS: Final = frozenset({"retry", "target", "locks", "definition_version", "params_schema"})
"""Members that a workflow has only with a definition."""

_BRANCHES: Final[tuple[str, ...]] = ("steps", "jobs", "callbacks", "over", "do", "on_error", "on_cancel")

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class Definition(msgspec.Struct, frozen=True):
    """A version of a definition. ``created_at`` is in microseconds since the epoch.

    Parameters
    ----------
    body:
        Members of the workflow, as canonical JSON.
    params_schema:
        JSON Schema of the workflow's parameters; ``None``: any parameters.
    hashes:
        SHA-256 of each branch, by its name, with which clients compare definitions.
    """

    name: str
    version: int
    body: bytes
    params_schema: bytes | None
    hashes: dict[str, str]
    created_at: int = 0

    @property
    def members(self) -> Members:
        """The members of the workflow, decoded."""
        return msgspec.json.decode(self.body, type=Members)


def has_metadata(definition: Definition, wanted: Mapping[str, Any]) -> bool:
    """Return whether the metadata of a definition has members with certain values."""
    stored: dict[str, Any] = msgspec.json.decode(definition.members.get("metadata", b"{}"))
    return all(name in stored and is_same_json(stored[name], value) for name, value in wanted.items())


START_MEMBERS: Final = frozenset({"definition", "definition_version", "target", "locks"})
"""Members of a request that select the definition and the target of a workflow."""


class Start(msgspec.Struct, frozen=True):
    """The definition and the target of a workflow to start.

    Parameters
    ----------
    definition_version:
        Version of the definition; ``None``: the latest.
    target:
        What the workflow works on. Until it has finished, no other workflow of the definition with the same target and
        parameters can start.
    locks:
        Regular expression. Until the workflow has finished, no other workflow with a matching target can start.
    """

    definition: str
    definition_version: int | None = None
    target: str | None = None
    locks: str | None = None

    def of(self, params: bytes, members: Members, tenant: str) -> dict[str, Any]:
        """Return the fields of the new workflow that store this start.

        Parameters
        ----------
        params:
            Parameters of the workflow, as JSON.
        members:
            Members of the request.
        tenant:
            Tenant of the workflow.
        """
        remembered: dict[str, Any] = msgspec.structs.asdict(self)
        own = {name: raw for name, raw in members.items() if name in RETRY_MEMBERS}
        remembered["start"] = msgspec.json.encode(own)
        if self.target is not None:
            remembered["target_key"] = target_key(tenant, self.definition, self.target, params)
        return remembered


def read_start(members: Members) -> Start:
    """Return the definition and the target in a request.

    Raises
    ------
    InvalidRequest
        The request is malformed, or has members that belong to the definition.
    """
    if others := sorted(members.keys() - SINGLE_WORKFLOW_MEMBERS):
        raise InvalidRequest(
            f"{others[0]!r} cannot be set when a workflow is started from a definition. A start can have "
            f"{', '.join(sorted(SINGLE_WORKFLOW_MEMBERS))}.",
            field=others[0],
        )
    start_members = {name: members[name] for name in START_MEMBERS & members.keys()}
    try:
        start = msgspec.json.decode(msgspec.json.encode(start_members), type=Start)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"{error}.", field="definition") from None
    if start.target is not None and not 0 < len(start.target) <= LONGEST_TARGET:
        raise InvalidRequest(f"The target must have 1 to {LONGEST_TARGET} characters.", field="target")
    if start.locks is not None:
        compile_lock(start.locks)
    return start


def from_definition(definition: Definition, start: Start, members: Members) -> tuple[Members, Start]:
    """Return the members of a workflow that starts from a definition, and the start with the definition's version.

    Parameters
    ----------
    start, members:
        What ``read_start`` has read, and from which request. Its metadata is added to that of the definition.

    Raises
    ------
    SchemaViolation
        The parameters violate the schema of the definition.
    """
    check_params(definition, bytes(members.get("params", b"{}")))
    own = {"params": msgspec.Raw(b"{}")} | {name: raw for name, raw in members.items() if name not in START_MEMBERS}
    if "metadata" in definition.members:
        metadata = own.pop("meta", own.get("metadata", msgspec.Raw(b"{}")))
        both = read_members(definition.members["metadata"], "metadata") | read_members(metadata, "metadata")
        own["metadata"] = msgspec.Raw(msgspec.json.encode(both))
    start = msgspec.structs.replace(start, definition=definition.name, definition_version=definition.version)
    return definition.members | own, start


RETRY_MEMBERS: Final = frozenset({"name", "priority", "properties", "expiration_delay"})
"""Members of a single workflow that a workflow retry uses again."""

_DEFAULT_RETRY: Final = RetryPolicy(max_attempts=10)
"""Default policy of workflow retries."""


def read_workflow_retry_policy(members: Members) -> RetryPolicy:
    """Return the policy of workflow retries of a definition."""
    if "retry" not in members:
        return _DEFAULT_RETRY
    return parse_retry_policy({"max_attempts": _DEFAULT_RETRY.max_attempts} | msgspec.json.decode(members["retry"]))


def check_name(name: str) -> str:
    """Validate the name of a definition and return it.

    Raises
    ------
    InvalidRequest
        The name is invalid.
    """
    if len(name) > LONGEST_DEFINITION_NAME or not is_segment(name) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"The name {name[:80]!r} is invalid: it must begin with a letter from a to z or a digit, and be at most "
            f"{LONGEST_DEFINITION_NAME} printable characters, without a slash and without a space at its end.",
            field="name",
        )
    return name


def read_definition(name: str, members: Members) -> Definition:
    """Return the definition in a request. The steps of the workflow are not validated here.

    Raises
    ------
    InvalidRequest
        Its name or schema is malformed, it is too large, or it has members of a single workflow.
    Unsupported
        It has a schema, and this server has no validator.
    """
    members = {member: raw for member, raw in members.items() if member != "name"}
    schema = members.pop("params_schema", None)
    if schema is not None:
        compile_schema(read_value(schema, "params_schema"))
    if "meta" in members:
        members.setdefault("metadata", members.pop("meta"))
    if bytes(members.get("metadata", b"{}"))[:1] != b"{":
        raise InvalidRequest("'metadata' of a definition must be a JSON object.", field="metadata")
    if of_one := sorted((SINGLE_WORKFLOW_MEMBERS - {"metadata"}) & members.keys()):
        raise InvalidRequest(f"{of_one[0]!r} cannot be in a definition. Send it at the start.", field=of_one[0])
    body = _canonical(members)
    if len(body) > LARGEST_DEFINITION:
        raise InvalidRequest(
            f"The definition takes {len(body)} bytes; at most {LARGEST_DEFINITION} are allowed.", field="definition"
        )
    hashes = {
        branch: hashlib.sha256(_canonical(members[branch])).hexdigest() for branch in _BRANCHES if branch in members
    }
    return Definition(check_name(name), 1, body, None if schema is None else _canonical(schema), hashes)


def check_params(definition: Definition, params: bytes) -> None:
    """Validate parameters against the schema of a definition, if it has one.

    Raises
    ------
    SchemaViolation
        The parameters violate the schema.
    """
    if definition.params_schema is None:
        return
    problems = compile_schema(msgspec.json.decode(definition.params_schema))(read_value(params, "params"))
    if problems:
        shown = [problem.replace("args", "params", 1) for problem in problems]
        raise SchemaViolation(
            f"The parameters do not match the definition {called(definition.name)!r}: " + "; ".join(shown),
            field="params",
            violations=shown,
        )


def target_key(tenant: str, definition: str, target: str, params: bytes) -> str:
    """Return the uniqueness key of a target: no two unfinished workflows may have the same.

    Parameters that are equal as JSON have the same key, however their numbers are written: 1 and 1.0.
    """
    values = with_plain_numbers(read_value(params, "params"))
    return hashlib.sha256(_encode([tenant, definition, target, values])).hexdigest()


def _canonical(value: Mapping[str, msgspec.Raw] | msgspec.Raw) -> bytes:
    """Return the canonical JSON of a value, which does not depend on its formatting or key order."""
    raw = msgspec.json.encode(value) if isinstance(value, Mapping) else bytes(value)
    return _encode(read_value(raw, "definition", MAX_NESTING_DEPTH))

"""What does a workflow look like that is started often? Definitions have a name and versions. (seed 002)

A definition is what a request for a workflow says, without what is said of one alone: its parameters, its target, its
time. A workflow that is started from it is a snapshot: later versions do not change it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest, SchemaViolation
from ojster.core.json_schema import compile_schema
from ojster.core.parsing import read_value
from ojster.jobs.request import Members
from ojster.jobs.retry import RetryPolicy, parse_retry_policy
from ojster.workflows.locks import compile_lock

LONGEST_NAME: Final = 128
LONGEST_TARGET: Final = 1_024
LARGEST_DEFINITION: Final = 1_048_576
"""How many bytes a definition may take as JSON."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._\-]*")

OF_ONE: Final = frozenset(
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
"""What is said of one workflow that is started from a definition, and not in the definition itself."""

_BRANCHES: Final[tuple[str, ...]] = ("steps", "jobs", "callbacks", "over", "do", "on_error", "on_cancel")

_encode: Final = msgspec.json.Encoder(order="deterministic").encode


class Definition(msgspec.Struct, frozen=True):
    """A version of a definition. ``created_at`` is in microseconds since the epoch.

    Parameters
    ----------
    body:
        The members of a workflow that it stands for, as JSON.
    params_schema:
        What the parameters of its workflows must look like: a JSON Schema, if there is one.
    hashes:
        The SHA-256 of each of its branches, by which somebody sees whether they have the same.
    """

    name: str
    version: int
    body: bytes
    params_schema: bytes | None
    hashes: dict[str, str]
    created_at: int = 0

    @property
    def members(self) -> Members:
        """The members of a workflow that it stands for."""
        return msgspec.json.decode(self.body, type=Members)

    def is_like(self, other: Definition) -> bool:
        """Whether another version stands for the same."""
        return (self.body, self.params_schema) == (other.body, other.params_schema)

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON has it, without times."""
        wire = {"name": self.name, "version": self.version, "workflow": msgspec.Raw(self.body), "hashes": self.hashes}
        return wire | ({} if self.params_schema is None else {"params_schema": msgspec.Raw(self.params_schema)})


START_MEMBERS: Final = frozenset({"definition", "definition_version", "target", "locks"})
"""What a request says of which definition a workflow is started from, and for what."""


class Start(msgspec.Struct, frozen=True):
    """From which definition a workflow is started, and for what.

    Parameters
    ----------
    definition_version:
        ``None``: the latest.
    target:
        What it works on: no other workflow of the definition has the same, and the same parameters, before it is over.
    locks:
        A regular expression: no other workflow is started for a target that it matches before this one is over.
    """

    definition: str
    definition_version: int | None = None
    target: str | None = None
    locks: str | None = None

    def of(self, params: bytes, members: Members, tenant: str) -> dict[str, Any]:
        """Return what a tenant's workflow with these parameters, and members of its own, is to remember of it."""
        remembered: dict[str, Any] = msgspec.structs.asdict(self)
        own = {name: raw for name, raw in members.items() if name in REMEMBERED}
        remembered["start"] = msgspec.json.encode(own)
        if self.target is not None:
            remembered["target_key"] = target_key(tenant, self.definition, self.target, params)
        return remembered


def read_start(members: Members) -> Start:
    """Return from which definition a request wants a workflow to be started.

    Raises
    ------
    InvalidRequest
        It is malformed, or says what the definition says.
    """
    if others := sorted(members.keys() - OF_ONE):
        raise InvalidRequest(
            f"{others[0]!r} is said by the definition, not by a workflow that is started from it.", field=others[0]
        )
    given = {name: members[name] for name in START_MEMBERS & members.keys()}
    try:
        start = msgspec.json.decode(msgspec.json.encode(given), type=Start)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{error}.", field="definition") from None
    if start.target is not None and not 0 < len(start.target) <= LONGEST_TARGET:
        raise InvalidRequest(f"A target has 1 to {LONGEST_TARGET} characters.", field="target")
    if start.locks is not None:
        compile_lock(start.locks)
    return start


REMEMBERED: Final = frozenset({"name", "priority", "properties", "expiration_delay"})
"""What is said of one workflow that holds for it, too, if it is run again as a whole."""

_RERUNS: Final = RetryPolicy(max_attempts=10)
"""How often, and when, workflows are run again as a whole whose definitions do not say."""


def read_rerun_policy(members: Members) -> RetryPolicy:
    """Return how often, and when, workflows of a definition are run again as a whole."""
    if "retry" not in members:
        return _RERUNS
    return parse_retry_policy({"max_attempts": _RERUNS.max_attempts} | msgspec.json.decode(members["retry"]))


def check_name(name: str) -> str:
    """Return a name if a definition can have it.

    Raises
    ------
    InvalidRequest
        It cannot.
    """
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"The name {name[:80]!r} is invalid: it must be lower-case letters, digits, '.', '_' and '-', begin with a "
            f"letter or a digit, and be at most {LONGEST_NAME} characters long.",
            field="name",
        )
    return name


def read_definition(name: str, members: Members) -> Definition:
    """Return the definition that a request describes; whether a workflow can be made of it is not checked here.

    Raises
    ------
    InvalidRequest
        Its name or its schema is malformed, it is too large, or it says what is said of one workflow alone.
    Unsupported
        It has a schema, and this server has no validator.
    """
    members = {member: raw for member, raw in members.items() if member != "name"}
    schema = members.pop("params_schema", None)
    if schema is not None:
        compile_schema(read_value(schema, "params_schema"))
    if of_one := sorted(OF_ONE & members.keys()):
        raise InvalidRequest(f"{of_one[0]!r} is said when a workflow is started, not in a definition.", field=of_one[0])
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
    """Refuse parameters that do not look as a definition wants them to.

    Raises
    ------
    SchemaViolation
        They do not.
    """
    if definition.params_schema is None:
        return
    problems = compile_schema(msgspec.json.decode(definition.params_schema))(read_value(params, "params"))
    if problems:
        shown = [problem.replace("args", "params", 1) for problem in problems]
        raise SchemaViolation(
            f"The parameters do not match the definition {definition.name!r}: " + "; ".join(shown),
            field="params",
            violations=shown,
        )


def target_key(tenant: str, definition: str, target: str, params: bytes) -> str:
    """Return what no other unfinished workflow may have (seed 002, "Job Uniqueness")."""
    return hashlib.sha256(_encode([tenant, definition, target, read_value(params, "params")])).hexdigest()


def _canonical(value: Mapping[str, msgspec.Raw] | msgspec.Raw) -> bytes:
    """Return JSON that is the same for the same value, however it was written."""
    raw = msgspec.json.encode(value) if isinstance(value, Mapping) else bytes(value)
    return _encode(read_value(raw, "definition"))

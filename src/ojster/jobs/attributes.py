"""The attributes of a job that capabilities define: each registers how it reads its own.

A capability without a line in ``ojster.capabilities`` reads nothing: its attributes are kept with the job, as all that
the server does not know. Most jobs have none, and cost nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

import msgspec

from ojster.core.access import Operation
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.job_flags import KEPT
from ojster.core.json_objects import Members
from ojster.jobs.code import ATTRIBUTE as CODE
from ojster.jobs.code import CODE_TYPE, read_code
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.jobs.expiration import read_expiration_delay


class Suspension(Protocol):
    """What a job waits for that is created as a suspended one."""

    @property
    def ends_by_time(self) -> bool:
        """Whether time alone ends the wait."""

    def due(self, begun: int, now: int) -> int | None:
        """Return when something is to be done for it, in microseconds since the epoch, or ``None``."""


class Attributes(msgspec.Struct, gc=False):
    """What the attributes of capabilities say about a job."""

    needs: str | None = None
    """The key of the requirements that its worker must meet."""
    timeout: int | None = None
    """The maximum run time, in microseconds, if an attribute sets one."""
    flags: int = 0
    """Bits of ``ojster.core.job_flags``."""
    suspension: Suspension | None = None
    enqueues: tuple[Members, ...] = ()
    """Requests for jobs that follow from the job; the caller validates them."""
    values: dict[str, Any] = {}
    """What else capabilities have read, by their names."""


NO_ATTRIBUTES: Final = Attributes()


class AttributeReader:
    """How a capability reads its attributes of jobs; a subclass names them."""

    names: ClassVar[frozenset[str]] = frozenset()
    """The attributes of requests."""
    types: ClassVar[frozenset[str]] = frozenset()
    """Job types of its own, which begin with ``OWN_TYPES``: it reads their jobs whatever attributes they have."""
    mark: ClassVar[bytes | None] = None
    """Bytes in the arguments of the jobs that it reads, whatever attributes they have."""
    set_by_server: ClassVar[frozenset[str]] = frozenset()
    """Attributes that only the server sets; values from clients are ignored."""
    final_errors: ClassVar[frozenset[str]] = frozenset()
    """Error codes and types after which a job is never retried, whatever its policy."""

    def read(self, type: str, args: bytes, members: Members, attributes: Attributes) -> None:
        """Add to ``attributes`` what the request for a job says.

        Raises
        ------
        InvalidRequest
            An attribute is malformed, or does not go with the type of the job.
        """

    def show(self, job: Job) -> bytes:
        """Return members for the JSON of the job, each with a comma before it."""
        return b""

    def operations(self, made: Mapping[str, Any]) -> dict[str, tuple[Operation, ...]]:
        """Return the operations of which a caller needs one for what an object in a request does, by kind."""
        return {}


def check_belongs(attribute: str, to: str, type: str, members: Members, *, field: str) -> None:
    """Raise ``InvalidRequest`` unless a job has an attribute if, and only if, it is of a type."""
    if (type == to) != (attribute in members):
        raise InvalidRequest(
            f"Jobs of type {to!r} must have the attribute {attribute!r}, and other jobs must not.", field=field
        )


class _OfJobs(AttributeReader):
    """The attributes that need no capability."""

    names = frozenset({CODE, EXPIRATION, "schema", "version"})
    types = frozenset({CODE_TYPE})

    def read(self, type: str, args: bytes, members: Members, attributes: Attributes) -> None:
        """Read code, and the retention that the job sets."""
        check_belongs(CODE, CODE_TYPE, type, members, field="type")
        if CODE in members:
            read_code(members[CODE])
        if EXPIRATION in members:
            read_expiration_delay(members[EXPIRATION])  # validates it
            attributes.flags |= KEPT


class Register(NamedTuple):
    """The readers in force, and what they name together."""

    readers: tuple[AttributeReader, ...]
    names: frozenset[str]
    types: frozenset[str]
    marks: tuple[bytes, ...]
    set_by_server: frozenset[str]
    final_errors: frozenset[str]


def _register(readers: Sequence[AttributeReader]) -> Register:
    nothing: frozenset[str] = frozenset()
    return Register(
        tuple(readers),
        nothing.union(*(reader.names for reader in readers)),
        nothing.union(*(reader.types for reader in readers)),
        tuple(reader.mark for reader in readers if reader.mark is not None),
        nothing.union(*(reader.set_by_server for reader in readers)),
        nothing.union(*(reader.final_errors for reader in readers)),
    )


_in_force = _register([_OfJobs()])


def use_readers(readers: Iterable[AttributeReader]) -> None:
    """Let these readers read attributes in this process, after those of jobs themselves."""
    global _in_force
    _in_force = _register([_OfJobs(), *readers])


def readers() -> Register:
    """Return the readers in force."""
    return _in_force


_PREFIX: Final = "ext_"

OF_STEPS: Final = frozenset({"workflow_id", "workflow_step"})
"""Attributes that every step of a workflow has, and no other job; its workflow sets them."""

OF_WORKFLOWS: Final = frozenset(
    {
        "allow_failure",
        "callbacks",
        "compensate",
        "compensate_args",
        "compensate_type",
        "depends_on",
        "do",
        "fallback",
        "if",
        "jobs",
        "manual",
        "provides",
        "steps",
        "when",
    }
)
"""Members of steps and containers of workflows, which mean nothing to a job alone."""


def without_nulls(members: Members) -> Members:
    """Return the attributes of a request without those that are ``null``, which count as absent.

    Unknown members are kept, whatever they are.

    Spec: ojs-json-format 14.2
    """
    known = _in_force.names
    empty = [
        name for name, raw in members.items() if bytes(raw) == b"null" and (name in known or name.startswith(_PREFIX))
    ]
    return {name: raw for name, raw in members.items() if name not in empty} if empty else members


def read_attributes(type: str, args: bytes, members: Members) -> Attributes:
    """Return what the attributes of capabilities say about a job.

    Parameters
    ----------
    type:
        The type of the job, without its version.
    args:
        Its ``args``, as JSON.
    members:
        The attributes of the request that ``read_job`` has not consumed.

    Raises
    ------
    InvalidRequest
        An attribute is malformed, or does not go with the type of the job.
    """
    known = _in_force
    if members.keys() <= OF_STEPS and type not in known.types and not any(mark in args for mark in known.marks):
        return NO_ATTRIBUTES
    attributes = Attributes(values={})
    for reader in known.readers:
        reader.read(type, args, members, attributes)
    return attributes

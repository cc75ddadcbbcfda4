"""Defaults of job types, which hold whoever enqueues.

Workers register what their application declares for a type: its queue, retries, timeout and reactions. The server adds
what a request leaves out, so that a client in another language need not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest, NotFound, OjsterError
from ojster.core.json_objects import Members, read_members, without_nulls
from ojster.core.parsing import read_value
from ojster.core.tenant import called, qualify
from ojster.jobs.names import read_type, refuse_reserved
from ojster.jobs.new_job import NewJob, read_job, read_owner
from ojster.jobs.options_wire import AT_TOP, options_of
from ojster.storage.call import for_each
from ojster.storage.memory import Remembered
from ojster.storage.transaction import Transaction

MAX_DEFAULTS_BYTES: Final = 65_536
"""Maximum size of the defaults of a job type as JSON, in bytes."""

_OF_ONE_JOB: Final = frozenset({"id", "args", "version", "specversion", "schema"})

_ALIASES: Final[tuple[frozenset[str], ...]] = (
    frozenset({"retry", "retry_policy", "max_attempts"}),
    frozenset({"timeout", "timeout_ms"}),
    frozenset({"total_timeout", "total_timeout_ms"}),
    frozenset({"enqueue_ttl", "enqueue_ttl_ms"}),
    frozenset({"visibility_timeout", "visibility_timeout_ms"}),
    frozenset({"scheduled_at", "delay_until"}),
)
"""Options that say the same: a job that has one of them gets no default for the others."""

_ALIASES_OF: Final = {name: group for group in _ALIASES for name in group}

_encode: Final = msgspec.json.Encoder().encode


class JobTypeDefaults(msgspec.Struct, frozen=True):
    """What a job of a type has unless its request says otherwise.

    Parameters
    ----------
    type:
        The job type.
    body:
        A JSON object with members of an enqueue request: ``options``, ``meta``, ``reactions``, ….
    updated_at:
        Time of the last change, in microseconds since the epoch.
    warnings:
        Its members that look misspelt, when it is set; they have no effect.
    """

    type: str
    body: bytes
    updated_at: int = 0
    warnings: tuple[str, ...] = ()


class Defaults:
    """The defaults of a job type, ready to be added to requests."""

    def __init__(self, members: Members) -> None:
        self._options = bytes(members.get("options", b"{}"))
        self._option_members = read_members(self._options, "options")
        self._meta = read_members(members.get("meta", b"{}"), "meta")
        self._beside = {name: raw for name, raw in members.items() if name not in ("options", "meta")}

    def apply(self, members: Members) -> Members:
        """Return an enqueue request with the defaults for what it leaves out."""
        completed = self._beside | members
        written = bytes(members.get("options", b"null"))
        if self._option_members and written != self._options:
            completed["options"] = self._options_beside(written, members)
        if self._meta:
            written = bytes(members.get("meta", b"null"))
            if written == b"null" or written[:1] == b"{":  # otherwise it is refused later
                own = {} if written == b"null" else read_members(written, "meta")
                completed["meta"] = msgspec.Raw(_encode(self._meta | own))
        return completed

    def _options_beside(self, written: bytes, members: Members) -> msgspec.Raw:
        own = {} if written == b"null" else read_members(written, "options")
        named = own.keys() | (members.keys() & AT_TOP)
        if not named:
            return msgspec.Raw(self._options)
        taken = named.union(*(_ALIASES_OF[name] for name in named & _ALIASES_OF.keys()))
        return msgspec.Raw(_encode({n: raw for n, raw in self._option_members.items() if n not in taken} | own))


def read_defaults(type: str, members: Members, *, largest: int) -> tuple[JobTypeDefaults, NewJob]:
    """Return the defaults in a request, and a job that has them and nothing else.

    Raises
    ------
    InvalidRequest
        The type or a member is malformed, or concerns a single job.
    """
    name = read_type(_encode(type))
    if "@" in name:
        raise InvalidRequest("Defaults are for all versions of a job type. Leave the version out.", field="type")
    declared = {member: raw for member, raw in without_nulls(members).items() if member != "type"}
    if of_one := sorted(_OF_ONE_JOB & declared.keys()):
        raise InvalidRequest(f"{of_one[0]!r} belongs to a single job. Leave it out.", field=of_one[0])
    if "tenant_id" in read_members(declared.get("meta", b"{}"), "meta"):
        raise InvalidRequest("'meta.tenant_id' belongs to a single job. Leave it out.", field="meta.tenant_id")
    options = options_of(declared.get("options"), dict(declared))
    for option, moment in (("scheduled_at", options.scheduled_at), ("expires_at", options.expires_at)):
        if moment is not None and not moment.relative:
            raise InvalidRequest(
                f"The default of {option!r} must be relative, such as '+PT5M'.", field=f"options.{option}"
            )
    body = _encode(declared)
    read_value(body, "defaults")
    if len(body) > MAX_DEFAULTS_BYTES:
        raise InvalidRequest(f"The defaults take {len(body)} bytes; at most {MAX_DEFAULTS_BYTES} are allowed.")
    request = {"type": msgspec.Raw(_encode(name)), "args": msgspec.Raw(b"[]")} | declared
    job = read_job(request, 0, largest=largest, tenant=None, has_args=False)
    refuse_reserved(job.queue)
    return JobTypeDefaults(name, body, warnings=job.warnings), job


def _read(tx: Transaction) -> Mapping[str, Defaults]:
    return {type: Defaults(read_members(body)) for type, body in tx.execute("SELECT type, defaults FROM job_types")}


defaults_by_type: Final = Remembered[Mapping[str, Defaults]](_read)
"""The defaults of the job types that have some, by the stored name of the type."""


def with_defaults(
    known: Mapping[str, Defaults], members: Members, tenant: str | None = None, otherwise: str = ""
) -> Members:
    """Return an enqueue request with the defaults of its type: those of its tenant, or else those for all tenants.

    Parameters
    ----------
    tenant, otherwise:
        The tenant of the job, as in ``read_job``.
    """
    if not known:
        return members
    type = _plain_type(members)
    if tenant is None:
        meta = bytes(members.get("meta", b"{}"))
        tenant = read_owner(meta, None, otherwise)[0] if meta[:1] == b"{" else otherwise
    default = known.get(qualify(tenant, type)) or known.get(type)
    return members if default is None else default.apply(members)


def _plain_type(members: Members) -> str:
    """Return the type of a request without its version; the empty string if it is malformed."""
    raw = bytes(members.get("type", b""))
    return "" if b"\\" in raw else raw.strip(b'"').partition(b"@")[0].decode()


@for_each
def put_defaults(tx: Transaction, item: JobTypeDefaults) -> JobTypeDefaults:
    """Set the defaults of job types; return them."""
    rows = tx.execute("SELECT defaults, updated_at FROM job_types WHERE type = :type", {"type": item.type})
    if rows and bytes(rows[0][0]) == item.body:
        return msgspec.structs.replace(item, updated_at=rows[0][1])
    tx.execute(
        """
        INSERT INTO job_types (type, defaults, updated_at)
        VALUES (:type, :body, :now)
        ON CONFLICT (type) DO UPDATE SET defaults = excluded.defaults, updated_at = excluded.updated_at
        """,
        {"type": item.type, "body": item.body, "now": tx.now},
    )
    tx.effects.configured = True
    return msgspec.structs.replace(item, updated_at=tx.now)


def list_defaults(tx: Transaction, requests: Sequence[None]) -> list[list[JobTypeDefaults]]:
    """Return the defaults of all job types, by type, for each request."""
    rows = tx.execute("SELECT type, defaults, updated_at FROM job_types ORDER BY type")
    defaults = [JobTypeDefaults(type, bytes(body), updated_at) for type, body, updated_at in rows]
    return [defaults for _ in requests]


@for_each
def delete_defaults(tx: Transaction, type: str) -> JobTypeDefaults | OjsterError:
    """Delete the defaults of job types; return them, or ``NotFound``."""
    rows = tx.execute("DELETE FROM job_types WHERE type = :type RETURNING type, defaults, updated_at", {"type": type})
    if rows:
        tx.effects.configured = True
    return JobTypeDefaults(*rows[0]) if rows else no_defaults(type)


def no_defaults(type: str) -> NotFound:
    """Return the error for a job type without defaults."""
    name = called(type)
    return NotFound(f"The job type {name!r} has no defaults.", resource_type="job_type", resource_id=name)

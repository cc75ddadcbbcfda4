"""Reading of enqueue requests: from the bytes of a request to a job that can be inserted.

What users send is not decoded and encoded again. The parts that never change are joined once into the JSON that every
read returns (the *envelope*), and stored as bytes. Options repeat from job to job, so parsed options are cached.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from ojster.core.access import Access
from ojster.core.errors import InvalidRequest, PayloadTooLarge, Unsupported
from ojster.core.ids import canonical_job_id, is_job_id, new_id
from ojster.core.json_objects import MAX_VALUE_DEPTH, Members, check_depth, check_names, read_members
from ojster.core.parsing import misspellings, read_value
from ojster.core.rate_limit import RateLimitPolicy
from ojster.core.refusals import MetadataTooLarge, size_details
from ojster.core.shared_value import SharedValue
from ojster.core.tenant import check_tenant, qualify, shown_tenant
from ojster.core.timestamps import format_timestamp
from ojster.core.trace import trace_of_meta
from ojster.jobs.attributes import (
    NO_ATTRIBUTES,
    OF_STEPS,
    OF_WORKFLOWS,
    Attributes,
    Suspension,
    read_attributes,
    readers,
    without_nulls,
)
from ojster.jobs.code import ATTRIBUTE, CODE_TYPE, kind_of, read_code
from ojster.jobs.deadlines import deadlines_of
from ojster.jobs.encoding import are_encoded
from ojster.jobs.names import OWN_TYPES, VERSION_PATTERN, kind, read_type, refuse_reserved, string
from ojster.jobs.options import DEFAULT_OPTIONS, ParsedOptions
from ojster.jobs.options_wire import AT_TOP, options_of
from ojster.jobs.uniqueness import UniquePolicy, fingerprint

SPEC_VERSION: Final = "1.0"

MAX_JOB_DEPTH: Final = 1 + MAX_VALUE_DEPTH
"""Maximum depth of a job as JSON, in levels."""

MAX_META_BYTES: Final = 65_536

_encode: Final = msgspec.json.Encoder().encode

_SYSTEM_NAMES: Final = frozenset(
    {
        "state",
        "attempt",
        "max_attempts",
        "created_at",
        "enqueued_at",
        "started_at",
        "completed_at",
        "cancelled_at",
        "discarded_at",
        "next_attempt_at",
        "retry_delay_ms",
        "error",
        "errors",
        "result",
        "parent_results",
        "checkpoint",
        "worker_id",
        "created_by",
        "losses",
        "cron_name",
        "next_retry_at",
        "outcome",
        "progress",
        "result_ref",
        "result_stored_at",
        "result_expires_at",
        "result_size_bytes",
        "resumed",
        "superseded_by",
    }
)
"""Attributes that only the server sets; values from clients are ignored.

Spec: ojs-core 5.3
"""

MARK: Final = b'"$'
"""What is in the arguments of a job that refers to something, and in few others."""


class Reach(NamedTuple):
    """The jobs that a caller may touch: in some queues, and, if ``only_own``, those that it has created."""

    access: Access
    only_own: bool


class NewJob(msgspec.Struct, gc=False):
    """A job that passed validation and can be inserted. Times are microseconds since the epoch."""

    id: str
    type: str
    queue: str
    priority: int
    max_attempts: int
    envelope: bytes
    id_is_given: bool = False
    pending: bool = False
    scheduled_at: int | None = None
    expires_at: int | None = None
    timeout: int | None = None
    lease: int | None = None
    unique: UniquePolicy | None = None
    unique_key: str | None = None
    queue_rate: int | None = None
    limit: RateLimitPolicy | None = None
    cron_name: str | None = None
    exclusive_key: str | None = None
    node: int | None = None
    tenant: str = ""
    version: msgspec.Raw | None = None
    needs: str | None = None
    """The key of the requirements that its worker must meet."""
    trace_id: str | None = None
    """The trace that its ``meta`` names."""
    shared: SharedValue | None = None
    """A large value in its envelope that is stored once for its workflow."""
    suspension: Suspension | None = None
    """What it waits for, if it is created as a suspended job."""
    flags: int = 0
    """Bits of ``ojster.core.job_flags``: which events have reactions, whether it has its own retention, and so on."""
    values: dict[str, Any] = {}
    """What capabilities have read from its attributes, by their names."""
    reach: Reach | None = None
    """Which jobs its caller may know and replace, for unique jobs; ``None``: all."""
    model: object = None
    """What it was made after: jobs with the same model differ in ids, envelopes and nodes alone; ``None``: nothing."""
    warnings: tuple[str, ...] = ()
    """Violations of the schema of its type by its arguments, and unknown members that look like mistakes."""
    waits: bool = False
    """Whether its caller waits for room in its queue, and pushes it again if there is none."""


def read_job(
    members: Members,
    now: int,
    *,
    largest: int,
    tenant: str | None = None,
    otherwise: str = "",
    is_step: bool = False,
    has_args: bool = True,
) -> NewJob:
    """Return the job that an enqueue request describes.

    Options are read from ``options`` and from the top level; ``options`` wins. Unknown attributes are kept unchanged.

    Parameters
    ----------
    members:
        The request, as ``read_members`` returns it; it is consumed.
    now:
        Time at which the request was accepted, in microseconds since the epoch; relative times count from it.
    largest:
        Maximum size of the job as JSON, in bytes.
    tenant, otherwise:
        The tenant of the job; ``None``: the tenant that its ``meta`` names, or else ``otherwise``.
    is_step:
        Whether a workflow makes the request, and ``workflow_id`` and ``workflow_step`` are its own. By default they are
        ignored, as other attributes that only the server sets.
    has_args:
        Whether it has the arguments and the metadata of a job. The defaults of a job type lack what a unique key needs.

    Raises
    ------
    InvalidRequest
        An attribute is missing or malformed, or ``meta`` names another tenant.
    InvalidPolicy
        The retry policy is invalid.
    InvalidPayload, PayloadTooLarge
        The job is nested too deeply, or larger than ``largest``, or its ``meta`` than 64 KiB.

    Spec: ojs-http-binding 9.1, ojs-multi-tenancy 5
    """
    type, args = _read_type_and_args(members)
    given_id = _pop(members, "id")
    id = new_id() if given_id is None else _read_id(bytes(given_id))
    options = _options(_take_options(members), members)
    owner, meta = read_owner(_read_meta(members), tenant, otherwise)
    _check_version(_pop(members, "specversion"))
    members = _own_attributes(members, is_step) if members else members
    scheduled_at = None if options.scheduled_at is None else options.scheduled_at.at(now)
    expires_at = None if options.expires_at is None else options.expires_at.at(now)
    latest_start, deadline_bits = _deadlines(options, expires_at, now)
    envelope = b'{"specversion":"1.0","id":"%b","type":"%b","args":%b,"meta":%b%b%b%b}' % (
        id.encode(),
        type.encode(),
        args,
        meta,
        options.fragment,
        other_members(members) if members else b"",
        b"" if scheduled_at is None and expires_at is None else _relative_times(options, scheduled_at, expires_at),
    )
    check_envelope(envelope, largest)
    attributes = _attributes(type, args, members)
    warnings = (*options.warnings, *warnings_of(members)) if members or options.warnings else ()
    for reaction in attributes.enqueues:
        warnings += _reaction_warnings(read_job(dict(reaction), now, largest=largest, tenant=owner))
    return NewJob(
        id=id,
        type=type,
        queue=options.queue,
        priority=options.priority,
        max_attempts=options.retry.max_attempts,
        envelope=envelope,
        id_is_given=given_id is not None,
        pending=options.pending,
        scheduled_at=scheduled_at,
        expires_at=latest_start,
        timeout=attributes.timeout or options.timeout,
        lease=options.lease,
        unique=options.unique,
        unique_key=_unique_key(options, owner, type, args, meta, members) if has_args else None,
        queue_rate=options.queue_rate,
        limit=None if options.limit is None else _limit_of(options.limit, owner),
        tenant=owner,
        version=members.get("version"),
        needs=attributes.needs,
        flags=attributes.flags | deadline_bits | options.flags,
        trace_id=trace_of_meta(meta),
        suspension=attributes.suspension,
        values=attributes.values,
        warnings=warnings,
    )


def _reaction_warnings(job: NewJob) -> tuple[str, ...]:
    """Return the warnings of the job of a reaction, if its queue may have it."""
    refuse_reserved(job.queue)
    return tuple(f"The job of a reaction: {warning}" for warning in job.warnings)


def _own_attributes(members: Members, is_step: bool) -> Members:
    """Return the attributes of a request that count: neither ``null``, nor those of a step unless it is one."""
    members = without_nulls(members)
    return members if is_step else {name: raw for name, raw in members.items() if name not in OF_STEPS}


def _pop(members: Members, name: str) -> msgspec.Raw | None:
    """Take an attribute out of a request; ``null`` counts as absent.

    Spec: ojs-json-format 14.2
    """
    raw = members.pop(name, None)
    return None if raw is None or bytes(raw) == b"null" else raw


_KNOWN: Final = AT_TOP | _SYSTEM_NAMES | {"type", "args", "id", "meta", "options", "specversion"}


def warnings_of(members: Members) -> list[str]:
    """Return warnings about unknown members of a job that look like mistakes. All are kept with the job.

    Spec: ojs-json-format 14.3
    """
    known = _KNOWN | readers().names | readers().set_by_server
    unknown = [name for name in members if name not in known and name not in OF_STEPS]
    elsewhere = [name for name in unknown if name in OF_WORKFLOWS]
    return [
        *misspellings([name for name in unknown if name not in OF_WORKFLOWS], known, "The member"),
        *(f"The member {name!r} has an effect only in steps of workflows." for name in sorted(elsewhere)),
    ]


def _attributes(type: str, args: bytes, members: Members) -> Attributes:
    has_some = members or MARK in args or type.startswith(OWN_TYPES)
    return read_attributes(type, args, members) if has_some else NO_ATTRIBUTES


def _options(raw: msgspec.Raw | None, members: Members) -> ParsedOptions:
    return DEFAULT_OPTIONS if raw is None and AT_TOP.isdisjoint(members) else options_of(raw, members)


def _deadlines(options: ParsedOptions, expires_at: int | None, now: int) -> tuple[int | None, int]:
    if options.enqueue_ttl is None and options.total_timeout is None:
        return expires_at, 0
    return deadlines_of(options, expires_at, now)


def check_envelope(envelope: bytes, largest: int) -> None:
    """Refuse a job that is larger than ``largest`` bytes, or that has a value deeper than ``MAX_VALUE_DEPTH``.

    Raises
    ------
    PayloadTooLarge, InvalidPayload
        It is too large, or nested too deeply.
    """
    check_depth(envelope, "The job", MAX_JOB_DEPTH)
    if len(envelope) > largest:
        message = f"The job takes {len(envelope)} bytes; at most {largest} are allowed. Pass large data as a file."
        raise PayloadTooLarge(message, **size_details(largest, len(envelope), "envelope"))


def _read_type_and_args(members: Members) -> tuple[str, bytes]:
    type, args = members.pop("type", None), members.pop("args", None)
    if type is None:
        raise InvalidRequest("The job has no 'type'.", field="type", validation="required")
    if args is None:
        raise InvalidRequest("The job has no 'args'.", field="args", validation="required")
    name = read_type(bytes(_without_version(type, members)))
    args_json = bytes(args)
    if args_json[:1] != b"[":
        raise InvalidRequest(
            f"The 'args' attribute must be a JSON array, not {kind(args_json)}.",
            field="args",
            expected="array",
            received=kind(args_json),
        )
    return name, args_json


def _take_options(members: Members) -> msgspec.Raw | None:
    """Take the options out of a request; add ``metadata`` in them, which some clients send, to its ``meta``."""
    options = members.pop("options", None)
    if options is None or b'"metadata"' not in bytes(options):
        return options
    metadata = bytes(read_members(options, "options").get("metadata", b"null"))
    if metadata == b"null":
        return options
    if metadata[:1] != b"{":
        raise InvalidRequest(
            f"The 'metadata' option must be a JSON object, not {kind(metadata)}.", field="options.metadata"
        )
    meta = _read_meta(members)
    members["meta"] = msgspec.Raw(_encode(read_members(metadata, "metadata") | read_members(meta, "meta")))
    return options


def _read_meta(members: Members) -> bytes:
    meta = bytes(members.pop("meta", b"{}"))
    if meta[:1] != b"{":
        if meta != b"null":
            raise InvalidRequest(f"The 'meta' attribute must be a JSON object, not {kind(meta)}.", field="meta")
        meta = b"{}"
    elif meta != b"{}":
        check_names(meta, "'meta'")
    if len(meta) > MAX_META_BYTES:
        message = f"'meta' takes {len(meta)} bytes; at most {MAX_META_BYTES} are allowed."
        raise MetadataTooLarge(message, **size_details(MAX_META_BYTES, len(meta), "meta"))
    return meta


def other_members(members: Members) -> bytes:
    """Return the members of an envelope that the server keeps as they were sent, each with a comma before it."""
    ignored = readers().set_by_server
    return b"".join(
        b",%b:%b" % (_encode(name), value)
        for name, value in members.items()
        if name not in _SYSTEM_NAMES and name not in ignored
    )


def _relative_times(options: ParsedOptions, scheduled_at: int | None, expires_at: int | None) -> bytes:
    """Return the members for times that count from the request; absolute ones are in the fragment of the options."""
    times = b""
    if scheduled_at is not None and options.scheduled_at is not None and options.scheduled_at.relative:
        times = b',"scheduled_at":"%b"' % format_timestamp(scheduled_at).encode()
    if expires_at is not None and options.expires_at is not None and options.expires_at.relative:
        times += b',"expires_at":"%b"' % format_timestamp(expires_at).encode()
    return times


def read_owner(meta: bytes, tenant: str | None, otherwise: str) -> tuple[str, bytes]:
    """Return the tenant of a job or a workflow, and its ``meta`` with that tenant in it.

    Parameters
    ----------
    tenant:
        Its tenant; ``None``: the tenant that ``meta`` names.
    otherwise:
        The tenant if ``tenant`` is ``None`` and ``meta`` names none.

    Raises
    ------
    InvalidRequest
        ``meta`` names another tenant, or an invalid one.
    """
    owner = otherwise if tenant is None else tenant
    if not owner and b'"tenant_id"' not in meta and b"\\u" not in meta:
        return "", meta
    named = read_members(meta, "'meta'").get("tenant_id")
    if named is None:
        if not owner:
            return "", meta
        separator = b"" if meta[1:].strip() == b"}" else b","
        return owner, b'{"tenant_id":"%b"%b%b' % (owner.encode(), separator, meta[1:])
    owner = check_tenant(string(bytes(named), "meta.tenant_id"))
    if tenant is not None and owner != tenant:
        raise InvalidRequest(
            f"'meta.tenant_id' is {shown_tenant(owner)!r}, but the tenant is {shown_tenant(tenant)!r}. Leave it out.",
            field="meta.tenant_id",
        )
    return owner, meta


def _without_version(type: msgspec.Raw, members: Members) -> msgspec.Raw:
    """Move the version after the ``@`` of a type to the attribute ``version``, unless that is set.

    Spec: ojs-job-versioning 5.3
    """
    if b"@" not in bytes(type) or bytes(type)[:1] != b'"':
        return type
    name, _, version = str(read_value(type, "type")).rpartition("@")
    if not VERSION_PATTERN.fullmatch(version):
        return type  # ``read_type`` rejects it
    members.setdefault("version", msgspec.Raw(_encode(version)))
    return msgspec.Raw(_encode(name))


def _read_id(raw: bytes) -> str:
    value = canonical_job_id(string(raw, "id"))
    if not is_job_id(value):
        raise InvalidRequest(
            f"The id {value[:80]!r} is not a UUIDv7 with hyphens; leave it out to have one generated.",
            field="id",
        )
    return value


def _check_version(raw: msgspec.Raw | None) -> None:
    value = SPEC_VERSION if raw is None else string(bytes(raw), "specversion")
    if value != SPEC_VERSION and not value.startswith("1.0."):
        raise Unsupported(f"specversion {value[:32]!r} is not supported; use {SPEC_VERSION!r}.")


def _limit_of(policy: RateLimitPolicy, owner: str) -> RateLimitPolicy:
    return msgspec.structs.replace(policy, key=qualify(owner, policy.key)) if owner else policy


def _unique_key(
    options: ParsedOptions, owner: str, type: str, args: bytes, meta: bytes, members: Members
) -> str | None:
    policy = options.unique
    if policy is None:
        return None
    args_value, meta_value = read_value(args, "args"), read_value(meta, "meta")
    if "args" in policy.keys and are_encoded(args_value, meta_value):
        raise InvalidRequest(
            "unique.keys has 'args', which a codec has encoded: the server cannot compare them. Set 'unique' in the "
            "application that encodes the arguments, which sends a digest of them, or leave 'args' out of unique.keys.",
            field="unique.keys",
        )
    if type == CODE_TYPE and ATTRIBUTE in members:
        type = kind_of(read_code(members[ATTRIBUTE]))
    try:
        return qualify(owner, fingerprint(policy, type=type, queue=options.queue, args=args_value, meta=meta_value))
    except ValueError as error:
        raise InvalidRequest(f"The job's unique key cannot be computed: {error}.", field="unique") from None

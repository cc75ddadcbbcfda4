"""Reading of enqueue requests: from the bytes of a request to a job that can be inserted.

What users send is not decoded and encoded again. The parts that never change are joined once into the JSON that every
read returns (the *envelope*), and stored as bytes. Options repeat from job to job, so parsed options are cached.
"""

from __future__ import annotations

import contextlib
import json
import re
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import msgspec

from ojster.agents.attributes import SYSTEM_MANAGED, Agent, is_agent_task, read_agent
from ojster.collections.items import check_lookups
from ojster.core.durations import MILLISECOND, SECOND, parse_duration
from ojster.core.errors import InvalidPayload, InvalidRequest, PayloadTooLarge, Unsupported
from ojster.core.ids import is_job_id, new_id
from ojster.core.parsing import read_value
from ojster.core.reacts import KEPT, LOOKUP_BIT
from ojster.core.tenant import check_tenant, qualify, shown_tenant
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.events.channel import Notify
from ojster.events.reaction_rules import ATTRIBUTE as REACTIONS
from ojster.events.reaction_rules import Enqueue, bits_of, read_reactions
from ojster.fleet.ml_resources import has_requirements, read_resources
from ojster.jobs.code import ATTRIBUTE, CODE_TYPE, read_code
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.jobs.expiration import read_expiration_delay
from ojster.jobs.retry import DEFAULT_RETRY, RetryPolicy, parse_retry_policy
from ojster.jobs.uniqueness import UniquePolicy, fingerprint, parse_unique_policy
from ojster.queues.rate_limit import RateLimitPolicy, parse_policy
from ojster.workflows.wait import ATTRIBUTE as WAITS_FOR
from ojster.workflows.wait import WAIT_TYPE, Wait, read_wait

SPEC_VERSION: Final = "1.0"
DEFAULT_QUEUE: Final = "default"
MAX_NESTING_DEPTH: Final = 100
MAX_TYPE_LENGTH: Final = 255
MAX_QUEUE_NAME_LENGTH: Final = 128
MAX_META_BYTES: Final = 65_536
PRIORITIES: Final = range(-100, 101)
MAX_DURATION_MS: Final = 100 * 365 * 24 * 3600 * 1000

TYPE_PATTERN: Final = re.compile(r"[a-z][a-z0-9_\-]*(?:\.[a-z][a-z0-9_\-]*)*")
VERSION_PATTERN: Final = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}")
QUEUE_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9\-.]*")

Members = dict[str, msgspec.Raw]
"""The members of a JSON object, each as its raw bytes."""

_decode_members: Final[Callable[[bytes | msgspec.Raw], Members]] = msgspec.json.Decoder(Members).decode
_encode: Final = msgspec.json.Encoder().encode

_OPTION_NAMES: Final = frozenset(
    {
        "queue",
        "priority",
        "timeout",
        "timeout_ms",
        "delay_until",
        "scheduled_at",
        "expires_at",
        "retry",
        "unique",
        "tags",
        "visibility_timeout",
        "visibility_timeout_ms",
        "pending",
        "rate_limit",
    }
)
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
    }
)
"""Attributes that only the server sets; values from clients are ignored.

Spec: ojs-core 5.3
"""


class Moment(msgspec.Struct, frozen=True):
    """A time that a request names: absolute, or relative to when the request is accepted (``+PT5S``)."""

    micros: int
    relative: bool = False

    def at(self, now: int) -> int:
        """Return the time in microseconds since the epoch."""
        return now + self.micros if self.relative else self.micros


class JobOptions(msgspec.Struct, frozen=True):
    """The options of a job. Durations are in microseconds; ``None`` selects the server's default.

    ``fragment`` is the part of the options that the envelope shows, as JSON members ready to be spliced in.
    """

    queue: str = DEFAULT_QUEUE
    priority: int = 0
    timeout: int | None = None
    lease: int | None = None
    scheduled_at: Moment | None = None
    expires_at: Moment | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    unique: UniquePolicy | None = None
    pending: bool = False
    queue_rate: int | None = None
    limit: RateLimitPolicy | None = None
    fragment: bytes = b""


DEFAULT_OPTIONS: Final = JobOptions()


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
    """The key of its requirements (``ojster.fleet.requirements``)."""
    agent: Agent | None = None
    wait: Wait | None = None
    """What a wait step waits for (``ojster.workflows.wait``); ``None`` for other jobs."""
    reacts: int = 0
    """Bits: the events that have reactions (``ojster.events.reaction_rules``), and whether it has its own retention."""
    notices: tuple[Notify, ...] = ()
    """The notifications among its reactions."""
    warnings: tuple[str, ...] = ()
    """Violations of the schema of its type by its arguments."""


def read_members(body: bytes | msgspec.Raw, what: str = "The request body") -> Members:
    """Return the members of the JSON object in ``body``, each as its raw bytes.

    Raises
    ------
    InvalidPayload
        The body is empty, is not UTF-8 or JSON, is not an object, is nested too deeply, or has a member twice or a lone
        surrogate.
    """
    raw = bytes(body)
    try:
        raw.decode()
        members = _decode_members(raw)
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"{what} is not UTF-8: byte {error.start} is invalid.") from None
    except RecursionError:
        raise _too_deep(what) from None
    except msgspec.ValidationError:
        raise InvalidPayload(f"{what} must be a JSON object.") from None
    except msgspec.DecodeError as error:
        if not raw.strip():
            raise InvalidPayload(f"{what} is empty; it must be a JSON object.") from None
        if b"\\u" in raw:  # half a surrogate pair is reported as if the data ended
            with contextlib.suppress(json.JSONDecodeError, RecursionError):
                _check_names_and_surrogates(raw, what)
        raise InvalidPayload(f"{what} is not valid JSON: {error}.") from None
    if raw.count(b"[") + raw.count(b"{") > MAX_NESTING_DEPTH:
        check_depth(raw, what)
    if b"\\ud" in raw or b"\\uD" in raw or not _holds_each_name_once(raw, members):
        _check_names_and_surrogates(raw, what)
    return members


def check_depth(raw: bytes, what: str) -> None:
    """Reject valid JSON nested deeper than ``MAX_NESTING_DEPTH`` levels: many clients cannot decode it."""
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(plain.translate(None, _NO_BRACKETS).split(b'"')[::2])  # the text between the strings
    if max(accumulate(array("b", brackets.translate(_STEPS)))) > MAX_NESTING_DEPTH:
        raise _too_deep(what)


_NO_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_STEPS: Final = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
"""Change of depth for each bracket: 1, or -1 as a signed byte."""


def _too_deep(what: str) -> InvalidPayload:
    return InvalidPayload(f"{what} is nested deeper than {MAX_NESTING_DEPTH} levels.")


def _holds_each_name_once(raw: bytes, members: Members) -> bool:
    """Whether each top-level name certainly occurs once. Decoding keeps the last of a repeated name.

    The check must cost next to nothing.

    Compact JSON consists of the decoded names and values, and of quotes, colons, commas and braces, so its length is
    known. Other JSON passes if it has no escapes and the text of each name occurs once anywhere.
    """
    count = len(members)
    if len(raw) == 4 * count + 1 + len("".join(members).encode()) + sum(map(len, members.values())):
        return True
    if count > _FEW_NAMES or b"\\" in raw:
        return False
    for name in members:  # noqa: SIM110  (a generator would take twice as long)
        if raw.count(b'"%b"' % name.encode()) != 1:
            return False
    return True


_FEW_NAMES: Final = 24


def check_names(raw: bytes | msgspec.Raw, what: str) -> None:
    """Reject a JSON object inside a parsed body if it has a member twice.

    Raises
    ------
    InvalidPayload
        A member occurs twice.
    """
    if not _holds_each_name_once(bytes(raw), _decode_members(raw)):
        _check_names_and_surrogates(bytes(raw), what)


class _Object(dict[str, Any]):
    repeated: str | None = None


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        found.repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    return found


def _no_number(text: str) -> int:
    return 0


def _check_names_and_surrogates(raw: bytes, what: str) -> None:
    """Run the slow, exact check, for the few bodies that may have a name twice or a lone surrogate."""
    try:
        value = json.loads(raw, object_pairs_hook=_object, parse_int=_no_number, parse_float=_no_number)
    except RecursionError:
        raise _too_deep(what) from None
    if isinstance(value, _Object) and value.repeated is not None:
        raise InvalidPayload(f"{what} has the member {value.repeated!r} twice.", field=value.repeated)
    if b"\\u" not in raw:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidPayload(
            f"{what} has an unpaired surrogate (\\u{ord(error.object[error.start]):04x}), which is not a character."
        ) from None


def read_job(
    members: Members,
    now: int,
    *,
    largest: int,
    options: JobOptions | None = None,
    tenant: str | None = None,
    otherwise: str = "",
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
    options:
        Parsed options; those in ``members`` are then not parsed.
    tenant:
        The tenant of the job; ``None``: the tenant that its ``meta`` names.
    otherwise:
        The tenant if ``tenant`` is ``None`` and ``meta`` names none.

    Raises
    ------
    InvalidRequest
        An attribute is missing or malformed, or ``meta`` names another tenant.
    InvalidPolicy
        The retry policy is invalid.
    PayloadTooLarge
        The job is larger than ``largest``, or its ``meta`` than 64 KiB.

    Spec: ojs-http-binding 9.1, ojs-multi-tenancy 5
    """
    type_raw, args = members.pop("type", None), members.pop("args", None)
    if type_raw is None:
        raise InvalidRequest("The job has no 'type'.", field="type", validation="required")
    if args is None:
        raise InvalidRequest("The job has no 'args'.", field="args", validation="required")
    type_raw = _without_version(type_raw, members)
    type = read_type(bytes(type_raw))
    args_raw = bytes(args)
    if args_raw[:1] != b"[":
        raise InvalidRequest(
            f"The 'args' attribute must be a JSON array, not {_kind(args_raw)}.",
            field="args",
            expected="array",
            received=_kind(args_raw),
        )
    given_id = members.pop("id", None)
    id = new_id() if given_id is None else _read_id(bytes(given_id))
    meta = bytes(members.pop("meta", b"{}"))
    if meta[:1] != b"{":
        if meta != b"null":
            raise InvalidRequest(f"The 'meta' attribute must be a JSON object, not {_kind(meta)}.", field="meta")
        meta = b"{}"
    elif meta != b"{}":
        check_names(meta, "'meta'")
    if len(meta) > MAX_META_BYTES:
        raise PayloadTooLarge(f"'meta' takes {len(meta)} bytes; at most {MAX_META_BYTES} are allowed.", field="meta")
    owner, meta = read_owner(meta, tenant, otherwise)
    if (version := members.pop("specversion", None)) is not None:
        _check_version(bytes(version))
    options_raw = members.pop("options", None)
    if options is None:
        options = _options_of(options_raw, members)
    envelope = b'{"specversion":"1.0","id":"%b","type":"%b","args":%b,"meta":%b%b' % (
        id.encode(),
        type.encode(),
        args_raw,
        meta,
        options.fragment,
    )
    for name, value in members.items():
        if name not in _SYSTEM_NAMES and name not in SYSTEM_MANAGED:
            envelope += b",%b:%b" % (_encode(name), bytes(value))
    scheduled_at, expires_at = options.scheduled_at, options.expires_at
    if scheduled_at is not None and scheduled_at.relative:
        envelope += b',"scheduled_at":"%b"' % format_timestamp(scheduled_at.at(now)).encode()
    if expires_at is not None and expires_at.relative:
        envelope += b',"expires_at":"%b"' % format_timestamp(expires_at.at(now)).encode()
    envelope += b"}"
    if len(envelope) > largest:
        raise PayloadTooLarge(f"The job takes {len(envelope)} bytes; at most {largest} are allowed.", limit=largest)
    if (type == CODE_TYPE) != (ATTRIBUTE in members):
        raise InvalidRequest(
            f"Jobs of type {CODE_TYPE!r} must have the attribute {ATTRIBUTE!r}, and other jobs must not.", field="type"
        )
    if ATTRIBUTE in members:
        read_code(members[ATTRIBUTE])
    if (type == WAIT_TYPE) != (WAITS_FOR in members):
        raise InvalidRequest(
            f"Jobs of type {WAIT_TYPE!r} must have the attribute {WAITS_FOR!r}, and other jobs must not.",
            field=WAITS_FOR,
        )
    wait = read_wait(members[WAITS_FOR]) if WAITS_FOR in members else None
    agent = read_agent(members) if is_agent_task(members) else None
    needs, timeout = None, options.timeout
    if has_requirements(members):
        resources = read_resources(members)
        timeout = resources.timeout or timeout
        needs = None if resources.needs is None else resources.needs.key
    reacts, notices = 0, tuple[Notify, ...]()
    if REACTIONS in members:
        reactions = read_reactions(members[REACTIONS])
        reacts = bits_of(reactions)
        if "on_reminder" in reactions and type != WAIT_TYPE:
            raise InvalidRequest("Only wait steps can have 'on_reminder'.", field=f"{REACTIONS}.on_reminder")
        everything = [action for actions in reactions.values() for action in actions]
        notices = tuple(action for action in everything if isinstance(action, Notify))
        for action in everything:
            if isinstance(action, Enqueue):
                read_job(dict(action.job), now, largest=largest, tenant=owner)  # validates it
    if EXPIRATION in members:
        read_expiration_delay(members[EXPIRATION])  # validates it
        reacts |= KEPT
    if "workflow_id" not in members and b'"$lookup"' in bytes(args_raw) and check_lookups(args_raw):
        reacts |= LOOKUP_BIT
    unique_key = None
    if options.unique is not None:
        unique_key = qualify(owner, _unique_key(options.unique, type, options.queue, args_raw, meta))
    limit = options.limit
    if owner and limit is not None:
        limit = msgspec.structs.replace(limit, key=qualify(owner, limit.key))
    return NewJob(
        id=id,
        type=type,
        queue=options.queue,
        priority=options.priority,
        max_attempts=options.retry.max_attempts,
        envelope=envelope,
        id_is_given=given_id is not None,
        pending=options.pending,
        scheduled_at=None if scheduled_at is None else scheduled_at.at(now),
        expires_at=None if expires_at is None else expires_at.at(now),
        timeout=timeout,
        lease=options.lease,
        unique=options.unique,
        unique_key=unique_key,
        queue_rate=options.queue_rate,
        limit=limit,
        tenant=owner,
        version=members.get("version"),
        needs=needs,
        agent=agent,
        reacts=reacts,
        wait=wait,
        notices=notices,
    )


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
    owner = check_tenant(_string(bytes(named), "meta.tenant_id"))
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


@lru_cache(maxsize=4096)
def read_type(raw: bytes) -> str:
    """Return the job type that the JSON ``raw`` names.

    Raises
    ------
    InvalidRequest
        It is not a string of lower-case segments separated by dots, or is longer than 255 characters.
    """
    value = _string(raw, "type")
    if len(value) > MAX_TYPE_LENGTH or not TYPE_PATTERN.fullmatch(value):
        raise InvalidRequest(
            f"The job type {value[:80]!r} is invalid: it must be segments of lower-case letters, digits, '_' and '-' "
            f"that begin with a letter, separated by dots, such as 'email.send', and at most {MAX_TYPE_LENGTH} "
            "characters long.",
            field="type",
        )
    return value


@lru_cache(maxsize=1024)
def check_queue_name(name: str) -> str:
    """Return ``name`` if it is a valid queue name.

    Raises
    ------
    InvalidRequest
        It is not valid.

    Spec: ojs-core 5.1
    """
    if len(name) > MAX_QUEUE_NAME_LENGTH or not QUEUE_PATTERN.fullmatch(name):
        raise InvalidRequest(
            f"The queue name {name[:80]!r} is invalid: it must be lower-case letters, digits, '-' and '.', begin with "
            f"a letter or a digit, and be at most {MAX_QUEUE_NAME_LENGTH} characters long.",
            field="queue",
        )
    return name


def _read_id(raw: bytes) -> str:
    value = _string(raw, "id")
    if not is_job_id(value):
        raise InvalidRequest(
            f"The id {value[:80]!r} is not a UUIDv7 in lower case with hyphens; leave it out to have one generated.",
            field="id",
        )
    return value


def _check_version(raw: bytes) -> None:
    value = _string(raw, "specversion")
    if value != SPEC_VERSION and not value.startswith("1.0."):
        raise Unsupported(f"specversion {value[:32]!r} is not supported; use {SPEC_VERSION!r}.")


def queue_of(members: Members) -> str:
    """Return the queue of a job with these attributes, which are not consumed.

    Raises
    ------
    InvalidRequest
        The options are malformed.
    """
    return _options_of(members.get("options"), dict(members)).queue


def _options_of(raw: msgspec.Raw | None, members: Members) -> JobOptions:
    at_top = [(name, members.pop(name)) for name in _OPTION_NAMES & members.keys()]
    options = b"" if raw is None else bytes(raw)
    if not at_top:
        if options in (b"", b"{}", b"null"):
            return DEFAULT_OPTIONS
        return read_options(options) if len(options) <= 1024 else _read_options(options)
    merged = dict(at_top)
    if options and options != b"null":
        merged |= read_members(options, "options")
    return _read_options(_encode(merged))


def _read_options(raw: bytes) -> JobOptions:
    """Return the options that a JSON object describes.

    Raises
    ------
    InvalidRequest
        An option is malformed.
    InvalidPolicy
        The retry policy is invalid.
    """
    if raw[:1] != b"{":
        raise InvalidRequest(f"The 'options' attribute must be a JSON object, not {_kind(raw)}.", field="options")
    members = read_members(raw, "options")
    given = {name: read_value(members[name], name) for name in _OPTION_NAMES & members.keys()}
    given = {name: value for name, value in given.items() if value is not None}
    for name in ("retry", "unique", "rate_limit"):
        if isinstance(given.get(name), dict):
            check_names(members[name], f"The {name!r} option")
    shown: dict[str, msgspec.Raw] = {
        name: members[name]
        for name in (
            "timeout",
            "timeout_ms",
            "retry",
            "unique",
            "tags",
            "visibility_timeout",
            "visibility_timeout_ms",
            "rate_limit",
        )
        if name in given
    }
    scheduled_at = read_moment(given, "scheduled_at") or read_moment(given, "delay_until")
    expires_at = read_moment(given, "expires_at")
    if scheduled_at is not None and not scheduled_at.relative:
        shown["scheduled_at"] = members["scheduled_at" if "scheduled_at" in given else "delay_until"]
    if expires_at is not None and not expires_at.relative:
        shown["expires_at"] = members["expires_at"]
    if unknown := {name: value for name, value in members.items() if name not in _OPTION_NAMES}:
        shown["options"] = msgspec.Raw(_encode(unknown))
    tags = given.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidRequest("The 'tags' option must be an array of strings.", field="options.tags")
    pending = given.get("pending", False)
    if not isinstance(pending, bool):
        raise InvalidRequest("The 'pending' option must be true or false.", field="options.pending")
    return JobOptions(
        queue=_queue(given.get("queue", DEFAULT_QUEUE)),
        priority=_priority(given.get("priority", 0)),
        timeout=read_span(given, "timeout"),
        lease=read_span(given, "visibility_timeout"),
        scheduled_at=scheduled_at,
        expires_at=expires_at,
        retry=parse_retry_policy(given["retry"]) if "retry" in given else DEFAULT_RETRY,
        unique=parse_unique_policy(given["unique"]) if "unique" in given else None,
        pending=pending,
        queue_rate=_queue_rate(given.get("rate_limit")),
        limit=parse_policy(given.get("rate_limit")),
        fragment=b"".join(b",%b:%b" % (_encode(name), bytes(value)) for name, value in shown.items()),
    )


read_options = lru_cache(maxsize=4096)(_read_options)


def _queue(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequest("The 'queue' option must be a string.", field="options.queue")
    return check_queue_name(value)


def _priority(value: Any) -> int:
    if type(value) is not int or value not in PRIORITIES:
        raise InvalidRequest(
            f"The 'priority' option must be an integer from {PRIORITIES[0]} to {PRIORITIES[-1]}, not {value!r:.40}.",
            field="options.priority",
        )
    return value


def read_span(given: Mapping[str, Any], name: str) -> int | None:
    """Return an option in seconds (``name``) or milliseconds (``name_ms``) as microseconds; ``None`` for 0."""
    for key, unit in ((name + "_ms", MILLISECOND), (name, SECOND)):
        if (value := given.get(key)) is not None:
            if type(value) is not int or not 0 <= value * unit <= MAX_DURATION_MS * MILLISECOND:
                raise InvalidRequest(
                    f"The {key!r} option must be a positive integer, not {value!r:.40}.", field=f"options.{key}"
                )
            return value * unit or None
    return None


def read_moment(given: Mapping[str, Any], name: str) -> Moment | None:
    """Return an option that is a time, RFC 3339 or relative (``+PT5S``); ``None`` if it is not set."""
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(f"The {name!r} option must be an RFC 3339 time stamp.", field=f"options.{name}")
    try:
        if value.startswith("+"):
            return Moment(parse_duration(value[1:]), relative=True)
        return Moment(parse_timestamp(value))
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.message}", field=f"options.{name}") from None


def _queue_rate(value: Any) -> int | None:
    """Return ``rate_limit.max_per_second``: the maximum rate at which the job's queue hands out jobs."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest("The 'rate_limit' option must be an object.", field="options.rate_limit")
    limit = value.get("max_per_second")
    if limit is not None and (type(limit) is not int or not 1 <= limit <= 10**9):
        raise InvalidRequest(
            "rate_limit.max_per_second must be a positive integer.", field="options.rate_limit.max_per_second"
        )
    return limit


def _unique_key(policy: UniquePolicy, type: str, queue: str, args: bytes, meta: bytes) -> str:
    try:
        return fingerprint(policy, type=type, queue=queue, args=read_value(args, "args"), meta=read_value(meta, "meta"))
    except ValueError as error:
        raise InvalidRequest(f"The job's unique key cannot be computed: {error}.", field="unique") from None


def _string(raw: bytes, name: str) -> str:
    if raw[:1] != b'"':
        raise InvalidRequest(f"The {name!r} attribute must be a string, not {_kind(raw)}.", field=name)
    return str(read_value(raw, name))


def _kind(raw: bytes) -> str:
    """Return the kind of a JSON value, for error messages."""
    kinds = {b"{": "an object", b"[": "an array", b'"': "a string", b"t": "a boolean", b"f": "a boolean", b"n": "null"}
    return kinds.get(raw[:1], "a number")

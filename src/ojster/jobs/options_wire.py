"""The JSON of job options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from ojster.core.durations import (
    LONGEST,
    LONGEST_MILLIS,
    LONGEST_SECONDS,
    MILLISECOND,
    SECOND,
    parse_any_duration,
    parse_duration,
)
from ojster.core.errors import InvalidRequest
from ojster.core.job_flags import HAS_GRACE, RESULT_LIMITS, STALLS
from ojster.core.json_objects import MAX_SAFE_INTEGER, Members, check_names, read_members
from ojster.core.parsing import misspellings, read_value
from ojster.core.timestamps import parse_timestamp
from ojster.core.wire import Count, Json, Milliseconds
from ojster.jobs.attributes import OF_WORKFLOWS, readers
from ojster.jobs.names import DEFAULT_QUEUE, MAX_QUEUE_NAME_LENGTH, QUEUE_PATTERN, check_queue_name, kind
from ojster.jobs.options import DEFAULT_OPTIONS, PRIORITIES, Moment, ParsedOptions
from ojster.jobs.policy_wire import (
    RetryPolicyBody,
    UniquePolicyBody,
    parse_retry_policy,
    parse_unique_policy,
    policy_warnings,
)
from ojster.jobs.rate_limit_wire import RATE_LIMIT_MEMBERS, RateLimitBody, parse_policy
from ojster.jobs.retry import DEFAULT_RETRY

_encode: Final = msgspec.json.Encoder().encode


class OptionsBody(Struct, omit_defaults=True):
    """Options of a job. They may also be at the top level of the request."""

    queue: Annotated[str, Meta(pattern=f"^{QUEUE_PATTERN.pattern}$", max_length=MAX_QUEUE_NAME_LENGTH)] | None = None
    priority: Annotated[int, Meta(ge=PRIORITIES[0], le=PRIORITIES[-1])] | None = None
    timeout: Annotated[int, Meta(ge=0, description="In seconds.")] | None = None
    timeout_ms: Milliseconds | None = None
    total_timeout: (
        Annotated[int, Meta(ge=1, description="Longest time from creation to completion, in seconds.")] | None
    ) = None
    total_timeout_ms: Annotated[int, Meta(ge=1, le=LONGEST_MILLIS)] | None = None
    enqueue_ttl: Annotated[int, Meta(ge=1, description="Longest wait for the first start, in seconds.")] | None = None
    enqueue_ttl_ms: Annotated[int, Meta(ge=1, le=LONGEST_MILLIS)] | None = None
    visibility_timeout: (
        Annotated[int | str, Meta(description="In seconds, or an ISO 8601 duration such as PT30S.")] | None
    ) = None
    visibility_timeout_ms: Milliseconds | None = None
    scheduled_at: (
        Annotated[str, Meta(description="RFC 3339 with a zone, or a duration from now such as '+PT5S'")] | None
    ) = None
    delay_until: Annotated[str, Meta(description="The same as scheduled_at.")] | None = None
    expires_at: str | None = None
    retry: RetryPolicyBody | None = None
    unique: UniquePolicyBody | None = None
    grace_period: (
        Annotated[int, Meta(ge=0, description="Time to clean up after the timeout, in seconds; 0 by default.")] | None
    ) = None
    heartbeat_timeout: (
        Annotated[int, Meta(ge=1, description="Longest time without a sign of life of the attempt, in seconds.")] | None
    ) = None
    result_ttl: (
        Annotated[int, Meta(ge=-1, description="How long the result is kept, in seconds; 0: not at all, -1: for ever.")]
        | None
    ) = None
    result_size_limit: Annotated[int, Meta(ge=1, description="Maximum size of the result, in bytes.")] | None = None
    tags: Sequence[str] | None = None
    pending: bool | None = None
    rate_limit: RateLimitBody | None = None
    retry_policy: Annotated[RetryPolicyBody | None, Meta(description="The same as retry.")] = None
    max_attempts: Annotated[Count | None, Meta(description="The same as max_attempts in retry.")] = None
    metadata: Annotated[dict[str, Json] | None, Meta(description="Added to meta.")] = None


OPTION_NAMES: Final = frozenset(OptionsBody.__struct_fields__)

_OPTIONS_ONLY: Final = frozenset({"max_attempts", "metadata"})
"""Options accepted only inside ``options``: at the top level, their names mean something else or nothing."""

AT_TOP: Final = OPTION_NAMES - _OPTIONS_ONLY
"""Options that may be at the top level of a request."""


def queue_of(members: Members) -> str:
    """Return the queue of a job with these attributes, which are not consumed.

    Raises
    ------
    InvalidRequest
        The options are malformed.
    """
    return options_of(members.get("options"), dict(members)).queue


def options_of(raw: msgspec.Raw | None, members: Members) -> ParsedOptions:
    """Return the options of a request: those under ``options``, and those at its top, which are removed from it."""
    at_top = [(name, members.pop(name)) for name in AT_TOP & members.keys()]
    options = b"" if raw is None else bytes(raw)
    if not at_top:
        if options in (b"", b"{}", b"null"):
            return DEFAULT_OPTIONS
        return read_options(options) if len(options) <= 1024 else _read_options(options)
    merged = dict(at_top)
    if options and options != b"null":
        merged |= read_members(options, "options")
    return _read_options(_encode(merged))


def _read_options(raw: bytes) -> ParsedOptions:
    """Return the options that a JSON object describes.

    Raises
    ------
    InvalidRequest
        An option is malformed.
    InvalidPolicy
        The retry policy is invalid.
    """
    if raw[:1] != b"{":
        raise InvalidRequest(f"The 'options' attribute must be a JSON object, not {kind(raw)}.", field="options")
    members = _without_aliases(read_members(raw, "options"))
    values = {name: read_value(members[name], name) for name in OPTION_NAMES & members.keys()}
    values = {name: value for name, value in values.items() if value is not None}
    for name in ("retry", "unique", "rate_limit"):
        if isinstance(values.get(name), dict):
            check_names(members[name], f"The {name!r} option")
    shown: Members = {name: members[name] for name in _SHOWN if name in values}
    scheduled_at = read_moment(values, "scheduled_at") or read_moment(values, "delay_until")
    expires_at = read_moment(values, "expires_at")
    if scheduled_at is not None and not scheduled_at.relative:
        shown["scheduled_at"] = members["scheduled_at" if "scheduled_at" in values else "delay_until"]
    if expires_at is not None and not expires_at.relative:
        shown["expires_at"] = members["expires_at"]
    unknown = {name: value for name, value in members.items() if name not in OPTION_NAMES}
    if unknown:
        shown["options"] = msgspec.Raw(_encode(unknown))
    tags = values.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidRequest("The 'tags' option must be an array of strings.", field="options.tags")
    pending = values.get("pending", False)
    if not isinstance(pending, bool):
        raise InvalidRequest("The 'pending' option must be true or false.", field="options.pending")
    return ParsedOptions(
        queue=_queue(values.get("queue", DEFAULT_QUEUE)),
        priority=_priority(values.get("priority", 0)),
        timeout=read_span(values, "timeout"),
        total_timeout=read_span(values, "total_timeout", least=1),
        enqueue_ttl=read_span(values, "enqueue_ttl", least=1),
        lease=_lease(values),
        scheduled_at=scheduled_at,
        expires_at=expires_at,
        retry=parse_retry_policy(values["retry"]) if "retry" in values else DEFAULT_RETRY,
        unique=parse_unique_policy(values["unique"]) if "unique" in values else None,
        pending=pending,
        queue_rate=_queue_rate(values.get("rate_limit")),
        limit=parse_policy(values.get("rate_limit")),
        flags=_flags(values),
        warnings=(*_warnings_of(unknown.keys()), *_policy_warnings(values)),
        fragment=b"".join(b",%b:%b" % (_encode(name), bytes(value)) for name, value in shown.items()),
    )


_SHOWN: Final = (
    "timeout",
    "timeout_ms",
    "total_timeout",
    "total_timeout_ms",
    "enqueue_ttl",
    "enqueue_ttl_ms",
    "retry",
    "unique",
    "tags",
    "visibility_timeout",
    "visibility_timeout_ms",
    "rate_limit",
    "grace_period",
    "heartbeat_timeout",
    "result_ttl",
    "result_size_limit",
)
"""Options that a job shows as they were sent."""


def _warnings_of(unknown: Set[str]) -> list[str]:
    """Return warnings about unknown options that look like mistakes. All are kept with the job."""
    beside = unknown & (readers().names | OF_WORKFLOWS)
    return [
        *misspellings(unknown - beside, OPTION_NAMES, "The option"),
        *(f"The option {name!r} has no effect; put it beside the 'options', not into them." for name in sorted(beside)),
    ]


def _policy_warnings(values: Mapping[str, Any]) -> list[str]:
    limit = values.get("rate_limit")
    of_limit = misspellings(limit, RATE_LIMIT_MEMBERS, "The member of rate_limit") if isinstance(limit, dict) else []
    if isinstance(limit, dict) and limit.get("key") and limit.get("max_per_second"):
        of_limit.append(
            "rate_limit.max_per_second limits the whole queue of the job. Use 'rate' for the jobs with the key."
        )
    return policy_warnings(values) + of_limit


def _without_aliases(members: Members) -> Members:
    """Give options under their aliases their own names."""
    alias = members.pop("retry_policy", None)
    if alias is not None and bytes(alias) != b"null":
        members.setdefault("retry", alias)
    attempts = members.pop("max_attempts", None)
    retry = bytes(members.get("retry", b"null"))
    if attempts is not None and bytes(attempts) != b"null" and (retry == b"null" or retry[:1] == b"{"):
        policy = {} if retry == b"null" else read_members(retry, "The 'retry' option")
        members["retry"] = msgspec.Raw(_encode({"max_attempts": attempts} | policy))
    lease = bytes(members.get("visibility_timeout", b""))
    if lease[:1] == b'"':
        text = str(read_value(lease, "visibility_timeout"))
        try:
            millis = parse_any_duration(text) // MILLISECOND
        except InvalidRequest as error:
            raise InvalidRequest(f"visibility_timeout: {error.message}", field="options.visibility_timeout") from None
        del members["visibility_timeout"]
        members.setdefault("visibility_timeout_ms", msgspec.Raw(_encode(millis)))
    return members


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


def read_span(values: Mapping[str, Any], name: str, *, least: int = 0) -> int | None:
    """Return an option in seconds (``name``) or milliseconds (``name_ms``) as microseconds; ``None`` for 0."""
    for key, unit in ((name + "_ms", MILLISECOND), (name, SECOND)):
        if (value := values.get(key)) is not None:
            if type(value) is not int or not least * unit <= value * unit <= LONGEST:
                raise InvalidRequest(
                    f"The {key!r} option must be an integer from {least} to {LONGEST // unit}, not {value!r:.40}.",
                    field=f"options.{key}",
                )
            return value * unit or None
    return None


_WHOLE: Final[Mapping[str, tuple[int, int, int]]] = {
    "grace_period": (0, LONGEST_SECONDS, HAS_GRACE),
    "heartbeat_timeout": (1, LONGEST_SECONDS, STALLS),
    "result_ttl": (-1, LONGEST_SECONDS, RESULT_LIMITS),
    "result_size_limit": (1, MAX_SAFE_INTEGER, RESULT_LIMITS),
}
"""Options that are whole numbers and have a bit of ``flags``: their range, and the bit."""


def _flags(values: Mapping[str, Any]) -> int:
    """Check the options in ``_WHOLE``, and return their bits."""
    bits = 0
    for name in _WHOLE.keys() & values.keys():
        least, most, bit = _WHOLE[name]
        value = values[name]
        if type(value) is not int or not least <= value <= most:
            raise InvalidRequest(
                f"The {name!r} option must be an integer from {least} to {most}, not {value!r:.40}.",
                field=f"options.{name}",
            )
        bits |= bit
    return bits


def _lease(values: Mapping[str, Any]) -> int | None:
    """Return the lease, which each sign of life renews: ``visibility_timeout``, or a shorter ``heartbeat_timeout``."""
    lease, silence = read_span(values, "visibility_timeout"), values.get("heartbeat_timeout")
    if type(silence) is not int or silence < 1:
        return lease  # ``_flags`` refuses it
    return min(silence * SECOND, lease or LONGEST)


def read_moment(values: Mapping[str, Any], name: str) -> Moment | None:
    """Return an option that is a time, RFC 3339 or relative (``+PT5S``); ``None`` if it is not set."""
    value = values.get(name)
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

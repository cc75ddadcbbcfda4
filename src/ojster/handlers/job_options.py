"""Options of job types, as Python writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec import UNSET

from ojster.agents import attributes
from ojster.core.durations import SECOND
from ojster.core.ids import new_id
from ojster.core.job_flags import REACTIONS
from ojster.core.json_objects import Members
from ojster.core.rate_limit import OnLimit
from ojster.core.values import (
    Seconds,
    check_options,
    refuse_both,
    to_duration,
    to_expiration_delay,
    to_json,
    to_millis,
    to_seconds,
    to_timestamp,
    to_whole_seconds,
)
from ojster.core.wire import Json
from ojster.fleet import ml_resources
from ojster.handlers import other_queues
from ojster.handlers.error_types import class_name
from ojster.jobs.expiration import ATTRIBUTE as EXPIRATION
from ojster.jobs.options_wire import OptionsBody
from ojster.jobs.policy_wire import RetryPolicyBody, UniquePolicyBody
from ojster.jobs.rate_limit_wire import RateBody, RateLimitBody
from ojster.jobs.retry import DEFAULT_RETRY, Backoff
from ojster.jobs.uniqueness import OnConflict


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Retry policy of a job.

    Parameters
    ----------
    max_attempts:
        Maximum number of attempts, including the first; 3 by default.
    initial_interval, max_interval:
        First and longest delay, in seconds or as a ``timedelta``. By default the first is 1 second, and the longest
        300 seconds, or the first if that is longer.
    backoff:
        Growth of the delay from one retry to the next: ``exponential`` (the default), ``linear``, ``constant`` or
        ``polynomial``.
    coefficient:
        Base of exponential backoff, exponent of polynomial backoff; 2 by default.
    jitter:
        Whether to multiply each delay by a random factor from 0.5 to 1.5 (up to ``max_interval``), so that jobs that
        failed together are not retried together. The default is true.
    give_up_on:
        Exception classes, with their subclasses, or error types (``auth.*`` for a prefix) that are not retried; none by
        default.
    dead_letter:
        Whether to keep a job that is not retried any more as a dead letter, for inspection and manual retry. If false,
        the job is only discarded. ``None``, the default: the server's ``Settings.on_exhaustion``, which is ``discard``.

    Examples
    --------
    >>> from ojster import App, Retry
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("email.send", retry=Retry(max_attempts=8, initial_interval=10, give_up_on=(ValueError,)))
    ... def send(to: str) -> None: ...
    >>> send.enqueue("ada@example.com").job.max_attempts
    8
    >>> app.close()

    Spec: ojs-retry
    """

    max_attempts: int = DEFAULT_RETRY.max_attempts
    initial_interval: Seconds = DEFAULT_RETRY.initial_interval / SECOND
    max_interval: Seconds | None = None
    backoff: Backoff = DEFAULT_RETRY.backoff
    coefficient: float = DEFAULT_RETRY.backoff_coefficient
    jitter: bool = DEFAULT_RETRY.jitter
    give_up_on: Sequence[type[BaseException] | str] = ()
    dead_letter: bool | None = None

    def to_wire(self) -> dict[str, Json]:
        """Return the policy as the ``retry`` object of a job, without what the specification has as the default.

        Returns
        -------
        dict
            The JSON members of the object.
        """
        members = self._complete()
        chosen = {name: value for name, value in members.items() if value != _DEFAULT_RETRY.get(name)}
        return {"max_attempts": self.max_attempts} | chosen

    def _complete(self) -> dict[str, Json]:
        longest = self.max_interval
        if longest is None:
            longest = max(to_seconds(self.initial_interval), DEFAULT_RETRY.max_interval / SECOND)
        return _members(
            RetryPolicyBody(
                max_attempts=self.max_attempts,
                initial_interval=to_duration(self.initial_interval),
                backoff_coefficient=self.coefficient,
                max_interval=to_duration(longest),
                jitter=self.jitter,
                non_retryable_errors=tuple(
                    entry if isinstance(entry, str) else class_name(entry) for entry in self.give_up_on
                ),
                on_exhaustion=UNSET if self.dead_letter is None else "dead_letter" if self.dead_letter else "discard",
                backoff_strategy=self.backoff,
            )
        )


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """Uniqueness policy: which jobs are duplicates, and how to handle a duplicate.

    Parameters
    ----------
    keys:
        Parts of the job that must be equal: ``queue``, ``args``, ``meta``; by default ``args``. The type must always be
        equal.
    args_keys, meta_keys:
        Members of ``args`` and ``meta`` that must be equal. ``None``, the default, compares all of ``args``; ``meta``
        requires ``meta_keys``.
    period:
        Maximum age of the existing job, in seconds or as a ``timedelta``. ``None``, the default: any age.
    states:
        States in which an existing job counts; by default all unfinished states.
    on_conflict:
        ``reject``, the default, raises ``Duplicate``; ``ignore`` returns the existing job; ``replace`` cancels the
        existing job; ``replace_except_schedule`` cancels it and keeps its scheduled time.

    Raises
    ------
    ValueError
        ``args_keys`` or ``meta_keys`` has names, but ``keys`` lacks ``args`` or ``meta``.

    Examples
    --------
    >>> from ojster import App, Unique
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("report.build", unique=Unique(on_conflict="ignore"))
    ... def build(month: str) -> None: ...
    >>> build.enqueue("2026-01").id == build.enqueue("2026-01").id
    True
    >>> app.close()

    Spec: ojs-unique-jobs
    """

    keys: Sequence[Literal["queue", "args", "meta"]] = ("args",)
    args_keys: Sequence[str] | None = None
    meta_keys: Sequence[str] | None = None
    period: Seconds | None = None
    states: Sequence[str] | None = None
    on_conflict: OnConflict = "reject"

    def __post_init__(self) -> None:
        """Refuse names that have no effect."""
        for part, names in (("args", self.args_keys), ("meta", self.meta_keys)):
            if names and part not in self.keys:
                raise ValueError(f"'{part}_keys' needs {part!r} in 'keys', which is {list(self.keys)}. Add {part!r}.")

    def to_wire(self) -> dict[str, Json]:
        """Return the policy as the ``unique`` object of a job.

        Returns
        -------
        dict
            The JSON members of the object.
        """
        return _members(
            UniquePolicyBody(
                keys=["type", *self.keys],
                args_keys=self.args_keys,
                meta_keys=self.meta_keys,
                period=None if self.period is None else to_duration(self.period),
                states=self.states,
                on_conflict=self.on_conflict,
            )
        )


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Concurrency and rate limits for jobs that share a key.

    The limits apply to all jobs with the key together, across types, queues and workers. If jobs declare different
    limits, those of the last job pushed apply.

    Parameters
    ----------
    key:
        Name of the protected resource, such as ``stripe-api`` or ``tenant:acme``.
    concurrency:
        Maximum number of jobs that run at the same time; 0 lets none start. ``None``, the default: unlimited.
    rate:
        Maximum number of starts in a window: ``(100, 60)`` allows 100 starts in 60 seconds. The window begins with its
        first start. ``None``, the default: unlimited.
    throttle:
        Maximum number of starts in a period, evenly spaced: ``(10, 1)`` allows 10 starts per second. ``None``, the
        default: unlimited.
    on_limit:
        ``wait``, the default, keeps the job in its queue until it may start; ``reschedule`` makes it a scheduled job;
        ``drop`` discards it.

    Examples
    --------
    >>> from ojster import App, RateLimit
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("card.charge", rate_limit=RateLimit(key="stripe-api", concurrency=5, rate=(100, 60)))
    ... def charge(order: int) -> None: ...
    >>> charge.enqueue(42).state
    'available'
    >>> app.close()

    Spec: ojs-rate-limiting
    """

    key: str
    concurrency: int | None = None
    rate: tuple[int, Seconds] | None = None
    throttle: tuple[int, Seconds] | None = None
    on_limit: OnLimit = "wait"

    def to_wire(self) -> dict[str, Json]:
        """Return the policy as the ``rate_limit`` object of a job.

        Returns
        -------
        dict
            The JSON members of the object.
        """
        return _members(
            RateLimitBody(self.key, self.concurrency, _rate(self.rate), _rate(self.throttle), on_limit=self.on_limit)
        )


def _rate(rate: tuple[int, Seconds] | None) -> RateBody | None:
    return None if rate is None else RateBody(rate[0], to_duration(rate[1]))


def _members(body: msgspec.Struct) -> dict[str, Json]:
    members: dict[str, Json] = msgspec.to_builtins(body)
    return members


_DEFAULT_RETRY: Final = Retry()._complete()


class JobOptionsDict(TypedDict, total=False):
    """The options of a job, as keyword arguments. See ``JobOptions``."""

    queue: str | None
    priority: int | None
    timeout: Seconds | None
    grace_period: Seconds | None
    total_timeout: Seconds | None
    retry: Retry | int | Mapping[str, Any] | None
    unique: Unique | Mapping[str, Any] | None
    rate_limit: RateLimit | Mapping[str, Any] | None
    delay: Seconds | None
    scheduled_at: datetime | None
    expires_in: Seconds | None
    expires_at: datetime | None
    tags: Sequence[str] | None
    pending: bool | None
    meta: Mapping[str, Any] | None
    version: str | None
    resources: Mapping[str, Any] | None
    requires: Mapping[str, Any] | None
    agent: Mapping[str, Any] | None
    reactions: Mapping[str, Sequence[Mapping[str, Any]]] | None
    expiration_delay: Seconds | Literal["never"] | None
    heartbeat_timeout: Seconds | None
    result_ttl: Seconds | Literal["never"] | None
    result_size_limit: int | None


_EXCLUSIVE: Final = (("delay", "scheduled_at"), ("expires_in", "expires_at"))
"""Options that say the same in two ways."""


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a job; ``None``, the default, leaves an option to the server.
    ``App.job`` and ``JobType.using`` take the same options as keyword arguments.

    Parameters
    ----------
    queue:
        Queue of the job; the server's default is ``default``.
    priority:
        Priority, from -100 to 100; jobs with a higher priority run first. The server's default is 0.
    timeout, grace_period:
        Maximum run time of an attempt, in seconds or as a ``timedelta``; and the time that its handler then has to
        clean up, and may still return a result, in whole seconds; 0 by default.
    total_timeout:
        Maximum time from the creation of the job to its completion, with all attempts and the waits between them.
    retry:
        Retry policy: a ``Retry``, a maximum number of attempts, or a policy of ojs-retry.
    unique:
        Uniqueness policy: a ``Unique``, or a policy of ojs-unique-jobs.
    rate_limit:
        Rate limit: a ``RateLimit``, or a policy of ojs-rate-limiting.
    delay, scheduled_at:
        Delay before the job may start, in seconds or as a ``timedelta``; or a datetime with a time zone.
    expires_in, expires_at:
        When no attempt starts any more, in seconds from now or as a ``timedelta``; or a datetime with a time zone.
    tags:
        Labels by which jobs can be found.
    pending:
        Whether the job waits in the state ``pending`` until it is activated.
    meta:
        Metadata, a JSON object.
    version:
        Version of the arguments, such as ``2.0``.
    resources:
        Requirements as in ojs-ml-resources, without the prefix ``ext_ml_``: ``{"memory_gb": 16}``.
    requires:
        Requirements by name: ``{"region": "eu", "memory_mb": 4096}``; numbers are minimums.
    agent:
        Model use as in ojs-ai-agents, without the prefix ``ext_agent_``: ``{"model": "…", "token_budget": 8000}``.
    reactions:
        Actions by event, made with the functions of ``ojster.reactions``.
    expiration_delay:
        Retention of the finished job, in seconds or as a ``timedelta``, or ``never`` to keep it.
    heartbeat_timeout:
        Maximum time without a sign of life of the attempt, in whole seconds. Then it fails with the error ``stalled``.
    result_ttl:
        Retention of the result, in whole seconds; 0 stores none, ``never`` keeps it. The default is that of the job.
    result_size_limit:
        Maximum size of the result as JSON, in bytes. A larger one is refused.

    Examples
    --------
    >>> from ojster import JobOptions
    >>> JobOptions(queue="mail", timeout=30, retry=5).to_wire()
    b'{"queue":"mail","timeout_ms":30000,"retry":{"max_attempts":5}}'
    """

    queue: str | None = None
    priority: int | None = None
    timeout: Seconds | None = None
    grace_period: Seconds | None = None
    total_timeout: Seconds | None = None
    retry: Retry | int | Mapping[str, Any] | None = None
    unique: Unique | Mapping[str, Any] | None = None
    rate_limit: RateLimit | Mapping[str, Any] | None = None
    delay: Seconds | None = None
    scheduled_at: datetime | None = None
    expires_in: Seconds | None = None
    expires_at: datetime | None = None
    tags: Sequence[str] | None = None
    pending: bool | None = None
    meta: Mapping[str, Any] | None = None
    version: str | None = None
    resources: Mapping[str, Any] | None = None
    requires: Mapping[str, Any] | None = None
    agent: Mapping[str, Any] | None = None
    reactions: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    expiration_delay: Seconds | Literal["never"] | None = None
    heartbeat_timeout: Seconds | None = None
    result_ttl: Seconds | Literal["never"] | None = None
    result_size_limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse options that exclude each other."""
        for first, second in _EXCLUSIVE:
            refuse_both({first: getattr(self, first), second: getattr(self, second)})

    def beside(self) -> Members:
        """Return the members of a job that are siblings of its ``options``.

        Returns
        -------
        dict
            The members, as JSON, by name.
        """
        members: dict[str, Any] = {} if self.version is None else {"version": self.version}
        members |= {ml_resources.PREFIX + name: value for name, value in (self.resources or {}).items()}
        members |= {attributes.PREFIX + name: value for name, value in (self.agent or {}).items()}
        if self.requires is not None:
            members[ml_resources.REQUIRES] = self.requires
        if self.reactions is not None:
            members[REACTIONS] = self.reactions
        if self.expiration_delay is not None:
            members[EXPIRATION] = to_expiration_delay(self.expiration_delay)
        return {name: msgspec.Raw(to_json(value)) for name, value in members.items()}

    def to_wire(self) -> bytes:
        """Return the ``options`` object of a job.

        Returns
        -------
        bytes
            The object, as JSON.

        Raises
        ------
        InvalidRequest
            ``scheduled_at`` or ``expires_at`` has no time zone.
        TypeError, ValueError
            A policy, a duration or a number is none.
        """
        scheduled_at = None if self.delay is None else "+" + to_duration(self.delay)
        if self.scheduled_at is not None:
            scheduled_at = to_timestamp(self.scheduled_at, "scheduled_at")
        expires_at = None if self.expires_in is None else "+" + to_duration(self.expires_in)
        if self.expires_at is not None:
            expires_at = to_timestamp(self.expires_at, "expires_at")
        members = _members(
            OptionsBody(
                queue=self.queue,
                priority=self.priority,
                timeout_ms=None if self.timeout is None else to_millis(self.timeout),
                total_timeout_ms=None if self.total_timeout is None else to_millis(self.total_timeout),
                scheduled_at=scheduled_at,
                expires_at=expires_at,
                tags=self.tags,
                pending=self.pending,
                grace_period=None if self.grace_period is None else to_whole_seconds(self.grace_period),
                heartbeat_timeout=None if self.heartbeat_timeout is None else to_whole_seconds(self.heartbeat_timeout),
                result_ttl=None if self.result_ttl is None else to_whole_seconds(self.result_ttl),
                result_size_limit=self.result_size_limit,
            )
        )
        retry = {"max_attempts": self.retry} if isinstance(self.retry, int) else self.retry
        for name, policy in (("retry", retry), ("unique", self.unique), ("rate_limit", self.rate_limit)):
            if policy is not None:
                members[name] = policy_to_wire(name, policy)
        return _finite(members)


def with_changes(options: JobOptions, changes: Mapping[str, Any]) -> JobOptions:
    """Return options with changes: a new ``delay`` also replaces a time at which the job was to start.

    Raises
    ------
    TypeError
        An option does not exist.
    """
    check_options(changes, JobOptions.__struct_fields__, other_queues.OPTIONS)
    replaced: dict[str, Any] = {}
    for pair in _EXCLUSIVE:
        if any(changes.get(name) is not None for name in pair):
            replaced |= dict.fromkeys(pair)
    return msgspec.structs.replace(options, **replaced | dict(changes))


def request_of(type: str, args: Sequence[Any], options: JobOptions = JobOptions()) -> Members:  # noqa: B008
    """Return the enqueue request of a job without a local handler."""
    request: dict[str, Any] = {"id": new_id(), "type": type, "args": list(args), "meta": dict(options.meta or {})}
    members = {name: msgspec.Raw(to_json(value)) for name, value in request.items()}
    return members | {"options": msgspec.Raw(options.to_wire())} | options.beside()


_POLICIES: Final[dict[str, type[Retry | Unique | RateLimit]]] = {
    "retry": Retry,
    "unique": Unique,
    "rate_limit": RateLimit,
}


def policy_to_wire(name: str, policy: Retry | Unique | RateLimit | Mapping[str, Json]) -> dict[str, Json]:
    """Return the policy of an option as requests have it.

    Raises
    ------
    TypeError
        It is neither a policy of this option nor a mapping.
    """
    kind = _POLICIES[name]
    if isinstance(policy, Mapping):
        return dict(policy)
    if not isinstance(policy, kind):
        example = {"unique": "Unique()", "retry": "Retry(max_attempts=5)"}.get(
            name, 'RateLimit(key="…", concurrency=5)'
        )
        raise TypeError(
            f"The option {name!r} is {policy!r}, but must be a {kind.__name__} or a policy of the specification. "
            f"Write {name}={example}, or leave it out for none."
        )
    return policy.to_wire()


def _finite(members: dict[str, Any]) -> bytes:
    """Return options as JSON, which would read NaN and infinity as ``null``, and thus as the default."""
    try:
        return to_json(members)
    except TypeError as error:
        numbers = re.findall(r"'(\w+)': (-?(?:nan|inf))", repr(members))
        shown = ", ".join(f"{name}={value}" for name, value in numbers)
        raise ValueError(f"The options cannot be stored as JSON: {error} ({shown}). Write a finite number.") from None

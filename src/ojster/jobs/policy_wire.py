"""The JSON of the policies of a job: retry and uniqueness.

Spec: ojs-retry, ojs-unique-jobs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ojster.core.durations import LONGEST_MILLIS, MILLISECOND, format_duration, parse_any_duration
from ojster.core.errors import InvalidPolicy, InvalidRequest
from ojster.core.parsing import misspellings
from ojster.core.states import STATE_NAMES, UNFINISHED, JobState
from ojster.core.wire import Count, Milliseconds
from ojster.jobs.retry import DEFAULT_RETRY, Backoff, Exhaustion, RetryPolicy
from ojster.jobs.uniqueness import OnConflict, UniquePolicy

MAX_ATTEMPTS_LIMIT: Final = 1_000_000

_BACKOFFS: Final[dict[str, Backoff]] = {
    "exponential": "exponential",
    "linear": "linear",
    "constant": "constant",
    "none": "constant",
    "fixed": "constant",
    "polynomial": "polynomial",
}


class RetryPolicyBody(Struct):
    """Maximum attempts and backoff of a job, and what happens when retries are exhausted.

    Spec: ojs-retry 2
    """

    max_attempts: Count = DEFAULT_RETRY.max_attempts
    initial_interval: str = format_duration(DEFAULT_RETRY.initial_interval)
    backoff_coefficient: Annotated[float, Meta(ge=1)] = DEFAULT_RETRY.backoff_coefficient
    max_interval: str = format_duration(DEFAULT_RETRY.max_interval)
    jitter: bool = DEFAULT_RETRY.jitter
    non_retryable_errors: tuple[str, ...] = DEFAULT_RETRY.non_retryable_errors
    on_exhaustion: Exhaustion | UnsetType = UNSET
    backoff_strategy: Backoff = DEFAULT_RETRY.backoff


def parse_retry_policy(written: Any) -> RetryPolicy:
    """Return the policy in a job's ``retry`` object, completed with the defaults.

    Intervals are durations of ISO 8601 (``PT1S``) or Go (``1s``), or in milliseconds as ``initial_interval_ms`` and
    ``max_interval_ms``; the backoff is ``backoff_strategy``, ``strategy`` or ``backoff``. Unknown attributes are
    ignored.

    Raises
    ------
    InvalidPolicy
        The policy breaks a rule of the specification.

    Spec: ojs-retry 11.1
    """
    if not isinstance(written, dict):
        raise InvalidPolicy("retry must be an object.", field="retry")
    policy = RetryPolicy(**_limits(written), **_backoff(written))
    if policy.initial_interval <= 0:
        shown = written.get("initial_interval", written.get("initial_interval_ms"))
        raise _broken("initial_interval", "must be longer than zero", shown)
    if policy.max_interval < policy.initial_interval:
        raise _broken(
            "max_interval",
            "must not be shorter than initial_interval (by default it is 'PT5M')",
            written.get("max_interval", written.get("max_interval_ms")),
        )
    return policy


def show_retry_policy(policy: RetryPolicy) -> RetryPolicyBody:
    """Return a policy as JSON members, complete, with its intervals as ISO 8601 durations."""
    return RetryPolicyBody(
        max_attempts=policy.max_attempts,
        initial_interval=format_duration(policy.initial_interval),
        backoff_coefficient=policy.backoff_coefficient,
        max_interval=format_duration(policy.max_interval),
        jitter=policy.jitter,
        non_retryable_errors=policy.non_retryable_errors,
        on_exhaustion=UNSET if policy.on_exhaustion is None else policy.on_exhaustion,
        backoff_strategy=policy.backoff,
    )


def _limits(policy: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that say how often and after which errors a job is retried."""
    fields: dict[str, Any] = {}
    if (attempts := policy.get("max_attempts")) is not None:
        if type(attempts) is not int or not 0 <= attempts <= MAX_ATTEMPTS_LIMIT:
            raise _broken("max_attempts", f"must be an integer from 0 to {MAX_ATTEMPTS_LIMIT}", attempts)
        fields["max_attempts"] = attempts
    if (errors := policy.get("non_retryable_errors")) is not None:
        if not isinstance(errors, list) or not all(isinstance(entry, str) and entry for entry in errors):
            raise _broken("non_retryable_errors", "must be an array of non-empty strings", errors)
        fields["non_retryable_errors"] = tuple(errors)
    if (exhaustion := policy.get("on_exhaustion")) is not None:
        if exhaustion not in ("discard", "dead_letter"):
            raise _broken("on_exhaustion", "must be 'discard' or 'dead_letter'", exhaustion)
        fields["on_exhaustion"] = exhaustion
    return fields


def _backoff(policy: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that say how long a job waits before it is retried."""
    fields: dict[str, Any] = {}
    if (coefficient := policy.get("backoff_coefficient")) is not None:
        if isinstance(coefficient, bool) or not isinstance(coefficient, int | float) or not 1 <= coefficient <= 1e6:
            raise _broken("backoff_coefficient", "must be a number from 1.0 to 1000000", coefficient)
        fields["backoff_coefficient"] = float(coefficient)
    if (jitter := policy.get("jitter")) is not None:
        if not isinstance(jitter, bool):
            raise _broken("jitter", "must be true or false", jitter)
        fields["jitter"] = jitter
    for name in ("backoff_strategy", "strategy", "backoff"):
        if (backoff := policy.get(name)) is not None:
            if not isinstance(backoff, str) or backoff not in _BACKOFFS:
                raise _broken(name, f"must be one of {', '.join(_BACKOFFS)}", backoff)
            fields["backoff"] = _BACKOFFS[backoff]
            break
    for name in ("initial_interval", "max_interval"):
        if (interval := _interval(policy, name)) is not None:
            fields[name] = interval
    return fields


def _interval(policy: dict[str, Any], name: str) -> int | None:
    text, millis = policy.get(name), policy.get(name + "_ms")
    if text is not None:
        if not isinstance(text, str):
            raise _broken(name, "must be an ISO 8601 duration such as 'PT30S'", text)
        try:
            return parse_any_duration(text)
        except InvalidRequest as error:
            raise InvalidPolicy(f"retry.{name}: {error.message}", field=f"retry.{name}") from None
    if millis is not None:
        if type(millis) is not int or not 0 <= millis <= LONGEST_MILLIS:
            raise _broken(name + "_ms", "must be a number of milliseconds", millis)
        return millis * MILLISECOND
    return None


def _broken(field: str, rule: str, value: object) -> InvalidPolicy:
    return InvalidPolicy(f"retry.{field} {rule}, not {value!r:.80}.", field=f"retry.{field}")


_CONFLICTS: Final[dict[str, OnConflict]] = {
    "reject": "reject",
    "replace": "replace",
    "replace_except_schedule": "replace_except_schedule",
    "ignore": "ignore",
    "use_existing": "ignore",
}
_DIMENSIONS: Final = ("type", "queue", "args", "meta")


class UniquePolicyBody(Struct, omit_defaults=True):
    """Which jobs count as duplicates, and how a conflict is resolved.

    Spec: ojs-unique-jobs 2
    """

    keys: Sequence[Literal["type", "queue", "args", "meta"]] | None = None
    args_keys: Sequence[str] | None = None
    meta_keys: Sequence[str] | None = None
    period: str | None = None
    period_ms: Milliseconds | None = None
    states: Sequence[str] | None = None
    on_conflict: OnConflict = "reject"
    key: Annotated[
        Sequence[str] | str | None, Meta(description="Members of `keys`, or of `args_keys`, or one, as SDKs send it.")
    ] = None
    within: Annotated[str | None, Meta(description="The same as period.")] = None


_UNIQUE_MEMBERS: Final = frozenset(UniquePolicyBody.__struct_fields__)

_RETRY_MEMBERS: Final = frozenset(RetryPolicyBody.__struct_fields__) | {
    "initial_interval_ms",
    "max_interval_ms",
    "strategy",
    "backoff",
}


def policy_warnings(options: Mapping[str, Any]) -> list[str]:
    """Return warnings about unknown members of the policies among the options of a job, which are kept all the same.

    Spec: ojs-json-format 14.3
    """
    warnings = []
    unique, retry = options.get("unique"), options.get("retry")
    if isinstance(unique, dict):
        warnings += [
            f"unique.{name[:60]} is unknown and has no effect; unique can have {', '.join(sorted(_UNIQUE_MEMBERS))}."
            for name in sorted(unique.keys() - _UNIQUE_MEMBERS)
        ]
        warnings += _idle_members(unique)
    if isinstance(retry, dict):
        warnings += misspellings(retry.keys(), _RETRY_MEMBERS, "The member of retry")
    return warnings


def _idle_members(unique: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each member that has no effect because of another, or that switches the policy off."""
    keys = unique.get("keys") or ("type",)
    for name, dimension in (("args_keys", "args"), ("meta_keys", "meta")):
        if unique.get(name) and dimension not in keys and not unique.get("key"):
            yield f"unique.{name} has no effect, because unique.keys does not have {dimension!r}. Add it."
    if unique.get("states") == []:
        yield "unique has no effect, because unique.states is empty. Leave it out for all states of unfinished jobs."
    if _period(unique) == 0:
        yield "unique has no effect, because its period is 0. Leave it out for jobs of any age."


def parse_unique_policy(policy: Any) -> UniquePolicy:
    """Return the policy in a job's ``unique`` object.

    Raises
    ------
    InvalidRequest
        The policy breaks a rule of the specification.

    Spec: ojs-unique-jobs 2.2
    """
    if not isinstance(policy, dict):
        raise InvalidRequest("unique must be an object.", field="unique")
    named = (key,) if isinstance(key := policy.get("key"), str) else _strings(policy, "key") or ()
    arguments = tuple(name for name in named if name not in _DIMENSIONS)
    keys = _strings(policy, "keys") or tuple(name for name in named if name in _DIMENSIONS) or ("type",)
    if arguments and "args" not in keys:
        keys = (*keys, "args")
    for key in keys:
        if key not in _DIMENSIONS:
            raise InvalidRequest(f"unique.keys: {key!r} is not one of {', '.join(_DIMENSIONS)}.", field="unique.keys")
    meta_keys = _strings(policy, "meta_keys") or ()
    if "meta" in keys and not meta_keys:
        raise InvalidRequest("unique.meta_keys must name keys when 'meta' is in unique.keys.", field="unique.meta_keys")
    states = _strings(policy, "states")
    for state in states or ():
        if state not in STATE_NAMES:
            raise InvalidRequest(
                f"unique.states: {state!r} is not one of {', '.join(JobState)}.", field="unique.states"
            )
    on_conflict = "reject" if policy.get("on_conflict") is None else policy["on_conflict"]
    if not isinstance(on_conflict, str) or on_conflict not in _CONFLICTS:
        raise InvalidRequest(
            f"unique.on_conflict must be one of {', '.join(_CONFLICTS)}, not {on_conflict!r:.80}.",
            field="unique.on_conflict",
        )
    return UniquePolicy(
        keys=keys,
        args_keys=_strings(policy, "args_keys") or arguments or None,
        meta_keys=meta_keys,
        period=_period(policy),
        states=UNFINISHED if states is None else frozenset(JobState(state) for state in states),
        on_conflict=_CONFLICTS[on_conflict],
    )


def _period(policy: Mapping[str, Any]) -> int | None:
    millis = policy.get("period_ms")
    if millis is not None and (type(millis) is not int or not 0 <= millis <= LONGEST_MILLIS):
        raise InvalidRequest("unique.period_ms must be a number of milliseconds.", field="unique.period_ms")
    for name in ("period", "within"):
        if (text := policy.get(name)) is not None:
            try:
                return parse_any_duration(text if isinstance(text, str) else "")
            except InvalidRequest:
                raise InvalidRequest(
                    f"unique.{name} must be an ISO 8601 duration such as 'PT1H', not {text!r:.40}.",
                    field=f"unique.{name}",
                ) from None
    return millis * MILLISECOND if millis else None


def _strings(policy: dict[str, Any], name: str) -> tuple[str, ...] | None:
    value = policy.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise InvalidRequest(f"unique.{name} must be an array of strings.", field=f"unique.{name}")
    return tuple(value)

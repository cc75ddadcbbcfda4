"""Retry policies: whether and when a failed job gets another attempt.

Spec: ojs-retry
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from ojster.agents.attributes import FINAL_ERRORS
from ojster.core.durations import MILLISECOND, MINUTE, SECOND, parse_duration
from ojster.core.errors import InvalidPolicy, InvalidRequest

Backoff = Literal["exponential", "linear", "constant", "polynomial"]

_BACKOFFS: Final[dict[str, Backoff]] = {
    "exponential": "exponential",
    "linear": "linear",
    "constant": "constant",
    "none": "constant",
    "fixed": "constant",
    "polynomial": "polynomial",
}

MAX_ATTEMPTS_LIMIT: Final = 1_000_000


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and after what delays a failed job is retried. The defaults are those of the specification.

    ``max_attempts`` includes the first attempt; 0 and 1 both mean that a failure is final. Intervals are in
    microseconds.

    Spec: ojs-retry 8
    """

    max_attempts: int = 3
    initial_interval: int = SECOND
    backoff_coefficient: float = 2.0
    max_interval: int = 5 * MINUTE
    jitter: bool = True
    non_retryable_errors: tuple[str, ...] = ()
    on_exhaustion: Literal["discard", "dead_letter"] = "discard"
    backoff: Backoff = "exponential"

    def delay(self, retry: int, random: float) -> int:
        """Return the delay before a retry, in microseconds.

        Parameters
        ----------
        retry:
            1 for the first retry, which is attempt 2.
        random:
            Random number in [0, 1) for the jitter; ignored without jitter.

        Spec: ojs-retry 3, 5
        """
        try:
            match self.backoff:
                case "exponential":
                    raw = self.initial_interval * self.backoff_coefficient ** (retry - 1)
                case "polynomial":
                    raw = self.initial_interval * retry**self.backoff_coefficient
                case "linear":
                    raw = float(self.initial_interval * retry)
                case "constant":
                    raw = float(self.initial_interval)
        except OverflowError:
            raw = float(self.max_interval)
        delay = min(raw, self.max_interval)
        if self.jitter:
            delay = min(delay * (0.5 + random), self.max_interval)
        return int(delay)

    def forbids(self, error_type: str) -> bool:
        """Tell whether ``non_retryable_errors`` names this error type, in full or by a prefix such as ``auth.*``."""
        return any(
            error_type.startswith(entry[:-1]) if entry.endswith(".*") else error_type == entry
            for entry in self.non_retryable_errors
        )


DEFAULT_RETRY: Final = RetryPolicy()


class Verdict(StrEnum):
    """What happens to a failed job."""

    RETRY = "retry"
    DISCARD = "discard"
    DEAD_LETTER = "dead_letter"


HANDLER_CODES: Final = {
    "DISCARD": Verdict.DISCARD,
    "FAIL": Verdict.DISCARD,
    "DEAD_LETTER": Verdict.DEAD_LETTER,
}
"""Codes by which the handler overrides the policy; ``RETRY`` leaves the decision to the policy.

Spec: ojs-retry 7
"""


def judge(
    policy: RetryPolicy, *, attempt: int, max_attempts: int, error_type: str, code: str, retryable: bool | None
) -> Verdict:
    """Decide what happens to a job after its attempt number ``attempt`` failed.

    Parameters
    ----------
    code:
        The handler's code: one of ``HANDLER_CODES``, ``RETRY``, or any other for no decision.
    retryable:
        The worker's judgement of the error; ``False`` makes the failure final, unless ``code`` is ``RETRY``.
    """
    if code in HANDLER_CODES:
        return HANDLER_CODES[code]
    final = (retryable is False and code != "RETRY") or not FINAL_ERRORS.isdisjoint((code, error_type))
    if attempt < max_attempts and not final and not policy.forbids(error_type):
        return Verdict.RETRY
    return Verdict.DEAD_LETTER if policy.on_exhaustion == "dead_letter" else Verdict.DISCARD


def parse_retry_policy(given: Any) -> RetryPolicy:
    """Return the policy in a job's ``retry`` object, completed with the defaults.

    Intervals may also be given in milliseconds as ``initial_interval_ms`` and ``max_interval_ms``, and the backoff as
    ``backoff_strategy``, ``strategy`` or ``backoff``. Unknown attributes are ignored.

    Raises
    ------
    InvalidPolicy
        The policy breaks a rule of the specification.

    Spec: ojs-retry 11.1
    """
    if not isinstance(given, dict):
        raise InvalidPolicy("retry must be an object.", field="retry")
    policy = RetryPolicy(**_limits(given), **_backoff(given))
    if policy.initial_interval <= 0:
        shown = given.get("initial_interval", given.get("initial_interval_ms"))
        raise _broken("initial_interval", "must be longer than zero", shown)
    if policy.max_interval < policy.initial_interval:
        raise _broken(
            "max_interval",
            "must not be shorter than initial_interval (by default it is 'PT5M')",
            given.get("max_interval", given.get("max_interval_ms")),
        )
    return policy


def _limits(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that say how often and after which errors a job is retried."""
    fields: dict[str, Any] = {}
    if (attempts := given.get("max_attempts")) is not None:
        if type(attempts) is not int or not 0 <= attempts <= MAX_ATTEMPTS_LIMIT:
            raise _broken("max_attempts", f"must be an integer from 0 to {MAX_ATTEMPTS_LIMIT}", attempts)
        fields["max_attempts"] = attempts
    if (errors := given.get("non_retryable_errors")) is not None:
        if not isinstance(errors, list) or not all(isinstance(entry, str) and entry for entry in errors):
            raise _broken("non_retryable_errors", "must be an array of non-empty strings", errors)
        fields["non_retryable_errors"] = tuple(errors)
    if (exhaustion := given.get("on_exhaustion")) is not None:
        if exhaustion not in ("discard", "dead_letter"):
            raise _broken("on_exhaustion", "must be 'discard' or 'dead_letter'", exhaustion)
        fields["on_exhaustion"] = exhaustion
    return fields


def _backoff(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that say how long a job waits before it is retried."""
    fields: dict[str, Any] = {}
    if (coefficient := given.get("backoff_coefficient")) is not None:
        if isinstance(coefficient, bool) or not isinstance(coefficient, int | float) or not 1 <= coefficient <= 1e6:
            raise _broken("backoff_coefficient", "must be a number from 1.0 to 1000000", coefficient)
        fields["backoff_coefficient"] = float(coefficient)
    if (jitter := given.get("jitter")) is not None:
        if not isinstance(jitter, bool):
            raise _broken("jitter", "must be true or false", jitter)
        fields["jitter"] = jitter
    for name in ("backoff_strategy", "strategy", "backoff"):
        if (backoff := given.get(name)) is not None:
            if not isinstance(backoff, str) or backoff not in _BACKOFFS:
                raise _broken(name, f"must be one of {', '.join(_BACKOFFS)}", backoff)
            fields["backoff"] = _BACKOFFS[backoff]
            break
    for name in ("initial_interval", "max_interval"):
        if (interval := _interval(given, name)) is not None:
            fields[name] = interval
    return fields


def _interval(given: dict[str, Any], name: str) -> int | None:
    text, millis = given.get(name), given.get(name + "_ms")
    if text is not None:
        if not isinstance(text, str):
            raise _broken(name, "must be an ISO 8601 duration such as 'PT30S'", text)
        try:
            return parse_duration(text)
        except InvalidRequest as error:
            raise InvalidPolicy(f"retry.{name}: {error.message}", field=f"retry.{name}") from None
    if millis is not None:
        if type(millis) is not int or not 0 <= millis <= 10**12:
            raise _broken(name + "_ms", "must be a number of milliseconds", millis)
        return millis * MILLISECOND
    return None


def _broken(field: str, rule: str, value: object) -> InvalidPolicy:
    return InvalidPolicy(f"retry.{field} {rule}, not {value!r:.80}.", field=f"retry.{field}")

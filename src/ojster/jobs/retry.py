"""Retry policies: whether and when a failed job gets another attempt.

Spec: ojs-retry
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

import msgspec

from ojster.core.durations import MINUTE, SECOND
from ojster.jobs.attributes import readers

Backoff = Literal["exponential", "linear", "constant", "polynomial"]

Exhaustion = Literal["discard", "dead_letter"]


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and after what delays a failed job is retried. The defaults are those of the specification.

    ``max_attempts`` includes the first attempt; 0 and 1 both mean that a failure is final. Intervals are in
    microseconds. ``on_exhaustion``: ``None`` leaves it to the server's settings.

    Spec: ojs-retry 8
    """

    max_attempts: int = 3
    initial_interval: int = SECOND
    backoff_coefficient: float = 2.0
    max_interval: int = 5 * MINUTE
    jitter: bool = True
    non_retryable_errors: tuple[str, ...] = ()
    on_exhaustion: Exhaustion | None = None
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
    EXHAUSTED = "exhausted"
    """It would be retried, but has used all its attempts: see ``exhausted``."""


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
    final = (retryable is False and code != "RETRY") or not readers().final_errors.isdisjoint((code, error_type))
    if final or policy.forbids(error_type):
        return exhausted(policy)
    return Verdict.RETRY if attempt < max_attempts else Verdict.EXHAUSTED


def exhausted(policy: RetryPolicy) -> Verdict:
    """Return what happens to a job that gets no further attempt."""
    return Verdict.DEAD_LETTER if policy.on_exhaustion == "dead_letter" else Verdict.DISCARD

"""The outcome of a job, a step or a workflow, in one word.

``success``; ``skipped``: there was nothing to do; ``failure``: the handler decided it; ``error``: it could not run, or
not to its end, or its handler broke off with an exception that is not a decision, such as a ``KeyError``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Outcome(StrEnum):
    """How a job, a step or a workflow ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


SKIPPED: Final = "skipped"
"""Value in the ``suspension`` column of a completed job that marks it as skipped."""

_SYSTEM_ERRORS: Final = frozenset(
    {
        "timeout",
        "visibility_timeout",
        "stalled",
        "worker_death",
        "wait_timeout",
        "workflow_timeout",
        "expired",
        "enqueue_ttl_expired",
        "total_timeout",
        "rate_limit_dropped",
        "backpressure_dropped",
        "queue_deleted",
        "unresolvable_reference",
        "unreadable",
        "duplicate",
        "dependency_failed",
        "invalid_request",
        "invalid_workflow",
        "payload_too_large",
        "orchestrator_failed",
        "configure_failed",
    }
)
"""Codes and types of errors that do not come from the handler."""

_UNEXPECTED: Final = "handler_error"
"""Code of an exception that does not decide how the job ends. ``Discard`` and others have codes of their own."""

_SYSTEM_ERROR_TYPES: Final = frozenset({"UnknownJobType", "ProcessDied", "NotConfined", "MalformedJob"})

_STATES: Final[dict[str, Outcome]] = {
    "completed": Outcome.SUCCESS,
    "skipped": Outcome.SKIPPED,
    "failed": Outcome.FAILURE,
    "discarded": Outcome.FAILURE,
    "compensated": Outcome.FAILURE,
}


class _Error(msgspec.Struct):
    code: str = ""
    type: str = ""


_read: Final = msgspec.json.Decoder(_Error).decode


def outcome_of(state: str, error: bytes | msgspec.Raw | None = None, *, skipped: bool = False) -> Outcome | None:
    """Return the outcome; ``None`` if it has not ended, or was cancelled.

    Parameters
    ----------
    state:
        The state of a job, a step or a workflow.
    error:
        Its error, as JSON. A failure without an error was never started and counts as ``error``.
    """
    outcome = _STATES.get(state)
    if outcome is Outcome.SUCCESS and skipped:
        return Outcome.SKIPPED
    if outcome is not Outcome.FAILURE:
        return outcome
    return outcome if error is not None and _is_decision(error) else Outcome.ERROR


def is_from_handler(error: bytes | msgspec.Raw) -> bool:
    """Whether the error of a job comes from its handler, which has run to an end."""
    known = _known(error)
    return not (known.code in _SYSTEM_ERRORS or known.type in _SYSTEM_ERRORS or known.type in _SYSTEM_ERROR_TYPES)


def _is_decision(error: bytes | msgspec.Raw) -> bool:
    return is_from_handler(error) and _known(error).code != _UNEXPECTED


def _known(error: bytes | msgspec.Raw) -> _Error:
    try:
        return _read(error)
    except msgspec.DecodeError:
        return _Error()  # written by another program

"""The outcome of a job, a step or a workflow, in one word.

``success``; ``skipped``: there was nothing to do; ``failure``: the handler reported it; ``error``: it could not run, or
not to its end, so the handler did not decide.
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
"""Value in the ``hold`` column of a completed job that marks it as skipped."""

_SYSTEM_ERRORS: Final = frozenset(
    {
        "timeout",
        "visibility_timeout",
        "worker_death",
        "wait_timeout",
        "workflow_timeout",
        "expired",
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
    found = _STATES.get(state)
    if found is Outcome.SUCCESS and skipped:
        return Outcome.SKIPPED
    if found is not Outcome.FAILURE:
        return found
    return Outcome.ERROR if error is None or is_error(error) else found


def is_error(error: bytes | msgspec.Raw) -> bool:
    """Whether the error of a job comes from somewhere other than its handler."""
    try:
        known = _read(error)
    except msgspec.DecodeError:
        return False  # written by another program
    return known.code in _SYSTEM_ERRORS or known.type in _SYSTEM_ERRORS or known.type in _SYSTEM_ERROR_TYPES

"""How has a job, a step or a workflow ended, in one word? (seed 003: results)

``success``; ``skipped``: nothing was to be done; ``failure``: it says so itself; ``error``: it could not be run, or not
to its end, whatever it would have said.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class Outcome(StrEnum):
    """How something has ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


SKIPPED: Final = "skipped"
"""How the row of a completed job says that nothing was to be done: it stands where a hold does otherwise."""

_NOT_ITS_OWN: Final = frozenset(
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
"""The codes, and types, of errors that are not a handler's word."""

_NOT_ITS_OWN_TYPES: Final = frozenset({"UnknownJobType", "ProcessDied", "NotConfined", "MalformedJob"})

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
    """Return how something has ended; ``None``: it has not, or was cancelled.

    Parameters
    ----------
    state:
        Of a job, a step or a workflow.
    error:
        Why it did not succeed, as JSON; one that has none was not even started.
    """
    found = _STATES.get(state)
    if found is Outcome.SUCCESS and skipped:
        return Outcome.SKIPPED
    if found is not Outcome.FAILURE:
        return found
    return Outcome.ERROR if error is None or is_error(error) else found


def is_error(error: bytes | msgspec.Raw) -> bool:
    """Whether the error of a job is not its handler's word."""
    try:
        known = _read(error)
    except msgspec.DecodeError:
        return False  # what others have written
    return known.code in _NOT_ITS_OWN or known.type in _NOT_ITS_OWN or known.type in _NOT_ITS_OWN_TYPES

"""In which states can a job be, and how does it get from one to another? (ojs-core.md section 6)"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """The eight states of a job."""

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    PENDING = "pending"
    ACTIVE = "active"
    COMPLETED = "completed"
    RETRYABLE = "retryable"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"


STATE_NAMES: Final = frozenset(state.value for state in JobState)

FINISHED: Final = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.DISCARDED})
"""The terminal states: nothing leaves them but a dead letter that is retried by hand."""

UNFINISHED: Final = frozenset(JobState) - FINISHED

TRANSITIONS: Final[Mapping[JobState | None, frozenset[JobState]]] = {
    None: frozenset({JobState.SCHEDULED, JobState.AVAILABLE, JobState.PENDING}),
    JobState.SCHEDULED: frozenset({JobState.AVAILABLE, JobState.CANCELLED, JobState.DISCARDED}),
    JobState.AVAILABLE: frozenset({JobState.ACTIVE, JobState.CANCELLED, JobState.DISCARDED}),
    JobState.PENDING: frozenset({JobState.AVAILABLE, JobState.CANCELLED, JobState.DISCARDED}),
    JobState.ACTIVE: frozenset(
        {
            JobState.COMPLETED,
            JobState.RETRYABLE,
            JobState.CANCELLED,
            JobState.DISCARDED,
            JobState.AVAILABLE,
            JobState.SCHEDULED,
        }
    ),
    JobState.RETRYABLE: frozenset({JobState.AVAILABLE, JobState.CANCELLED, JobState.DISCARDED}),
    JobState.COMPLETED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.DISCARDED: frozenset({JobState.AVAILABLE}),
}
"""The closed table: every transition that exists. ``None`` is the state before a push.

Beyond the table of ojs-core.md section 6.3 it has expiry (a waiting job is discarded at its ``expires_at``) and release
(``active`` goes back to ``available``, or to ``scheduled`` with a delay, without spending an attempt).
"""


def allows(before: JobState | None, after: JobState) -> bool:
    """Tell whether a job may go from ``before`` (``None``: it does not exist yet) to ``after``."""
    return after in TRANSITIONS[before]

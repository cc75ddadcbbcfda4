"""The states of a job, and the transitions between them.

Spec: ojs-core 6
"""

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
"""The terminal states. The only transition out of them is the manual retry of a dead letter."""

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
"""All allowed transitions. ``None`` is the state before a push.

In addition to the specification, a waiting job can expire (it is discarded at its ``expires_at``), and an active job
can be released to ``available``, or to ``scheduled`` with a delay, without using up an attempt.

Spec: ojs-core 6.3
"""


def allows(before: JobState | None, after: JobState) -> bool:
    """Tell whether a job may change from ``before`` (``None``: before its push) to ``after``."""
    return after in TRANSITIONS[before]

"""The states of a job, and the transitions between them.

Spec: ojs-core 6
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ojster.core.state_machine import StateMachine


class JobState(StrEnum):
    """The eight states of a job.

    Attributes
    ----------
    SCHEDULED:
        The job waits for its scheduled time.
    AVAILABLE:
        The job waits in its queue for a worker.
    PENDING:
        The job waits for an outside event: it was enqueued with ``pending``, or it is suspended.
    ACTIVE:
        A worker runs the job.
    COMPLETED:
        The job succeeded. The state is final.
    RETRYABLE:
        An attempt failed, and the job waits for the next one.
    CANCELLED:
        The job was cancelled. The state is final.
    DISCARDED:
        The job failed without a further retry, or expired. The state is final, except for a manual retry.

    Examples
    --------
    >>> from ojster import JobState
    >>> JobState("active") is JobState.ACTIVE
    True
    >>> JobState.ACTIVE == "active"
    True
    """

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

JOB_STATES: Final = StateMachine(
    "job",
    {
        None: frozenset({JobState.SCHEDULED, JobState.AVAILABLE, JobState.PENDING}),
        JobState.SCHEDULED: frozenset(
            {JobState.AVAILABLE, JobState.PENDING, JobState.CANCELLED, JobState.DISCARDED},
        ),
        JobState.AVAILABLE: frozenset(
            {
                JobState.ACTIVE,
                JobState.SCHEDULED,
                JobState.PENDING,
                JobState.RETRYABLE,
                JobState.COMPLETED,
                JobState.CANCELLED,
                JobState.DISCARDED,
            }
        ),
        JobState.PENDING: frozenset(
            {
                JobState.AVAILABLE,
                JobState.PENDING,
                JobState.RETRYABLE,
                JobState.COMPLETED,
                JobState.CANCELLED,
                JobState.DISCARDED,
            }
        ),
        JobState.ACTIVE: frozenset(
            {
                JobState.AVAILABLE,
                JobState.SCHEDULED,
                JobState.PENDING,
                JobState.RETRYABLE,
                JobState.COMPLETED,
                JobState.CANCELLED,
                JobState.DISCARDED,
            }
        ),
        JobState.RETRYABLE: frozenset(
            {JobState.AVAILABLE, JobState.PENDING, JobState.CANCELLED, JobState.DISCARDED},
        ),
        JobState.COMPLETED: frozenset(),
        JobState.CANCELLED: frozenset({JobState.AVAILABLE}),
        JobState.DISCARDED: frozenset({JobState.AVAILABLE}),
    },
)
"""All transitions of jobs; ``Transaction.move`` refuses any other. ``None`` is the state before a push.

Transitions beyond the specification:

* Suspension: a step of a held workflow becomes ``pending`` from any unfinished state. A handler can suspend its
  job; when that is resumed, it is completed, or runs again.
* Expiry: a waiting job is discarded at its ``expires_at``.
* Release: an active job goes back to ``available``, or to ``scheduled`` with a delay, without using up an attempt.
* A rate limit can delay an available job (``scheduled``) or drop it; a job that need not run is completed at once; one
  with a lookup that finds nothing fails before it starts.
* An operator can run a cancelled or discarded job again.

Spec: ojs-core 6.3
"""

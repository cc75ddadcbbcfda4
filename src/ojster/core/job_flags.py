"""The bits of a job's ``flags`` column: what has to be done when something happens to it."""

from __future__ import annotations

from typing import Final, Literal, get_args

REACTIONS: Final = "event_reactions"
"""The job attribute that holds its reactions."""

JobEvent = Literal["on_creation", "on_unblock", "on_assignment", "on_success", "on_failure", "on_reminder"]
"""What can happen to a job: it is pushed, becomes runnable, starts, succeeds, fails finally, or waits for an answer."""

BITS: Final[dict[JobEvent, int]] = {event: 1 << place for place, event in enumerate(get_args(JobEvent))}
"""The bit of each event in a job's ``flags``: the event has reactions."""

ANY_EVENT: Final = sum(BITS.values())

COLLECTS_BIT: Final = 1 << 17
"""Bit of a job's ``flags``: it puts items into a collection when it succeeds, before its success is visible."""

SKIPS: Final = 1 << 18
"""Bit of a job's ``flags``: it may be skipped when it is about to be handed out."""

LOOKUP_BIT: Final = 1 << 19
"""The arguments of the job hold lookups, which are resolved when it is handed out."""

ENQUEUE_TTL: Final = 1 << 20
"""Bit of a job's ``flags``: its ``expires_at`` holds until its first start."""

TOTAL_TIMEOUT: Final = 1 << 21
"""Bit of a job's ``flags``: its total time is limited, so that a running attempt may be ended, too."""

CANCEL_REQUESTED: Final = 1 << 22
"""Bit of a job's ``flags``: the active job is to be cancelled as soon as its worker gives it up."""

KEPT: Final = 1 << 16
"""The job sets its own retention."""

RESULT_LIMITS: Final = 1 << 24
"""Bit of a job's ``flags``: it says how long its result is kept, or how large it may be."""

RESULT_PRUNED: Final = 1 << 25
"""Bit of a job's ``flags``: its result was deleted, although the job is still there."""

HAS_GRACE: Final = 1 << 26
"""Bit of a job's ``flags``: its handler has time to clean up after the timeout, before the attempt is ended."""

STALLS: Final = 1 << 27
"""Bit of a job's ``flags``: its lease is the time within which it must give a sign of life."""

"""Concurrency limits, rate limits and throttles for jobs that share a key or a queue.

Spec: ojs-rate-limiting 6
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

MAX_LIMIT: Final = 1_000_000_000

OnLimit = Literal["wait", "reschedule", "drop"]


class Rate(msgspec.Struct, frozen=True):
    """A maximum number of starts in a period. ``period`` is in microseconds."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)]
    period: Annotated[int, msgspec.Meta(ge=1)]


class Limits(msgspec.Struct, frozen=True):
    """Limits for the jobs that share a key or a queue; ``None`` means unlimited.

    Parameters
    ----------
    concurrency:
        Maximum number of active jobs.
    rate:
        Maximum number of starts in a window. The window begins with the first start.
    throttle:
        Maximum number of starts in a period, evenly spread.
    """

    concurrency: Annotated[int, msgspec.Meta(ge=0, le=MAX_LIMIT)] | None = None
    rate: Rate | None = None
    throttle: Rate | None = None


class RateLimitPolicy(msgspec.Struct, frozen=True):
    """The limits of all jobs with a key; ``on_limit`` decides what happens to a job over the limit."""

    key: str
    limits: Limits
    on_limit: OnLimit = "wait"

"""Options of jobs: how a job is to be treated."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.rate_limit import RateLimitPolicy
from ojster.jobs.names import DEFAULT_QUEUE
from ojster.jobs.retry import DEFAULT_RETRY, RetryPolicy
from ojster.jobs.uniqueness import UniquePolicy

PRIORITIES: Final = range(-100, 101)


class Moment(msgspec.Struct, frozen=True):
    """A time that a request names: absolute, or relative to when the request is accepted (``+PT5S``)."""

    micros: int
    relative: bool = False

    def at(self, now: int) -> int:
        """Return the time in microseconds since the epoch."""
        return now + self.micros if self.relative else self.micros


class ParsedOptions(msgspec.Struct, frozen=True):
    """The options of a job. Durations are in microseconds; ``None`` selects the server's default.

    ``fragment`` is the part of the options that the envelope shows, as JSON members ready to be spliced in; ``flags``
    has the bits of the options that are read again from the envelope.
    """

    queue: str = DEFAULT_QUEUE
    priority: int = 0
    timeout: int | None = None
    total_timeout: int | None = None
    enqueue_ttl: int | None = None
    lease: int | None = None
    scheduled_at: Moment | None = None
    expires_at: Moment | None = None
    retry: RetryPolicy = DEFAULT_RETRY
    unique: UniquePolicy | None = None
    pending: bool = False
    queue_rate: int | None = None
    limit: RateLimitPolicy | None = None
    flags: int = 0
    warnings: tuple[str, ...] = ()
    fragment: bytes = b""


DEFAULT_OPTIONS: Final = ParsedOptions()

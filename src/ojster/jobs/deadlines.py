"""Deadlines of a whole job: how long it may wait for its first start, and how long it may take in all.

Both are kept in ``expires_at``, the time after which a job no longer starts, and in two bits of ``flags``. The limit
of the wait ends with the first start; the limit of the whole also ends a running attempt.

Spec: ojs-timeouts 5.2, 5.3
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import msgspec

from ojster.core.durations import SECOND, micros_of
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.job_flags import ENQUEUE_TTL, TOTAL_TIMEOUT
from ojster.core.timestamps import parse_timestamp
from ojster.jobs.failure import Failure
from ojster.jobs.options import ParsedOptions
from ojster.storage.transaction import Transaction

TOTAL_TIMEOUT_ERROR: Final = "total_timeout"
"""Error type of a job that has exceeded its total timeout. It is not retried."""


def deadlines_of(options: ParsedOptions, expires_at: int | None, now: int) -> tuple[int | None, int]:
    """Return the time after which a new job no longer starts, and the bits of ``flags`` for its limits.

    Raises
    ------
    InvalidRequest
        The total timeout is shorter than the timeout of one attempt.
    """
    if options.total_timeout is not None and options.total_timeout < (options.timeout or 0):
        raise InvalidRequest(
            f"total_timeout ({options.total_timeout / 1e6:g} s) must not be shorter than timeout "
            f"({(options.timeout or 0) / 1e6:g} s).",
            field="options.total_timeout",
        )
    times, bits = [] if expires_at is None else [expires_at], 0
    for limit, bit in ((options.enqueue_ttl, ENQUEUE_TTL), (options.total_timeout, TOTAL_TIMEOUT)):
        if limit is not None:
            times.append(now + limit)
            bits |= bit
    return min(times, default=None), bits


class _Limits(msgspec.Struct):
    """The limits in the envelope of a job."""

    enqueue_ttl: int | None = None
    enqueue_ttl_ms: int | None = None
    total_timeout: int | None = None
    total_timeout_ms: int | None = None
    expires_at: str | None = None

    @property
    def wait(self) -> int | None:
        return micros_of(self.enqueue_ttl_ms, self.enqueue_ttl)

    @property
    def total(self) -> int | None:
        return micros_of(self.total_timeout_ms, self.total_timeout)


_limits: Final = msgspec.json.Decoder(_Limits).decode


def _limits_of(tx: Transaction, job: Job) -> _Limits:
    tx.load_envelopes([job])
    return _limits(job.envelope)


def total_deadline(tx: Transaction, job: Job) -> int | None:
    """Return when a job exceeds its total timeout; ``None``: it has none."""
    if not job.flags & TOTAL_TIMEOUT:
        return None
    total = _limits_of(tx, job).total
    return None if total is None else job.created_at + total


def end_waits(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Lift the limit of the wait for their first start from jobs that have started."""
    for job in jobs:
        limits = _limits_of(tx, job)
        times = [] if limits.expires_at is None else [parse_timestamp(limits.expires_at)]
        if job.flags & TOTAL_TIMEOUT and limits.total is not None:
            times.append(job.created_at + limits.total)
        job.expires_at = min(times, default=None)
        job.flags &= ~ENQUEUE_TTL
    rows = [(job.expires_at, job.flags, job.seq) for job in jobs]
    tx.execute_many("UPDATE jobs SET expires_at = ?, flags = ? WHERE seq = ?", rows)


def timeout_failure(kind: str, limit: int, elapsed: int) -> Failure:
    """Return the failure of an attempt or a job that took or waited too long.

    Parameters
    ----------
    kind:
        ``execution``, ``total``, ``enqueue_ttl`` or ``stalled``.
    limit, elapsed:
        How long it might take, and how long it took, in microseconds.

    Spec: ojs-timeouts 8
    """
    type, message, retryable = _FAILURES[kind]
    facts = {"timeout_kind": kind, "limit_seconds": _shown(limit), "elapsed_seconds": _shown(elapsed)}
    return Failure(type, message.format(limit / 1e6), code=type, retryable=retryable, facts=facts)


_FAILURES: Final = {
    "execution": ("timeout", "The job ran longer than {:g} seconds.", None),
    "total": (TOTAL_TIMEOUT_ERROR, "The job did not end within {:g} seconds of its creation.", False),
    "enqueue_ttl": ("enqueue_ttl_expired", "The job did not start within {:g} seconds of its creation.", False),
    "stalled": ("stalled", "The worker gave no sign of life of the job for {:g} seconds.", None),
}
"""Error type, message, and whether a retry makes sense (``None``: the policy decides), by ``timeout_kind``."""


def expiry_failure(tx: Transaction, job: Job) -> Failure:
    """Return the failure of a job that was not started, started again or completed before it expired.

    The earliest of its limits is the reason. The time since ``created_at`` does not tell which: the limits count from
    the request, and the job is created a little later.
    """
    limits = _limits_of(tx, job) if job.flags & (ENQUEUE_TTL | TOTAL_TIMEOUT) else _Limits()
    known: list[tuple[int, str]] = []
    if job.flags & TOTAL_TIMEOUT and limits.total is not None:
        known.append((limits.total, "total"))
    if job.flags & ENQUEUE_TTL and limits.wait is not None:
        known.append((limits.wait, "enqueue_ttl"))
    own = None if limits.expires_at is None else parse_timestamp(limits.expires_at)
    if known and (own is None or job.expires_at is None or own > job.expires_at):
        limit, kind = min(known, key=itemgetter(0))
        return timeout_failure(kind, limit, max(tx.now - job.created_at, limit))
    return Failure("expired", "No attempt may start after the job's 'expires_at'.", code="expired", retryable=False)


def _shown(micros: int) -> int | float:
    """Return a duration in seconds: as an integer if it is one."""
    seconds = round(micros / SECOND, 3)
    return int(seconds) if seconds == int(seconds) else seconds

"""Limits as callers see them.

Spec: ojs-rate-limiting 10
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ojster.core.durations import SECOND, format_duration
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START, called, names_of
from ojster.jobs.reason import LimitUse
from ojster.queues.limits import (
    LIMIT_COLUMNS,
    QUEUE_PREFIX,
    Limit,
    count_active,
    find_limit,
    key_of_queue,
    limit_of,
    no_limit,
)
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction


class LimitState(msgspec.Struct, frozen=True):
    """A limit, and its numbers of active and waiting jobs."""

    limit: Limit
    active: int
    waiting: int
    now: int

    def headers(self) -> dict[str, str]:
        """Return the ``X-RateLimit-*`` headers of a response.

        Spec: ojs-rate-limiting 10.4
        """
        allowed = self.limit.in_force(self.now)
        if allowed.rate is not None:
            used = self.limit.used(allowed.rate, self.now)
            resets_at = self.limit.window_started_at + allowed.rate.period if used else self.now
            return _headers(allowed.rate.limit, allowed.rate.limit - used, resets_at)
        if allowed.throttle is not None:
            left = int(self.limit.next_start_at <= self.now)
            return _headers(allowed.throttle.limit, left, max(self.now, self.limit.next_start_at))
        if allowed.concurrency is not None:
            return _headers(allowed.concurrency, allowed.concurrency - self.active, self.now)
        return {}


def _headers(limit: int, remaining: int, resets_at: int) -> dict[str, str]:
    return {
        "X-RateLimit-Limit": str(limit),
        "X-RateLimit-Remaining": str(max(0, remaining)),
        "X-RateLimit-Reset": str(-(-resets_at // SECOND)),
    }


@for_each
def show_limits(tx: Transaction, key: str) -> LimitState | OjsterError:
    """Return the state of each key's limit, or ``NotFound``."""
    limit = find_limit(tx, key)
    return no_limit(key) if limit is None else _state(tx, limit)


def _state(tx: Transaction, limit: Limit) -> LimitState:
    ((waiting,),) = tx.execute(
        "SELECT count(*) FROM jobs WHERE state = 'available' AND finished_at IS NULL AND limit_key = :key",
        {"key": limit.key},
    )
    return LimitState(limit, count_active(tx, limit.key), int(waiting), tx.now)


def uses_of(tx: Transaction, job: Job) -> Iterator[LimitUse]:
    """Yield the limits of a job's key and of its queue that are in force, with their use."""
    for key in dict.fromkeys(filter(None, (job.limit_key, key_of_queue(job.queue)))):
        limit = find_limit(tx, key)
        if limit is None:
            continue
        allowed, shown = limit.in_force(tx.now), None if key.startswith(QUEUE_PREFIX) else called(key)
        if allowed.concurrency is not None:
            yield LimitUse("concurrency", allowed.concurrency, count_active(tx, key), shown)
        if (rate := allowed.rate) is not None:
            yield LimitUse("rate", rate.limit, limit.used(rate, tx.now), shown, format_duration(rate.period))
        if (throttle := allowed.throttle) is not None:
            used = int(limit.next_start_at > tx.now)
            yield LimitUse("throttle", throttle.limit, used, shown, format_duration(throttle.period))


@for_each
def limit_headers(tx: Transaction, key: str) -> dict[str, str]:
    """Return the rate limit headers for each key, empty if it has no limit. Waiting jobs are not counted."""
    limit = find_limit(tx, key)
    return {} if limit is None else LimitState(limit, count_active(tx, key), 0, tx.now).headers()


@for_each
def list_limits(tx: Transaction, page: tuple[str, int, int]) -> tuple[list[LimitState], int]:
    """Return a page of the limits of a tenant's keys, ordered by key, and the total number.

    A page is ``(tenant, limit, offset)``.
    """
    tenant, size, offset = page
    first, end = names_of(tenant) if tenant else (NO_TENANT_START, NO_TENANT_END)
    bounds = {"first": first, "end": end}
    rows = tx.execute(
        f"""
        SELECT {LIMIT_COLUMNS}
        FROM rate_limits
        WHERE key >= :first AND key < :end
        ORDER BY key
        LIMIT :size OFFSET :offset
        """,
        bounds | {"size": size, "offset": offset},
    )
    ((total,),) = tx.execute("SELECT count(*) FROM rate_limits WHERE key >= :first AND key < :end", bounds)
    return ([_state(tx, limit_of(row)) for row in rows], int(total))

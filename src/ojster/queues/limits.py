"""Rate and concurrency limits for jobs that share a key, and for queues.

A limit is a row: the configured limits and the current usage. A claim locks the row before it counts, so limits hold
for concurrent claims. The number of active jobs is counted from the jobs themselves and cannot drift.

The limits of a queue have the key ``/queue/NAME``, those of a worker ``/worker/ID``, which jobs cannot use. A job that
starts while its queue has a concurrency limit keeps that key until it is pushed again, so that its end frees capacity.

Spec: ojs-rate-limiting
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ojster.core.durations import DAY, SECOND
from ojster.core.errors import NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.job_table import HELD_BY_WORKER
from ojster.core.rate_limit import Limits, OnLimit, Rate, RateLimitPolicy
from ojster.core.tenant import called
from ojster.core.timestamps import format_timestamp
from ojster.jobs.extension import DeletedCounts
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction

ACTIVE_WITH_KEY: Final = "state = 'active' AND finished_at IS NULL AND limit_key"
"""SQL: the active jobs with a key. Worded like the partial index on unfinished jobs with a key."""

RESCHEDULE_DELAY_US: Final = 5 * SECOND
"""Delay of a job that is rescheduled while the next opening of its limit is unknown, in microseconds."""

LOCKED_RETRY_US: Final = 20_000
"""Minimum delay until limits are opened again, in microseconds: another transaction may hold a limit."""

KEPT_UNUSED: Final = 180 * DAY
"""How long the limits of a key are kept after a job with it was pushed, in microseconds."""

_NOTED_EVERY: Final = DAY
"""How often it is noted that jobs with a key are pushed, in microseconds."""

QUEUE_PREFIX: Final = "/queue/"
WORKER_PREFIX: Final = "/worker/"

LIMIT_COLUMNS: Final = (
    "key, queues, concurrency, rate_limit, rate_period, throttle_limit, throttle_period, on_limit, override, "
    "override_until, window_started_at, window_used, next_start_at, blocked_until, opens_at, exceeded, used_at"
)
"""The columns of ``rate_limits``, in the order of the fields of ``Limit``."""


class Limit(msgspec.Struct):
    """A limit as it is stored. Times are microseconds since the epoch.

    Attributes
    ----------
    queues:
        Queues that have had jobs with the key.
    override, override_until:
        Limits that an operator has set in place of others, as JSON, and their end; ``None``: no end.
    next_start_at:
        Earliest start of the next job under the throttle.
    blocked_until:
        Time before which no job may start, as a handler has requested.
    opens_at:
        Time at which the limit has capacity again, if it is known and there is none now.
    exceeded:
        Strategy that had no capacity at the last claim: ``concurrency``, ``rate``, ``throttle`` or ``blocked``.
    used_at:
        When a job with the key was pushed, to the day; ``None``: the limits are those of a queue or a worker.
    """

    key: str
    queues: list[str] = []
    concurrency: int | None = None
    rate_limit: int | None = None
    rate_period: int | None = None
    throttle_limit: int | None = None
    throttle_period: int | None = None
    on_limit: OnLimit = "wait"
    override: bytes | None = None
    override_until: int | None = None
    window_started_at: int = 0
    window_used: int = 0
    next_start_at: int = 0
    blocked_until: int = 0
    opens_at: int | None = None
    exceeded: str | None = None
    used_at: int | None = None

    @property
    def own(self) -> Limits:
        """Limits set by the jobs, or by the configuration of the queue."""
        return Limits(
            self.concurrency, _rate(self.rate_limit, self.rate_period), _rate(self.throttle_limit, self.throttle_period)
        )

    def overridden(self, now: int) -> bool:
        """Return whether an operator's override is in force."""
        return self.override is not None and (self.override_until is None or self.override_until > now)

    def in_force(self, now: int) -> Limits:
        """Return the limits in force: each from the active override if it sets one, else the own limit."""
        own = self.own
        if not self.overridden(now):
            return own
        assert self.override is not None
        overriding = msgspec.json.decode(self.override, type=Limits)
        return Limits(
            own.concurrency if overriding.concurrency is None else overriding.concurrency,
            overriding.rate or own.rate,
            overriding.throttle or own.throttle,
        )

    def used(self, rate: Rate, now: int) -> int:
        """Return the number of jobs that have started in the current rate window."""
        return 0 if now - self.window_started_at >= rate.period else self.window_used


def _rate(limit: int | None, period: int | None) -> Rate | None:
    return None if limit is None or period is None else Rate(limit, period)


def key_of_queue(queue: str) -> str:
    """Return the key of a queue's limits."""
    return QUEUE_PREFIX + queue


def key_of_worker(worker_id: str) -> str:
    """Return the key of a worker's limits."""
    return WORKER_PREFIX + worker_id


def find_limit(tx: Transaction, key: str, lock: str = "") -> Limit | None:
    """Return a limit, or ``None``. ``lock`` is the locking clause of the SELECT."""
    rows = tx.execute(f"SELECT {LIMIT_COLUMNS} FROM rate_limits WHERE key = :key" + lock, {"key": key})
    return limit_of(rows[0]) if rows else None


def _lock_limit(tx: Transaction, key: str) -> Limit:
    """Return a limit, locked until the transaction ends; create it if it does not exist."""
    # The usage of the limit is in the same row: a claim that writes it meanwhile would be undone. Locked again after
    # the insertion, because the row may be that of another transaction, which has been faster.
    known = find_limit(tx, key, tx.for_update)
    if known is None:
        tx.execute(
            """
            INSERT INTO rate_limits (key, queues, on_limit, used_at)
            VALUES (:key, '[]', 'wait', :used_at)
            ON CONFLICT (key) DO NOTHING
            """,
            {"key": key, "used_at": None if key.startswith((QUEUE_PREFIX, WORKER_PREFIX)) else tx.now},
        )
        known = find_limit(tx, key, tx.for_update)
    assert known is not None
    return known


def limit_of(row: Sequence[Any]) -> Limit:
    """Return the limit in a row."""
    key, queues, *rest = row
    return Limit(key, msgspec.json.decode(queues, type=list[str]), *rest)


def set_limits(tx: Transaction, key: str, limits: Limits | None, on_limit: str, queue: str) -> None:
    """Set the limits of a key that has jobs in ``queue``. Lock and write the row only if something changes.

    ``None`` as ``limits`` keeps the current limits.
    """
    known = find_limit(tx, key)
    if known is not None and not _is_news(tx, known, limits, on_limit, queue):
        return
    known = _lock_limit(tx, key)
    if limits is None:
        limits, on_limit = known.own, known.on_limit
    queues = sorted({*known.queues, queue})
    rate, throttle = limits.rate, limits.throttle
    tx.execute(
        """
        UPDATE rate_limits
        SET
            queues = :queues, concurrency = :concurrency, rate_limit = :rate_limit,
            rate_period = :rate_period, throttle_limit = :throttle_limit, throttle_period = :throttle_period,
            on_limit = :on_limit, used_at = :used_at
        WHERE key = :key
        """,
        {
            "key": key,
            "queues": msgspec.json.encode(queues).decode(),
            "concurrency": limits.concurrency,
            "rate_limit": rate.limit if rate else None,
            "rate_period": rate.period if rate else None,
            "throttle_limit": throttle.limit if throttle else None,
            "throttle_period": throttle.period if throttle else None,
            "on_limit": on_limit,
            "used_at": None if known.used_at is None else tx.now,
        },
    )
    tx.effects.opened.update(queues)  # the new limits may allow more jobs


def _is_news(tx: Transaction, known: Limit, limits: Limits | None, on_limit: str, queue: str) -> bool:
    if queue not in known.queues or (known.used_at is not None and tx.now - known.used_at >= _NOTED_EVERY):
        return True
    return limits is not None and (known.own != limits or known.on_limit != on_limit)


def register(tx: Transaction, policy: RateLimitPolicy, queue: str) -> None:
    """Apply the limits that a job sets for its key, if it sets any. The last job wins."""
    set_limits(tx, policy.key, None if policy.limits == Limits() else policy.limits, policy.on_limit, queue)


def limit_queue(tx: Transaction, queue: str, **changes: Any) -> None:
    """Change the limits of a queue: ``concurrency``, ``rate``, ``throttle``.

    A queue without limits has no row. With a concurrency limit, jobs that are already active get the queue's key, so
    that they are counted and their ends free capacity.
    """
    key = key_of_queue(queue)
    known = find_limit(tx, key)
    limits = msgspec.structs.replace((known or Limit(key)).own, **changes)
    if limits == Limits():
        delete_limit(tx, key)
        tx.effects.opened.add(queue)
        return
    set_limits(tx, key, limits, "wait", queue)
    if limits.concurrency is not None:
        tx.execute(
            """
            UPDATE jobs
            SET limit_key = :key
            WHERE state = 'active' AND due_at IS NOT NULL AND queue = :queue AND limit_key IS NULL
            """,
            {"key": key, "queue": queue},
        )


class Override(msgspec.Struct, frozen=True):
    """Limits that an operator sets in place of others; ``None``: remove the override.

    ``until`` is in microseconds since the epoch; ``None``: no end.
    """

    key: str
    limits: Limits | None
    until: int | None = None


@for_each
def override(tx: Transaction, wanted: Override) -> Limit | OjsterError:
    """Set or remove the overrides of keys. A key that does not exist is created.

    Return each limit, or ``NotFound`` if an override is to be removed from an unknown key.

    Spec: ojs-rate-limiting 10.2
    """
    if wanted.limits is None and find_limit(tx, wanted.key) is None:
        return no_limit(wanted.key)
    known = _lock_limit(tx, wanted.key)
    known.override = None if wanted.limits is None else msgspec.json.encode(wanted.limits)
    known.override_until = wanted.until
    known.opens_at = wanted.until
    known.blocked_until = 0
    tx.expect(wanted.until)
    write_limit(tx, known)
    tx.effects.opened.update(known.queues)
    return known


def block(tx: Transaction, key: str, until: int, reason: str) -> None:
    """Block a key until ``until``, at most a day from now, because a service has asked a handler to slow down.

    Keys of queues and unknown keys are ignored.

    Spec: ojs-rate-limiting 9.1
    """
    if key.startswith(QUEUE_PREFIX):
        return  # the job has no key of its own
    # A claim that holds the row writes back all of the usage, and would remove the block.
    limit = find_limit(tx, key, tx.for_update)
    until = min(until, tx.now + DAY)
    if limit is not None and until > limit.blocked_until:
        limit.blocked_until = limit.opens_at = until
        tx.expect(until)
        write_limit(tx, limit)
        tx.emit_about("rate_limit.dynamic_adjusted", key, key=key, until=format_timestamp(until), reason=reason)


def count_active(tx: Transaction, key: str) -> int:
    """Return the number of active jobs with a key, or in a queue, or of a worker, if it is the key of one."""
    if key.startswith(WORKER_PREFIX):
        worker = {"worker_id": key.removeprefix(WORKER_PREFIX)}
        return int(tx.execute(f"SELECT count(*) {HELD_BY_WORKER}", worker)[0][0])
    if not key.startswith(QUEUE_PREFIX):
        return int(tx.execute(f"SELECT count(*) FROM jobs WHERE {ACTIVE_WITH_KEY} = :key", {"key": key})[0][0])
    queue = key.removeprefix(QUEUE_PREFIX)
    ((counted,),) = tx.execute(
        "SELECT CAST(coalesce(sum(jobs), 0) AS BIGINT) FROM job_counts WHERE queue = :queue AND state = 'active'",
        {"queue": queue},
    )
    return int(counted) + tx.effects.counts.get((queue, "active"), 0)  # plus the unwritten changes of this transaction


def delete_limit(tx: Transaction, key: str) -> None:
    """Delete the limits of a key."""
    tx.execute("DELETE FROM rate_limits WHERE key = :key", {"key": key})


def write_limit(tx: Transaction, limit: Limit) -> None:
    """Write the usage and the override of a limit."""
    tx.execute(
        """
        UPDATE rate_limits
        SET
            override = :override, override_until = :override_until, window_started_at = :window_started_at,
            window_used = :window_used, next_start_at = :next_start_at, blocked_until = :blocked_until,
            opens_at = :opens_at, exceeded = :exceeded
        WHERE key = :key
        """,
        {
            "key": limit.key,
            "override": limit.override,
            "override_until": limit.override_until,
            "window_started_at": limit.window_started_at,
            "window_used": limit.window_used,
            "next_start_at": limit.next_start_at,
            "blocked_until": limit.blocked_until,
            "opens_at": limit.opens_at,
            "exceeded": limit.exceeded,
        },
    )


def unmark(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Remove the key of the queue's limits from jobs that are pushed again."""
    marked = [job for job in jobs if job.limit_key is not None and job.limit_key.startswith(QUEUE_PREFIX)]
    for job in marked:
        job.limit_key = None
    tx.execute_many("UPDATE jobs SET limit_key = NULL WHERE seq = ?", [(job.seq,) for job in marked])


def free_limits(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Wake the queues of limits that may have capacity, because these jobs are no longer active."""
    for key in {job.limit_key for job in jobs if job.limit_key is not None}:
        for (queues,) in tx.execute("SELECT queues FROM rate_limits WHERE key = :key", {"key": key}):
            tx.effects.opened.update(msgspec.json.decode(queues, type=list[str]))


def open_limits(tx: Transaction) -> int | None:
    """Wake the queues of limits that have capacity again.

    Return when the next limit opens, in microseconds since the epoch, or ``None``.
    """
    # A claim that holds the row sets the time anew, and wakes others itself. If it does not, the row is still due at
    # the next look.
    for key, queues in tx.execute(
        "SELECT key, queues FROM rate_limits WHERE opens_at <= :now" + tx.skip_locked, {"now": tx.now}
    ):
        tx.execute("UPDATE rate_limits SET opens_at = NULL WHERE key = :key", {"key": key})
        tx.effects.opened.update(msgspec.json.decode(queues, type=list[str]))
    ((next_at,),) = tx.execute("SELECT min(opens_at) FROM rate_limits WHERE opens_at IS NOT NULL")
    return None if next_at is None else max(int(next_at), tx.now + LOCKED_RETRY_US)


_IS_UNUSED: Final = """
    used_at < :before
    AND (override IS NULL OR override_until <= :now)
    AND blocked_until <= :now
    AND (SELECT 1 FROM jobs WHERE jobs.limit_key = rate_limits.key AND jobs.finished_at IS NULL LIMIT 1) IS NULL
"""
"""A look for each key that is old: with NOT EXISTS, PostgreSQL may read all jobs that have a key."""


def forget_unused(tx: Transaction, room: int) -> DeletedCounts:
    """Delete the limits of keys that no job has had for ``KEPT_UNUSED``, at most ``room``; return their number."""
    # A push that finds one that old writes it first. So it waits for this transaction, and then makes it anew; or this
    # one passes it over.
    rows = tx.execute(
        f"SELECT key FROM rate_limits WHERE {_IS_UNUSED} ORDER BY used_at LIMIT :room{tx.skip_locked}",
        {"before": tx.now - KEPT_UNUSED, "now": tx.now, "room": room},
    )
    if rows:
        tx.execute(f"DELETE FROM rate_limits WHERE key {tx.among_texts}", (tx.texts([key for (key,) in rows]),))
    return Counter(rows=len(rows), rate_limits=len(rows))


def count_unused(tx: Transaction) -> DeletedCounts:
    """Return how many limits repeated calls of ``forget_unused`` would delete."""
    bounds = {"before": tx.now - KEPT_UNUSED, "now": tx.now}
    ((count,),) = tx.execute(f"SELECT count(*) FROM rate_limits WHERE {_IS_UNUSED}", bounds)
    return Counter(rate_limits=int(count))


def no_limit(key: str) -> NotFound:
    """Return the error for a key that has no limit."""
    key = called(key)
    return NotFound(f"There is no rate limit {key!r}.", resource_type="rate_limit", resource_id=key)

"""Rate and concurrency limits for jobs that share a key, and for queues.

A limit is a row: the configured limits and the current usage. A claim locks the row before it counts, so limits hold
for concurrent claims. The number of active jobs is counted from the jobs themselves and cannot drift.

The limits of a queue have the key ``/queue/NAME``, which jobs cannot use. A job that starts while its queue has a
concurrency limit keeps that key until it is pushed again, so that its end frees capacity.

Spec: ojs-rate-limiting
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ojster.core.durations import DAY, SECOND
from ojster.core.errors import NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START, called, names_of
from ojster.core.timestamps import format_timestamp
from ojster.queues.rate_limit import Limits, Rate, RateLimitPolicy
from ojster.storage.transaction import Transaction

_ACTIVE: Final = "state = 'active' AND finished_at IS NULL AND limit_key"
"""SQL: the active jobs with a key. Worded like the partial index on unfinished jobs with a key."""

UNLIMITED: Final = 1_000_000
"""Number of jobs that may start if there is no limit."""

RESCHEDULE_DELAY_US: Final = 5 * SECOND
"""Delay of a job that is rescheduled while the next opening of its limit is unknown, in microseconds."""

LOCKED_RETRY_US: Final = 20_000
"""Minimum delay until limits are opened again, in microseconds: another transaction may hold a limit."""

MAX_KEYS_PER_READ: Final = 200
"""Maximum number of keys that a claim reads from one queue at a time."""

QUEUE_PREFIX: Final = "/queue/"

_COLUMNS: Final = (
    "key, queues, concurrency, rate_limit, rate_period, throttle_limit, throttle_period, on_limit, override, "
    "override_until, window_started_at, window_used, next_start_at, blocked_until, opens_at, exceeded"
)


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
    """

    key: str
    queues: list[str] = []
    concurrency: int | None = None
    rate_limit: int | None = None
    rate_period: int | None = None
    throttle_limit: int | None = None
    throttle_period: int | None = None
    on_limit: str = "wait"
    override: bytes | None = None
    override_until: int | None = None
    window_started_at: int = 0
    window_used: int = 0
    next_start_at: int = 0
    blocked_until: int = 0
    opens_at: int | None = None
    exceeded: str | None = None

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
        given = msgspec.json.decode(self.override, type=Limits)
        return Limits(
            own.concurrency if given.concurrency is None else given.concurrency,
            given.rate or own.rate,
            given.throttle or own.throttle,
        )

    def used(self, rate: Rate, now: int) -> int:
        """Return the number of jobs that have started in the current rate window."""
        return 0 if now - self.window_started_at >= rate.period else self.window_used


def _rate(limit: int | None, period: int | None) -> Rate | None:
    return None if limit is None or period is None else Rate(limit, period)


def key_of_queue(queue: str) -> str:
    """Return the key of a queue's limits."""
    return QUEUE_PREFIX + queue


def find_limit(tx: Transaction, key: str, lock: str = "") -> Limit | None:
    """Return a limit, or ``None``. ``lock`` is the locking clause of the SELECT."""
    rows = tx.execute(f"SELECT {_COLUMNS} FROM rate_limits WHERE key = :key" + lock, {"key": key})
    return _limit(rows[0]) if rows else None


def _lock_limit(tx: Transaction, key: str) -> Limit:
    """Return a limit, locked until the transaction ends; create it if it does not exist."""
    known = find_limit(tx, key, tx.for_update)
    if known is None:
        tx.execute(
            "INSERT INTO rate_limits (key, queues, on_limit) VALUES (:key, '[]', 'wait') ON CONFLICT (key) DO NOTHING",
            {"key": key},
        )
        known = find_limit(tx, key, tx.for_update)
    assert known is not None
    return known


def _limit(row: Sequence[Any]) -> Limit:
    key, queues, *rest = row
    return Limit(key, msgspec.json.decode(queues, type=list[str]), *rest)


# Setting limits


def set_limits(tx: Transaction, key: str, limits: Limits | None, on_limit: str, queue: str) -> None:
    """Set the limits of a key that has jobs in ``queue``. Lock and write the row only if something changes.

    ``None`` as ``limits`` keeps the current limits.
    """
    known = find_limit(tx, key)
    if known is not None and not _is_news(known, limits, on_limit, queue):
        return
    known = _lock_limit(tx, key)
    if limits is None:
        limits, on_limit = known.own, known.on_limit
    queues = sorted({*known.queues, queue})
    rate, throttle = limits.rate, limits.throttle
    tx.execute(
        "UPDATE rate_limits SET queues = :queues, concurrency = :concurrency, rate_limit = :rate_limit, "
        "rate_period = :rate_period, throttle_limit = :throttle_limit, throttle_period = :throttle_period, "
        "on_limit = :on_limit WHERE key = :key",
        {
            "key": key,
            "queues": msgspec.json.encode(queues).decode(),
            "concurrency": limits.concurrency,
            "rate_limit": rate.limit if rate else None,
            "rate_period": rate.period if rate else None,
            "throttle_limit": throttle.limit if throttle else None,
            "throttle_period": throttle.period if throttle else None,
            "on_limit": on_limit,
        },
    )
    tx.effects.opened.update(queues)  # the new limits may allow more jobs


def _is_news(known: Limit, limits: Limits | None, on_limit: str, queue: str) -> bool:
    if queue not in known.queues:
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
        tx.execute("DELETE FROM rate_limits WHERE key = :key", {"key": key})
        tx.effects.opened.add(queue)
        return
    set_limits(tx, key, limits, "wait", queue)
    if limits.concurrency is not None:
        tx.execute(
            "UPDATE jobs SET limit_key = :key WHERE state = 'active' AND due_at IS NOT NULL AND queue = :queue "
            "AND limit_key IS NULL",
            {"key": key, "queue": queue},
        )


class Override(msgspec.Struct, frozen=True):
    """Limits that an operator sets in place of others; ``None``: remove the override.

    ``until`` is in microseconds since the epoch; ``None``: no end.
    """

    key: str
    limits: Limits | None
    until: int | None = None


def override(tx: Transaction, overrides: Sequence[Override]) -> list[Limit | OjsterError]:
    """Set or remove the overrides of keys. A key that does not exist is created.

    Return each limit, or ``NotFound`` if an override is to be removed from an unknown key.

    Spec: ojs-rate-limiting 10.2
    """
    results: list[Limit | OjsterError] = []
    for one in overrides:
        if one.limits is None and find_limit(tx, one.key) is None:
            results.append(no_limit(one.key))
            continue
        known = _lock_limit(tx, one.key)
        known.override = None if one.limits is None else msgspec.json.encode(one.limits)
        known.override_until = one.until
        known.opens_at = one.until
        known.blocked_until = 0
        tx.expect(one.until)
        _write(tx, known)
        tx.effects.opened.update(known.queues)
        results.append(known)
    return results


def block(tx: Transaction, key: str, until: int, reason: str) -> None:
    """Block a key until ``until``, at most a day from now, because a service has asked a handler to slow down.

    Keys of queues and unknown keys are ignored.

    Spec: ojs-rate-limiting 9.1
    """
    if key.startswith(QUEUE_PREFIX):
        return  # the job has no key of its own
    limit = find_limit(tx, key, tx.for_update)
    until = min(until, tx.now + DAY)
    if limit is not None and until > limit.blocked_until:
        limit.blocked_until = limit.opens_at = until
        tx.expect(until)
        _write(tx, limit)
        tx.emit_about("rate_limit.dynamic_adjusted", key, key=key, until=format_timestamp(until), reason=reason)


# Usage


class Gate:
    """A limit during a claim: its remaining capacity, and the jobs that start.

    The limit is first read without a lock. Only a claim that finds capacity locks it and reads it again. A claim that
    finds it locked skips it, and its queues are woken when the lock is released. So claims never wait for a lock.

    Attributes
    ----------
    limit:
        The limit as last read.
    room:
        Number of jobs that may still start.
    strategy:
        Strategy that has no capacity; ``None``: there is capacity.
    opens_at:
        Time at which that strategy has capacity again, in microseconds since the epoch; ``None``: unknown.
    """

    def __init__(self, tx: Transaction, limit: Limit, active: int) -> None:
        self._tx = tx
        self._started: list[Job] = []
        self._is_ours = False
        self._look(limit, active)

    def _look(self, limit: Limit, active: int) -> None:
        self.limit = limit
        self.room = UNLIMITED
        self.strategy: str | None = None
        self.opens_at: int | None = None
        now, allowed = self._tx.now, limit.in_force(self._tx.now)
        if limit.blocked_until > now:
            self._narrow(0, "blocked", limit.blocked_until)
        if allowed.concurrency is not None:
            self._narrow(allowed.concurrency - active, "concurrency", None)
        if allowed.rate is not None:
            opens_at = limit.window_started_at + allowed.rate.period
            self._narrow(allowed.rate.limit - limit.used(allowed.rate, now), "rate", opens_at)
        if allowed.throttle is not None:
            self._narrow(int(limit.next_start_at <= now), "throttle", limit.next_start_at)

    def _narrow(self, room: int, strategy: str, opens_at: int | None) -> None:
        if room < self.room:
            self.room = max(0, room)
            if room <= 0:
                self.strategy, self.opens_at = strategy, opens_at

    def enter(self) -> int:
        """Lock the limit if it seems to have capacity; return the number of jobs that may start."""
        if self._is_ours or not self.room:
            return self.room
        tx = self._tx
        locked = find_limit(tx, self.limit.key, tx.skip_locked)
        if locked is None:
            self.room = 0  # locked by another transaction, or deleted
        else:
            self._is_ours = True
            self._look(locked, count_active(tx, locked.key))
            if tx.skip_locked:
                tx.effects.opened.update(locked.queues)  # wake claims that have skipped the locked row
        return self.room

    @property
    def counts_active(self) -> bool:
        """Whether the limit can depend on the number of active jobs."""
        return self.limit.concurrency is not None or self.limit.override is not None

    def start(self, jobs: Sequence[Job]) -> None:
        """Record that jobs start."""
        self.room -= len(jobs)
        self._started += jobs

    def close(self) -> None:
        """Write the usage, and the time at which there is capacity again."""
        tx, limit, now = self._tx, self.limit, self._tx.now
        if not self._started:
            if self.strategy is not None and limit.exceeded is None:
                self._exceed(self.strategy)
            return
        allowed = limit.in_force(now)
        opens_at = limit.override_until if limit.overridden(now) else None
        if allowed.rate is not None:
            if now - limit.window_started_at >= allowed.rate.period:
                limit.window_started_at, limit.window_used = now, 0
            limit.window_used += len(self._started)
            if limit.window_used >= allowed.rate.limit:
                opens_at = limit.window_started_at + allowed.rate.period
        if allowed.throttle is not None:
            limit.next_start_at = now + max(1, allowed.throttle.period // allowed.throttle.limit)
            opens_at = max(opens_at or 0, limit.next_start_at)
        limit.opens_at = opens_at
        tx.expect(limit.opens_at)
        if limit.exceeded is not None:
            strategy, first = limit.exceeded, self._started[0].id
            tx.emit_about("rate_limit.released", limit.key, key=limit.key, strategy=strategy, job_id=first)
            limit.exceeded = None
        _write(tx, limit)

    def _exceed(self, strategy: str) -> None:
        """Emit ``rate_limit.exceeded``, once until jobs start again."""
        tx = self._tx
        limit = self.limit if self._is_ours else find_limit(tx, self.limit.key, tx.skip_locked)
        if limit is None or limit.exceeded is not None:
            return
        allowed = limit.in_force(tx.now).to_wire().get(strategy)
        tx.emit_about("rate_limit.exceeded", limit.key, key=limit.key, strategy=strategy, limit=allowed)
        limit.exceeded = strategy
        if self.opens_at is not None:
            limit.opens_at = self.opens_at
            tx.expect(limit.opens_at)
        _write(tx, limit)


def count_active(tx: Transaction, key: str) -> int:
    """Return the number of active jobs with a key, or in a queue if it is the key of a queue."""
    if not key.startswith(QUEUE_PREFIX):
        return int(tx.execute(f"SELECT count(*) FROM jobs WHERE {_ACTIVE} = :key", {"key": key})[0][0])
    queue = key.removeprefix(QUEUE_PREFIX)
    ((counted,),) = tx.execute(
        "SELECT CAST(coalesce(sum(jobs), 0) AS BIGINT) FROM job_counts WHERE queue = :queue AND state = 'active'",
        {"queue": queue},
    )
    return int(counted) + tx.effects.counts.get((queue, "active"), 0)  # plus the unwritten changes of this transaction


def _write(tx: Transaction, limit: Limit) -> None:
    tx.execute(
        "UPDATE rate_limits SET override = :override, override_until = :override_until, "
        "window_started_at = :window_started_at, window_used = :window_used, next_start_at = :next_start_at, "
        "blocked_until = :blocked_until, opens_at = :opens_at, exceeded = :exceeded WHERE key = :key",
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


class Head(msgspec.Struct, frozen=True):
    """The next available job with a key in a queue, the limit of the key, and the number of its active jobs."""

    priority: int
    seq: int
    limit: Limit
    active: int


_WAITS: Final = "FROM jobs WHERE queue = :queue AND tenant = :tenant AND state = 'available' AND limit_key"
_HEADS: Final = (
    f"SELECT j.priority, j.seq, (SELECT count(*) FROM jobs WHERE {_ACTIVE} = first.name), first.name, "
    + ", ".join(f"r.{column.strip()}" for column in _COLUMNS.split(","))
    + " FROM (WITH RECURSIVE keys(name) AS ("
    f"SELECT (SELECT min(limit_key) {_WAITS} > :after) "
    f"UNION ALL SELECT (SELECT min(limit_key) {_WAITS} > keys.name) FROM keys WHERE keys.name IS NOT NULL"
    ") SELECT name FROM keys WHERE name IS NOT NULL LIMIT :most) AS first "
    f"JOIN jobs AS j ON j.seq = (SELECT seq {_WAITS} = first.name ORDER BY priority DESC, seq LIMIT 1) "
    "LEFT JOIN rate_limits AS r ON r.key = first.name ORDER BY first.name"
)
"""Looks up each key after the one before it, so that the cost depends on the number of keys, not of jobs."""


def heads(tx: Transaction, queue: str, tenant: str, after: str) -> list[Head]:
    """Return the next available job of each key after ``after``, for a tenant in a queue, ordered by key.

    At most ``MAX_KEYS_PER_READ`` jobs.
    """
    rows = tx.execute(_HEADS, {"queue": queue, "tenant": tenant, "after": after, "most": MAX_KEYS_PER_READ})
    return [
        Head(priority, seq, Limit(name) if limit[0] is None else _limit(limit), active)
        for priority, seq, active, name, *limit in rows
    ]


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
    for key, queues in tx.execute(
        "SELECT key, queues FROM rate_limits WHERE opens_at <= :now" + tx.skip_locked, {"now": tx.now}
    ):
        tx.execute("UPDATE rate_limits SET opens_at = NULL WHERE key = :key", {"key": key})
        tx.effects.opened.update(msgspec.json.decode(queues, type=list[str]))
    ((next_at,),) = tx.execute("SELECT min(opens_at) FROM rate_limits WHERE opens_at IS NOT NULL")
    return None if next_at is None else max(int(next_at), tx.now + LOCKED_RETRY_US)


# Limits as shown to callers


class LimitState(msgspec.Struct, frozen=True):
    """A limit, and its numbers of active and waiting jobs."""

    limit: Limit
    active: int
    waiting: int
    now: int

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON form of the limit.

        Spec: ojs-rate-limiting 10.1
        """
        limit, now, allowed = self.limit, self.now, self.limit.in_force(self.now)
        wire: dict[str, Any] = {"key": called(limit.key), "on_limit": limit.on_limit, "waiting_count": self.waiting}
        if allowed.concurrency is not None:
            available = max(0, allowed.concurrency - self.active)
            wire["concurrency"] = {"limit": allowed.concurrency, "active": self.active, "available": available}
        if allowed.rate is not None:
            used = limit.used(allowed.rate, now)
            wire["rate"] = allowed.rate.to_wire() | {"current_count": used}
            if used:
                wire["rate"]["window_resets_at"] = format_timestamp(limit.window_started_at + allowed.rate.period)
        if allowed.throttle is not None:
            next_at = format_timestamp(max(now, limit.next_start_at))
            wire["throttle"] = allowed.throttle.to_wire() | {"next_allowed_at": next_at}
        if limit.blocked_until > now:
            wire["blocked_until"] = format_timestamp(limit.blocked_until)
        if limit.overridden(now):
            wire["override"] = {"original": limit.own.to_wire()}
            if limit.override_until is not None:
                wire["override"]["expires_at"] = format_timestamp(limit.override_until)
        return wire

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


def show_limits(tx: Transaction, keys: Sequence[str]) -> list[LimitState | OjsterError]:
    """Return the state of each key's limit, or ``NotFound``."""
    results: list[LimitState | OjsterError] = []
    for key in keys:
        limit = find_limit(tx, key)
        results.append(no_limit(key) if limit is None else _state(tx, limit))
    return results


def _state(tx: Transaction, limit: Limit) -> LimitState:
    ((waiting,),) = tx.execute(
        "SELECT count(*) FROM jobs WHERE state = 'available' AND finished_at IS NULL AND limit_key = :key",
        {"key": limit.key},
    )
    return LimitState(limit, count_active(tx, limit.key), int(waiting), tx.now)


def limit_headers(tx: Transaction, keys: Sequence[str]) -> list[dict[str, str]]:
    """Return the rate limit headers for each key, empty if it has no limit. Waiting jobs are not counted."""
    results = []
    for key in keys:
        limit = find_limit(tx, key)
        results.append({} if limit is None else LimitState(limit, count_active(tx, key), 0, tx.now).headers())
    return results


def list_limits(tx: Transaction, pages: Sequence[tuple[str, int, int]]) -> list[tuple[list[LimitState], int]]:
    """Return a page of the limits of a tenant's keys, ordered by key, and the total number.

    A page is ``(tenant, limit, offset)``.
    """
    results = []
    for tenant, size, offset in pages:
        first, end = names_of(tenant) if tenant else (NO_TENANT_START, NO_TENANT_END)
        bounds: dict[str, Any] = {"first": first, "end": end}
        rows = tx.execute(
            f"SELECT {_COLUMNS} FROM rate_limits WHERE key >= :first AND key < :end "
            "ORDER BY key LIMIT :size OFFSET :offset",
            bounds | {"size": size, "offset": offset},
        )
        ((total,),) = tx.execute("SELECT count(*) FROM rate_limits WHERE key >= :first AND key < :end", bounds)
        results.append(([_state(tx, _limit(row)) for row in rows], int(total)))
    return results


def no_limit(key: str) -> NotFound:
    """Return the error for a key that has no limit."""
    key = called(key)
    return NotFound(f"There is no rate limit {key!r}.", resource_type="rate_limit", resource_id=key)

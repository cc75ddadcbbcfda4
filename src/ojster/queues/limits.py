"""May another job start? Limits on jobs that share a key, and on queues. (ojs-rate-limiting.md)

A limit is a row: what is allowed, and how far it is used. A claim locks the row before it counts, so that limits hold
whoever claims at the same time. How many jobs are active is counted from the jobs themselves and can never drift.

The limits of a queue have the key ``/queue/NAME``, which no job can name. A job that starts while its queue has a limit
on its concurrency bears that key until it is pushed again, so that its end is known to make room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ojster.core.durations import DAY, SECOND
from ojster.core.errors import NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.tenant import BEYOND, NOBODYS, called, names_of
from ojster.core.timestamps import format_timestamp
from ojster.queues.rate_limit import Limits, Rate, RateLimitPolicy
from ojster.storage.transaction import Transaction

_ACTIVE: Final = "state = 'active' AND finished_at IS NULL AND limit_key"
"""The active jobs with a key, in the words of the index of jobs that have one and are not finished."""

UNLIMITED: Final = 1_000_000
"""How many jobs may start where nothing limits it."""

TRY_AGAIN: Final = 5 * SECOND
"""When a job is scheduled that is not to wait, if nobody knows when there will be room."""

LOCKED: Final = 20_000
"""When to try again to open a limit that somebody else is at, in microseconds."""

MOST_KEYS: Final = 200
"""At the jobs of how many keys a claim looks in one queue."""

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
        In which queues jobs with the key have been.
    override, override_until:
        Limits that an operator has put in the place of others, and until when, if not for ever.
    next_start_at:
        When the throttle lets the next job start.
    blocked_until:
        Until when a handler has asked that none start.
    opens_at:
        When there will be room, if that is known and there is none now.
    exceeded:
        What there was no room for the last time: ``concurrency``, ``rate``, ``throttle`` or ``blocked``.
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
        """What its jobs, or the configuration of its queue, say."""
        return Limits(
            self.concurrency, _rate(self.rate_limit, self.rate_period), _rate(self.throttle_limit, self.throttle_period)
        )

    def overridden(self, now: int) -> bool:
        """Whether an operator's limits are in force."""
        return self.override is not None and (self.override_until is None or self.override_until > now)

    def in_force(self, now: int) -> Limits:
        """What is allowed now: what an operator has said goes before the rest."""
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
        """How many jobs have started in the window that is open now."""
        return 0 if now - self.window_started_at >= rate.period else self.window_used


def _rate(limit: int | None, period: int | None) -> Rate | None:
    return None if limit is None or period is None else Rate(limit, period)


def key_of_queue(queue: str) -> str:
    """Return the key of a queue's limits."""
    return QUEUE_PREFIX + queue


def find_limit(tx: Transaction, key: str, lock: str = "") -> Limit | None:
    """Return a limit; ``lock`` is how it is kept from others until the transaction ends."""
    rows = tx.execute(f"SELECT {_COLUMNS} FROM rate_limits WHERE key = :key" + lock, {"key": key})
    return _limit(rows[0]) if rows else None


def _lock_limit(tx: Transaction, key: str) -> Limit:
    """Return a limit, which is made known if it is not, and keep it from others until the transaction ends."""
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


# What is allowed


def set_limits(tx: Transaction, key: str, limits: Limits | None, on_limit: str, queue: str) -> None:
    """Say what is allowed to jobs with a key, which are in this queue; written, and locked, only if it is news.

    ``None``: what was said before.
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
    tx.effects.opened.update(queues)  # what is allowed now may be more


def _is_news(known: Limit, limits: Limits | None, on_limit: str, queue: str) -> bool:
    if queue not in known.queues:
        return True
    return limits is not None and (known.own != limits or known.on_limit != on_limit)


def register(tx: Transaction, policy: RateLimitPolicy, queue: str) -> None:
    """Take over what a job says of its key, if it says something. The last one that does is right."""
    set_limits(tx, policy.key, None if policy.limits == Limits() else policy.limits, policy.on_limit, queue)


def limit_queue(tx: Transaction, queue: str, **changes: Any) -> None:
    """Change what is allowed to all jobs of a queue: ``concurrency``, ``rate``, ``throttle``.

    A queue without limits has no row. Those of its jobs that run already are counted, and their ends are known, too.
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
    """Limits that an operator puts in the place of others, for a time; ``None``: as before."""

    key: str
    limits: Limits | None
    until: int | None = None


def override(tx: Transaction, overrides: Sequence[Override]) -> list[Limit | OjsterError]:
    """Put other limits in the place of those of a key (section 10.2); a key that is not known yet is made known."""
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
    """Let no job with a key start until then, at most a day: a handler was told to slow down (section 9.1)."""
    if key.startswith(QUEUE_PREFIX):
        return  # the job itself has named no key
    limit = find_limit(tx, key, tx.for_update)
    until = min(until, tx.now + DAY)
    if limit is not None and until > limit.blocked_until:
        limit.blocked_until = limit.opens_at = until
        tx.expect(until)
        _write(tx, limit)
        tx.emit_about("rate_limit.dynamic_adjusted", key, key=key, until=format_timestamp(until), reason=reason)


# What is used


class Gate:
    """A limit that a claim comes to: how many jobs may start, and who did.

    It is looked at without a lock first. Only a claim that finds room locks the limit, and looks again; who finds it
    locked passes it over, and is rung when it is free again. So claims never wait for each other, nor for anybody else.

    Attributes
    ----------
    limit:
        The limit, as it was looked at.
    room:
        How many jobs may still start.
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
        """Lock the limit, if there seems to be room, and return how many jobs may start."""
        if self._is_ours or not self.room:
            return self.room
        tx = self._tx
        locked = find_limit(tx, self.limit.key, tx.skip_locked)
        if locked is None:
            self.room = 0  # somebody else is at it, or it is gone
        else:
            self._is_ours = True
            self._look(locked, count_active(tx, locked.key))
            if tx.skip_locked:
                tx.effects.opened.update(locked.queues)  # who passed it over may look again when we are done
        return self.room

    @property
    def counts_active(self) -> bool:
        """Whether it depends on how many jobs are active."""
        return self.limit.concurrency is not None or self.limit.override is not None

    def start(self, jobs: Sequence[Job]) -> None:
        """Note that jobs start."""
        self.room -= len(jobs)
        self._started += jobs

    def close(self) -> None:
        """Write down what was used, and when there will be room again."""
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
        """Tell once that there is no room."""
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
    """Return how many jobs with a key, or of a queue, are active."""
    if not key.startswith(QUEUE_PREFIX):
        return int(tx.execute(f"SELECT count(*) FROM jobs WHERE {_ACTIVE} = :key", {"key": key})[0][0])
    queue = key.removeprefix(QUEUE_PREFIX)
    ((counted,),) = tx.execute(
        "SELECT CAST(coalesce(sum(jobs), 0) AS BIGINT) FROM job_counts WHERE queue = :queue AND state = 'active'",
        {"queue": queue},
    )
    return int(counted) + tx.effects.counts.get((queue, "active"), 0)  # what this transaction did is not written yet


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
    """The first of the jobs with a key that wait in a queue, their limit, and how many of them are active."""

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
"""Each key is looked up behind the one before it, so that the cost is that of the keys, not of their jobs."""


def heads(tx: Transaction, queue: str, tenant: str, after: str) -> list[Head]:
    """Return the first job of a tenant of each key behind ``after`` that has some in a queue, by key.

    At most ``MOST_KEYS``.
    """
    rows = tx.execute(_HEADS, {"queue": queue, "tenant": tenant, "after": after, "most": MOST_KEYS})
    return [
        Head(priority, seq, Limit(name) if limit[0] is None else _limit(limit), active)
        for priority, seq, active, name, *limit in rows
    ]


def unmark(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Take the key of its queue's limits from jobs that are pushed again."""
    marked = [job for job in jobs if job.limit_key is not None and job.limit_key.startswith(QUEUE_PREFIX)]
    for job in marked:
        job.limit_key = None
    tx.execute_many("UPDATE jobs SET limit_key = NULL WHERE seq = ?", [(job.seq,) for job in marked])


def free_limits(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Let those wait no longer who wait for room, now that these jobs are active no more."""
    for key in {job.limit_key for job in jobs if job.limit_key is not None}:
        for (queues,) in tx.execute("SELECT queues FROM rate_limits WHERE key = :key", {"key": key}):
            tx.effects.opened.update(msgspec.json.decode(queues, type=list[str]))


def open_limits(tx: Transaction) -> int | None:
    """Let those look again who wait for limits that have room again; return when the next one has."""
    for key, queues in tx.execute(
        "SELECT key, queues FROM rate_limits WHERE opens_at <= :now" + tx.skip_locked, {"now": tx.now}
    ):
        tx.execute("UPDATE rate_limits SET opens_at = NULL WHERE key = :key", {"key": key})
        tx.effects.opened.update(msgspec.json.decode(queues, type=list[str]))
    ((next_at,),) = tx.execute("SELECT min(opens_at) FROM rate_limits WHERE opens_at IS NOT NULL")
    return None if next_at is None else max(int(next_at), tx.now + LOCKED)


# How it looks


class LimitState(msgspec.Struct, frozen=True):
    """A limit, how many jobs of it are active, and how many wait."""

    limit: Limit
    active: int
    waiting: int
    now: int

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON has it (section 10.1)."""
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
        """Return the headers that tell a client of it (section 10.4)."""
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
    """Return how the limit of each key stands."""
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
    """Return the headers that tell of the limit of each key; how many jobs wait is not counted for it."""
    results = []
    for key in keys:
        limit = find_limit(tx, key)
        results.append({} if limit is None else LimitState(limit, count_active(tx, key), 0, tx.now).headers())
    return results


def list_limits(tx: Transaction, pages: Sequence[tuple[str, int, int]]) -> list[tuple[list[LimitState], int]]:
    """Return a page of the limits that a tenant's jobs have named, by key, and how many there are.

    A page is ``(tenant, limit, offset)``.
    """
    results = []
    for tenant, size, offset in pages:
        first, end = names_of(tenant) if tenant else (NOBODYS, BEYOND)
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
    """Return the refusal for a key that no job has named."""
    key = called(key)
    return NotFound(f"There is no rate limit {key!r}.", resource_type="rate_limit", resource_id=key)

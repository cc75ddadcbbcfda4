"""Limits during a claim: their remaining capacity, and the jobs that start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.job_table import AVAILABLE_HERE, next_values
from ojster.core.queue_names import names_opened
from ojster.jobs.claim_policy import UNLIMITED
from ojster.queues.limits import ACTIVE_WITH_KEY, LIMIT_COLUMNS, Limit, count_active, find_limit, limit_of, write_limit
from ojster.queues.wire import show_limits
from ojster.storage.transaction import Transaction


class Gate:
    """A limit during a claim: its remaining capacity, and the jobs that start.

    The limit is first read without a lock. Only a claim that finds capacity locks it and reads it again. A claim that
    finds it locked skips it, and looks again after a pause. So claims never wait for a lock, unless the policy locks
    its limits at once, in one order (``waits``).

    Attributes
    ----------
    limit:
        The limit as last read.
    room:
        Number of jobs that may still start.
    strategy:
        Strategy that has no capacity; ``None``: there is capacity.
    current:
        Number of jobs that count towards the limit of that strategy; ``None``: the key is blocked.
    opens_at:
        Time at which that strategy has capacity again, in microseconds since the epoch; ``None``: unknown.
    """

    def __init__(self, tx: Transaction, limit: Limit, active: int, *, waits: bool = False) -> None:
        self._tx = tx
        self._waits = waits
        self._started: list[Job] = []
        self._is_ours = False
        self._look(limit, active)

    def _look(self, limit: Limit, active: int) -> None:
        self.limit = limit
        self.room = UNLIMITED
        self.strategy: str | None = None
        self.current: int | None = None
        self.opens_at: int | None = None
        now, allowed = self._tx.now, limit.in_force(self._tx.now)
        if limit.blocked_until > now:
            self._narrow(0, "blocked", None, limit.blocked_until)
        if allowed.concurrency is not None:
            self._narrow(allowed.concurrency - active, "concurrency", active, None)
        if allowed.rate is not None:
            used, opens_at = limit.used(allowed.rate, now), limit.window_started_at + allowed.rate.period
            self._narrow(allowed.rate.limit - used, "rate", used, opens_at)
        if allowed.throttle is not None:
            self._narrow(int(limit.next_start_at <= now), "throttle", 1, limit.next_start_at)

    def _narrow(self, room: int, strategy: str, current: int | None, opens_at: int | None) -> None:
        if room < self.room:
            self.room = max(0, room)
            if room <= 0:
                self.strategy, self.current, self.opens_at = strategy, current, opens_at

    def enter(self) -> int:
        """Lock the limit if it seems to have capacity; return the number of jobs that may start."""
        if self._is_ours or not self.room:
            return self.room
        tx = self._tx
        # Claims that waited for the rows of several keys had deadlocks, and started almost nothing. So a claim skips a
        # locked key, and looks again by itself. It cannot rely on the holder, which may die, may be no claim, or may
        # have looked before somebody pushed the job that this claim skips. A holder that starts jobs wakes others
        # (`close`), which is faster. One that starts none does not: idle claims would wake each other for ever.
        locked = find_limit(tx, self.limit.key, tx.for_update if self._waits else tx.skip_locked)
        if locked is None:
            self.room = 0  # locked by another transaction, or deleted
            tx.effects.skipped.update(name for queue in self.limit.queues for name in names_opened(queue))
        else:
            self._is_ours = True
            self._look(locked, count_active(tx, locked.key))
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
        if tx.skip_locked and not self._waits:
            tx.effects.opened.update(limit.queues)
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
        write_limit(tx, limit)

    def _exceed(self, strategy: str) -> None:
        """Emit ``rate_limit.exceeded``, once until jobs start again."""
        tx = self._tx
        # The event is for people: a claim does not wait to record it, and a later one finds the same.
        limit = self.limit if self._is_ours else find_limit(tx, self.limit.key, tx.skip_locked)
        if limit is None or limit.exceeded is not None:
            return
        allowed = getattr(show_limits(limit.in_force(tx.now)), strategy, None)
        shown = msgspec.to_builtins(allowed)
        told = {"strategy": strategy, "limit": shown, "current": self.current}
        tx.emit_about("rate_limit.exceeded", limit.key, key=limit.key, **told)
        limit.exceeded = strategy
        if self.opens_at is not None:
            limit.opens_at = self.opens_at
            tx.expect(limit.opens_at)
        write_limit(tx, limit)


class Head(msgspec.Struct, frozen=True):
    """The next available job with a key in a queue, the limit of the key, and the number of its active jobs."""

    priority: int
    seq: int
    limit: Limit
    active: int


_COLUMNS_OF_R: Final = ", ".join(f"r.{column.strip()}" for column in LIMIT_COLUMNS.split(","))

_ACTIVE: Final = f"(SELECT count(*) FROM jobs WHERE {ACTIVE_WITH_KEY} = waiting.name)"

# What a `Gate` finds closed, in words of the table. It is for keys that need no gate: their jobs wait, and it is told
# already that they do.
_CLOSED: Final = f"""
    r.exceeded IS NOT NULL
    AND r.on_limit = 'wait'
    AND (r.override IS NULL OR r.override_until <= :now)
    AND (
        r.blocked_until > :now
        OR (r.window_used >= r.rate_limit AND r.window_started_at + r.rate_period > :now)
        OR (r.throttle_limit IS NOT NULL AND r.next_start_at > :now)
        OR r.concurrency <= {_ACTIVE}
    )
"""

_HEADS: Final = f"""
    WITH waiting AS MATERIALIZED ({next_values("limit_key", AVAILABLE_HERE)})
    SELECT j.priority, j.seq, {_ACTIVE}, waiting.name, {_COLUMNS_OF_R}
    FROM waiting
    LEFT JOIN rate_limits AS r ON r.key = waiting.name
    JOIN jobs AS j ON j.seq = (
        SELECT seq {AVAILABLE_HERE} AND limit_key = waiting.name ORDER BY priority DESC, seq LIMIT 1
    )
    WHERE NOT COALESCE({_CLOSED}, false)
    UNION ALL
    SELECT NULL, NULL, count(*), max(name), {", ".join(["NULL"] * len(LIMIT_COLUMNS.split(",")))}
    FROM waiting
"""
"""The row without a priority says how many keys were looked at, and the last of them."""


class KeyLook(msgspec.Struct, frozen=True):
    """A look at some keys that have jobs in a queue.

    Attributes
    ----------
    heads:
        The next job of each key that may have room, in any order.
    last:
        The last key of all that were looked at; ``None``: there was none.
    is_end:
        Whether there are no further keys.
    """

    heads: list[Head]
    last: str | None
    is_end: bool


def look_at_keys(tx: Transaction, queue: str, tenant: str, after: str, most: int) -> KeyLook:
    """Look at the keys behind ``after`` that have available jobs of a tenant in a queue: at most so many.

    Keys that surely have no room are passed over at once: there may be thousands.
    """
    heads: list[Head] = []
    last, looked_at = None, 0
    values = {"queue": queue, "tenant": tenant, "after": after, "most": most, "now": tx.now}
    for priority, seq, number, name, *columns in tx.execute(_HEADS, values):
        if priority is None:
            last, looked_at = name, number
        else:
            heads.append(Head(priority, seq, Limit(name) if columns[0] is None else limit_of(columns), number))
    return KeyLook(heads, last, looked_at < most)

"""How much was done, how fast, minute by minute? (ojs-admin-api.md section 10)

Each transaction adds what it did to the row of its queue and minute. How long jobs waited is counted in a few buckets,
of which percentiles are made. Minutes are kept for two days and then summed up to hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.tenant import BEYOND, NOBODYS
from ojster.storage.transaction import SUMS, WAITS, Transaction

MINUTES_KEPT: Final = 2 * 24 * 60
"""How long the statistics of each minute are kept, in minutes."""

HOURS_KEPT: Final = 60 * 24
"""How long those of each hour are kept, in hours: sixty days."""

MICROS_A_MINUTE: Final = 60_000_000

_OF_QUEUES: Final = f"queue >= '{NOBODYS}' AND "
"""Leaves out what is counted for tenants: it is counted for their queues too."""

_ADDED: Final = ", ".join(f"CAST(coalesce(sum({name}), 0) AS BIGINT)" for name in SUMS)


class Work(msgspec.Struct, frozen=True):
    """What some time of work amounted to. Durations are sums, in microseconds.

    ``waits`` counts the jobs that started by how long they had waited: up to each of ``WAITS``, and beyond.
    """

    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    waited: int = 0
    ran: int = 0
    waits: tuple[int, ...] = (0,) * (len(WAITS) + 1)

    def __add__(self, other: Work) -> Work:
        return self._with(other, 1)

    def __sub__(self, other: Work) -> Work:
        return self._with(other, -1)

    def _with(self, other: Work, sign: int) -> Work:
        return Work(
            self.enqueued + sign * other.enqueued,
            self.completed + sign * other.completed,
            self.failed + sign * other.failed,
            self.waited + sign * other.waited,
            self.ran + sign * other.ran,
            tuple(a + sign * b for a, b in zip(self.waits, other.waits, strict=True)),
        )

    @property
    def processed(self) -> int:
        """How many attempts have ended."""
        return self.completed + self.failed

    @property
    def started(self) -> int:
        """How many attempts have begun."""
        return sum(self.waits)

    def percentile(self, share: float) -> float:
        """Return how long at most this share of the jobs had waited, in milliseconds, as far as the buckets tell."""
        left = share * self.started
        below = 0
        for number, bound in zip(self.waits, (*WAITS, 4 * WAITS[-1]), strict=True):
            if number and left <= number:
                return round((below + (bound - below) * left / number) / 1000, 1)
            left -= number
            below = bound
        return 0.0


def _work(row: Sequence[Any]) -> Work:
    enqueued, completed, failed, waited, ran, *waits = row
    return Work(enqueued, completed, failed, waited, ran, tuple(waits))


def work_by_queue(tx: Transaction, minutes: int, queue: str | None = None) -> dict[str, Work]:
    """Return what the last minutes amounted to in each queue, or in one; the one that is under way is included."""
    return work_of_names(tx, minutes, (NOBODYS, BEYOND) if queue is None else (queue, f"{queue}\x01"))


def work_of_names(tx: Transaction, minutes: int, names: tuple[str, str]) -> dict[str, Work]:
    """Return what the last minutes amounted to under each of the names between two, the end excluded."""
    rows = tx.execute(
        f"SELECT queue, {_ADDED} FROM queue_minutes WHERE queue >= :first AND queue < :end AND minute > :after "
        "GROUP BY queue",
        {"first": names[0], "end": names[1], "after": tx.now // MICROS_A_MINUTE - minutes},
    )
    return {name: _work(sums) for name, *sums in rows}


def recent_work(tx: Transaction, spans: Sequence[int]) -> list[Work]:
    """Return what the last minutes amounted to in all queues together, for each number of minutes."""
    return [sum(work_by_queue(tx, minutes).values(), Work()) for minutes in spans]


class Span(msgspec.Struct, frozen=True):
    """A time of which the history is wanted: of one queue or of all, from and to a moment, in steps of minutes."""

    since: int
    until: int
    step: int
    queue: str | None = None


def history(tx: Transaction, spans: Sequence[Span]) -> list[list[tuple[int, Work]]]:
    """Return what was done in each step that saw any work, with the moment at which it began, the oldest first."""
    return [_history(tx, span) for span in spans]


def _history(tx: Transaction, span: Span) -> list[tuple[int, Work]]:
    first, last = span.since // MICROS_A_MINUTE, span.until // MICROS_A_MINUTE + 1
    where = _OF_QUEUES if span.queue is None else "queue = :queue AND "
    steps: dict[int, Work] = {}
    for table, column, unit in (("queue_hours", "hour", 60), ("queue_minutes", "minute", 1)):
        rows = tx.execute(
            f"SELECT {column}, {_ADDED} FROM {table} WHERE {where}{column} >= :first AND {column} < :last "
            f"GROUP BY {column} ORDER BY {column}",
            {"queue": span.queue, "first": -(-first // unit), "last": -(-last // unit)},
        )
        for at, *sums in rows:
            step = at * unit // span.step
            work = _work(sums)
            steps[step] = steps[step] + work if step in steps else work
    return [(step * span.step * MICROS_A_MINUTE, steps[step]) for step in sorted(steps)]


def sum_up(tx: Transaction) -> None:
    """Sum up minutes to hours, and forget hours, that are old enough."""
    if tx.lock_keys({"statistics"}):
        return  # somebody else is at it, and both would add the same
    hour = (tx.now // MICROS_A_MINUTE - MINUTES_KEPT) // 60
    names = ", ".join(SUMS)
    ((oldest,),) = tx.execute("SELECT min(minute) FROM queue_minutes WHERE minute < :end", {"end": hour * 60})
    if oldest is not None:
        tx.execute(
            f"INSERT INTO queue_hours (queue, hour, {names}) "
            f"SELECT queue, minute / 60, {_ADDED} FROM queue_minutes WHERE minute < :end GROUP BY queue, minute / 60 "
            "ON CONFLICT (queue, hour) DO UPDATE SET "
            + ", ".join(f"{name} = queue_hours.{name} + excluded.{name}" for name in SUMS),
            {"end": hour * 60},
        )
        tx.execute("DELETE FROM queue_minutes WHERE minute < :end", {"end": hour * 60})
    tx.execute("DELETE FROM queue_hours WHERE hour < :end", {"end": tx.now // MICROS_A_MINUTE // 60 - HOURS_KEPT})

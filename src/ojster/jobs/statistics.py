"""Statistics of throughput and latency, per minute.

Each transaction adds its work to the rows of its queue and of its job types for the minute. Times of waiting and
running are counted in a few buckets, from which percentiles are estimated. After two days, minutes are summed up to
hours.

Spec: ojs-admin-api 10
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.queue_names import name_of_type
from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START
from ojster.jobs.names import INTERNAL_QUEUES_RANGE, is_internal
from ojster.storage.call import for_each
from ojster.storage.tally import BUCKETS_US, SUMS, sum_of
from ojster.storage.transaction import Transaction

MINUTES_KEPT: Final = 2 * 24 * 60
"""Retention of statistics per minute, in minutes."""

HOURS_KEPT: Final = 60 * 24
"""Retention of statistics per hour, in hours."""

MICROSECONDS_PER_MINUTE: Final = 60_000_000

_OF_QUEUES: Final = f"queue >= '{NO_TENANT_START}' AND "
"""Leaves out the counts of tenants and of job types, which are included in those of the queues."""

_NOTHING: Final = (0,) * (len(BUCKETS_US) + 1)

_ADDED: Final = ", ".join(map(sum_of, SUMS))


class Work(msgspec.Struct, frozen=True):
    """Totals of a period of work. Durations are sums, in microseconds.

    ``waits`` is a histogram of the wait times of started jobs: up to each of ``BUCKETS_US``, and longer; ``runs`` is
    one of the times that attempts took which have completed or failed.
    """

    enqueued: int = 0
    completed: int = 0
    failed: int = 0
    waited: int = 0
    ran: int = 0
    waits: tuple[int, ...] = _NOTHING
    runs: tuple[int, ...] = _NOTHING

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
            tuple(a + sign * b for a, b in zip(self.runs, other.runs, strict=True)),
        )

    @property
    def processed(self) -> int:
        """Number of attempts that have completed or failed."""
        return self.completed + self.failed

    @property
    def started(self) -> int:
        """Number of attempts that have started."""
        return sum(self.waits)

    def percentile(self, share: float) -> float:
        """Return the percentile of the wait time at ``share`` (0 to 1), in milliseconds: an estimate from buckets."""
        return _percentile(self.waits, share, self.waited)

    def run_percentile(self, share: float) -> float:
        """Return the percentile of the run time at ``share`` (0 to 1), in milliseconds, estimated from the buckets."""
        return _percentile(self.runs, share)


def _percentile(numbers: Sequence[int], share: float, total: float = math.inf) -> float:
    """Return the percentile of times, in milliseconds, as if those in a bucket were spread evenly.

    The last buckets are wide. What ``total`` (in microseconds) leaves for a bucket bounds its mean, and so its width.
    """
    lowest = (0, *BUCKETS_US)
    excess = total - sum(number * low for number, low in zip(numbers, lowest, strict=True))
    left = share * sum(numbers)
    for number, low, bound in zip(numbers, lowest, (*BUCKETS_US, 4 * BUCKETS_US[-1]), strict=True):
        if number and left <= number:
            return round((low + min(bound - low, 2 * excess / number) * left / number) / 1000, 1)
        left -= number
    return 0.0


def _work(row: Sequence[Any]) -> Work:
    enqueued, completed, failed, waited, ran, *times = row
    waits, runs = times[: len(_NOTHING)], times[len(_NOTHING) :]
    return Work(enqueued, completed, failed, waited, ran, tuple(waits), tuple(runs))


def work_by_queue(tx: Transaction, minutes: int, queue: str | None = None) -> dict[str, Work]:
    """Return the totals of the last minutes, the current one included, for each queue or for one."""
    return work_of_names(tx, minutes, (NO_TENANT_START, NO_TENANT_END) if queue is None else (queue, f"{queue}\x01"))


def work_of_names(tx: Transaction, minutes: int, names: tuple[str, str]) -> dict[str, Work]:
    """Return the totals of the last minutes for each name in a range; its end is excluded."""
    rows = tx.execute(
        f"""
        SELECT queue, {_ADDED}
        FROM queue_minutes
        WHERE queue >= :first AND queue < :end AND minute > :after
        GROUP BY queue
        """,
        {"first": names[0], "end": names[1], "after": tx.now // MICROSECONDS_PER_MINUTE - minutes},
    )
    return {name: _work(sums) for name, *sums in rows}


def recent_work(tx: Transaction, spans: Sequence[int]) -> list[Work]:
    """Return the totals of the last minutes over all queues but the server's own, for each number of minutes."""
    return [
        sum((work for name, work in work_by_queue(tx, minutes).items() if not is_internal(name)), Work())
        for minutes in spans
    ]


class Span(msgspec.Struct, frozen=True):
    """A period to read statistics of: for one queue, for one job type, or for all.

    ``since`` and ``until`` are in microseconds since the epoch, ``step`` is in minutes.
    """

    since: int
    until: int
    step: int
    queue: str | None = None
    type: str | None = None


@for_each
def history(tx: Transaction, span: Span) -> list[tuple[int, Work]]:
    """Return the totals of each step that has any, oldest first.

    Each comes with the start of its step, in microseconds since the epoch. Over all queues, those of the server's own
    work are left out.
    """
    first, last = span.since // MICROSECONDS_PER_MINUTE, span.until // MICROSECONDS_PER_MINUTE + 1
    name = span.queue if span.type is None else name_of_type(span.type)
    where = f"{_OF_QUEUES}NOT (queue >= :internal AND queue < :others) AND " if name is None else "queue = :queue AND "
    names = (
        {"queue": name} if name is not None else dict(zip(("internal", "others"), INTERNAL_QUEUES_RANGE, strict=True))
    )
    steps: dict[int, Work] = {}
    for table, column, unit in (("queue_hours", "hour", 60), ("queue_minutes", "minute", 1)):
        rows = tx.execute(
            f"""
            SELECT {column}, {_ADDED}
            FROM {table}
            WHERE {where}{column} >= :first AND {column} < :last
            GROUP BY {column}
            ORDER BY {column}
            """,
            {"first": -(-first // unit), "last": -(-last // unit)} | names,
        )
        for at, *sums in rows:
            step = at * unit // span.step
            work = _work(sums)
            steps[step] = steps[step] + work if step in steps else work
    return [(step * span.step * MICROSECONDS_PER_MINUTE, steps[step]) for step in sorted(steps)]


def roll_up_minutes(tx: Transaction) -> None:
    """Sum up old minutes to hours, and delete old hours."""
    if tx.lock_keys({"statistics"}):
        return  # another transaction does it, and both would add the same rows
    hour = (tx.now // MICROSECONDS_PER_MINUTE - MINUTES_KEPT) // 60
    names = ", ".join(SUMS)
    added = ", ".join(f"{name} = queue_hours.{name} + excluded.{name}" for name in SUMS)
    ((oldest,),) = tx.execute("SELECT min(minute) FROM queue_minutes WHERE minute < :end", {"end": hour * 60})
    if oldest is not None:
        tx.execute(
            f"""
            INSERT INTO queue_hours (queue, hour, {names})
            SELECT queue, minute / 60, {_ADDED}
            FROM queue_minutes
            WHERE minute < :end
            GROUP BY queue, minute / 60
            ON CONFLICT (queue, hour) DO UPDATE SET {added}
            """,
            {"end": hour * 60},
        )
        tx.execute("DELETE FROM queue_minutes WHERE minute < :end", {"end": hour * 60})
    tx.execute(
        "DELETE FROM queue_hours WHERE hour < :end", {"end": tx.now // MICROSECONDS_PER_MINUTE // 60 - HOURS_KEPT}
    )

"""Totals of work by name of the queue (``ojster.core.queue_names``), and by job type, minute by minute."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from ojster.core.queue_names import names_counted

BUCKETS_US: Final = tuple(
    round(milliseconds * 1000)
    for milliseconds in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000)
)
"""Upper bounds of the buckets in which waits and runs are counted, in microseconds. One more counts longer ones."""

SUMS: Final = (
    *("enqueued", "completed", "failed", "waited", "ran"),
    *(f"waits_{number}" for number in range(len(BUCKETS_US) + 1)),
    *(f"runs_{number}" for number in range(len(BUCKETS_US) + 1)),
)
"""Columns of ``queue_minutes`` with the totals of one minute."""

ADDED: Final = ", ".join(f"{name} = queue_minutes.{name} + excluded.{name}" for name in SUMS)

LONGEST_US: Final = 30 * 86_400 * 1_000_000
"""The longest wait or run that counts on average, in microseconds. So the total of a minute fits into an integer of the
database, even if many jobs have waited for years, such as in a paused queue."""

_LARGEST_TOTAL: Final = "1e18"  # some of these can be added in an integer of the database


def sum_of(name: str) -> str:
    """Return SQL for the sum of a column of ``SUMS`` over rows, which does not overflow."""
    if name not in ("waited", "ran"):
        return f"CAST(coalesce(sum({name}), 0) AS BIGINT)"
    total = f"coalesce(sum(CAST({name} AS DOUBLE PRECISION)), 0)"
    return f"CAST(CASE WHEN {total} < {_LARGEST_TOTAL} THEN {total} ELSE {_LARGEST_TOTAL} END AS BIGINT)"


AttemptEnd = Literal["completed", "failed", "suspended"]

WaitedTime = tuple[str, str, int]
"""Queue and tenant of a job that started, and how long it had waited, in microseconds."""

EndedAttempt = tuple[str, str, str, AttemptEnd, int, int | None]
"""Queue, tenant and type of a job, how its attempt ended, how long it ran, in microseconds, and how long the job had
waited; ``None``: it has not run."""


def _spread(durations: Iterable[int]) -> list[int]:
    """Return how many durations, in microseconds, are in each bucket."""
    counts = [0] * (len(BUCKETS_US) + 1)
    for duration in durations:
        counts[bisect_left(BUCKETS_US, duration)] += 1
    return counts


def add_up(
    tallies: dict[str, Tally],
    waits: Sequence[WaitedTime],
    attempts: Sequence[EndedAttempt],
    name_of: Callable[[str], str | None],
) -> None:
    """Add to tallies, by name, what a transaction has noted job by job.

    The type of a job counts at the end of an attempt how long it had waited, and not when it was claimed: this saves a
    row in the transaction of the claim.

    Parameters
    ----------
    name_of:
        Returns the name under which a job type is counted; ``None``: it is not.
    """
    waits_of: dict[tuple[str, str], list[int]] = defaultdict(list)
    for queue, tenant, waited in waits:
        waits_of[queue, tenant].append(waited)
    for (queue, tenant), some in waits_of.items():
        for name in names_counted(queue, tenant):
            tallies[name].count_waits(some)
    alike: dict[tuple[str, str, str, AttemptEnd], list[tuple[int, int | None]]] = defaultdict(list)
    for queue, tenant, type, end, ran, wait in attempts:
        alike[queue, tenant, type, end].append((ran, wait))
    for (queue, tenant, type, end), runs in alike.items():
        names = [*names_counted(queue, tenant)]
        if (of_type := name_of(type)) is not None:
            names.append(of_type)
            tallies[of_type].count_waits([wait for _, wait in runs if wait is not None])
        buckets = _spread(ran for ran, wait in runs if wait is not None)
        total = sum(ran for ran, _ in runs)
        for name in names:
            tallies[name].count_attempts(end, len(runs), total, buckets)


class Tally:
    """Totals of one minute of work. Durations are in microseconds."""

    __slots__ = ("completed", "enqueued", "failed", "ran", "runs", "waited", "waits")

    def __init__(self) -> None:
        self.enqueued = 0
        self.completed = 0
        self.failed = 0
        self.waited = 0
        self.ran = 0
        self.waits = [0] * (len(BUCKETS_US) + 1)
        self.runs = [0] * (len(BUCKETS_US) + 1)

    def count_waits(self, waits: Sequence[int]) -> None:
        """Count jobs that started after waiting for these times, in microseconds."""
        self.waited += min(sum(waits), len(waits) * LONGEST_US)
        self.waits = [sum(pair) for pair in zip(self.waits, _spread(waits), strict=True)]

    def count_attempts(self, end: AttemptEnd, number: int, ran: int, buckets: Sequence[int]) -> None:
        """Count attempts that ended alike: their number, their run time in microseconds, and those in each bucket."""
        self.runs = [sum(pair) for pair in zip(self.runs, buckets, strict=True)]
        if end == "failed":
            self.failed += number
            return
        self.ran += min(ran, number * LONGEST_US)
        if end == "completed":
            self.completed += number

    def copy(self) -> Tally:
        """Return an independent copy."""
        other = Tally()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.waits, other.runs = self.waits.copy(), self.runs.copy()
        return other

    def sums(self) -> tuple[int, ...]:
        """Return the values of ``SUMS``."""
        return (self.enqueued, self.completed, self.failed, self.waited, self.ran, *self.waits, *self.runs)

"""Totals of the work in a queue, of a tenant in a queue, and of a job type, minute by minute."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

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


def bucket_of(duration: int) -> int:
    """Return the number of the bucket in which a duration in microseconds is counted."""
    return bisect_left(BUCKETS_US, duration)


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

    def count_wait(self, wait: int) -> None:
        """Count a job that started after waiting ``wait`` microseconds."""
        self.waited += wait
        self.waits[bucket_of(wait)] += 1

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

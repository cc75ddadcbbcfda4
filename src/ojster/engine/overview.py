"""How does everything stand, at a glance? Queues, and the whole system, in numbers (ojs-admin-api.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.database.transaction import Transaction
from ojster.engine.inspect import count_jobs
from ojster.engine.queue_config import QueueConfig, read_config
from ojster.engine.queues import Queue, find_queue, list_queues
from ojster.engine.statistics import Work, work_by_queue

RECENT: Final = 5
"""Over how many minutes throughput is averaged."""

HOUR: Final = 60
"""Of how many minutes percentiles of latency are made."""


class QueueOverview(msgspec.Struct, frozen=True):
    """A queue: its jobs by state, what it did lately, and in the last hour."""

    queue: Queue
    counts: dict[str, int]
    recent: Work
    hour: Work

    def throughput(self) -> dict[str, float]:
        """Return how many attempts ended in a minute."""
        return throughput(self.recent)


def throughput(recent: Work) -> dict[str, float]:
    """Return how many attempts ended in a minute, of what ``RECENT`` minutes amounted to."""
    return {
        "processed_per_minute": round(recent.processed / RECENT, 2),
        "failed_per_minute": round(recent.failed / RECENT, 2),
        "enqueued_per_minute": round(recent.enqueued / RECENT, 2),
    }


def list_overviews(tx: Transaction, requests: Sequence[None]) -> list[list[QueueOverview]]:
    """Return how all queues do, by name, for each request."""
    (counts,) = count_jobs(tx, (None,))
    recent, hour = work_by_queue(tx, RECENT), work_by_queue(tx, HOUR)
    (queues,) = list_queues(tx, (None,))
    found = [
        QueueOverview(queue, counts.get(queue.name, {}), recent.get(queue.name, Work()), hour.get(queue.name, Work()))
        for queue in queues
    ]
    return [found for _ in requests]


class QueueDetail(msgspec.Struct, frozen=True):
    """All about a queue. ``oldest_at`` is since when the next job in it has been available."""

    overview: QueueOverview
    config: QueueConfig
    oldest_at: int | None


def show_queues(tx: Transaction, names: Sequence[str]) -> list[QueueDetail | None]:
    """Return all about each queue; ``None`` if there is no such queue."""
    results: list[QueueDetail | None] = []
    for name in names:
        queue = find_queue(tx, name)
        if queue is None:
            results.append(None)
            continue
        (counts,) = count_jobs(tx, (name,))
        recent, hour = work_by_queue(tx, RECENT, name), work_by_queue(tx, HOUR, name)
        rows = [
            row
            for limited, order in (("limit_key IS NULL", "priority DESC"), ("limit_key IS NOT NULL", "limit_key"))
            for row in tx.execute(
                f"SELECT enqueued_at FROM jobs WHERE queue = :name AND state = 'available' AND {limited} "
                f"ORDER BY {order}, seq LIMIT 1",
                {"name": name},
            )
        ]
        overview = QueueOverview(queue, counts.get(name, {}), recent.get(name, Work()), hour.get(name, Work()))
        results.append(QueueDetail(overview, read_config(tx, name), min((at for (at,) in rows), default=None)))
    return results


class DeadLetters(msgspec.Struct, frozen=True):
    """The dead letters in numbers; the moments are when the first and the last came."""

    total: int
    by_queue: dict[str, int]
    by_error_type: dict[str, int]
    oldest_at: int | None
    newest_at: int | None


def count_dead_letters(tx: Transaction, requests: Sequence[None]) -> list[DeadLetters]:
    """Return the dead letters in numbers, for each request (ojs-dead-letter.md section 10.1)."""
    rows: list[Any] = tx.execute(
        "SELECT queue, coalesce(error_type, 'Unknown'), count(*), min(finished_at), max(finished_at) FROM jobs "
        "WHERE dead = 1 GROUP BY 1, 2 ORDER BY 1, 2"
    )
    by_queue: dict[str, int] = {}
    by_error: dict[str, int] = {}
    for queue, error, jobs, _, _ in rows:
        by_queue[queue] = by_queue.get(queue, 0) + jobs
        by_error[error] = by_error.get(error, 0) + jobs
    found = DeadLetters(
        sum(by_queue.values()),
        by_queue,
        by_error,
        min((row[3] for row in rows), default=None),
        max((row[4] for row in rows), default=None),
    )
    return [found for _ in requests]

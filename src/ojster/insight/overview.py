"""How does everything stand, at a glance? Queues, and the whole system, in numbers (ojs-admin-api.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.events.subscription import active_subscriptions
from ojster.insight.statistics import Work, work_by_queue
from ojster.jobs.queries import count_jobs
from ojster.jobs.waiting import oldest_waiting
from ojster.queues.configuration import QueueConfig, read_config
from ojster.queues.pools import list_pools
from ojster.queues.queues import Queue, find_queue, list_queues
from ojster.storage.transaction import Transaction

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
        overview = QueueOverview(queue, counts.get(name, {}), recent.get(name, Work()), hour.get(name, Work()))
        results.append(QueueDetail(overview, read_config(tx, name), oldest_waiting(tx, name)))
    return results


class DeadLetters(msgspec.Struct, frozen=True):
    """The dead letters in numbers; the moments are when the first and the last came."""

    total: int
    by_queue: dict[str, int]
    by_error_type: dict[str, int]
    oldest_at: int | None
    newest_at: int | None


def count_dead_letters(tx: Transaction, tenants: Sequence[str | None]) -> list[DeadLetters]:
    """Return the dead letters of each tenant, or (``None``) of all, in numbers (ojs-dead-letter.md section 10.1)."""
    return [_count_dead_letters(tx, tenant) for tenant in tenants]


def _count_dead_letters(tx: Transaction, tenant: str | None) -> DeadLetters:
    where = "" if tenant is None else "AND tenant = :tenant "
    rows: list[Any] = tx.execute(
        "SELECT queue, coalesce(error_type, 'Unknown'), count(*), min(finished_at), max(finished_at) FROM jobs "
        f"WHERE dead = 1 {where}GROUP BY 1, 2 ORDER BY 1, 2",
        {"tenant": tenant},
    )
    by_queue: dict[str, int] = {}
    by_error: dict[str, int] = {}
    for queue, error, jobs, _, _ in rows:
        by_queue[queue] = by_queue.get(queue, 0) + jobs
        by_error[error] = by_error.get(error, 0) + jobs
    return DeadLetters(
        sum(by_queue.values()),
        by_queue,
        by_error,
        min((row[3] for row in rows), default=None),
        max((row[4] for row in rows), default=None),
    )


class StateOfExtensions(msgspec.Struct, frozen=True):
    """What extensions tell in numbers: dead letters by queue, how far pools are used, how many hear of events."""

    dead_letters: dict[str, int]
    pools: dict[str, float]
    subscriptions: int


def state_of_extensions(tx: Transaction, requests: Sequence[None]) -> list[StateOfExtensions]:
    """Return how it stands with dead letters, pools and webhooks, for each request."""
    dead = _count_dead_letters(tx, None).by_queue
    (pools,) = list_pools(tx, (None,))
    used = {one.pool.name: one.active_jobs / one.pool.concurrency for one in pools if one.pool.concurrency}
    found = StateOfExtensions(dead, used, len(active_subscriptions(tx)))
    return [found for _ in requests]

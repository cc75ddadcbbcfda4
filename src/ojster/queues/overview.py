"""Overview of queues, dead letters and extensions, in numbers.

Spec: ojs-admin-api
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.wire import ThroughputBody
from ojster.jobs.filter_walk import IS_NOT_INTERNAL
from ojster.jobs.names import is_internal
from ojster.jobs.queries import count_jobs
from ojster.jobs.scope import Scope
from ojster.jobs.statistics import Work, work_by_queue
from ojster.jobs.waiting import oldest_waiting
from ojster.queues.configuration import QueueConfig, read_config
from ojster.queues.queues import Queue, find_queue, list_queues
from ojster.storage.transaction import Transaction

THROUGHPUT_MINUTES: Final = 5
"""Window over which throughput is averaged, in minutes."""

LATENCY_MINUTES: Final = 60
"""Window over which latency percentiles are computed, in minutes."""


class QueueOverview(msgspec.Struct, frozen=True):
    """A queue: its jobs by state, and its work in the last ``THROUGHPUT_MINUTES`` minutes and in the last hour."""

    queue: Queue
    counts: dict[str, int]
    recent: Work
    hour: Work


def throughput(recent: Work) -> ThroughputBody:
    """Return the processed, failed and enqueued jobs per minute, from the totals of ``THROUGHPUT_MINUTES`` minutes."""
    processed, failed, enqueued = (
        round(jobs / THROUGHPUT_MINUTES, 2) for jobs in (recent.processed, recent.failed, recent.enqueued)
    )
    return ThroughputBody(processed, failed, enqueued)


def list_overviews(tx: Transaction, requests: Sequence[bool]) -> list[list[QueueOverview]]:
    """Return the overview of all queues, ordered by name; the server's own are left out unless the request is true."""
    (counts,) = count_jobs(tx, (None,))
    recent, hour = work_by_queue(tx, THROUGHPUT_MINUTES), work_by_queue(tx, LATENCY_MINUTES)
    (queues,) = list_queues(tx, (None,))
    overviews = [
        QueueOverview(queue, counts.get(queue.name, {}), recent.get(queue.name, Work()), hour.get(queue.name, Work()))
        for queue in queues
    ]
    others = [overview for overview in overviews if not is_internal(overview.queue.name)]
    return [overviews if internal else others for internal in requests]


class QueueDetail(msgspec.Struct, frozen=True):
    """Overview and configuration of a queue.

    ``oldest_at`` is the time since which its next job has been available, in microseconds since the epoch.
    """

    overview: QueueOverview
    config: QueueConfig
    oldest_at: int | None


def show_queues(tx: Transaction, names: Sequence[str]) -> list[QueueDetail | None]:
    """Return the details of each queue; ``None``: the queue does not exist."""
    results: list[QueueDetail | None] = []
    for name in names:
        queue = find_queue(tx, name)
        if queue is None:
            results.append(None)
            continue
        (counts,) = count_jobs(tx, (name,))
        recent, hour = work_by_queue(tx, THROUGHPUT_MINUTES, name), work_by_queue(tx, LATENCY_MINUTES, name)
        overview = QueueOverview(queue, counts.get(name, {}), recent.get(name, Work()), hour.get(name, Work()))
        results.append(QueueDetail(overview, read_config(tx, name), oldest_waiting(tx, name)))
    return results


class DeadLetters(msgspec.Struct, frozen=True):
    """Counts of dead letters, and when the oldest and the newest were discarded, in microseconds since the epoch."""

    total: int
    by_queue: dict[str, int]
    by_error_type: dict[str, int]
    oldest_at: int | None
    newest_at: int | None


def count_dead_letters(tx: Transaction, scopes: Sequence[Scope]) -> list[DeadLetters]:
    """Return the counts of the dead letters that each scope sees, without those of the server's own work.

    Spec: ojs-dead-letter 10.1
    """
    return [_count_dead_letters(tx, scope) for scope in scopes]


def _count_dead_letters(tx: Transaction, scope: Scope) -> DeadLetters:
    where = "" if scope.tenant is None else "AND tenant = :tenant "
    all_rows: list[Any] = tx.execute(
        f"""
        SELECT queue, coalesce(error_type, 'Unknown'), count(*), min(finished_at), max(finished_at)
        FROM jobs
        WHERE dead = 1 AND {IS_NOT_INTERNAL} {where}
        GROUP BY 1, 2
        ORDER BY 1, 2
        """,
        {"tenant": scope.tenant},
    )
    rows = [row for row in all_rows if scope.covers(row[0])]
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

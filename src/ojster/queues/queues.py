"""Queues: list, statistics, pause and resume.

Spec: ojs-http-binding 11
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.rate_limit import Limits
from ojster.core.tenant import TENANT_NAMES_RANGE, called
from ojster.fleet.unrunnable import PresentWorkers
from ojster.jobs.statistics import Work, work_by_queue
from ojster.queues.limits import Limit
from ojster.storage.transaction import Row, Transaction


class Queue(msgspec.Struct, frozen=True):
    """A queue and its limits. Times are microseconds since the epoch; ``paused_at`` is ``None`` unless it is paused."""

    name: str
    created_at: int
    paused_at: int | None = None
    limits: Limits = Limits()


class QueueStatistics(msgspec.Struct, frozen=True):
    """Statistics of a queue: jobs by state, and totals of the last hour. Durations are in microseconds."""

    queue: Queue
    counts: dict[str, int]
    enqueued: int
    completed: int
    failed: int
    waited: int
    ran: int


_SUMMED: Final = ("enqueued", "completed", "failed", "waited", "ran")


def list_queues(tx: Transaction, requests: Sequence[None]) -> list[list[Queue]]:
    """Return all queues, ordered by name, for each request."""
    rows = tx.execute(f"{_SELECT_QUEUES} ORDER BY q.name")
    return [[_queue(row) for row in rows] for _ in requests]


def list_unserved(tx: Transaction, requests: Sequence[None]) -> list[list[Queue]]:
    """Return the queues that no present worker takes jobs of, ordered by name, for each request."""
    present, (queues,) = PresentWorkers(tx), list_queues(tx, (None,))
    unserved = [queue for queue in queues if not present.of(queue.name) and not present.has_unknown(queue.name)]
    return [unserved for _ in requests]


_SELECT_QUEUES: Final = """
    SELECT
        q.name, q.created_at, q.paused_at, l.concurrency, l.rate_limit, l.rate_period, l.throttle_limit,
        l.throttle_period
    FROM queues AS q
    LEFT JOIN rate_limits AS l ON l.key = '/queue/' || q.name
"""


def find_queue(tx: Transaction, name: str) -> Queue | None:
    """Return the queue with a name, or ``None``."""
    rows = tx.execute(f"{_SELECT_QUEUES} WHERE q.name = :name", {"name": name})
    return _queue(rows[0]) if rows else None


def _queue(row: Row) -> Queue:
    name, created_at, paused_at, *limits = row
    return Queue(name, created_at, paused_at, Limit("", [], *limits).own)


def statistics(tx: Transaction, names: Sequence[str]) -> list[QueueStatistics | None]:
    """Return the statistics of each queue; ``None``: it does not exist. Names may be qualified with a tenant."""
    results: list[QueueStatistics | None] = []
    for name in names:
        queue = find_queue(tx, called(name))
        counts: dict[str, int] = dict(
            tx.execute("SELECT state, jobs FROM job_counts WHERE queue = :name", {"name": name})
        )
        if queue is None or (not counts and called(name) != name):
            results.append(None)
            continue
        hour = work_by_queue(tx, 60, name).get(name, Work())
        results.append(QueueStatistics(queue, counts, *(getattr(hour, field) for field in _SUMMED)))
    return results


def statistics_without_tenant(tx: Transaction, names: Sequence[str]) -> list[QueueStatistics | None]:
    """Return the statistics of each queue for jobs without a tenant: the totals minus those of all tenants."""
    results: list[QueueStatistics | None] = []
    for name, whole in zip(names, statistics(tx, names), strict=True):
        if whole is None:
            results.append(None)
            continue
        rest = Counter(whole.counts)
        sums = Counter({field: getattr(whole, field) for field in _SUMMED})
        theirs = {queue for (queue,) in tx.execute(_NAMES_OF_TENANTS, {"queue": name})}
        for counts in statistics(tx, sorted(theirs)):
            if counts is not None:
                rest.subtract(counts.counts)
                sums.subtract({field: getattr(counts, field) for field in _SUMMED})
        has_some = any(rest.values()) or sums["enqueued"] > 0 or not theirs
        results.append(QueueStatistics(whole.queue, dict(rest), **sums) if has_some else None)
    return results


_NAMES_OF_TENANTS: Final = f"""
    SELECT DISTINCT queue
    FROM job_counts
    WHERE queue >= '{TENANT_NAMES_RANGE[0]}'
        AND queue < '{TENANT_NAMES_RANGE[1]}'
        AND queue LIKE '/tenant/%/' || :queue
"""


def pause(tx: Transaction, names: Sequence[str]) -> list[Queue]:
    """Pause queues: none of their jobs is handed out. Jobs can still be enqueued, and active jobs continue."""
    return [_set_paused(tx, name, tx.now) for name in names]


def resume(tx: Transaction, names: Sequence[str]) -> list[Queue]:
    """Resume paused queues."""
    tx.effects.opened.update(names)
    return [_set_paused(tx, name, None) for name in names]


def _set_paused(tx: Transaction, name: str, paused_at: int | None) -> Queue:
    tx.execute(
        """
        INSERT INTO queues (name, created_at, paused_at)
        VALUES (:name, :now, :paused_at)
        ON CONFLICT (name) DO UPDATE SET paused_at = CASE
            WHEN excluded.paused_at IS NULL THEN NULL
            ELSE coalesce(queues.paused_at, excluded.paused_at)
        END
        """,
        {"name": name, "now": tx.now, "paused_at": paused_at},
    )
    tx.emit_about("queue.paused" if paused_at else "queue.resumed", name, name)
    queue = find_queue(tx, name)
    assert queue is not None
    return queue

"""What queues are there, how do they do, and may they hand out jobs? (ojs-http-binding.md section 11)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.database.transaction import Transaction


class Queue(msgspec.Struct, frozen=True):
    """A queue: since when it is paused, if it is, and its rate limit in jobs a second, if it has one."""

    name: str
    created_at: int
    paused_at: int | None = None
    max_per_second: int | None = None


class QueueStatistics(msgspec.Struct, frozen=True):
    """How a queue does: its jobs by state, and sums over the last hour. Durations are in microseconds."""

    queue: Queue
    counts: dict[str, int]
    enqueued: int
    completed: int
    failed: int
    waited: int
    ran: int


_SUMS: Final = ", ".join(
    f"CAST(coalesce(sum({name}), 0) AS BIGINT)" for name in ("enqueued", "completed", "failed", "waited", "ran")
)


def list_queues(tx: Transaction, requests: Sequence[None]) -> list[list[Queue]]:
    """Return all queues by name, for each request."""
    rows = tx.execute("SELECT name, created_at, paused_at, max_per_second FROM queues ORDER BY name")
    return [[Queue(*row) for row in rows] for _ in requests]


def statistics(tx: Transaction, names: Sequence[str]) -> list[QueueStatistics | None]:
    """Return how each queue does; ``None`` if there is no such queue."""
    hour_ago = tx.now // 60_000_000 - 60
    results: list[QueueStatistics | None] = []
    for name in names:
        rows = tx.execute(
            "SELECT name, created_at, paused_at, max_per_second FROM queues WHERE name = :name", {"name": name}
        )
        if not rows:
            results.append(None)
            continue
        counts: dict[str, int] = dict(
            tx.execute("SELECT state, jobs FROM job_counts WHERE queue = :name", {"name": name})
        )
        (sums,) = tx.execute(
            f"SELECT {_SUMS} FROM queue_minutes WHERE queue = :name AND minute > :hour_ago",
            {"name": name, "hour_ago": hour_ago},
        )
        results.append(QueueStatistics(Queue(*rows[0]), counts, *sums))
    return results


def pause(tx: Transaction, names: Sequence[str]) -> list[Queue]:
    """Stop handing out jobs of these queues. Jobs can still be enqueued; those that run go on."""
    return [_set_paused(tx, name, tx.now) for name in names]


def resume(tx: Transaction, names: Sequence[str]) -> list[Queue]:
    """Hand out jobs of these queues again."""
    tx.effects.opened.update(names)
    return [_set_paused(tx, name, None) for name in names]


def _set_paused(tx: Transaction, name: str, paused_at: int | None) -> Queue:
    (row,) = tx.execute(
        "INSERT INTO queues (name, created_at, paused_at) VALUES (:name, :now, :paused_at) "
        "ON CONFLICT (name) DO UPDATE SET paused_at = "
        "CASE WHEN excluded.paused_at IS NULL THEN NULL ELSE coalesce(queues.paused_at, excluded.paused_at) END "
        "RETURNING name, created_at, paused_at, max_per_second",
        {"name": name, "now": tx.now, "paused_at": paused_at},
    )
    tx.emit_about("queue.paused" if paused_at else "queue.resumed", name, name)
    return Queue(*row)

"""When is a finished job forgotten? After its state's retention period, a bounded batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.database.transaction import Transaction
from ojster.engine.control import delete_jobs
from ojster.engine.idempotency import forget_replies
from ojster.engine.workflows import forget_workflows

BATCH: Final = 500
KEEP_MINUTES: Final = 14 * 24 * 60
"""How long the statistics of each minute are kept, in minutes: two weeks."""


def forget(tx: Transaction, requests: Sequence[None]) -> list[int]:
    """Delete at most ``BATCH`` finished jobs whose retention is over; return how many were deleted."""
    retention = tx.settings.retention
    room = BATCH
    for state, dead, period in (
        ("completed", 0, retention.completed),
        ("cancelled", 0, retention.cancelled),
        ("discarded", 0, retention.discarded),
        ("discarded", 1, retention.dead_letter),
    ):
        if period is None or not room:
            continue
        rows = tx.execute(
            "SELECT seq, queue, state FROM jobs WHERE state = :state AND dead = :dead AND finished_at < :before "
            "AND node IS NULL "
            "ORDER BY finished_at LIMIT :room" + tx.skip_locked,
            {"state": state, "dead": dead, "before": tx.now - period, "room": room},
        )
        delete_jobs(tx, [(seq, queue, state) for seq, queue, state in rows])
        room -= len(rows)
    if room:
        room -= forget_workflows(tx, room)
    tx.forget_events()
    forget_replies(tx)
    tx.execute("DELETE FROM queue_minutes WHERE minute < :before", {"before": tx.now // 60_000_000 - KEEP_MINUTES})
    return [BATCH - room for _ in requests]

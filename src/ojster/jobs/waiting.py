"""Jobs that wait in a queue: their tenants, and the oldest of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.core.durations import SECOND
from ojster.core.job_table import AVAILABLE_CONDITIONS, next_values
from ojster.core.tenant import NOBODY
from ojster.storage.transaction import Transaction

MAX_TENANTS: Final = 100
"""Maximum number of tenants whose jobs a claim looks at in one queue."""

_WAITING_TENANTS: Final = next_values(
    "tenant", "FROM jobs WHERE queue = :queue AND state = 'available' AND tenant <> ''"
)


def waiting_tenants(tx: Transaction, queue: str, after: str = "", most: int = MAX_TENANTS) -> list[str]:
    """Return the tenants behind ``after``, by name, that have available jobs in a queue."""
    rows = tx.execute(_WAITING_TENANTS, {"queue": queue, "after": after, "most": most})
    return [name for (name,) in rows]


def oldest_waiting(tx: Transaction, queue: str) -> int | None:
    """Return when the next job of a queue became available, whatever its tenant, in microseconds since the epoch."""
    moments = []
    for tenant in (NOBODY, *waiting_tenants(tx, queue)):
        for kind, order in AVAILABLE_CONDITIONS:
            moments += tx.execute(
                f"""
                SELECT enqueued_at
                FROM jobs
                WHERE queue = :queue AND tenant = :tenant AND state = 'available' AND {kind}
                ORDER BY {order}, seq
                LIMIT 1
                """,
                {"queue": queue, "tenant": tenant},
            )
    return min((at for (at,) in moments if at is not None), default=None)


def count_waits(tx: Transaction, calls: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    """Return for each call how long the next jobs of its queues have been available, in seconds, by queue."""
    return [
        {queue: (tx.now - at) / SECOND for queue in queues if (at := oldest_waiting(tx, queue)) is not None}
        for queues in calls
    ]

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


_NEXT_OF_A_TENANT: Final = ", ".join(
    f"""(
            SELECT enqueued_at
            FROM jobs
            WHERE queue = :queue AND tenant = waiting.name AND state = 'available' AND {kind}
            ORDER BY {order}, seq
            LIMIT 1
        )"""
    for kind, order in AVAILABLE_CONDITIONS
)

_NEXT_JOBS: Final = f"""
    SELECT {_NEXT_OF_A_TENANT}
    FROM (
        SELECT CAST(:nobody AS TEXT) AS name
        UNION ALL
        SELECT name FROM ({_WAITING_TENANTS}) AS others
    ) AS waiting
"""
"""When the next jobs of each tenant became available: a lookup in an index for each kind of job and tenant."""


def oldest_waiting(tx: Transaction, queue: str) -> int | None:
    """Return when the next job of a queue became available, whatever its tenant, in microseconds since the epoch.

    It is the first of the next jobs of each tenant, of ``MAX_TENANTS`` tenants by name and of none. So an older job may
    wait behind one of a higher priority, or be of another tenant: no index has the oldest one.
    """
    rows = tx.execute(_NEXT_JOBS, {"queue": queue, "nobody": NOBODY, "after": "", "most": MAX_TENANTS})
    return min((at for row in rows for at in row if at is not None), default=None)


def count_waits(tx: Transaction, calls: Sequence[Sequence[str]]) -> list[dict[str, float]]:
    """Return for each call how long the next jobs of its queues have been available, in seconds, by queue."""
    return [
        {queue: (tx.now - at) / SECOND for queue in queues if (at := oldest_waiting(tx, queue)) is not None}
        for queues in calls
    ]

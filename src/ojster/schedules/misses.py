"""Missed runs of cron jobs: the occurrences that started nothing, and why.

The transaction that decides that an occurrence starts nothing records it. Consecutive occurrences with the same cause
are one record, so that a cron job that runs every second and overlaps for an hour does not push out what was before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

import msgspec

from ojster.core.durations import DAY
from ojster.core.errors import OjsterError
from ojster.jobs.extension import DeletedCounts
from ojster.queues.maintenance import last_maintenance
from ojster.schedules.cron import Cron, find, no_cron
from ojster.storage.transaction import Transaction

MAX_MISSES: Final = 100
"""Maximum number of records of missed runs that are kept for a cron job."""

MISSES_KEPT: Final = 30 * DAY
"""Time for which missed runs are kept, in microseconds."""

MAX_COUNTED: Final = 100
"""Maximum number of occurrences counted after an outage: one transaction does it for many cron jobs."""


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive occurrences of a cron job that started nothing, for one reason.

    Times are microseconds since the epoch.

    Parameters
    ----------
    since, until:
        The first and the last of the occurrences.
    occurrences:
        How many there were.
    is_complete:
        Whether all of them were counted; if not, there were at least ``occurrences``.
    reason:
        ``overlap_skip``, ``dst_skip``, ``maintenance``, ``late``, or the code of the refusal, such as ``QUEUE_FULL``.
    message:
        The reason, for people.
    active_id:
        The id of the unfinished run, job or workflow, with which they would have overlapped.
    noted_at:
        When the last of them was recorded.
    """

    since: int
    until: int
    occurrences: int = 1
    is_complete: bool = True
    reason: str
    message: str
    active_id: str | None = None
    noted_at: int = 0


_COLUMNS: Final = "since, until, occurrences, complete, reason, message, active_id, noted_at"


def note_miss(tx: Transaction, cron: Cron, miss: Miss) -> None:
    """Record occurrences that start nothing; ``cron``: as it was before."""
    known = _records(tx, cron.name, 1)
    if known and _continues(known[0], cron, miss):
        tx.execute(
            """
            UPDATE cron_misses
            SET until = :until, occurrences = occurrences + 1, message = :message, noted_at = :now
            WHERE cron_name = :name AND since = :since
            """,
            {
                "name": cron.name,
                "since": known[0].since,
                "until": miss.until,
                "message": miss.message,
                "now": tx.now,
            },
        )
        return
    tx.execute(  # what daylight saving time skips may be recorded, and again after the expression has changed
        f"""
        INSERT INTO cron_misses (cron_name, {_COLUMNS})
        VALUES (
            :cron_name, :since, :until, :occurrences, :complete, :reason, :message, :active_id, :noted_at
        )
        ON CONFLICT (cron_name, since) DO NOTHING
        """,
        {
            "cron_name": cron.name,
            "since": miss.since,
            "until": miss.until,
            "occurrences": miss.occurrences,
            "complete": int(miss.is_complete),
            "reason": miss.reason,
            "message": miss.message,
            "active_id": miss.active_id,
            "noted_at": tx.now,
        },
    )
    tx.execute(
        """
        DELETE FROM cron_misses
        WHERE cron_name = :name
            AND since < (
                SELECT since
                FROM cron_misses
                WHERE cron_name = :name
                ORDER BY since DESC
                LIMIT 1 OFFSET :last
            )
        """,
        {"name": cron.name, "last": MAX_MISSES - 1},
    )


def _continues(known: Miss, cron: Cron, miss: Miss) -> bool:
    """Return whether a miss has the cause of the one recorded last, and no run has started between them."""
    same = (known.reason, known.active_id) == (miss.reason, miss.active_id) and known.until < miss.since
    return same and miss.occurrences == 1 and (cron.last_run_at is None or cron.last_run_at < known.noted_at)


def note_late(tx: Transaction, cron: Cron, since: int) -> None:
    """Record the occurrences from ``since`` until now: a cron job that fires late fires once for all of them."""
    late = list(islice(cron.schedule.between(since, tx.now), MAX_COUNTED + 1))
    is_complete = len(late) <= MAX_COUNTED
    mode = last_maintenance(tx)
    if mode is not None and mode.enabled_at <= since <= mode.ended_at:
        reason, message = "maintenance", "Maintenance mode was on. It ran once when that ended."
    else:
        reason, message = (
            "late",
            "No server started it in time: none ran or reached the database, or they had to wait. It ran once later.",
        )
    note_miss(
        tx,
        cron,
        Miss(
            since=since,
            until=late[-1] if is_complete else tx.now,
            occurrences=min(len(late), MAX_COUNTED),
            is_complete=is_complete,
            reason=reason,
            message=message,
        ),
    )


def list_misses(tx: Transaction, names: Sequence[str]) -> list[list[Miss] | OjsterError]:
    """Return the missed runs of each cron job, the newest first, at most ``MAX_MISSES`` records."""
    return [no_cron(name) if find(tx, name) is None else _records(tx, name, MAX_MISSES) for name in names]


def _records(tx: Transaction, name: str, limit: int) -> list[Miss]:
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM cron_misses WHERE cron_name = :name ORDER BY since DESC LIMIT :limit",
        {"name": name, "limit": limit},
    )
    return [
        Miss(
            since=since,
            until=until,
            occurrences=occurrences,
            is_complete=bool(complete),
            reason=reason,
            message=message,
            active_id=active_id,
            noted_at=noted_at,
        )
        for since, until, occurrences, complete, reason, message, active_id, noted_at in rows
    ]


def forget_misses(tx: Transaction, room: int) -> DeletedCounts:
    """Delete missed runs past their retention, at most ``room`` records; return their number."""
    rows = tx.execute(
        """
        DELETE FROM cron_misses
        WHERE (cron_name, since) IN (
            SELECT cron_name, since
            FROM cron_misses
            WHERE noted_at < :before
            ORDER BY noted_at
            LIMIT :room
        )
        RETURNING cron_name
        """,
        {"before": tx.now - MISSES_KEPT, "room": room},
    )
    return Counter(rows=len(rows), cron_misses=len(rows))


def count_expired_misses(tx: Transaction) -> int:
    """Return the number of records that repeated calls of ``forget_misses`` would delete."""
    ((count,),) = tx.execute(
        "SELECT count(*) FROM cron_misses WHERE noted_at < :before", {"before": tx.now - MISSES_KEPT}
    )
    return int(count)

"""Workers whose heartbeats stopped, and the jobs that they held: kept for a day, because people ask afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.durations import DAY
from ojster.core.job import Job
from ojster.storage.transaction import Transaction

KEPT_US: Final = DAY
"""Time for which a lost worker is kept, in microseconds."""

MAX_LOST: Final = 100
"""Maximum number of lost workers in a list, those lost last."""

MAX_HELD_IDS: Final = 100
"""Maximum number of jobs whose ids are kept of a lost worker."""


class HeldJob(msgspec.Struct, frozen=True):
    """A job that a lost worker held, with its present state."""

    id: str
    type: str
    queue: str
    state: str


class LostWorker(msgspec.Struct, frozen=True):
    """A worker whose heartbeats stopped, and which has not come back. Times are microseconds since the epoch.

    Parameters
    ----------
    held:
        Number of jobs that it held.
    jobs:
        The first of them that still exist.
    """

    id: str
    hostname: str | None
    pid: int | None
    queues: list[str]
    started_at: int
    last_seen_at: int
    lost_at: int
    held: int
    jobs: list[HeldJob]


def note_expired_lease(tx: Transaction, worker_id: str, job: Job) -> None:
    """Keep a job of a worker whose lease has expired: if the worker is not heard again, it held this job, too.

    Leases expire before their worker counts as lost, or at the same time. ``lost_at`` is 0 until then.
    """
    # One statement adds the id, so that of two servers that end leases of the worker none overwrites the other's.
    tx.execute(
        """
        INSERT INTO lost_workers (id, hostname, pid, queues, started_at, last_seen_at, lost_at, held, job_ids)
        SELECT id, hostname, pid, queues, started_at, last_seen_at, 0, 1, :job_ids
        FROM workers
        WHERE id = :id
        ON CONFLICT (id) DO UPDATE SET
            last_seen_at = excluded.last_seen_at,
            lost_at = 0,
            held = CASE
                WHEN lost_workers.last_seen_at = excluded.last_seen_at THEN lost_workers.held + 1
                ELSE 1
            END,
            job_ids = CASE
                WHEN lost_workers.last_seen_at <> excluded.last_seen_at THEN excluded.job_ids
                WHEN lost_workers.held >= :most THEN lost_workers.job_ids
                ELSE substr(lost_workers.job_ids, 1, length(lost_workers.job_ids) - 1)
                    || ',' || substr(excluded.job_ids, 2)
            END
        """,
        {"id": worker_id, "job_ids": _encoded([job.id]), "most": MAX_HELD_IDS},
    )


def note_last_report(tx: Transaction, worker_id: str, seen_at: int) -> None:
    """Keep the jobs of a worker whose leases have expired, although it was heard after its last heartbeat."""
    tx.execute(
        "UPDATE lost_workers SET last_seen_at = :seen_at WHERE id = :id AND lost_at = 0",
        {"id": worker_id, "seen_at": seen_at},
    )


def note_loss(tx: Transaction, worker_id: str, held: Sequence[Job]) -> None:
    """Keep a worker that is about to be deleted, the jobs that it holds, and those whose leases have expired."""
    expired = tx.execute(
        """
        SELECT lost.held, lost.job_ids
        FROM lost_workers AS lost
        JOIN workers ON workers.id = lost.id AND workers.last_seen_at = lost.last_seen_at
        WHERE lost.id = :id AND lost.lost_at = 0
        """,
        {"id": worker_id},
    )
    number, names = (expired[0][0], _names(expired[0][1])) if expired else (0, [])
    names += [job.id for job in sorted(held, key=lambda job: job.seq)]
    ids = list(dict.fromkeys(names))  # it may have claimed again what it had before
    number += len(held) - (len(names) - len(ids))
    tx.execute(
        """
        INSERT INTO lost_workers (id, hostname, pid, queues, started_at, last_seen_at, lost_at, held, job_ids)
        SELECT id, hostname, pid, queues, started_at, last_seen_at, :now, :held, :job_ids
        FROM workers
        WHERE id = :id
        ON CONFLICT (id) DO UPDATE SET
            hostname = excluded.hostname,
            pid = excluded.pid,
            queues = excluded.queues,
            started_at = excluded.started_at,
            last_seen_at = excluded.last_seen_at,
            lost_at = excluded.lost_at,
            held = excluded.held,
            job_ids = excluded.job_ids
        """,
        {"id": worker_id, "now": tx.now, "held": number, "job_ids": _encoded(ids[:MAX_HELD_IDS])},
    )


def forget_loss(tx: Transaction, worker_id: str) -> None:
    """Delete a lost worker that has come back: it is not lost, also not after it has stopped in order."""
    tx.execute("DELETE FROM lost_workers WHERE id = :id", {"id": worker_id})


def list_lost(tx: Transaction, requests: Sequence[None]) -> list[list[LostWorker]]:
    """Return the workers that were lost in the last day, those lost last first, for each request."""
    rows = tx.execute(
        """
        SELECT id, hostname, pid, queues, started_at, last_seen_at, lost_at, held, job_ids
        FROM lost_workers
        WHERE lost_at > :since
        ORDER BY lost_at DESC, id
        LIMIT :most
        """,
        {"since": tx.now - KEPT_US, "most": MAX_LOST},
    )
    ids = {row[0]: _names(row[-1]) for row in rows}
    jobs = tx.find_jobs([id for held in ids.values() for id in held])
    lost = []
    for id, hostname, pid, queues, started_at, seen_at, lost_at, held, _ in rows:
        known = [jobs[job_id] for job_id in ids[id] if job_id in jobs]
        shown = [HeldJob(job.id, job.type, job.queue, job.state) for job in known]
        lost.append(LostWorker(id, hostname, pid, _names(queues), started_at, seen_at, lost_at, held, shown))
    return [lost for _ in requests]


_names: Final = msgspec.json.Decoder(list[str]).decode


def _encoded(names: list[str]) -> str:
    return msgspec.json.encode(names).decode()


def forget_lost(tx: Transaction, room: int) -> int:
    """Delete at most ``room`` workers that were lost long ago; return their number."""
    rows = tx.execute(
        """
        DELETE FROM lost_workers
        WHERE id IN (
            SELECT id
            FROM lost_workers
            WHERE lost_at <= :before AND last_seen_at <= :before
            ORDER BY lost_at
            LIMIT :room
        )
        RETURNING id
        """,
        {"before": tx.now - KEPT_US, "room": max(0, room)},
    )
    return len(rows)

"""Which workers belong together, and what do they share? (ojs-fair-scheduling.md)"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from ojster.core.errors import NotFound, OjsterError
from ojster.insight.statistics import MICROS_A_MINUTE, Work, work_by_queue
from ojster.jobs.claim_policy import UNLIMITED
from ojster.jobs.waiting import oldest_waiting
from ojster.queues.fairness import Sharing, Turns
from ojster.queues.pool import Pool, decode_pool
from ojster.storage.transaction import Transaction


class PoolOverview(msgspec.Struct, frozen=True):
    """A pool, and who is at work in it."""

    pool: Pool
    active_workers: int
    active_jobs: int


def put_pools(tx: Transaction, pools: Sequence[Pool]) -> list[tuple[PoolOverview, bool]]:
    """Create or change pools; for each return it, and whether it is new. It holds at once."""
    results = []
    for pool in pools:
        known = _find(tx, pool.name, tx.for_update)
        kept = msgspec.structs.replace(pool, created_at=known.created_at if known else tx.now, updated_at=tx.now)
        tx.execute(
            "INSERT INTO pools (name, body) VALUES (:name, :body) "
            "ON CONFLICT (name) DO UPDATE SET body = excluded.body",
            {"name": pool.name, "body": msgspec.json.encode(kept)},
        )
        _changed(tx, *(one for one in (known, kept) if one is not None))
        if known is not None and known.sharing != kept.sharing:
            tx.emit_about(
                "scheduling.rebalanced",
                pool.name,
                pool=pool.name,
                previous_strategy=known.sharing.strategy,
                new_strategy=kept.sharing.strategy,
            )
        results.append((_overview(tx, kept), known is None))
    return results


def delete_pools(tx: Transaction, names: Sequence[str]) -> list[OjsterError | None]:
    """Delete pools; their workers go on as if they were of none."""
    results: list[OjsterError | None] = []
    for name in names:
        known = _find(tx, name, tx.for_update)
        if known is None:
            results.append(_no_pool(name))
            continue
        tx.execute("DELETE FROM pools WHERE name = :name", {"name": name})
        _changed(tx, known)
        results.append(None)
    return results


def find_pools(tx: Transaction, names: Sequence[str]) -> list[PoolOverview | OjsterError]:
    """Return each pool, or that there is none."""
    found = [_find(tx, name) for name in names]
    return [_no_pool(name) if pool is None else _overview(tx, pool) for name, pool in zip(names, found, strict=True)]


def list_pools(tx: Transaction, requests: Sequence[None]) -> list[list[PoolOverview]]:
    """Return all pools by name, for each request."""
    rows = tx.execute("SELECT body FROM pools ORDER BY name")
    found = [_overview(tx, decode_pool(body)) for (body,) in rows]
    return [found for _ in requests]


def _find(tx: Transaction, name: str, locking: str = "") -> Pool | None:
    rows = tx.execute("SELECT body FROM pools WHERE name = :name" + locking, {"name": name})
    return decode_pool(rows[0][0]) if rows else None


def _changed(tx: Transaction, *pools: Pool) -> None:
    tx.effects.configured = True
    for pool in pools:
        tx.effects.opened.update(pool.queues)  # others may look into them now, or there may be more room


def _overview(tx: Transaction, pool: Pool) -> PoolOverview:
    ((workers,),) = tx.execute("SELECT count(*) FROM workers WHERE pool = :name", {"name": pool.name})
    return PoolOverview(pool, workers, _count_active_in(tx, pool))


def _count_active_in(tx: Transaction, pool: Pool) -> int:
    ((jobs,),) = tx.execute(
        "SELECT count(*) FROM jobs WHERE state = 'active' AND due_at IS NOT NULL "
        "AND worker_id IN (SELECT id FROM workers WHERE pool = :name)",
        {"name": pool.name},
    )
    return int(jobs)


def count_active_jobs(tx: Transaction, workers: Collection[str]) -> dict[str, int]:
    """Return how many jobs each of some workers holds, if it holds any."""
    rows = tx.execute(
        "SELECT worker_id, count(*) FROM jobs WHERE state = 'active' AND due_at IS NOT NULL AND worker_id IS NOT NULL "
        "GROUP BY worker_id"
    )
    return {worker: jobs for worker, jobs in rows if worker in workers}


def room_in(tx: Transaction, pool: Pool, turns: Turns) -> int:
    """Return how many more jobs may run in a pool. Until the transaction ends, nobody else finds that out."""
    if pool.concurrency is None:
        return UNLIMITED
    tx.execute("SELECT name FROM pools WHERE name = :name" + tx.for_update, {"name": pool.name})
    active = _count_active_in(tx, pool)
    room = max(0, pool.concurrency - active)
    if not room and not turns.is_full:
        waiting = sum(_count_available(tx, queue) for queue in pool.queues)
        tx.emit_about("scheduling.pool_overloaded", pool.name, pool=pool.name, active_jobs=active, waiting_jobs=waiting)
    turns.is_full = not room
    return room


def is_starved(tx: Transaction, queue: str, sharing: Sharing, turns: Turns) -> bool:
    """Whether a queue has had a job for longer than it may be passed over (section 8.1)."""
    if sharing.rotation is None:
        return False
    served_at = turns.served_at.setdefault(queue, tx.now)
    if tx.now - served_at <= sharing.rotation or not turns.was_passed_over(queue):
        return False
    oldest_at = oldest_waiting(tx, queue)
    if oldest_at is None:
        turns.served_at[queue] = tx.now
        return False
    waited = tx.now - max(served_at, oldest_at)
    if waited <= sharing.rotation:
        return False
    turns.served_at[queue] = tx.now
    tx.emit_about(
        "scheduling.queue_starved",
        queue,
        queue,
        duration_ms=waited // 1000,
        available_count=_count_available(tx, queue),
    )
    return True


def _count_available(tx: Transaction, queue: str) -> int:
    rows: list[Any] = tx.execute(
        "SELECT jobs FROM job_counts WHERE queue = :queue AND state = 'available'", {"queue": queue}
    )
    return int(rows[0][0]) if rows else 0


class Dispatched(msgspec.Struct, frozen=True):
    """What was handed out of a queue in the last minute; how long jobs had waited, in microseconds, on the average."""

    queue: str
    started: float
    share: float
    waited: int
    active: int


def count_dispatched(tx: Transaction, requests: Sequence[None]) -> list[list[Dispatched]]:
    """Return what was handed out of each queue in the last minute, by name, for each request (section 10.2).

    Work is counted by the minute: of the minute before this one, as much counts as lies within the last sixty seconds.
    """
    elapsed = tx.now % MICROS_A_MINUTE / MICROS_A_MINUTE
    two_minutes, this_one = work_by_queue(tx, 2), work_by_queue(tx, 1)
    started: dict[str, float] = {}
    waited: dict[str, float] = {}
    for queue, both in two_minutes.items():
        present = this_one.get(queue, Work())
        started[queue] = (1 - elapsed) * both.started + elapsed * present.started
        waited[queue] = (1 - elapsed) * both.waited + elapsed * present.waited
    active: dict[str, int] = dict(
        tx.execute("SELECT queue, jobs FROM job_counts WHERE state = 'active' AND jobs > 0 AND queue >= '0'")
    )
    total = sum(started.values())
    found = [
        Dispatched(
            queue,
            started.get(queue, 0.0),
            started.get(queue, 0.0) / total if total else 0.0,
            round(waited[queue] / started[queue]) if started.get(queue) else 0,
            active.get(queue, 0),
        )
        for queue in sorted(started.keys() | active.keys())
    ]
    return [found for _ in requests]


def _no_pool(name: str) -> NotFound:
    return NotFound(f"There is no pool {name!r}.", resource_type="pool", resource_id=name)

"""Pools: workers that share queues and a concurrency limit.

Spec: ojs-fair-scheduling
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from ojster.core.errors import NotFound, OjsterError
from ojster.jobs.claim_policy import UNLIMITED
from ojster.jobs.statistics import MICROSECONDS_PER_MINUTE, Work, work_by_queue
from ojster.jobs.waiting import oldest_waiting
from ojster.queues.fairness import FairnessState, Sharing
from ojster.queues.pool import Pool, decode_pool
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction


class PoolOverview(msgspec.Struct, frozen=True):
    """A pool, and its numbers of workers and of active jobs."""

    pool: Pool
    active_workers: int
    active_jobs: int


@for_each
def put_pools(tx: Transaction, pool: Pool) -> tuple[PoolOverview, bool]:
    """Create or change pools, effective at once; return each pool, and whether it is new."""
    # The second of two changes must see the first: the time of the creation stays, and the event names the strategy
    # that was replaced.
    known = _find(tx, pool.name, tx.for_update)
    kept = msgspec.structs.replace(pool, created_at=known.created_at if known else tx.now, updated_at=tx.now)
    tx.execute(
        """
        INSERT INTO pools (name, body)
        VALUES (:name, :body)
        ON CONFLICT (name) DO UPDATE SET body = excluded.body
        """,
        {"name": pool.name, "body": msgspec.json.encode(kept)},
    )
    _changed(tx, *(version for version in (known, kept) if version is not None))
    if known is not None and known.sharing != kept.sharing:
        tx.emit_about(
            "scheduling.rebalanced",
            pool.name,
            pool=pool.name,
            previous_strategy=known.sharing.strategy,
            new_strategy=kept.sharing.strategy,
        )
    return (_overview(tx, kept), known is None)


@for_each
def delete_pools(tx: Transaction, name: str) -> OjsterError | None:
    """Delete pools; their workers continue without a pool."""
    # The queues to wake are those of the last version, which another transaction may be writing.
    known = _find(tx, name, tx.for_update)
    if known is None:
        return _no_pool(name)
    tx.execute("DELETE FROM pools WHERE name = :name", {"name": name})
    _changed(tx, known)
    return None


def find_pools(tx: Transaction, names: Sequence[str]) -> list[PoolOverview | OjsterError]:
    """Return each pool, or ``NotFound``."""
    pools = [_find(tx, name) for name in names]
    return [_no_pool(name) if pool is None else _overview(tx, pool) for name, pool in zip(names, pools, strict=True)]


def list_pools(tx: Transaction, requests: Sequence[None]) -> list[list[PoolOverview]]:
    """Return all pools, ordered by name, for each request."""
    rows = tx.execute("SELECT body FROM pools ORDER BY name")
    overviews = [_overview(tx, decode_pool(body)) for (body,) in rows]
    return [overviews for _ in requests]


def _find(tx: Transaction, name: str, locking: str = "") -> Pool | None:
    rows = tx.execute("SELECT body FROM pools WHERE name = :name" + locking, {"name": name})
    return decode_pool(rows[0][0]) if rows else None


def _changed(tx: Transaction, *pools: Pool) -> None:
    tx.effects.configured = True
    for pool in pools:
        tx.effects.opened.update(pool.queues)  # other workers may get jobs from them now, or there may be more capacity


def _overview(tx: Transaction, pool: Pool) -> PoolOverview:
    ((workers,),) = tx.execute("SELECT count(*) FROM workers WHERE pool = :name", {"name": pool.name})
    return PoolOverview(pool, workers, _count_active_in(tx, pool))


def _count_active_in(tx: Transaction, pool: Pool) -> int:
    ((jobs,),) = tx.execute(
        """
        SELECT count(*)
        FROM jobs
        WHERE state = 'active'
            AND due_at IS NOT NULL
            AND worker_id IN (SELECT id FROM workers WHERE pool = :name)
        """,
        {"name": pool.name},
    )
    return int(jobs)


def count_active_jobs(tx: Transaction, workers: Collection[str]) -> dict[str, int]:
    """Return the number of active jobs of each worker that has some."""
    rows = tx.execute(
        """
        SELECT worker_id, count(*)
        FROM jobs
        WHERE state = 'active' AND due_at IS NOT NULL AND worker_id IS NOT NULL
        GROUP BY worker_id
        """
    )
    return {worker: jobs for worker, jobs in rows if worker in workers}


def pool_capacity(tx: Transaction, pool: Pool, turns: FairnessState) -> int:
    """Return the number of jobs that may still start in a pool; lock its row until the transaction ends."""
    if pool.concurrency is None:
        return UNLIMITED
    # Claims that count at the same time would all take the last place of the pool.
    tx.execute("SELECT name FROM pools WHERE name = :name" + tx.for_update, {"name": pool.name})
    active = _count_active_in(tx, pool)
    room = max(0, pool.concurrency - active)
    if not room and not turns.is_full:
        waiting = sum(_count_available(tx, queue) for queue in pool.queues)
        tx.emit_about("scheduling.pool_overloaded", pool.name, pool=pool.name, active_jobs=active, waiting_jobs=waiting)
    turns.is_full = not room
    return room


def is_starved(tx: Transaction, queue: str, sharing: Sharing, turns: FairnessState) -> bool:
    """Return whether a queue with available jobs was passed over for longer than its rotation allows.

    If it was, emit ``scheduling.queue_starved`` and count the queue as served.

    Spec: ojs-fair-scheduling 8.1
    """
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
    """Jobs handed out of a queue in the last minute.

    ``share`` is its part of those of all queues, ``waited`` the average wait in microseconds.
    """

    queue: str
    started: float
    share: float
    waited: int
    active: int


def count_dispatched(tx: Transaction, requests: Sequence[None]) -> list[list[Dispatched]]:
    """Return the jobs handed out of each queue in the last minute, ordered by queue, for each request.

    Work is counted per calendar minute. The previous minute counts in proportion to its part in the last 60 seconds.

    Spec: ojs-fair-scheduling 10.2
    """
    elapsed = tx.now % MICROSECONDS_PER_MINUTE / MICROSECONDS_PER_MINUTE
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
    states = [
        Dispatched(
            queue,
            started.get(queue, 0.0),
            started.get(queue, 0.0) / total if total else 0.0,
            round(waited[queue] / started[queue]) if started.get(queue) else 0,
            active.get(queue, 0),
        )
        for queue in sorted(started.keys() | active.keys())
    ]
    return [states for _ in requests]


def _no_pool(name: str) -> NotFound:
    return NotFound(f"There is no pool {name!r}.", resource_type="pool", resource_id=name)

"""Which jobs does a worker get? (FETCH, ojs-core.md section 7.2)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.database.transaction import Transaction
from ojster.model.duration import SECOND
from ojster.model.envelope import Job

MOST_CLAIMED: Final = 1_000


class Claim(msgspec.Struct, frozen=True):
    """A worker's request for jobs.

    Parameters
    ----------
    queues:
        Where to look, the first first.
    count:
        The most jobs to hand out.
    worker_id:
        Who will hold the lease.
    lease:
        How long, in microseconds, where the job does not say; ``None``: the server's default.
    """

    queues: tuple[str, ...]
    count: int = 1
    worker_id: str | None = None
    lease: int | None = None


class Claimed(msgspec.Struct):
    """The jobs handed out; if a rate limit held some back, when to ask again (microseconds since the epoch)."""

    jobs: list[Job]
    retry_at: int | None = None


class _Gate(msgspec.Struct):
    """A queue that does not hand out its jobs freely."""

    paused: bool
    allowance: int
    opens_at: int | None
    window_started_at: int
    window_used: int


def claim(tx: Transaction, claims: Sequence[Claim]) -> list[Claimed]:
    """Hand out available jobs, queues from left to right, then by priority, then first in, first out.

    Requests for the same queues are served together, in their order.
    """
    gates = _gates(tx)
    results: dict[int, Claimed] = {}
    alike: dict[tuple[str, ...], list[int]] = {}
    for index, request in enumerate(claims):
        alike.setdefault(request.queues, []).append(index)
    for queues, indices in alike.items():
        total = sum(min(claims[index].count, MOST_CLAIMED) for index in indices)
        jobs, retry_at = _take(tx, queues, total, gates)
        position = 0
        for index in indices:
            request = claims[index]
            mine = jobs[position : position + min(request.count, MOST_CLAIMED)]
            position += len(mine)
            _start(tx, mine, request)
            results[index] = Claimed(mine, retry_at)
    return [results[index] for index in range(len(claims))]


def _take(tx: Transaction, queues: Sequence[str], wanted: int, gates: dict[str, _Gate]) -> tuple[list[Job], int | None]:
    taken: list[Job] = []
    retry_at: int | None = None
    for queue in dict.fromkeys(queues):
        if len(taken) >= wanted:
            break
        limit = wanted - len(taken)
        gate = gates.get(queue)
        if gate is not None:
            if gate.paused:
                continue
            limit = min(limit, gate.allowance)
            if gate.opens_at is not None and limit < wanted - len(taken):
                retry_at = gate.opens_at if retry_at is None else min(retry_at, gate.opens_at)
        jobs = _one_of_each_exclusive(tx.available_jobs(queue, limit)) if limit else []
        if gate is not None and gate.opens_at is not None:
            gate.allowance -= len(jobs)
            _write_window(tx, queue, gate, len(jobs))
        taken += jobs
    return taken, retry_at


def _one_of_each_exclusive(jobs: list[Job]) -> list[Job]:
    """Leave out jobs whose exclusive key an earlier one of the list has."""
    keys = [job.exclusive_key for job in jobs]
    if not any(keys):
        return jobs
    return [job for place, job in enumerate(jobs) if job.exclusive_key is None or job.exclusive_key not in keys[:place]]


def _start(tx: Transaction, jobs: list[Job], request: Claim) -> None:
    now, settings, effects = tx.now, tx.settings, tx.effects
    for job in jobs:
        tx.move(job, "active")
        job.attempt += 1
        job.started_at = now
        job.worker_id = request.worker_id
        due = lease_end(job, now, request.lease or settings.default_lease, settings.default_timeout)
        job.due_at = due
        tx.expect(due)
        effects.tallies[job.queue].waited += now - (job.enqueued_at or now)
        tx.emit("job.started", job, attempt=job.attempt, worker_id=request.worker_id)
    tx.start_jobs(jobs)


def lease_end(job: Job, now: int, lease: int, default_timeout: int | None) -> int:
    """When an active job must have been heard of, or have ended: its lease or its timeout, whichever is first."""
    end = now + (job.lease or lease)
    timeout = job.timeout or default_timeout
    if timeout is not None and job.started_at is not None:
        end = min(end, job.started_at + timeout)
    return end


def _gates(tx: Transaction) -> dict[str, _Gate]:
    gates = {}
    for name, paused_at, limit, started_at, used in tx.execute(
        "SELECT name, paused_at, max_per_second, window_started_at, window_used FROM queues "
        "WHERE paused_at IS NOT NULL OR max_per_second IS NOT NULL" + tx.for_update
    ):
        opens_at = None
        if limit is not None:
            if tx.now - started_at >= SECOND:
                started_at, used = tx.now, 0
            opens_at = started_at + SECOND
        gates[name] = _Gate(
            paused=paused_at is not None,
            allowance=max(0, limit - used) if limit is not None else MOST_CLAIMED,
            opens_at=opens_at,
            window_started_at=started_at,
            window_used=used,
        )
    return gates


def _write_window(tx: Transaction, queue: str, gate: _Gate, used: int) -> None:
    if not used:
        return
    gate.window_used += used
    tx.execute(
        "UPDATE queues SET window_started_at = :started_at, window_used = :used WHERE name = :queue",
        {"started_at": gate.window_started_at, "used": gate.window_used, "queue": queue},
    )

"""Depth bounds of queues, and what happens when one is reached.

Each process remembers which queues have bounds (``ojster.storage.memory``), so a push into any other queue costs
nothing. A push into a bounded queue counts its jobs in the same transaction, with the queue locked. Jobs of workflows,
and those in callers' transactions, are not bounded: they could not wait, or would block for too long.

Spec: ojs-backpressure
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ojster.core.errors import QueueFull
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.jobs.new_job import NewJob
from ojster.jobs.transitions import finish
from ojster.queues.rules import Bound, queue_bounds
from ojster.storage.transaction import AVAILABLE_CONDITIONS, JOB_COLUMNS, Transaction

DEPTH_STATES: Final = ("available", "scheduled", "retryable", "pending")
"""States in which a job counts towards the depth of its queue. Spec: ojs-backpressure 3"""


def make_room(tx: Transaction, groups: Sequence[Sequence[NewJob]]) -> list[QueueFull | None]:
    """Reserve places for groups of jobs to push; return ``None`` or the refusal for each group."""
    bounds = queue_bounds(tx)
    if not bounds:
        return [None for _ in groups]
    places = _places(tx, sorted({job.queue for group in groups for job in group if job.queue in bounds}), bounds)
    results: list[QueueFull | None] = []
    for group in groups:
        wanted = Counter(job.queue for job in group if job.queue in bounds)
        full = next((queue for queue, jobs in wanted.items() if jobs > places[queue]), None)
        if full is not None and bounds[full].strategy == "drop_oldest" and wanted[full] <= bounds[full].max_depth:
            places[full] += _drop_oldest(tx, full, wanted[full] - places[full])
            full = next((queue for queue, jobs in wanted.items() if jobs > places[queue]), None)
        if full is None:
            for queue, jobs in wanted.items():
                _warn(tx, queue, bounds[queue], places[queue], places[queue] - jobs)
                places[queue] -= jobs
            results.append(None)
        else:
            bound = bounds[full]
            depth = bound.max_depth - places[full]
            job_type = next(job.type for job in group if job.queue == full)
            tx.emit_about("backpressure.rejected", full, full, depth=depth, bound=bound.max_depth, job_type=job_type)
            results.append(
                QueueFull(
                    f"Queue {full!r} has reached its depth bound ({bound.max_depth}); try again later.",
                    queue=full,
                    depth=depth,
                    bound=bound.max_depth,
                    strategy=bound.strategy,
                )
            )
    return results


def depth_of(tx: Transaction, queue: str) -> int:
    """Return the depth of a queue, including the jobs that this transaction has pushed."""
    counted: dict[str, int] = dict(
        tx.execute("SELECT state, jobs FROM job_counts WHERE queue = :queue", {"queue": queue})
    )
    return sum(counted.get(state, 0) + tx.effects.counts.get((queue, state), 0) for state in DEPTH_STATES)


def _places(tx: Transaction, queues: Iterable[str], bounds: Mapping[str, Bound]) -> dict[str, int]:
    """Return the free places of each queue, and lock out other pushes until the transaction ends."""
    places = {}
    for queue in queues:
        if tx.for_update:
            tx.execute("SELECT name FROM queues WHERE name = :name" + tx.for_update, {"name": queue})
        places[queue] = bounds[queue].max_depth - depth_of(tx, queue)
    return places


def _drop_oldest(tx: Transaction, queue: str, wanted: int) -> int:
    """Discard the oldest available jobs; return their number."""
    jobs: list[Job] = []
    for kind, _ in AVAILABLE_CONDITIONS:
        rows = tx.execute(
            f"SELECT {JOB_COLUMNS} FROM jobs WHERE queue = :queue AND state = 'available' AND {kind} "
            "ORDER BY seq + 0 LIMIT :wanted" + tx.skip_locked,  # + 0: keeps the planner from walking all jobs by seq
            {"queue": queue, "wanted": wanted},
        )
        jobs += [Job(*row) for row in rows]
    oldest = sorted(jobs, key=lambda job: job.seq)[:wanted]
    for job in oldest:
        finish(tx, job, JobState.DISCARDED)
        tx.emit("backpressure.dropped", job)
    return len(oldest)


def _warn(tx: Transaction, queue: str, bound: Bound, before: int, after: int) -> None:
    threshold = bound.max_depth * (1 - bound.warning_threshold)
    if after <= threshold < before:
        depth = bound.max_depth - after
        tx.emit_about("backpressure.warning", queue, queue, depth=depth, bound=bound.max_depth)


class Pressure(msgspec.Struct, frozen=True):
    """Depth of a bounded queue, relative to its bound."""

    depth: int
    bound: Bound

    @property
    def share(self) -> float:
        """The depth divided by the bound, at most 1."""
        return min(1.0, self.depth / self.bound.max_depth)

    def headers(self) -> dict[str, str]:
        """Return the headers that warn a caller about a push; none below the warning threshold.

        Spec: ojs-backpressure 7.3
        """
        if self.share < self.bound.warning_threshold:
            return {}
        return {
            "X-OJS-Queue-Depth": str(self.depth),
            "X-OJS-Queue-Bound": str(self.bound.max_depth),
            "X-OJS-Queue-Pressure": f"{self.share:.2f}",
        }


def bounded_pressures(tx: Transaction, requests: Sequence[None]) -> list[dict[str, Pressure]]:
    """Return the pressure of every bounded queue, for each request."""
    found = {queue: Pressure(depth_of(tx, queue), bound) for queue, bound in queue_bounds(tx).items()}
    return [found for _ in requests]


def pressures(tx: Transaction, queues: Sequence[str]) -> list[Pressure | None]:
    """Return the pressure of each queue; ``None``: it has no bound."""
    bounds = queue_bounds(tx)
    return [Pressure(depth_of(tx, queue), bounds[queue]) if queue in bounds else None for queue in queues]

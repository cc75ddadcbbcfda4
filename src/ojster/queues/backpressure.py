"""Is a queue full? Bounds on how many jobs may wait in it, and what becomes of one too many. (ojs-backpressure.md)

Which queues have bounds is remembered by each process (``ojster.storage.memory``), so that a push into any other
costs nothing. Whether a bounded one is full is counted in the transaction of the push, with the queue locked.
Jobs of workflows, of cron jobs and in callers' own transactions are let in: nobody could wait there, or would have to
for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ojster.core.errors import QueueFull
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.jobs.request import NewJob
from ojster.jobs.transitions import finish
from ojster.queues.rules import Bound, queue_bounds
from ojster.storage.transaction import JOB_COLUMNS, KINDS_OF_WAITING, Transaction

WAITING: Final = ("available", "scheduled", "retryable", "pending")
"""The states in which a job takes a place of its queue (section 3)."""


def make_room(tx: Transaction, groups: Sequence[Sequence[NewJob]]) -> list[QueueFull | None]:
    """Make room for groups of jobs that are to be pushed; for each return why there is none, if there is none."""
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
    """How many jobs wait in a queue, those that this transaction has pushed included."""
    counted: dict[str, int] = dict(
        tx.execute("SELECT state, jobs FROM job_counts WHERE queue = :queue", {"queue": queue})
    )
    return sum(counted.get(state, 0) + tx.effects.counts.get((queue, state), 0) for state in WAITING)


def _places(tx: Transaction, queues: Iterable[str], bounds: Mapping[str, Bound]) -> dict[str, int]:
    """How many more jobs each queue takes; nobody else may push into them until the transaction ends."""
    places = {}
    for queue in queues:
        if tx.for_update:
            tx.execute("SELECT name FROM queues WHERE name = :name" + tx.for_update, {"name": queue})
        places[queue] = bounds[queue].max_depth - depth_of(tx, queue)
    return places


def _drop_oldest(tx: Transaction, queue: str, wanted: int) -> int:
    """Discard the jobs that have been available for the longest; return how many."""
    jobs: list[Job] = []
    for kind, _ in KINDS_OF_WAITING:
        rows = tx.execute(
            f"SELECT {JOB_COLUMNS} FROM jobs WHERE queue = :queue AND state = 'available' AND {kind} "
            "ORDER BY seq + 0 LIMIT :wanted" + tx.skip_locked,  # + 0: not by walking through all jobs that there are
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
    """How full a bounded queue is."""

    depth: int
    bound: Bound

    @property
    def share(self) -> float:
        """The depth as a share of the bound."""
        return min(1.0, self.depth / self.bound.max_depth)

    def headers(self) -> dict[str, str]:
        """The headers that warn those who push (section 7.3); none if there is nothing to warn of."""
        if self.share < self.bound.warning_threshold:
            return {}
        return {
            "X-OJS-Queue-Depth": str(self.depth),
            "X-OJS-Queue-Bound": str(self.bound.max_depth),
            "X-OJS-Queue-Pressure": f"{self.share:.2f}",
        }


def bounded_pressures(tx: Transaction, requests: Sequence[None]) -> list[dict[str, Pressure]]:
    """Return how full each bounded queue is, for each request."""
    found = {queue: Pressure(depth_of(tx, queue), bound) for queue, bound in queue_bounds(tx).items()}
    return [found for _ in requests]


def pressures(tx: Transaction, queues: Sequence[str]) -> list[Pressure | None]:
    """Return how full each queue is; ``None``: it has no bound."""
    bounds = queue_bounds(tx)
    return [Pressure(depth_of(tx, queue), bounds[queue]) if queue in bounds else None for queue in queues]

"""Depth bounds of queues, and what happens when one is reached.

Each process remembers which queues have bounds (``ojster.storage.memory``), so a push into any other queue costs
nothing. A push into a bounded queue counts its jobs in the same transaction, with the queue locked. Jobs of workflows
and reactions, and those in callers' transactions, are not bounded: they could not wait, or would block for too long.

Spec: ojs-backpressure
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ojster.core.errors import QueueFull
from ojster.core.job import Job
from ojster.core.job_table import AVAILABLE_CONDITIONS, JOB_COLUMNS
from ojster.core.tenant import called
from ojster.jobs.failure import Failure
from ojster.jobs.limit_locks import held_by_others, lock_limits
from ojster.jobs.new_job import NewJob
from ojster.jobs.transitions import discard
from ojster.queues.rules import Bound, queue_bounds
from ojster.storage.transaction import Later, Transaction

DEPTH_STATES: Final = ("available", "scheduled", "retryable", "pending")
"""States in which a job counts towards the depth of its queue. Spec: ojs-backpressure 3"""


def make_room(tx: Transaction, groups: Sequence[Sequence[NewJob]]) -> list[QueueFull | Later | None]:
    """Reserve places for groups of jobs to push; return ``None`` or the refusal for each group.

    A group must wait if another transaction holds one of its queues: see ``lock_limits``.

    Where the oldest jobs make room for new ones, they do so after the push (``drop_oldest``): it may still be refused.
    """
    bounds = queue_bounds(tx)
    if not bounds:
        return [None for _ in groups]
    # Pushes that count at the same time would all take the last place.
    concerned = {job.queue for group in groups for job in group if job.queue in bounds}
    held = lock_limits(tx, "queues", concerned)
    places = {queue: bounds[queue].max_depth - depth_of(tx, queue) for queue in sorted(concerned - held)}
    results: list[QueueFull | Later | None] = []
    for group in groups:
        if held and any(job.queue in held for job in group):
            results.append(held_by_others())
            continue
        wanted = Counter(job.queue for job in group if job.queue in bounds)
        full = next(
            (
                queue
                for queue, jobs in wanted.items()
                if jobs > places[queue] and not _can_drop(tx, queue, bounds[queue], jobs, places[queue])
            ),
            None,
        )
        if full is None:
            for queue, jobs in wanted.items():
                _warn(tx, queue, bounds[queue], places[queue], places[queue] - jobs)
                places[queue] -= jobs
            results.append(None)
        else:
            bound = bounds[full]
            depth = bound.max_depth - places[full]
            job = next(job for job in group if job.queue == full)
            if bound.strategy != "block" or not job.waits:
                tx.emit_about(
                    "backpressure.rejected", full, full, depth=depth, bound=bound.max_depth, job_type=job.type
                )
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
    return _count(tx, queue, DEPTH_STATES)


def _count(tx: Transaction, queue: str, states: Sequence[str]) -> int:
    counted: dict[str, int] = dict(
        tx.execute("SELECT state, jobs FROM job_counts WHERE queue = :queue", {"queue": queue})
    )
    return sum(counted.get(state, 0) + tx.effects.counts.get((queue, state), 0) for state in states)


def _can_drop(tx: Transaction, queue: str, bound: Bound, wanted: int, places: int) -> bool:
    """Return whether available jobs of a queue may be discarded for ``wanted`` new ones, and are enough."""
    if bound.strategy != "drop_oldest" or wanted > bound.max_depth:
        return False
    return wanted - places <= _count(tx, queue, ("available",))


def drop_oldest(tx: Transaction, queues: Iterable[str]) -> None:
    """Discard the oldest available jobs beyond the bounds of queues; ``queues`` has that of each new job."""
    bounds = {} if tx.memory.is_callers else queue_bounds(tx)
    if not bounds:
        return
    for queue in {queue for queue in queues if queue in bounds and bounds[queue].strategy == "drop_oldest"}:
        excess = depth_of(tx, queue) - bounds[queue].max_depth
        if excess > 0:
            _drop_oldest(tx, queue, excess)


def _drop_oldest(tx: Transaction, queue: str, wanted: int) -> None:
    jobs: list[Job] = []
    for kind, _ in AVAILABLE_CONDITIONS:
        # A locked job is being claimed or cancelled: it makes room by itself, and waiting for it would hold up the
        # push. "+ 0" keeps the planner from the primary key, by which it would walk through the jobs of all queues to
        # avoid a sort.
        rows = tx.execute(
            f"""
            SELECT {JOB_COLUMNS}
            FROM jobs
            WHERE queue = :queue AND state = 'available' AND {kind}
            ORDER BY seq + 0
            LIMIT :wanted{tx.skip_locked}
            """,
            {"queue": queue, "wanted": wanted},
        )
        jobs += [Job(*row) for row in rows]
    oldest = sorted(jobs, key=lambda job: job.seq)[:wanted]
    message = f"The job was dropped: its queue {called(queue)!r} was full, and its strategy is 'drop_oldest'."
    failure = Failure("backpressure_dropped", message, code="backpressure_dropped", retryable=False)
    for job in oldest:
        discard(tx, job, failure, "backpressure.dropped")
        tx.note_event(job, "on_failure")


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
    pressures = {queue: Pressure(depth_of(tx, queue), bound) for queue, bound in queue_bounds(tx).items()}
    return [pressures for _ in requests]


def pressures(tx: Transaction, queues: Sequence[str]) -> list[Pressure | None]:
    """Return the pressure of each queue; ``None``: it has no bound."""
    bounds = queue_bounds(tx)
    return [Pressure(depth_of(tx, queue), bounds[queue]) if queue in bounds else None for queue in queues]

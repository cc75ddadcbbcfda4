"""The work of a worker, or of the workers of a host, over time.

Totals by worker are not kept, because each completed job would then change one more row. They are counted among the
newest jobs when somebody asks, each job once, by its last attempt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.fleet.worker_starts import workers_called, workers_of_host
from ojster.jobs.filter_walk import IS_NOT_INTERNAL
from ojster.jobs.statistics import MICROSECONDS_PER_MINUTE, Work, work_of
from ojster.storage.tally import BUCKETS_US, AttemptEnd, Tally
from ojster.storage.transaction import Transaction

MAX_JOBS: Final = 50_000
"""Number of jobs, the newest, among which those of a worker are counted."""


class WorkerSpan(msgspec.Struct, frozen=True):
    """A period to read the work of a worker, or of a host, in steps.

    ``since`` and ``until`` are in microseconds since the epoch, ``step`` is in minutes.
    """

    since: int
    until: int
    step: int
    worker: str | None = None
    host: str | None = None


class WorkerHistory(msgspec.Struct, frozen=True):
    """The work of each step that has any, oldest first, with the start of the step.

    Parameters
    ----------
    counted_since:
        Time from which on all created jobs are counted, in microseconds since the epoch; ``None``: all jobs are.
    """

    steps: Sequence[tuple[int, Work]]
    counted_since: int | None = None


def work_of_workers(tx: Transaction, spans: Sequence[WorkerSpan]) -> list[WorkerHistory]:
    """Return the work of workers in each span."""
    return [_history(tx, span) for span in spans]


def _history(tx: Transaction, span: WorkerSpan) -> WorkerHistory:
    workers = workers_of_host(tx, span.host) if span.host is not None else workers_called(tx, span.worker or "")
    names = {f"worker_{number}": worker for number, worker in enumerate(workers)}
    rows = tx.execute(
        f"""
        SELECT state, enqueued_at, started_at, finished_at
        FROM (
            SELECT worker_id, queue, state, enqueued_at, started_at, finished_at
            FROM jobs
            ORDER BY seq DESC
            LIMIT :most
        ) AS newest
        WHERE worker_id IN ({", ".join(f":{name}" for name in names) or "NULL"})
        AND finished_at >= :since AND finished_at <= :until
        AND started_at IS NOT NULL AND state IN ('completed', 'discarded') AND {IS_NOT_INTERNAL}
        """,
        names | {"most": MAX_JOBS, "since": span.since, "until": span.until},
    )
    tallies: defaultdict[int, Tally] = defaultdict(Tally)
    for state, enqueued_at, started_at, finished_at in rows:
        tally = tallies[finished_at // MICROSECONDS_PER_MINUTE // span.step]
        end: AttemptEnd = "completed" if state == "completed" else "failed"
        ran = max(0, finished_at - started_at)
        tally.count_attempts(end, 1, ran, _bucket(ran))
        tally.count_waits([max(0, started_at - (enqueued_at or started_at))])
    steps = [(step * span.step * MICROSECONDS_PER_MINUTE, work_of(tallies[step].sums())) for step in sorted(tallies)]
    return WorkerHistory(steps, _counted_since(tx))


def _bucket(duration: int) -> list[int]:
    counts = [0] * (len(BUCKETS_US) + 1)
    counts[bisect_left(BUCKETS_US, duration)] = 1
    return counts


def _counted_since(tx: Transaction) -> int | None:
    """Return when the oldest of the newest jobs was created, if there are older ones."""
    rows = tx.execute("SELECT created_at FROM jobs ORDER BY seq DESC LIMIT 1 OFFSET :most", {"most": MAX_JOBS - 1})
    return rows[0][0] if rows else None

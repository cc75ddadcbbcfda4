"""The work of a worker, or of the workers of a host, over time.

Totals by worker are not kept, because each completed job would then change one more row. They are counted among the
newest jobs when somebody asks, each job once, by its last attempt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.fleet.worker_starts import workers_called, workers_of_host
from ojster.jobs.filter_walk import IS_NOT_INTERNAL
from ojster.jobs.statistics import MICROSECONDS_PER_MINUTE, Work
from ojster.storage.call import for_each
from ojster.storage.tally import BUCKETS_US
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


@for_each
def work_of_workers(tx: Transaction, span: WorkerSpan) -> WorkerHistory:
    """Return the work of workers in each span."""
    workers = workers_of_host(tx, span.host) if span.host is not None else workers_called(tx, span.worker or "")
    names = {f"worker_{number}": worker for number, worker in enumerate(workers)}
    rows = tx.execute(
        f"""
        SELECT
            step, state, waited, ran, CAST(count(*) AS BIGINT), CAST(sum(wait) AS BIGINT), CAST(sum(run) AS BIGINT)
        FROM (
            SELECT state, finished_at / :length AS step, wait, run, {_BUCKET_OF_WAIT} AS waited, {_BUCKET_OF_RUN} AS ran
            FROM (
                SELECT
                    worker_id, queue, state, started_at, finished_at,
                    started_at - coalesce(enqueued_at, started_at) AS wait, finished_at - started_at AS run
                FROM jobs
                ORDER BY seq DESC
                LIMIT :most
            ) AS newest
            WHERE worker_id IN ({", ".join(f":{name}" for name in names) or "NULL"})
            AND finished_at >= :since AND finished_at <= :until
            AND started_at IS NOT NULL AND state IN ('completed', 'discarded') AND {IS_NOT_INTERNAL}
        ) AS ended
        GROUP BY step, state, waited, ran
        """,
        names
        | {
            "most": MAX_JOBS,
            "since": span.since,
            "until": span.until,
            "length": span.step * MICROSECONDS_PER_MINUTE,
        },
    )
    steps: defaultdict[int, Work] = defaultdict(Work)
    for step, state, waited, ran, number, wait, run in rows:
        is_done = state == "completed"
        steps[step] += Work(
            completed=number if is_done else 0,
            failed=0 if is_done else number,
            waited=wait,
            ran=run if is_done else 0,
            waits=_counts(waited, number),
            runs=_counts(ran, number),
        )
    history = [(step * span.step * MICROSECONDS_PER_MINUTE, steps[step]) for step in sorted(steps)]
    return WorkerHistory(history, _counted_since(tx))


def _counts(bucket: int, number: int) -> tuple[int, ...]:
    return tuple(number if place == bucket else 0 for place in range(len(BUCKETS_US) + 1))


def _bucket_of(duration: str) -> str:
    """Return the SQL for the number of the bucket in which a duration is counted."""
    cases = " ".join(f"WHEN {duration} <= {bound} THEN {place}" for place, bound in enumerate(BUCKETS_US))
    return f"CASE {cases} ELSE {len(BUCKETS_US)} END"


_BUCKET_OF_WAIT: Final = _bucket_of("wait")
_BUCKET_OF_RUN: Final = _bucket_of("run")


def _counted_since(tx: Transaction) -> int | None:
    """Return when the oldest of the newest jobs was created, if there are older ones."""
    rows = tx.execute("SELECT created_at FROM jobs ORDER BY seq DESC LIMIT 1 OFFSET :most", {"most": MAX_JOBS - 1})
    return rows[0][0] if rows else None

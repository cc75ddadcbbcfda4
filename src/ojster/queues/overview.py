"""Overview of queues, dead letters and extensions, in numbers.

Spec: ojs-admin-api
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from ojster.core.rate_limit import Limits
from ojster.core.wire import ThroughputBody
from ojster.jobs.filter_walk import IS_NOT_INTERNAL
from ojster.jobs.names import is_internal
from ojster.jobs.queries import count_jobs
from ojster.jobs.scope import Scope
from ojster.jobs.statistics import Work, work_by_queue
from ojster.jobs.waiting import oldest_waiting
from ojster.queues.backpressure import DEPTH_STATES
from ojster.queues.configuration import QueueConfig, read_config
from ojster.queues.limit_views import LimitState
from ojster.queues.limits import count_active, find_limit, key_of_queue
from ojster.queues.queues import Queue, find_queue, list_queues
from ojster.queues.rules import Bound, queue_bounds
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction

THROUGHPUT_MINUTES: Final = 5
"""Window over which throughput is averaged, in minutes."""

LATENCY_MINUTES: Final = 60
"""Window over which latency percentiles are computed, in minutes."""


QueueOrder = Literal["name", "trouble"]
"""Order of queues: by name; or those first whose next job has waited longest, then those whose jobs wait longest.

The next job is that of ``oldest_waiting``: it is not looked for among more than ``MAX_TENANTS`` tenants of a queue.
"""

MAX_AGED: Final = 1_000
"""Number of queues whose oldest job is looked for: those in which most jobs wait. The others have no age."""


class QueueOverview(msgspec.Struct, frozen=True):
    """A queue: its jobs by state, and its work in the last ``THROUGHPUT_MINUTES`` minutes and in the last hour.

    ``oldest_at`` is the time since which its next job has been available, in microseconds since the epoch, and
    ``bound`` says how many jobs may wait.
    """

    queue: Queue
    counts: dict[str, int]
    recent: Work
    hour: Work
    oldest_at: int | None = None
    bound: Bound | None = None

    @property
    def depth(self) -> int:
        """Number of jobs that count towards the bound."""
        return sum(self.counts.get(state, 0) for state in DEPTH_STATES)

    def trouble(self) -> tuple[bool, int, float, str]:
        """Return where the queue stands in the order of trouble."""
        return (self.oldest_at is None, self.oldest_at or 0, -self.hour.percentile(0.95), self.queue.name)


def throughput(recent: Work) -> ThroughputBody:
    """Return the processed, failed and enqueued jobs per minute, from the totals of ``THROUGHPUT_MINUTES`` minutes."""
    processed, failed, enqueued = (
        round(jobs / THROUGHPUT_MINUTES, 2) for jobs in (recent.processed, recent.failed, recent.enqueued)
    )
    return ThroughputBody(processed, failed, enqueued)


class OverviewRequest(msgspec.Struct, frozen=True):
    """Which queues to show, and how.

    Parameters
    ----------
    internal:
        Whether the server's own are among them.
    order:
        Their order.
    is_aged:
        Whether their oldest jobs are looked for, which takes a query for each queue in which jobs wait.
    """

    internal: bool = False
    order: QueueOrder = "name"
    is_aged: bool = True


def list_overviews(tx: Transaction, requests: Sequence[OverviewRequest]) -> list[list[QueueOverview]]:
    """Return the overview of all queues that each request asks for."""
    (counts,) = count_jobs(tx, (None,))
    recent, hour = work_by_queue(tx, THROUGHPUT_MINUTES), work_by_queue(tx, LATENCY_MINUTES)
    (queues,) = list_queues(tx, (None,))
    bounds = queue_bounds(tx)
    waiting = {name: jobs for name, states in counts.items() if (jobs := states.get("available", 0))}
    is_aged = any(request.is_aged for request in requests)
    aged = sorted(waiting, key=lambda name: -waiting[name])[:MAX_AGED] if is_aged else []
    oldest = {name: oldest_waiting(tx, name) for name in aged}
    overviews = [
        QueueOverview(
            queue,
            counts.get(queue.name, {}),
            recent.get(queue.name, Work()),
            hour.get(queue.name, Work()),
            oldest.get(queue.name),
            bounds.get(queue.name),
        )
        for queue in queues
    ]
    results = []
    for request in requests:
        chosen = [overview for overview in overviews if request.internal or not is_internal(overview.queue.name)]
        results.append(sorted(chosen, key=QueueOverview.trouble) if request.order == "trouble" else chosen)
    return results


class QueueDetail(msgspec.Struct, frozen=True):
    """Overview and configuration of a queue, and its limits with their present use, if it has any."""

    overview: QueueOverview
    config: QueueConfig
    limit: LimitState | None


@for_each
def show_queues(tx: Transaction, name: str) -> QueueDetail | None:
    """Return the details of each queue; ``None``: the queue does not exist."""
    queue = find_queue(tx, name)
    if queue is None:
        return None
    (counts,) = count_jobs(tx, (name,))
    recent, hour = work_by_queue(tx, THROUGHPUT_MINUTES, name), work_by_queue(tx, LATENCY_MINUTES, name)
    config, limit = read_config(tx, name), find_limit(tx, key_of_queue(name))
    overview = QueueOverview(
        queue,
        counts.get(name, {}),
        recent.get(name, Work()),
        hour.get(name, Work()),
        oldest_waiting(tx, name),
        config.backpressure,
    )
    state = None
    if limit is not None and limit.own != Limits():
        active, waiting = count_active(tx, limit.key), overview.counts.get("available", 0)
        state = LimitState(limit, active, waiting, tx.now)
    return QueueDetail(overview, config, state)


class DeadLetters(msgspec.Struct, frozen=True):
    """Counts of dead letters, and when the oldest and the newest were discarded, in microseconds since the epoch."""

    total: int
    by_queue: dict[str, int]
    by_error_type: dict[str, int]
    oldest_at: int | None
    newest_at: int | None


@for_each
def count_dead_letters(tx: Transaction, scope: Scope) -> DeadLetters:
    """Return the counts of the dead letters that each scope sees, without those of the server's own work.

    Spec: ojs-dead-letter 10.1
    """
    where = "" if scope.tenant is None else "AND tenant = :tenant "
    all_rows: list[Any] = tx.execute(
        f"""
        SELECT queue, coalesce(error_type, 'Unknown'), count(*), min(finished_at), max(finished_at)
        FROM jobs
        WHERE dead = 1 AND {IS_NOT_INTERNAL} {where}
        GROUP BY 1, 2
        ORDER BY 1, 2
        """,
        {"tenant": scope.tenant},
    )
    rows = [row for row in all_rows if scope.covers(row[0])]
    by_queue: dict[str, int] = {}
    by_error: dict[str, int] = {}
    for queue, error, jobs, _, _ in rows:
        by_queue[queue] = by_queue.get(queue, 0) + jobs
        by_error[error] = by_error.get(error, 0) + jobs
    return DeadLetters(
        sum(by_queue.values()),
        by_queue,
        by_error,
        min((row[3] for row in rows), default=None),
        max((row[4] for row in rows), default=None),
    )

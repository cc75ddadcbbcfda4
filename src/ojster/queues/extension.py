"""What queues add to the life of a job: bounds, limits, pools and fairness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ojster.core.durations import SECOND
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.rate_limit import Rate
from ojster.core.timestamps import parse_moment
from ojster.jobs.claim_policy import NO_USAGE_PROBES, ClaimPolicy, UsageProbes
from ojster.jobs.extension import Completer, DeletedCounts, Due, Extension, Group
from ojster.jobs.failure import Failure
from ojster.jobs.new_job import NewJob
from ojster.jobs.options_wire import queue_of
from ojster.jobs.reason import LimitUse, Reason
from ojster.jobs.scope import Scope
from ojster.queues.backpressure import drop_oldest, make_room
from ojster.queues.claim_policies import (
    LIMITED_JOBS_WAIT,
    LIMITED_QUEUES,
    MAINTENANCE,
    PAUSED_QUEUES,
    FairnessPolicy,
    KeyLimitPolicy,
    MaintenancePolicy,
    PausePolicy,
    PoolPolicy,
    QueueLimitPolicy,
    ResourceBudgetPolicy,
)
from ojster.queues.explanation import why_held_back
from ojster.queues.limit_views import uses_of
from ojster.queues.limits import (
    QUEUE_PREFIX,
    block,
    count_unused,
    forget_unused,
    free_limits,
    limit_queue,
    open_limits,
    register,
    set_limits,
    unmark,
)
from ojster.queues.pool import pools_by_name
from ojster.queues.rules import queue_rules, resource_rules
from ojster.storage.transaction import Transaction

_POLICIES: Final = (
    (MaintenancePolicy, MAINTENANCE),
    (PausePolicy, PAUSED_QUEUES),
    (QueueLimitPolicy, LIMITED_QUEUES),
    (ResourceBudgetPolicy, NO_USAGE_PROBES),
    (PoolPolicy, NO_USAGE_PROBES),
    (FairnessPolicy, NO_USAGE_PROBES),
    (KeyLimitPolicy, LIMITED_JOBS_WAIT),
)


class QueueExtension(Extension):
    """Queues: their bounds, their limits, their pools, and how they share workers."""

    def refuse_push(self, tx: Transaction, groups: Sequence[Group]) -> Sequence[OjsterError | None]:
        """Refuse jobs beyond the depth bounds of their queues."""
        return make_room(tx, groups)

    def pushed(self, tx: Transaction, queues: Iterable[str]) -> None:
        """Discard the oldest jobs of bounded queues that ask for it."""
        drop_oldest(tx, queues)

    async def completer(self, scope: Scope) -> Completer | None:
        """Return what applies the resource defaults and limits of a job's queue."""
        rules = await scope.database.remembered(resource_rules)

        def complete(members: Members) -> Members:
            queue = queue_of(members)
            return rules[queue].apply(members, queue) if queue in rules else members

        return complete if rules else None

    def admit(self, tx: Transaction, new: Sequence[NewJob], jobs: Sequence[Job]) -> None:
        """Refuse jobs whose types their queues do not take; register the limits that jobs name."""
        rules = queue_rules(tx)
        for new_job, job in zip(new, jobs, strict=True):
            if new_job.queue in rules:
                rules[new_job.queue].check_type(new_job.type, new_job.queue)
            if new_job.queue_rate is not None:
                limit_queue(tx, new_job.queue, rate=Rate(new_job.queue_rate, SECOND))
            if new_job.limit is not None:
                job.limit_key = new_job.limit.key
                register(tx, new_job.limit, new_job.queue)

    def enqueued(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Take the key of their queue's limits from jobs."""
        unmark(tx, jobs)

    def freed(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Wake the fetches that wait for room in a pool or under a limit."""
        for pool in pools_by_name(tx).values():
            if pool.concurrency is not None and any(job.queue in pool.queues for job in jobs):
                tx.effects.opened.update(pool.queues)
        free_limits(tx, jobs)

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete the limits of keys that jobs do not use any more."""
        return forget_unused(tx, room)

    def forgettable(self, tx: Transaction) -> DeletedCounts:
        """Return how many limits are of keys that jobs do not use any more."""
        return count_unused(tx)

    def check_move(self, tx: Transaction, job: Job, queue: str) -> None:
        """Refuse a job whose type its new queue does not take."""
        if (rules := queue_rules(tx).get(queue)) is not None:
            rules.check_type(job.type, queue)

    def moved(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Note under the keys of jobs the queues that they are in now, so that these are woken when there is room."""
        for key, queue in {(job.limit_key, job.queue): None for job in jobs}:
            if key is not None and not key.startswith(QUEUE_PREFIX):
                set_limits(tx, key, None, "wait", queue)

    def failed(self, tx: Transaction, job: Job, failure: Failure) -> None:
        """Close the limit of a job until the time that its handler has named."""
        if failure.rate_limit_until is not None and job.limit_key is not None:
            block(tx, job.limit_key, parse_moment(failure.rate_limit_until, tx.now), job.error_type or "")

    def due(self, tx: Transaction, *, in_maintenance: bool) -> Due:
        """Wake the queues of limits that have room again."""
        return Due(open_limits(tx))

    def why_waiting(self, tx: Transaction, job: Job) -> Iterable[Reason]:
        """Return whether maintenance, a pause or a limit keeps a job from starting."""
        return why_held_back(tx, job)

    def limits_on(self, tx: Transaction, job: Job) -> Iterable[LimitUse]:
        """Return the limits of a job's key and of its queue."""
        return uses_of(tx, job)

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], UsageProbes]]:
        """Limit and order what the queues hand out."""
        return _POLICIES

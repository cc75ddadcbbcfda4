"""Calls about queues."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.rate_limit import Limits
from ojster.core.states import JobState
from ojster.core.tenant import NOBODY
from ojster.core.timestamps import format_optional, format_timestamp
from ojster.core.wire import JobCountsBody
from ojster.jobs.filter_walk import JobFilter, batches
from ojster.jobs.names import check_queue_name, is_internal
from ojster.jobs.scope import CapabilityService, Scope, accepted
from ojster.jobs.service import JobService
from ojster.jobs.sweeps import SWEEP_BATCH_SIZE
from ojster.queues import lifecycle, overview, preview, queues
from ojster.queues.answer_wire import (
    AdminQueueBody,
    LatencyBody,
    QueueChangesAnswer,
    QueueConfigurationAnswer,
    QueueDetailAnswer,
    show_configuration,
)
from ojster.queues.calls import QueueCalls
from ojster.queues.configuration import Configuration, configure
from ojster.queues.configuration_wire import configuration_of
from ojster.queues.lifecycle import Draining
from ojster.queues.limit_wire import show_limit
from ojster.queues.overview import OverviewRequest, QueueDetail, QueueOrder, QueueOverview, throughput
from ojster.queues.queues import Queue, QueueStatistics
from ojster.queues.wire import DeletionStrategy, QueueConfigBody, show_limits

_MAX_DRAININGS: Final = 10
"""Number of times that a queue to delete is emptied while jobs are pushed into it."""


class QueueService(CapabilityService, QueueCalls):
    """Calls about queues."""

    def __init__(self, scope: Scope, jobs: JobService) -> None:
        super().__init__(scope)
        self._jobs = jobs

    async def all(self, *, internal: bool = False) -> list[Queue]:
        """Return all queues by name; for a tenant, only the queues that have had its jobs.

        A caller that is limited to certain queues gets only these.

        Parameters
        ----------
        internal:
            Whether queues of the server's own work are listed, too.
        """
        known = await self.database.read(queues.list_queues, None)
        wanted = [queue for queue in known if internal or not is_internal(queue.name)]
        names = [queue for queue in wanted if self.scope.covers(queue.name)]
        if self.scope.tenant is None:
            return names
        if self.scope.tenant == NOBODY:
            seen = await self.database.read_many(queues.statistics_without_tenant, [queue.name for queue in names])
            return [overview.queue for overview in seen if overview is not None]
        theirs = await self._jobs.count()
        return [queue for queue in names if queue.name in theirs]

    async def unserved(self) -> list[Queue]:
        """Return the queues that no worker serves, by name. Queues in which jobs run are served by unknown workers."""
        self.scope.require_all_queues("Listing queues that no worker serves")
        return await self.database.survey(queues.list_unserved, None)

    async def statistics(self, name: str) -> QueueStatistics:
        """Return the statistics of a queue.

        Raises
        ------
        NotFound
            The queue does not exist.
        """
        self.scope.check_queue(name)
        statistics = queues.statistics_without_tenant if self.scope.tenant == NOBODY else queues.statistics
        counts = await self.database.read(statistics, self.scope.named(name))
        if counts is None:
            raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
        return counts

    async def pause(self, name: str) -> Queue:
        """Pause a queue, so that none of its jobs is handed out. The queue need not exist.

        Raises
        ------
        InvalidRequest
            The name is invalid.
        """
        self.scope.require_all_tenants("Pausing a queue")
        self.scope.check_queue(name)
        return await self.database.run(queues.pause, check_queue_name(name))

    async def create(self, name: str, body: QueueConfigBody | None = None) -> Queue:
        """Create a queue with its configuration, to set it up before it has jobs. A push creates its queue as well.

        Raises
        ------
        InvalidRequest, Unsupported, Conflict
            The name or a setting is invalid, or the queue exists.
        """
        self.scope.require_all_tenants("Creating a queue")
        self.scope.check_queue(name)
        return await self.scope.do(
            lifecycle.create, configuration_of(check_queue_name(name), body or QueueConfigBody())
        )

    async def delete(self, name: str, strategy: DeletionStrategy = "reject", target: str | None = None) -> int:
        """Delete a queue and its configuration; return the number of jobs that were discarded or moved.

        Parameters
        ----------
        strategy:
            What becomes of waiting jobs. ``reject``, the default: the queue is not deleted. ``discard``: they are
            discarded. ``move``: they go to the queue ``target``.

        Raises
        ------
        NotFound, Conflict
            There is no such queue, or it has active jobs, or waiting ones with ``reject``.
        InvalidRequest
            ``move`` has no other queue as ``target``.
        JobTypeNotAllowed
            The queue ``target`` does not take the type of a job. Those before it may have been moved.
        """
        self.scope.require_all_tenants("Deleting a queue")
        self.scope.check_queue(name if target is None else (name, target))
        if (strategy == "move") != (target is not None) or target == name:
            raise InvalidRequest("'target_queue' names another queue with the strategy 'move', and only with it.")
        if target is not None:
            check_queue_name(target)
        changed = 0
        drainings = 0
        while (refusal := await self.database.run(lifecycle.delete, check_queue_name(name))) is not None:
            waiting = sum(refusal.details.get("jobs", {}).get(state, 0) for state in lifecycle.WAITING_STATES)
            if strategy == "reject" or not waiting or drainings == _MAX_DRAININGS:
                raise refusal
            changed += await self._drain(name, target)
            drainings += 1
        return changed

    async def configuration(self, name: str) -> QueueConfigurationAnswer:
        """Return the configuration of a queue.

        Raises
        ------
        NotFound
            The queue does not exist.
        """
        self.scope.require_all_tenants("The configuration of a queue")
        self.scope.check_queue(name)
        detail = await self._detail(name)
        return QueueConfigurationAnswer(name, show_configuration(detail.overview.queue.limits, detail.config))

    async def configure(self, name: str, body: QueueConfigBody) -> QueueConfigurationAnswer:
        """Change what ``body`` sets of the configuration of a queue, which need not exist; return all of it.

        Raises
        ------
        InvalidRequest, Unsupported
            The name or a setting is invalid.
        """
        return await self._configure(configuration_of(check_queue_name(name), body))

    async def limit(self, name: str, limits: Limits) -> QueueConfigurationAnswer:
        """Replace the limits of a queue, which need not exist; return its configuration."""
        return await self._configure(Configuration(check_queue_name(name), msgspec.structs.asdict(limits)))

    async def _configure(self, change: Configuration) -> QueueConfigurationAnswer:
        self.scope.require_all_tenants("Configuring a queue")
        self.scope.check_queue(change.queue)
        await self.scope.do(configure, change)
        return await self.configuration(change.queue)

    async def preview(self, name: str, body: QueueConfigBody) -> QueueChangesAnswer:
        """Return what a change of the configuration of a queue would change. Raises as ``configure``."""
        self.scope.require_all_tenants("Configuring a queue")
        self.scope.check_queue(name)
        change = configuration_of(check_queue_name(name), body)
        return QueueChangesAnswer(name, await self.scope.look(preview.preview, change))

    async def overviews(self, *, internal: bool = False, sort: QueueOrder = "name") -> list[AdminQueueBody]:
        """Return the queues with their jobs by state, throughput, latency and the age of their oldest job.

        Parameters
        ----------
        internal:
            Whether queues of the server's own work are among them.
        sort:
            ``name``, or ``trouble``: those first whose oldest job has waited longest.
        """
        self.scope.require_all_queues("The overview of queues")
        overviews = await self.scope.survey(overview.list_overviews, OverviewRequest(internal, sort))
        return [AdminQueueBody(**_members(queue)) for queue in overviews]

    async def overview(self, name: str) -> QueueDetailAnswer:
        """Return a queue with its jobs by state, throughput, latency and configuration.

        Raises
        ------
        NotFound
            The queue does not exist.
        """
        self.scope.require_all_queues("The overview of a queue")
        detail = await self._detail(name)
        return QueueDetailAnswer(
            **_members(detail.overview),
            configuration=show_configuration(detail.overview.queue.limits, detail.config),
            limit_use=None if detail.limit is None else show_limit(detail.limit),
        )

    async def _detail(self, name: str) -> QueueDetail:
        detail = await self.scope.look(overview.show_queues, check_queue_name(name))
        if detail is None:
            raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
        return detail

    async def _drain(self, name: str, target: str | None) -> int:
        """Discard or move the jobs that wait now, in small transactions; return their number."""
        changed = 0
        chosen = JobFilter(queue=name, states=lifecycle.WAITING_STATES)
        async for ids in batches(self.database, chosen, SWEEP_BATCH_SIZE):
            changed += accepted(await self.database.run(lifecycle.drain, Draining(ids, target)))
        return changed

    async def resume(self, name: str) -> Queue:
        """Resume a paused queue."""
        self.scope.require_all_tenants("Resuming a queue")
        self.scope.check_queue(name)
        return await self.database.run(queues.resume, check_queue_name(name))


def _members(overview: QueueOverview) -> dict[str, Any]:
    queue, hour = overview.queue, overview.hour
    return {
        "name": queue.name,
        "state": "active" if queue.paused_at is None else "paused",
        "counts": JobCountsBody(**{state.value: overview.counts.get(state, 0) for state in JobState}),
        "throughput": throughput(overview.recent),
        "latency_ms": LatencyBody(hour.percentile(0.5), hour.percentile(0.95), hour.percentile(0.99)),
        "paused": queue.paused_at is not None,
        "paused_at": format_optional(queue.paused_at),
        "created_at": format_timestamp(queue.created_at),
        "oldest_available_at": format_optional(overview.oldest_at),
        "depth": overview.depth,
        "max_depth": None if overview.bound is None else overview.bound.max_depth,
        "limits": show_limits(queue.limits),
    }

"""Calls about queues."""

from __future__ import annotations

from typing import Final

from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.tenant import NOBODY
from ojster.jobs.bulk_service import SWEEP_BATCH_SIZE
from ojster.jobs.filter_walk import JobFilter, batches
from ojster.jobs.names import check_queue_name
from ojster.jobs.scope import CapabilityService, Scope, accepted
from ojster.jobs.service import JobService
from ojster.queues import lifecycle, queues
from ojster.queues.calls import QueueCalls
from ojster.queues.lifecycle import Draining
from ojster.queues.queues import Queue, QueueStatistics
from ojster.queues.wire import DeletionStrategy

_MAX_DRAININGS: Final = 10
"""Number of times that a queue to delete is emptied while jobs are pushed into it."""


class QueueService(CapabilityService, QueueCalls):
    """Calls about queues."""

    def __init__(self, scope: Scope, jobs: JobService) -> None:
        super().__init__(scope)
        self._jobs = jobs

    async def all(self) -> list[Queue]:
        """Return all queues by name; for a tenant, only the queues that have had its jobs."""
        found = await self.database.read(queues.list_queues, None)
        if self.scope.tenant is None:
            return found
        if self.scope.tenant == NOBODY:
            known = await self.database.read_many(queues.statistics_without_tenant, [queue.name for queue in found])
            return [one.queue for one in known if one is not None]
        theirs = await self._jobs.count()
        return [queue for queue in found if queue.name in theirs]

    async def unserved(self) -> list[Queue]:
        """Return the queues that no worker serves, by name. Queues in which jobs run are served by unknown workers."""
        self.scope.require_all_tenants("Listing queues that no worker serves")
        self.scope.need_view_of_all_queues()
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
        found = await self.database.read(statistics, self.scope.named(name))
        if found is None:
            raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
        return found

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

    async def create(self, name: str) -> Queue:
        """Create a queue, to set it up before it has jobs. A push creates its queue as well.

        Raises
        ------
        InvalidRequest, Conflict
            The name is invalid, or the queue exists.
        """
        self.scope.require_all_tenants("Creating a queue")
        return accepted(await self.database.run(lifecycle.create, check_queue_name(name)))

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
        """
        self.scope.require_all_tenants("Deleting a queue")
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

    async def _drain(self, name: str, target: str | None) -> int:
        """Discard or move the jobs that wait now, in small transactions; return their number."""
        changed = 0
        chosen = JobFilter(queue=name, states=lifecycle.WAITING_STATES)
        async for ids in batches(self.database, chosen, SWEEP_BATCH_SIZE):
            changed += await self.database.run(lifecycle.drain, Draining(ids, target))
        return changed

    async def resume(self, name: str) -> Queue:
        """Resume a paused queue."""
        self.scope.require_all_tenants("Resuming a queue")
        self.scope.check_queue(name)
        return await self.database.run(queues.resume, check_queue_name(name))

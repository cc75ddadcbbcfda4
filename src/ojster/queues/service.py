"""Calls about queues."""

from __future__ import annotations

from ojster.core.errors import (
    NotFound,
)
from ojster.core.tenant import NOBODY
from ojster.jobs.names import check_queue_name
from ojster.jobs.scope import CapabilityService, Scope
from ojster.jobs.service import JobService
from ojster.queues import queues
from ojster.queues.queues import Queue, QueueStatistics


class QueueService(CapabilityService):
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

    async def statistics(self, name: str) -> QueueStatistics:
        """Return the statistics of a queue.

        Raises
        ------
        NotFound
            The queue does not exist.
        """
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
        self.scope.for_all("Pausing a queue")
        return await self.database.run(queues.pause, check_queue_name(name))

    async def resume(self, name: str) -> Queue:
        """Resume a paused queue."""
        self.scope.for_all("Resuming a queue")
        return await self.database.run(queues.resume, check_queue_name(name))

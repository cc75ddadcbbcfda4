"""Maintenance: due work and retention, in the background of any number of processes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ojster.core.durations import LONGEST
from ojster.core.errors import BackendUnavailable, InvalidRequest, OjsterError
from ojster.files import records
from ojster.files.service import FileService
from ojster.jobs.bulk import Action
from ojster.jobs.bulk_service import BulkService
from ojster.jobs.filter_walk import WINDOW, JobFilter, batches
from ojster.jobs.scope import CapabilityService, Scope
from ojster.queues.maintenance import Maintenance, find_maintenance, switch_maintenance
from ojster.schedules import retention
from ojster.schedules.calls import MaintenanceCalls
from ojster.schedules.due_work import go_on, run_due
from ojster.storage.database import DUE_WORK_SECONDS
from ojster.storage.inbox import LARGE
from ojster.storage.transaction import Transaction
from ojster.storage.wakeups import DUE

log = logging.getLogger(__name__)

MAX_RECONNECT_PAUSE_SECONDS: Final = 2.0
"""Maximum time between attempts to reach an unavailable database, in seconds."""

WALK_INTERVAL_SECONDS: Final = 600.0
"""Interval of walks over all jobs, for queues and tenants with their own retention, and over files, in seconds."""

LOCKED_PAUSE_SECONDS: Final = 0.005
"""Pause before another step of large work whose workflows others have locked, in seconds."""

STEPS_SECONDS: Final = 0.1
"""Time for which large work goes on in steps before maintenance looks at everything else again, in seconds."""

RETENTION_INTERVAL_SECONDS: Final = 60.0
"""Interval of searches for finished jobs past their retention, in seconds."""


class MaintenanceTasks(CapabilityService, MaintenanceCalls):
    """Maintenance tasks of a database."""

    def __init__(self, scope: Scope, bulk: BulkService, files: FileService) -> None:
        super().__init__(scope)
        self._bulk = bulk
        self._files = files
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *, after_outage: bool = False) -> None:
        """Start the maintenance tasks. Any number of processes may run them for one database, until ``close``.

        Parameters
        ----------
        after_outage:
            Spare leases as after an outage, because this process does not know whether others could write before it
            was there; default false.
        """
        if not self._tasks:
            if after_outage:
                self.database.outages.begin()
            self._tasks = [
                asyncio.create_task(self._run_due(), name="ojster-run_due"),
                asyncio.create_task(self._retain(), name="ojster-retention"),
            ]

    async def stop(self) -> None:
        """Stop the maintenance tasks, also those that were started in another event loop."""
        tasks, self._tasks = self._tasks, []
        own = [task for task in tasks if task.get_loop() is asyncio.get_running_loop()]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        for task in tasks:
            if task not in own and not task.get_loop().is_closed():  # in a closed one, they have ended with it
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def _run_due(self) -> None:
        database = self.database
        with database.wakeups.waiter(DUE) as waiter:
            while True:
                waiter.arm()
                database.next_due = None
                delay = DUE_WORK_SECONDS
                try:
                    due = await database.run(run_due, None, LARGE)
                    if due is not None and due <= database.clock():
                        await self._go_on()
                    database.next_due = due
                    if due is not None:
                        delay = min(DUE_WORK_SECONDS, max(0.0, (due - database.clock()) / 1e6))
                except BackendUnavailable as error:
                    await self._until_it_answers(error)
                    continue
                except OjsterError as error:
                    log.error("maintenance failed, retrying in 1 s: %s", error)
                    delay = 1.0
                await waiter.wait(delay)

    async def go_on(self) -> bool:
        """Go on with large work that is done in steps, by one step; return whether more is left."""
        left = await self.database.run(go_on, None, LARGE)
        if left.at is not None and not left.has_more:
            await asyncio.sleep(LOCKED_PAUSE_SECONDS)
        return left.at is not None

    async def _go_on(self) -> None:
        """Go on with large work that is done in steps, for ``STEPS_SECONDS``. If it fails, ``run_due`` postpones it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + STEPS_SECONDS
        try:
            while loop.time() < until and await self.go_on():
                pass
        except BackendUnavailable:
            raise
        except Exception:
            log.exception("a step of large work failed")

    async def _until_it_answers(self, error: BackendUnavailable) -> None:
        """Wait until the database answers. What ends leases spares those that ended meanwhile: see ``Outages``."""
        started = asyncio.get_running_loop().time()
        log.warning("the database is unavailable, retrying until it answers: %s", error)
        pause = 0.2
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, MAX_RECONNECT_PAUSE_SECONDS)
            try:
                await self.database.run(answer, None)
                break
            except BackendUnavailable:
                continue
        log.warning("the database is available again after %.1f s", asyncio.get_running_loop().time() - started)

    async def _retain(self) -> None:
        loop = asyncio.get_running_loop()
        walked_at = loop.time() - WALK_INTERVAL_SECONDS
        while True:
            deleted = 0
            try:
                deleted = (await self.database.run(retention.forget, None))["rows"]
                if deleted < retention.BATCH and loop.time() >= walked_at + WALK_INTERVAL_SECONDS:
                    walked_at = loop.time()
                    await self.retain_by_walks()
                    if self._files.has_store:
                        await self._files.prune()
            except OjsterError as error:
                log.error("retention failed, retrying later: %s", error)
            await asyncio.sleep(0.02 if deleted >= retention.BATCH else RETENTION_INTERVAL_SECONDS)

    async def retain_by_walks(self) -> int:
        """Delete finished jobs of queues and tenants with their own retention; return the number of deleted jobs.

        Spec: ojs-admin-api 6.6
        """
        settings = self.database.settings
        own, deleted = await self.database.read(retention.own_retention, None), 0
        for chosen in retention.walks(own, settings.retention, self.database.clock()):
            deleted += (await self._bulk.sweep(Action.DELETE, chosen, quietly=True)).succeeded
        for queue, kept in own.queues.items():
            most = kept.most_dead_letters
            while most is not None and (pruned := await self.database.run(retention.prune_own, (queue, most))):
                deleted += pruned
        return deleted

    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Delete everything past its retention now, in small transactions.

        The servers do so continuously. Use it to wait for the deletion, or with ``dry_run`` to preview it.

        Parameters
        ----------
        dry_run:
            Count without deleting.

        Returns
        -------
        dict[str, int]
            Number of ``jobs``, including those of workflows, of ``workflows``, and of ``files``.
        """
        self.scope.require_all_tenants("Pruning")
        self.scope.need_all_queues("Pruning")
        counts: Counter[str] = Counter()
        if dry_run:
            counts += await self.database.read(retention.count_forgettable, None)
            own = await self.database.read(retention.own_retention, None)
            for chosen in retention.walks(own, self.database.settings.retention, self.database.clock()):
                counts["jobs"] += await self._count_matching(chosen)
            counts["files"] = await self.database.read(records.count_forgettable_files, None)
        else:
            while (done := await self.database.run(retention.forget, None))["rows"]:
                counts += done
            counts["jobs"] += await self.retain_by_walks()
            counts["files"] = 0 if not self._files.has_store else await self._files.prune()
        return {name: counts[name] for name in ("jobs", "workflows", "files")}

    async def mode(self) -> Maintenance | None:
        """Return maintenance mode; ``None``: it is off."""
        self.scope.require_all_tenants("Maintenance mode")
        return await self.scope.look(find_maintenance, None)

    async def switch_mode(
        self, enabled: bool, reason: str | None = None, duration: int | None = None
    ) -> Maintenance | None:
        """Turn maintenance mode on or off; return it, or ``None`` if it is off.

        Parameters
        ----------
        reason:
            Why, for people.
        duration:
            How long it is to take, in microseconds; ``None``: not known.

        Raises
        ------
        Forbidden
            The caller is limited to a tenant, or to some queues.
        InvalidRequest
            There is a reason or a duration for the end of the maintenance, or the duration is negative, or longer than
            100 years.
        """
        self.scope.require_all_tenants("Maintenance mode")
        self.scope.need_all_queues("Maintenance mode")
        if not enabled and (reason or duration is not None):
            message = "A reason and a duration have no effect when the maintenance ends. Send 'enabled' alone."
            raise InvalidRequest(message, field="enabled")
        if duration is not None and not 0 <= duration <= LONGEST:
            message = f"'duration' is {duration} microseconds. Use at least 0, at most 100 years, or leave it out."
            raise InvalidRequest(message, field="duration")
        now = self.database.clock()
        wish = Maintenance(now, reason, None if duration is None else now + duration) if enabled else None
        return await self.scope.do(switch_maintenance, wish)

    async def _count_matching(self, chosen: JobFilter) -> int:
        return sum([len(ids) async for ids in batches(self.database, chosen, WINDOW)])


def answer(tx: Transaction, requests: Sequence[None]) -> list[None]:
    """Run an empty query, to test whether the database answers."""
    tx.execute("SELECT 1")
    return list(requests)

"""What can be asked of Ojster? Every operation, as one awaitable call on top of a database.

The HTTP server, the in-process client and the worker all use this. It adds to the transaction functions what does not
belong into a transaction: middleware, waiting, refusals as exceptions, and what a tenant may see (``Engine.of``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.capabilities import EXTENSIONS
from ojster.core.errors import BackendUnavailable, OjsterError
from ojster.core.events import EventFilter, EventPage
from ojster.events import log as event_log
from ojster.files import records
from ojster.files.store import FileStore
from ojster.fleet.service import OperatorCalls
from ojster.jobs.bulk import Action
from ojster.jobs.extension import Extension, install
from ojster.jobs.selection import JobFilter, Step, walk
from ojster.schedules import retention
from ojster.schedules.due import upkeep
from ojster.scope import Directive, EnqueueMiddleware, answer
from ojster.storage.database import Database
from ojster.storage.wakeups import DUE

log = logging.getLogger(__name__)

LONGEST_SLEEP: Final = 30.0
"""After how many seconds the chores look again, although nothing is known to be due."""

LONGEST_PAUSE: Final = 2.0
"""How long to wait at most before a database that is away is tried again, in seconds."""

LENIENCY: Final = 5.0
"""For how long, after the database was away, no lease ends, in seconds: workers report first what they have done."""

WALK_INTERVAL: Final = 600.0
"""How often all jobs are walked through for those of queues that have retention periods of their own, in seconds."""

RETENTION_INTERVAL: Final = 60.0
"""How often finished jobs are looked through for those whose retention is over, in seconds."""


class Engine(OperatorCalls):
    """Every operation on jobs, queues, workers and cron jobs of one database; parameters as of ``View``.

    Parameters
    ----------
    extensions:
        The capabilities that take part in the life of jobs.
    """

    def __init__(
        self,
        database: Database,
        *,
        middleware: Sequence[EnqueueMiddleware] = (),
        directives: Sequence[Directive] = (),
        store: FileStore | None = None,
        extensions: Sequence[Extension] = EXTENSIONS,
    ) -> None:
        super().__init__(database, middleware=middleware, directives=directives, store=store)
        install(database.memory, extensions)

    # Lifecycle

    def drain(self) -> None:
        """Answer those who wait, now, with what there is; from now on nobody waits. The first step of a shutdown."""
        self._life.draining = True
        self.database.let_nobody_wait()
        self.database.wakeups.wake_all()

    def start_chores(self) -> None:
        """Look after all that falls due, until ``close``. Any number of processes may do so for one database."""
        if not self._chores:
            self._chores = [
                asyncio.create_task(self._keep_up(), name="ojster-upkeep"),
                asyncio.create_task(self._retain(), name="ojster-retention"),
            ]

    async def stop_chores(self) -> None:
        """Stop looking after what falls due."""
        chores, self._chores = self._chores, []
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)

    async def close(self) -> None:
        """Stop the chores and close the database."""
        await self.stop_chores()
        await asyncio.to_thread(self.database.close)

    # Events

    async def select_events(self, chosen: EventFilter) -> EventPage:
        """Return a page of what has happened lately, oldest first."""
        chosen = msgspec.structs.replace(chosen, tenant=self.tenant)
        await self._follow()
        return await self.database.read(event_log.select_events, chosen)

    async def read_on(self, number: int) -> event_log.Stretch:
        """Return what has happened, to anybody, since the event with a number."""
        await self._follow()
        return await self.database.read(event_log.read_on, number)

    async def last_event(self) -> int:
        """Return the number up to which all has happened already."""
        await self._follow()
        return await self.database.read(event_log.last_event, None)

    async def _follow(self) -> None:
        """Say now and then that somebody wants to know what happens, and put it in order."""
        now = self.database.clock()
        if now >= self._life.followed_at + event_log.FOLLOWED_FOR // 2:
            self._life.followed_at = now
            await self.database.run(event_log.note_follower, None)
        await self.database.order_events()

    # Inside

    async def _keep_up(self) -> None:
        database = self.database
        with database.wakeups.waiter(DUE) as waiter:
            while True:
                waiter.arm()
                database.next_due = None
                delay = LONGEST_SLEEP
                try:
                    due = await database.run(upkeep, None)
                    database.next_due = due
                    if due is not None:
                        delay = min(LONGEST_SLEEP, max(0.0, (due - database.clock()) / 1e6))
                except BackendUnavailable as error:
                    await self._until_itanswers(error)
                    continue
                except OjsterError as error:
                    log.error("upkeep failed, and is tried again in a second: %s", error)
                    delay = 1.0
                await waiter.wait(delay)

    async def _until_itanswers(self, error: BackendUnavailable) -> None:
        """Wait until the database works again, and then a little, so that workers can report what they have done.

        Without that, leases that ran out meanwhile would end, and jobs that are done would run again.
        """
        started = asyncio.get_running_loop().time()
        log.warning("the database is away, and is tried again and again: %s", error)
        pause = 0.2
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
            try:
                await self.database.run(answer, None)
                break
            except BackendUnavailable:
                continue
        log.warning("the database is back after %.1f s", asyncio.get_running_loop().time() - started)
        await asyncio.sleep(LENIENCY)

    async def _retain(self) -> None:
        loop = asyncio.get_running_loop()
        walked_at = loop.time() - WALK_INTERVAL
        while True:
            deleted = 0
            try:
                deleted = (await self.database.run(retention.forget, None))["rows"]
                if deleted < retention.BATCH and loop.time() >= walked_at + WALK_INTERVAL:
                    walked_at = loop.time()
                    await self.retain_by_walks()
                    if self.store is not None:
                        await self.files.prune()
            except OjsterError as error:
                log.error("retention failed, and is tried again later: %s", error)
            await asyncio.sleep(0.02 if deleted >= retention.BATCH else RETENTION_INTERVAL)

    async def retain_by_walks(self) -> int:
        """Forget finished jobs of queues and workspaces that say how long they are kept; return how many.

        (ojs-admin-api.md section 6.6; seed 003)
        """
        settings = self.database.settings
        own, deleted = await self.database.read(retention.own_retention, None), 0
        for chosen in retention.walks(own, settings.retention, self.database.clock()):
            deleted += (await self.sweep(Action.DELETE, chosen, quietly=True)).succeeded
        for queue, kept in own.queues.items():
            most = kept.most_dead_letters
            while most is not None and (pruned := await self.database.run(retention.prune_own, (queue, most))):
                deleted += pruned
        return deleted

    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Forget now all that was kept long enough, in small transactions (seed 003: expiration).

        The servers do so all the time; this is for who wants to wait for it, or to see what it would be.

        Parameters
        ----------
        dry_run:
            Only count.

        Returns
        -------
        dict[str, int]
            How many ``jobs``, those of workflows among them, how many ``workflows``, and how many ``files``.
        """
        self.for_all("Pruning")
        found: Counter[str] = Counter()
        if dry_run:
            found += await self.database.read(retention.count_forgettable, None)
            own = await self.database.read(retention.own_retention, None)
            for chosen in retention.walks(own, self.database.settings.retention, self.database.clock()):
                found["jobs"] += await self._count_matching(chosen)
            found["files"] = await self.database.read(records.count_forgettable_files, None)
        else:
            while (done := await self.database.run(retention.forget, None))["rows"]:
                found += done
            found["jobs"] += await self.retain_by_walks()
            found["files"] = 0 if self.store is None else await self.files.prune()
        return {name: found[name] for name in ("jobs", "workflows", "files")}

    async def _count_matching(self, chosen: JobFilter) -> int:
        count, step = 0, Step(chosen)
        while True:
            stretch = await self.database.read(walk, step)
            count += len(stretch.ids)
            if stretch.next is None:
                return count
            step = stretch.next

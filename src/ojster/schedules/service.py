"""Calls about cron jobs."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.jobs.extension import hooks
from ojster.jobs.names import refuse_reserved
from ojster.jobs.new_job import read_job
from ojster.jobs.scope import CapabilityService, accepted
from ojster.schedules import cron
from ojster.schedules.calls import ScheduleCalls
from ojster.schedules.cron_expression import CronSchedule

MAX_PREVIEWED: Final = 100
"""Maximum number of runs that a preview shows."""


class ScheduleService(CapabilityService, ScheduleCalls):
    """Calls about cron jobs."""

    async def register(self, item: cron.Cron, on_conflict: cron.OnConflict = "replace") -> cron.Registered:
        """Register or update a cron job.

        Parameters
        ----------
        on_conflict:
            ``replace`` (default): change the cron job of this name, if there is one; ``reject``: refuse.

        Raises
        ------
        Duplicate
            There is a cron job of this name, and ``on_conflict`` is ``reject``.
        InvalidRequest
            The template describes no valid job, or its queue refuses the job.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A cron job")
        members = read_members(item.template, "The cron job's template")
        self.scope.check_contents(item.template)
        for completer in hooks.of(self.database.memory).completer:
            if (complete := await completer(self.scope)) is not None:
                complete(dict(members))
        largest = self.database.settings.largest_job
        refuse_reserved(read_job(members, self.database.clock(), largest=largest, tenant=self.scope.tenant).queue)
        item = msgspec.structs.replace(item, name=self.scope.named(item.name))
        return accepted(await self.database.run(cron.register, cron.Registration(item, on_conflict)))

    async def switch(self, name: str, enabled: bool) -> cron.Cron:
        """Enable or disable a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.run(cron.switch, (self.scope.named(name), enabled)))

    async def trigger(self, name: str) -> Job:
        """Enqueue the job of a cron job now, enabled or not; its next run stays as it is.

        Raises
        ------
        NotFound
            There is no such cron job.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A cron job")
        return accepted(await self.database.run(cron.trigger, self.scope.named(name)))

    async def unregister(self, name: str) -> cron.Cron:
        """Remove a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.run(cron.unregister, self.scope.named(name)))

    async def find(self, name: str) -> cron.Cron:
        """Return a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        """
        return accepted(await self.database.read(cron.find_cron, self.scope.named(name)))

    async def all(self) -> list[cron.Cron]:
        """Return all cron jobs by name."""
        crons, _ = await self.database.read(cron.list_crons, cron.CronSelection(self.scope.tenant))
        return crons

    async def preview(self, expression: str, timezone: str = "UTC", count: int = 5) -> list[int]:
        """Return the next runs of an expression, at most ``MAX_PREVIEWED``, in microseconds since the epoch."""
        schedule, runs, now = CronSchedule(expression, timezone), list[int](), self.database.clock()
        while len(runs) < min(count, MAX_PREVIEWED) and (at := schedule.next_after(runs[-1] if runs else now)):
            runs.append(at)
        return runs

    async def page(self, enabled: bool | None, limit: int, offset: int) -> tuple[list[cron.Cron], int]:
        """Return a page of the cron jobs by name, and the number of all.

        Parameters
        ----------
        enabled:
            Only enabled ones (true) or disabled ones (false); ``None``: both.
        """
        selection = cron.CronSelection(self.scope.tenant, enabled, limit, offset)
        return await self.database.read(cron.list_crons, selection)

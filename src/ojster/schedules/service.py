"""Calls about cron jobs."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.parsing import PageLimit, check_bounds
from ojster.jobs import schemas
from ojster.jobs.extension import hooks
from ojster.jobs.names import refuse_reserved
from ojster.jobs.new_job import read_job
from ojster.jobs.scope import CapabilityService, Scope
from ojster.schedules import cron, firing
from ojster.schedules.backfill import Backfill, BackfillOrder, Concurrency, backfill
from ojster.schedules.calls import ScheduleCalls
from ojster.schedules.cron_expression import CronSchedule
from ojster.schedules.misses import Miss, list_misses
from ojster.workflows.plan.members import inside, refusal_of
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.views import MOST_SHOWN_STEPS
from ojster.workflows.run.starting import check_size
from ojster.workflows.service import WorkflowService

MAX_PREVIEWED: Final = 100
"""Maximum number of runs that a preview shows."""


class ScheduleService(CapabilityService, ScheduleCalls):
    """Calls about cron jobs."""

    def __init__(self, scope: Scope, workflows: WorkflowService) -> None:
        super().__init__(scope)
        self._workflows = workflows

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
            The name is malformed, the template describes no valid job, or its queue refuses the job.
        SchemaViolation
            The arguments in the template violate a strict schema.
        InvalidWorkflow, NotFound, PayloadTooLarge
            The workflow breaks a rule, its definition does not exist, or it has more than a thousand steps and
            containers; the place begins with ``workflow``.
        Forbidden
            The caller is limited to certain queues; or it may cancel only what it has created, and would change the
            cron job of another, or cancel the runs of others.
        """
        self.scope.need_all_queues("A cron job")
        check_bounds("name", item.name, cron.CronName)
        warnings = item.schedule.warnings()
        if item.workflow is None:
            warnings += await self._check_job(item.template)
        else:
            await self._check_workflow(item.workflow, takes_turns=item.overlap_policy == "enqueue")
        item = msgspec.structs.replace(item, name=self.scope.named(item.name), created_by=self.scope.who)
        registration = cron.Registration(item, on_conflict, self.scope.cancels_only_own)
        registered = await self.scope.do(cron.register, registration)
        return msgspec.structs.replace(registered, warnings=warnings) if warnings else registered

    async def _check_job(self, template: bytes) -> tuple[str, ...]:
        """Check the job in a template as a push does; return its warnings."""
        members = read_members(template, "The cron job's template")
        self.scope.check_contents(template)
        for completer in hooks.of(self.database.memory).completer:
            if (complete := await completer(self.scope)) is not None:
                complete(dict(members))
        largest = self.database.settings.largest_job
        args, uri = members.get("args", msgspec.Raw(b"[]")), schemas.schema_uri(members)
        job = read_job(members, self.database.clock(), largest=largest, tenant=self.scope.tenant)
        refuse_reserved(job.queue)
        catalogue = await self.database.remembered(schemas.registered)
        return (*job.warnings, *schemas.check_args(catalogue, job, args, uri))

    async def _check_workflow(self, request: bytes, *, takes_turns: bool) -> None:
        """Check a workflow as its creation does; it has no id, because each run has its own."""
        try:
            members = read_members(request, "The cron job's workflow")
            if "id" in members:
                message = "The workflow of a cron job has no 'id': each run gets its own. Leave it out."
                raise InvalidRequest(message, field="id")
            new = await self._workflows.prepare(members)
            if new.unknown:
                raise refusal_of(new.unknown)
            check_size(new)
        except OjsterError as refusal:
            raise inside(refusal, "workflow") from None
        if takes_turns and new.target is not None:
            raise InvalidRequest(
                f"A workflow with the target {new.target!r:.80} cannot wait for the run before it, which holds the "
                "target. Use another overlap policy than 'enqueue', or leave the target out.",
                field="overlap_policy",
            )

    async def switch(self, name: str, enabled: bool) -> cron.Cron:
        """Enable or disable a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A cron job")
        return await self.scope.do(cron.switch, (self.scope.named(name), enabled))

    async def trigger(self, name: str) -> Job | WorkflowInfo:
        """Enqueue the job of a cron job, or start its workflow, now, enabled or not; its next run stays as it is.

        Raises
        ------
        NotFound
            There is no such cron job.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A cron job")
        run: firing.StartedByCron = await self.scope.do(firing.trigger, (self.scope.named(name), self.scope.who))
        if not isinstance(run, NewWorkflow):
            return run
        return await self._workflows.show(run.id, most_steps=MOST_SHOWN_STEPS)

    async def backfill(
        self, name: str, since: int, until: int, *, concurrency: Concurrency = 1, dry_run: bool = False
    ) -> Backfill:
        """Start the runs of a cron job for occurrences that have passed, at most ``MAX_BACKFILLED`` of them.

        They run beside the schedule: its overlap policy does not count them. Unlike a run that was missed and fires
        later, each occurrence has its own.

        Parameters
        ----------
        since, until:
            The first and the last moment of the occurrences, in microseconds since the epoch.
        concurrency:
            How many of the runs run at once, 1 by default: in so many lines, each in the order of the occurrences.
        dry_run:
            Start nothing; return the occurrences.

        Returns
        -------
        Backfill
            The occurrences with the ids of their jobs or workflows, and where the next call goes on.

        Raises
        ------
        NotFound
            There is no such cron job.
        InvalidRequest
            The time has not passed, ends before it begins, or the workflow of the cron job has a target.
        Forbidden
            The caller is limited to certain queues.
        """
        check_bounds("concurrency", concurrency, Concurrency)
        self.scope.need_all_queues("A cron job")
        order = BackfillOrder(self.scope.named(name), since, until, concurrency, dry_run, self.scope.who)
        return await self.scope.do(backfill, order)

    async def unregister(self, name: str) -> cron.Cron:
        """Remove a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A cron job")
        return await self.scope.do(cron.unregister, self.scope.named(name))

    async def find(self, name: str) -> cron.Cron:
        """Return a cron job.

        Raises
        ------
        NotFound
            There is no such cron job.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A cron job")
        return await self.scope.look(cron.find_cron, self.scope.named(name))

    async def misses(self, name: str) -> list[Miss]:
        """Return the occurrences of a cron job that started nothing and why, the newest first.

        Consecutive ones with the same cause are one. The newest ``MAX_MISSES`` are kept, for ``MISSES_KEPT``. What a
        cron job would have started while it was disabled is not among them.

        Raises
        ------
        NotFound
            There is no such cron job.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A cron job")
        return await self.scope.look(list_misses, self.scope.named(name))

    async def all(self) -> list[cron.Cron]:
        """Return all cron jobs by name."""
        self.scope.need_all_queues("A cron job")
        crons, _ = await self.database.read(cron.list_crons, cron.CronSelection(self.scope.tenant))
        return crons

    async def preview(self, expression: str, timezone: str = "UTC", count: int = 5) -> list[int]:
        """Return the next runs of an expression, at most ``MAX_PREVIEWED``, in microseconds since the epoch."""
        check_bounds("count", count, PageLimit)
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
        self.scope.need_all_queues("A cron job")
        selection = cron.CronSelection(self.scope.tenant, enabled, limit, offset)
        return await self.database.read(cron.list_crons, selection)

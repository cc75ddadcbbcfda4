"""Calls about cron jobs, as a service, a server and its client have them."""

from __future__ import annotations

from typing import Final

from ojster.core.access import ENQUEUE, INSPECT
from ojster.core.calls import Call, Calls, Handled, Listing
from ojster.core.job import Job
from ojster.core.parsing import PageLimit
from ojster.jobs.sweeps import MAX_SWEEP_SECONDS
from ojster.queues.maintenance import Maintenance
from ojster.schedules.backfill import Backfill, Concurrency
from ojster.schedules.cron import Cron, OnConflict, Registered
from ojster.schedules.misses import Miss
from ojster.schedules.misses_wire import CronMissesAnswer
from ojster.schedules.wire import (
    BackfillAnswer,
    BackfillBody,
    CronAnswer,
    CronBody,
    CronPatchBody,
    CronPreviewAnswer,
    CronsAnswer,
    DeletedCronAnswer,
    DocumentedTriggeredAnswer,
    MaintenanceAnswer,
    MaintenanceBody,
    PruneAnswer,
    PruneBody,
    RegisteredCronAnswer,
    TriggeredAnswer,
)
from ojster.workflows.read.info import WorkflowInfo

_TAG: Final = "Cron jobs"
_ONE: Final = "/cron/{name}"
_OPERATORS: Final = "Operators"
_MODE: Final = "/admin/system/maintenance"
_ALSO: Final = ("/crons/{name}",)
"""What the specification's admin interface asks for."""


class ScheduleCalls(Calls):
    """Calls about cron jobs."""

    @Call("GET", "/cron-preview", "preview_cron", _TAG, CronPreviewAnswer)
    async def preview(self, expression: str, timezone: str = "UTC", count: PageLimit = 5) -> list[int]:
        """Show the next runs of an ``expression`` in a ``timezone`` (default UTC), at most ``count`` (default 5)."""

    @Listing("GET", "/cron", "list_crons", _TAG, CronsAnswer, also=("/crons",), query=("enabled",))
    async def all(self) -> list[Cron]:
        """List the cron jobs by name; with ``enabled=true`` or ``enabled=false`` only the enabled or disabled ones."""

    @Handled(
        "POST",
        "/cron",
        "register_cron",
        _TAG,
        RegisteredCronAnswer,
        also=("/crons",),
        body=CronBody,
        status=201,
        more=(200,),
        configures=True,
        needs=ENQUEUE,
    )
    async def register(self, item: Cron, on_conflict: OnConflict = "replace") -> Registered:
        """Register a cron job, or update the existing one with that name; with ``on_conflict: reject``, refuse that.

        The answer says whether the cron job is new, and whether it is new or has changed.
        """

    @Call("GET", _ONE, "show_one_cron", _TAG, CronAnswer, also=_ALSO)
    async def find(self, name: str) -> Cron:
        """Show a cron job."""

    @Call("GET", f"{_ONE}/misses", "list_cron_misses", _TAG, CronMissesAnswer, also=("/crons/{name}/misses",))
    async def misses(self, name: str) -> list[Miss]:
        """List the occurrences of a cron job that started nothing, with the reason, the newest first."""

    @Call("PATCH", _ONE, "switch_cron", _TAG, CronAnswer, also=_ALSO, body=CronPatchBody)
    async def switch(self, name: str, enabled: bool) -> Cron:
        """Enable or disable a cron job."""

    @Call(
        "POST",
        f"{_ONE}/trigger",
        "trigger_cron",
        _TAG,
        TriggeredAnswer,
        documented=DocumentedTriggeredAnswer,
        also=("/crons/{name}/trigger",),
        status=201,
        configures=True,
        needs=ENQUEUE,
        once=True,
    )
    async def trigger(self, name: str) -> Job | WorkflowInfo:
        """Enqueue the job of a cron job, or start its workflow, now, enabled or not; its next run stays as it is."""

    @Call(
        "POST",
        f"{_ONE}/backfill",
        "backfill_cron",
        _TAG,
        BackfillAnswer,
        body=BackfillBody,
        configures=True,
        needs=ENQUEUE,
        once=True,
    )
    async def backfill(
        self, name: str, since: int, until: int, *, concurrency: Concurrency = 1, dry_run: bool = False
    ) -> Backfill:
        """Start the runs of a cron job for the occurrences from ``since`` to ``until``, which has passed.

        At most ``concurrency`` (default 1) of them run at once. One call starts the first 200 of them: repeat it from
        ``next`` until that is null. With ``dry_run``, nothing is started, and the answer has the occurrences.
        """

    @Call("DELETE", _ONE, "unregister_cron", _TAG, DeletedCronAnswer, also=_ALSO)
    async def unregister(self, name: str) -> Cron:
        """Remove a cron job. The jobs and workflows that it has started remain."""


class MaintenanceCalls(Calls):
    """Calls about maintenance."""

    @Handled(
        "POST",
        "/admin/prune",
        "prune",
        _OPERATORS,
        PruneAnswer,
        body=PruneBody,
        may_be_empty=True,
        wait=MAX_SWEEP_SECONDS,
    )
    async def prune(self, *, dry_run: bool = False) -> dict[str, int]:
        """Delete all data past its retention now, instead of with the next maintenance task; ``dry_run``: count it."""

    @Call("GET", _MODE, "show_maintenance", _OPERATORS, MaintenanceAnswer, needs=INSPECT)
    async def mode(self) -> Maintenance | None:
        """Show whether maintenance mode is enabled."""

    @Call("POST", _MODE, "maintain", _OPERATORS, MaintenanceAnswer, body=MaintenanceBody)
    async def switch_mode(
        self, enabled: bool, reason: str | None = None, duration: int | None = None
    ) -> Maintenance | None:
        """Enable or disable maintenance mode, in which workers claim no jobs and schedules create none."""

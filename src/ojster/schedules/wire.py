"""The JSON of requests and answers about cron jobs and maintenance."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.core.calls import Arguments
from ojster.core.declared_options import described_by
from ojster.core.durations import format_duration, parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.core.tenant import called, shown_tenant, split
from ojster.core.timestamps import format_optional, format_timestamp, parse_optional, parse_timestamp
from ojster.core.wire import Count, PaginationBody, Timestamp
from ojster.jobs.answer_wire import EncodedJobAnswer, JobBody
from ojster.queues.maintenance import Maintenance
from ojster.schedules.backfill import Backfill, BackfilledRun, Concurrency
from ojster.schedules.cron import Cron, CronName, OnConflict, Registered
from ojster.schedules.cron_expression import OverlapPolicy
from ojster.workflows.read.info import WorkflowInfo


class JobTemplateBody(Struct):
    """The template of the jobs that a cron job enqueues."""

    type: str
    args: list[Raw] = []
    meta: dict[str, Raw] = {}
    options: dict[str, Raw] = {}


@described_by(Cron)
class CronBody(Struct):
    """A cron job. The schedule is ``expression`` or ``cron``; the job is ``job_template`` or the members beside it,
    those that are not listed here among them, such as ``queue`` and ``retry``. The overlap policy ``cancel`` is another
    name of ``cancel_previous``.

    Parameters
    ----------
    cron:
        The same as ``expression``.
    job_template:
        The enqueue request of its jobs.
    type, args, meta, options:
        The members of the template, if there is no ``job_template``.
    on_conflict:
        If there is a cron job of this name: ``replace`` (the default) changes it, ``reject`` refuses the request.
    """

    name: CronName
    expression: str | None = None
    cron: str | None = None
    timezone: str = "UTC"
    overlap_policy: OverlapPolicy | Literal["cancel"] = "skip"
    enabled: bool = True
    description: str | None = None
    job_template: JobTemplateBody | None = None
    workflow: dict[str, Raw] | None = None
    type: str | None = None
    args: list[Raw] = []
    meta: dict[str, Raw] = {}
    options: dict[str, Raw] = {}
    on_conflict: OnConflict = "replace"


class PruneBody(Arguments, forbid_unknown_fields=True):
    """Options for deleting expired data; with ``dry_run``, it is only counted."""

    dry_run: bool = False


class PruneAnswer(Struct):
    """The numbers of what was deleted by kind, or would be with ``dry_run``."""

    pruned: dict[str, Count]
    dry_run: bool

    def value(self) -> dict[str, int]:
        return self.pruned


class MaintenanceBody(Arguments):
    """Turns maintenance mode on or off.

    Parameters
    ----------
    reason:
        Why, for people.
    estimated_duration:
        How long it is likely to last, an ISO 8601 duration.
    duration:
        The same as ``estimated_duration``.
    """

    enabled: bool
    reason: Annotated[str, Meta(max_length=1000)] | None = None
    estimated_duration: str | None = None
    duration: str | None = None

    @classmethod
    def of(cls, enabled: bool, reason: str | None, duration: int | None) -> Self:
        return cls(enabled, reason, None if duration is None else format_duration(duration))

    def arguments(self, now: int) -> dict[str, Any]:
        """Return the arguments in the body.

        Raises
        ------
        InvalidRequest
            Members contradict each other.
        """
        durations = {parse_duration(text) for text in (self.estimated_duration, self.duration) if text is not None}
        if len(durations) > 1:
            raise InvalidRequest("'estimated_duration' and 'duration' differ. Send one of them.", field="duration")
        return {"enabled": self.enabled, "reason": self.reason, "duration": next(iter(durations), None)}


class MaintenanceAnswer(Struct):
    """Whether maintenance mode is on, and why."""

    maintenance: bool
    enabled: bool
    reason: str | UnsetType | None = UNSET
    enabled_at: Timestamp | UnsetType | None = UNSET
    estimated_end: Timestamp | UnsetType | None = UNSET

    @classmethod
    def of(cls, mode: Maintenance | None) -> Self:
        """Return the answer that shows maintenance mode; ``None``: it is off."""
        if mode is None:
            return cls(False, False)
        return cls(True, True, mode.reason, format_timestamp(mode.enabled_at), format_optional(mode.estimated_end))

    def value(self) -> Maintenance | None:
        if not self.enabled:
            return None
        enabled_at, estimated_end = (parse_optional(at or None) for at in (self.enabled_at, self.estimated_end))
        return Maintenance(enabled_at or 0, self.reason or None, estimated_end)


class CronPatchBody(Arguments, forbid_unknown_fields=True):
    """Enables or disables a cron job. Other members are refused: ``POST /cron`` changes them."""

    enabled: bool


@described_by(Cron)
class CronInfo(Struct, kw_only=True):
    """A cron job. If it enqueues jobs, the members of its template are also at its top.

    Parameters
    ----------
    cron:
        The same as ``expression``.
    starts:
        What it starts, for people: a job type, or the kind and the name of a workflow.
    job_template:
        The enqueue request of its jobs.

    Spec: ojs-cron
    """

    name: str
    tenant_id: str
    expression: str
    cron: str
    timezone: str
    overlap_policy: OverlapPolicy
    enabled: bool
    status: Literal["active", "disabled"]
    description: str | None
    starts: str
    type: str | UnsetType = UNSET
    args: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = UNSET
    options: Raw | UnsetType = UNSET
    job_template: Raw | UnsetType = UNSET
    workflow: Raw | UnsetType = UNSET
    created_at: Timestamp
    last_run_at: Timestamp | None
    next_run_at: Timestamp | None
    run_count: Count
    created_by: str | None


class CronAnswer(Struct):
    """One cron job. ``cron_job`` is the same as ``cron``."""

    cron: CronInfo
    cron_job: CronInfo

    @classmethod
    def of(cls, cron: Cron) -> Self:
        shown = show_cron(cron)
        return cls(shown, shown)

    def value(self) -> Cron:
        return read_cron(self.cron)


class RegisteredCronAnswer(Struct):
    """A registered cron job, whether it is new, and whether it is new or has changed.

    Parameters
    ----------
    warnings:
        Members of its template that look misspelt, and members beside it: they have no effect. Days that some of its
        months do not have.
    """

    cron: CronInfo
    cron_job: CronInfo
    is_new: bool
    is_changed: bool
    warnings: tuple[str, ...] | UnsetType = UNSET

    @classmethod
    def of(cls, registered: Registered) -> Self:
        shown = show_cron(registered.cron)
        return cls(shown, shown, registered.is_new, registered.is_changed, registered.warnings or UNSET)

    def value(self) -> Registered:
        warnings = () if self.warnings is UNSET else self.warnings
        return Registered(read_cron(self.cron), self.is_new, self.is_changed, warnings)


class TriggeredAnswer(Struct):
    """What a cron job has started: a job, as the database has it, or a workflow."""

    job: Raw | UnsetType = UNSET
    workflow: WorkflowInfo | UnsetType = UNSET

    @classmethod
    def of(cls, run: Job | WorkflowInfo) -> Self:
        return cls(workflow=run) if isinstance(run, WorkflowInfo) else cls(EncodedJobAnswer.of(run).job)

    def value(self) -> Job | WorkflowInfo:
        if isinstance(self.workflow, WorkflowInfo):
            return self.workflow
        return EncodedJobAnswer(self.job if self.job is not UNSET else Raw(b"null")).value()


class DocumentedTriggeredAnswer(Struct):
    """What a cron job has started: a job or a workflow."""

    job: JobBody | UnsetType = UNSET
    workflow: WorkflowInfo | UnsetType = UNSET


class BackfillBody(Arguments):
    """The time whose occurrences are backfilled.

    Parameters
    ----------
    since, until:
        The first and the last moment.
    concurrency:
        Maximum number of the runs that run at once.
    dry_run:
        Whether nothing is started, and the answer has the occurrences.
    """

    since: Timestamp
    until: Timestamp
    concurrency: Concurrency = 1
    dry_run: bool = False

    @classmethod
    def of(cls, since: int, until: int, concurrency: int, dry_run: bool) -> Self:
        return cls(format_timestamp(since), format_timestamp(until), concurrency, dry_run)

    def arguments(self, now: int) -> dict[str, Any]:
        since, until = (parse_timestamp(at) for at in (self.since, self.until))
        return {"since": since, "until": until, "concurrency": self.concurrency, "dry_run": self.dry_run}


class BackfilledRunInfo(Struct):
    """An occurrence, and the id of the job or workflow that was started for it.

    null: none was, with ``dry_run``, or because the job would be a duplicate, which its ``unique`` ignores.
    """

    scheduled_for: Timestamp
    id: str | None


class BackfillAnswer(Struct):
    """What was backfilled, the oldest first, and where the next call goes on; null: nothing is left."""

    runs: list[BackfilledRunInfo]
    next: Timestamp | None

    @classmethod
    def of(cls, done: Backfill) -> Self:
        runs = [BackfilledRunInfo(format_timestamp(run.scheduled_for), run.id) for run in done.runs]
        return cls(runs, format_optional(done.next))

    def value(self) -> Backfill:
        runs = tuple(BackfilledRun(parse_timestamp(run.scheduled_for), run.id) for run in self.runs)
        return Backfill(runs, parse_optional(self.next))


class CronPreviewAnswer(Struct):
    """The next runs of a cron expression; an empty list if it has none."""

    runs: list[Timestamp]

    @classmethod
    def of(cls, runs: list[int]) -> Self:
        return cls([format_timestamp(at) for at in runs])

    def value(self) -> list[int]:
        return [parse_timestamp(at) for at in self.runs]


class DeletedCronAnswer(Struct):
    """A cron job that was removed."""

    name: str
    cron: CronInfo
    deleted: Literal[True] = True

    @classmethod
    def of(cls, cron: Cron) -> Self:
        return cls(called(cron.name), show_cron(cron))

    def value(self) -> Cron:
        return read_cron(self.cron)


class CronsAnswer(Struct):
    """A page of the cron jobs. ``cron_jobs`` is the same as ``crons``."""

    crons: list[CronInfo]
    cron_jobs: list[CronInfo]
    count: Count
    pagination: PaginationBody

    @classmethod
    def of(cls, crons: list[Cron], pagination: PaginationBody) -> Self:
        shown = [show_cron(cron) for cron in crons]
        return cls(shown, shown, pagination.total, pagination)

    def value(self) -> list[Cron]:
        return [read_cron(shown) for shown in self.crons]


class CronRequestBody(Struct):
    """A cron job to register, with a complete template."""

    name: str
    expression: str
    timezone: str
    overlap_policy: OverlapPolicy
    enabled: bool
    description: str | None
    job_template: Raw | UnsetType
    workflow: Raw | UnsetType
    on_conflict: OnConflict

    @classmethod
    def of(cls, cron: Cron, on_conflict: OnConflict) -> CronRequestBody:
        return cls(
            cron.name,
            cron.expression,
            cron.timezone,
            cron.overlap_policy,
            cron.enabled,
            cron.description,
            Raw(cron.template) if cron.workflow is None else UNSET,
            UNSET if cron.workflow is None else Raw(cron.workflow),
            on_conflict,
        )


def show_cron(cron: Cron) -> CronInfo:
    """Return the JSON form of a cron job."""
    last_run_at, next_run_at = (format_optional(at) for at in (cron.last_run_at, cron.next_run_at))
    return CronInfo(
        name=called(cron.name),
        tenant_id=shown_tenant(split(cron.name)[0]),
        expression=cron.expression,
        cron=cron.expression,
        timezone=cron.timezone,
        overlap_policy=cron.overlap_policy,
        enabled=cron.enabled,
        status="active" if cron.enabled else "disabled",
        description=cron.description,
        starts=cron.starts,
        created_at=format_timestamp(cron.created_at),
        last_run_at=last_run_at,
        next_run_at=next_run_at,
        run_count=cron.run_count,
        created_by=cron.created_by,
        **_started(cron),
    )


def _started(cron: Cron) -> dict[str, Any]:
    """Return the members that say what a cron job starts."""
    if cron.workflow is not None:
        return {"workflow": Raw(cron.workflow)}
    template = read_members(cron.template, "The template")
    return {
        "type": msgspec.json.decode(template["type"], type=str),
        "args": template.get("args", Raw(b"[]")),
        "meta": template.get("meta", Raw(b"{}")),
        "options": template.get("options", Raw(b"{}")),
        "job_template": Raw(cron.template),
    }


def read_cron(shown: CronInfo) -> Cron:
    """Return the cron job with this JSON form."""
    last_run_at, next_run_at = (parse_optional(text) for text in (shown.last_run_at, shown.next_run_at))
    return Cron(
        name=shown.name,
        expression=shown.expression,
        timezone=shown.timezone,
        overlap_policy=shown.overlap_policy,
        enabled=shown.enabled,
        description=shown.description,
        template=b"{}" if isinstance(shown.job_template, UnsetType) else bytes(shown.job_template),
        workflow=None if isinstance(shown.workflow, UnsetType) else bytes(shown.workflow),
        created_at=parse_timestamp(shown.created_at),
        last_run_at=last_run_at,
        next_run_at=next_run_at,
        run_count=shown.run_count,
        created_by=shown.created_by,
    )


CRON: Final = msgspec.json.Decoder(CronBody)

"""The JSON of answers about workflows and their definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Self

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ojster.core.calls import Single
from ojster.core.property_values import Property
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.core.wire import Count, Json, PaginationBody, Timestamp
from ojster.workflows.definition import Definition
from ojster.workflows.notes import Note
from ojster.workflows.read.info import StepInfo, WorkflowInfo, WorkflowPage
from ojster.workflows.read.levels import Level, LevelStep
from ojster.workflows.read.status import WorkflowStatistics, WorkflowStatus
from ojster.workflows.read.step_pages import StepPage, StepRow
from ojster.workflows.run.fork_preview import ForkPreview


class WorkflowAnswer(Struct):
    """One workflow."""

    workflow: WorkflowInfo
    warnings: list[str] | UnsetType = UNSET


class EncodedWorkflowAnswer(Struct):
    """``WorkflowAnswer`` with the JSON of the workflow, which may have members that the type does not name."""

    workflow: Raw

    @classmethod
    def of(cls, workflow: WorkflowInfo) -> Self:
        return cls(Raw(workflow.to_json()))

    def value(self) -> WorkflowInfo:
        return WorkflowInfo.from_json(self.workflow)


class CancelledWorkflow(WorkflowInfo, kw_only=True, omit_defaults=True):
    """A workflow that was cancelled, with the numbers of its jobs that were cancelled and that had completed before.

    Spec: ojs-http-binding 14.3
    """

    steps_cancelled: int
    steps_already_completed: int


class CancelledWorkflowAnswer(Struct):
    """A workflow that was cancelled."""

    workflow: CancelledWorkflow


def show_cancelled(workflow: WorkflowInfo) -> CancelledWorkflow:
    """Return a cancelled workflow with the numbers of its jobs that were cancelled and that had completed."""
    states = Counter(step.state for step in workflow.walk() if not step.children)
    members = {name: getattr(workflow, name) for name in workflow.__struct_fields__}
    return CancelledWorkflow(
        **members, steps_cancelled=states["cancelled"], steps_already_completed=states["completed"]
    )


class WorkflowsAnswer(Struct):
    """A page of workflows without their steps."""

    workflows: list[WorkflowInfo]
    pagination: PaginationBody

    def value(self) -> WorkflowPage:
        return WorkflowPage(self.workflows, self.pagination.total, _number(self.pagination.next_cursor or None))


class StepsAnswer(Struct):
    """A page of the steps of a workflow. ``next_cursor`` begins the next page; ``null``: this is the last one."""

    steps: list[StepRow]
    next_cursor: str | None

    @classmethod
    def of(cls, page: StepPage) -> Self:
        return cls(page.steps, _cursor(page.next_after))

    def value(self) -> StepPage:
        return StepPage(self.steps, _number(self.next_cursor))


class LevelAnswer(Struct):
    """The steps in a container. ``next_cursor`` begins the next page; ``null``: this is the last one."""

    steps: list[LevelStep]
    total: Count
    next_cursor: str | None

    @classmethod
    def of(cls, level: Level) -> Self:
        return cls(level.steps, level.total, _cursor(level.next_after))

    def value(self) -> Level:
        return Level(self.steps, self.total, _number(self.next_cursor))


class ForkPreviewAnswer(Struct):
    """What a fork would run again, by path, at most 200 of ``again_count``; and what it may change."""

    again: list[str]
    again_count: Count
    kept_count: Count
    takes_args: bool
    takes_result: bool

    @classmethod
    def of(cls, preview: ForkPreview) -> Self:
        return cls(
            list(preview.again),
            preview.again_count,
            preview.kept_count,
            preview.takes_args,
            preview.takes_result,
        )

    def value(self) -> ForkPreview:
        return ForkPreview(tuple(self.again), self.again_count, self.kept_count, self.takes_args, self.takes_result)


def _cursor(number: int | None) -> str | None:
    return None if number is None else str(number)


def _number(cursor: str | None) -> int | None:
    return None if cursor is None else int(cursor)


class StepProgressBody(Struct):
    """The progress of a job of a workflow, from 0 to 1; ``null`` if it has reported none."""

    type: str
    state: str
    progress: float | None
    job_id: str | None = None
    data: Json = None


class WorkflowProgressAnswer(Struct):
    """The progress of a workflow, from 0 to 1, and of its jobs.

    Spec: ojs-progress 9
    """

    workflow_id: str
    type: str
    progress: float
    steps: list[StepProgressBody]


def show_progress(workflow: WorkflowInfo) -> WorkflowProgressAnswer:
    """Return the JSON form of the progress of a workflow: the mean of its steps, and of theirs."""
    main = [*(workflow.steps or []), *(workflow.jobs or [])]
    steps = [_show_step(step) for child in main for step in child.walk() if not step.children]
    return WorkflowProgressAnswer(workflow.id, workflow.type, round(_mean(main), 4), steps)


def _mean(steps: Sequence[StepInfo]) -> float:
    return sum(map(_fraction, steps)) / len(steps) if steps else 0.0


def _fraction(step: StepInfo) -> float:
    if step.state in _DONE:
        return 1.0
    if inner := [*step.steps, *step.jobs]:
        return _mean(inner)
    return _show_step(step).progress or 0.0


def _show_step(step: StepInfo) -> StepProgressBody:
    known = msgspec.json.decode(step.progress) if isinstance(step.progress, Raw) else {}
    fraction = 1.0 if step.state in _DONE else known.get("progress")
    return StepProgressBody(step.type, step.state, fraction, step.job_id or None, known.get("data"))


_DONE: Final = frozenset({"completed", "skipped"})
"""States of steps that count as done."""


class WorkflowStatusAnswer(Single[WorkflowStatus]):
    """The results of ended steps, and the current steps."""

    status: WorkflowStatus


class WorkflowStatisticsAnswer(Single[WorkflowStatistics]):
    """Numbers of workflows by state and by age."""

    statistics: WorkflowStatistics


class PropertiesAnswer(Single[dict[str, Property]]):
    """The shared properties of a workflow."""

    properties: dict[str, Property]


class NoteAnswer(Single[Note]):
    """One note."""

    note: Note


class NotesAnswer(Single[list[Note]]):
    """The notes of a workflow or a job, oldest first."""

    notes: list[Note]


class DefinitionInfo(Struct):
    """A version of a workflow definition."""

    name: str
    version: int
    workflow: Raw
    hashes: dict[str, str]
    created_at: Timestamp
    params_schema: Raw | UnsetType = UNSET


def show_definition(definition: Definition) -> DefinitionInfo:
    """Return the JSON form of a version of a definition."""
    return DefinitionInfo(
        definition.name,
        definition.version,
        Raw(definition.body),
        definition.hashes,
        format_timestamp(definition.created_at),
        UNSET if definition.params_schema is None else Raw(definition.params_schema),
    )


class DefinitionAnswer(Struct):
    """One version of a definition."""

    definition: DefinitionInfo


class DefinitionsAnswer(Struct):
    """A page of definitions, each with its latest version."""

    definitions: list[DefinitionInfo]
    pagination: PaginationBody


def read_definition(shown: DefinitionInfo) -> Definition:
    """Return the version of a definition with this JSON form."""
    schema = None if isinstance(shown.params_schema, UnsetType) else bytes(shown.params_schema)
    created_at = parse_timestamp(shown.created_at)
    return Definition(shown.name, shown.version, bytes(shown.workflow), schema, shown.hashes, created_at)

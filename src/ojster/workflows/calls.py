"""Calls about workflows and notes, as a service, a server and its client have them.

Spec: ojs-workflows 11
"""

from __future__ import annotations

from typing import Final

from ojster.core.access import ADMIN_ONLY, CANCEL, CANCEL_OR_DEQUEUE
from ojster.core.calls import Call, Calls, Handled
from ojster.core.json_objects import Members
from ojster.core.property_values import Property
from ojster.jobs.answer_wire import ChangedJobAnswer
from ojster.jobs.failure import Failure
from ojster.jobs.sweeps import MAX_SWEEP_SECONDS, Sweep
from ojster.jobs.transitions import ChangedJob
from ojster.workflows.answer_wire import (
    EncodedWorkflowAnswer,
    ForkPreviewAnswer,
    LevelAnswer,
    NoteAnswer,
    NotesAnswer,
    PropertiesAnswer,
    StepsAnswer,
    WorkflowAnswer,
    WorkflowStatisticsAnswer,
    WorkflowStatusAnswer,
)
from ojster.workflows.bulk_wire import (
    BulkWorkflowsAnswer,
    BulkWorkflowsBody,
    CancelWorkflowsBody,
    ForkWorkflowsBody,
    PinWorkflowsBody,
)
from ojster.workflows.notes import Note
from ojster.workflows.properties import PropertyChange
from ojster.workflows.read.info import WorkflowInfo, WorkflowPage
from ojster.workflows.read.levels import Level, LevelRequest
from ojster.workflows.read.selection import WorkflowConditions, WorkflowFilter
from ojster.workflows.read.status import WorkflowStatistics, WorkflowStatus
from ojster.workflows.read.step_pages import StepFilter, StepPage
from ojster.workflows.run.control import Review
from ojster.workflows.run.dependencies import NewDependencies
from ojster.workflows.run.fork import Fork
from ojster.workflows.run.fork_preview import ForkPoint, ForkPreview
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption
from ojster.workflows.wire import (
    ActivationBody,
    DependenciesBody,
    ForkBody,
    JobNoteBody,
    NoteBody,
    PropertiesBody,
    ResumeBody,
    ReviewBody,
)

_TAG: Final = "Workflows"
_ONE: Final = "/workflows/{id}"
_BULK: Final = "Bulk"
_STEP: Final = f"{_ONE}/steps/{{step}}"


class _Steering(Call[WorkflowInfo], kw_only=True):
    """A call that changes a workflow, and returns it."""

    method: str = "POST"
    tag: str = _TAG
    answer: type[EncodedWorkflowAnswer] = EncodedWorkflowAnswer
    documented: type[WorkflowAnswer] = WorkflowAnswer


class WorkflowCalls(Calls):
    """Calls about workflows. The endpoints of those that raise ``NotImplementedError`` here are written by hand."""

    async def create(self, members: Members) -> WorkflowInfo:
        """Create a workflow, and start it unless it is scheduled."""
        raise NotImplementedError

    async def show(
        self, workflow_id: str, *, wait: float = 0.0, version: int | None = None, steps: bool = True
    ) -> WorkflowInfo:
        """Return a workflow in its current state.

        With ``wait``, first wait at most so many seconds until the workflow has finished or, if ``version`` is given,
        until its version differs from ``version``.
        """
        raise NotImplementedError

    async def cancel(self, workflow_id: str, *, stop_active: bool = False) -> WorkflowInfo:
        """Cancel a workflow. Active jobs may finish; with ``stop_active``, they are cancelled, too."""
        raise NotImplementedError

    async def select(self, chosen: WorkflowFilter) -> WorkflowPage:
        """Return a page of workflows, newest first, without their steps."""
        raise NotImplementedError

    @Call("GET", "/workflows/statistics", "show_statistics", _TAG, WorkflowStatisticsAnswer)
    async def statistics(self, definition: str | None = None) -> WorkflowStatistics:
        """Count workflows by state and by age, in four disjoint time ranges."""

    @Call("GET", f"{_ONE}/graph", "show_level", _TAG, LevelAnswer)
    async def level(self, asked: LevelRequest) -> Level:
        """Show one level of a workflow's graph: the steps in the container ``of``, a number; 0 is the workflow.

        Each step says which others of the page it follows. Containers are shown without what is in them, so that a
        picture of any workflow begins at once.
        """

    @Call("GET", f"{_ONE}/steps", "list_steps", _TAG, StepsAnswer)
    async def steps(self, chosen: StepFilter) -> StepPage:
        """List the steps of a workflow as a flat list, containers among them.

        ``state`` leaves those in one state, ``held=true`` those that wait for an answer, a time or a resumption,
        ``search`` those with a text in their name or type, or at the end of their path. A workflow of more than 1,000
        steps is shown without them; this list has them in pages. A search examines 10,000 steps at a time: its page may
        be short, and have a next one.
        """

    @Call("GET", f"{_ONE}/status", "show_status", _TAG, WorkflowStatusAnswer)
    async def status(self, workflow_id: str) -> WorkflowStatus:
        """Show the results of ended steps, by branch and in the order in which they ended, and the current steps."""

    @Call("GET", f"{_ONE}/properties", "show_properties", _TAG, PropertiesAnswer)
    async def properties(self, workflow_id: str) -> dict[str, Property]:
        """Show the shared properties of a workflow, each with its version."""

    @Call(
        "POST",
        f"{_ONE}/properties",
        "change_properties",
        _TAG,
        PropertiesAnswer,
        body=PropertiesBody,
        large=True,
        needs=CANCEL_OR_DEQUEUE,
    )
    async def change_properties(self, item: PropertyChange) -> dict[str, Property]:
        """Change the shared properties of a workflow, all or none. Answers 409 if an ``expected`` version differs."""

    @_Steering(
        path=f"{_ONE}/resume", id="resume_workflow", body=ResumeBody, may_be_empty=True, large=True, needs=CANCEL
    )
    async def resume(self, item: WorkflowResumption) -> WorkflowInfo:
        """Resume the suspended job of a workflow with a ``result`` or an ``error``."""

    @_Steering(path=f"{_ONE}/retry", id="retry_workflow", needs=CANCEL)
    async def retry(self, workflow_id: str) -> WorkflowInfo:
        """Retry the unsuccessful steps of a finished workflow."""

    @_Steering(path=f"{_ONE}/fork", id="fork_workflow", body=ForkBody, status=201, large=True, needs=CANCEL)
    async def fork(self, item: Fork) -> WorkflowInfo:
        """Run a workflow again from a step on, as a new workflow, which is returned; without a step, from its start.

        What had ended before the step is kept, and the old workflow stays as it is.
        """

    @Call("GET", f"{_ONE}/fork-preview", "preview_fork", _TAG, ForkPreviewAnswer)
    async def preview_fork(self, point: ForkPoint) -> ForkPreview:
        """Show what a fork from ``from_step`` would run again, what it would keep, and what it may change.

        Nothing is changed. Of a flow, ``again`` are the keys of what it has asked for since: its function decides anew.
        """

    @_Steering(path=f"{_ONE}/terminate", id="terminate_workflow", needs=CANCEL)
    async def terminate(self, workflow_id: str) -> WorkflowInfo:
        """End a workflow without letting it clean up: its active jobs are stopped, and nothing is compensated."""

    @_Steering(path=f"{_ONE}/hold", id="hold_workflow", needs=CANCEL)
    async def hold(self, workflow_id: str) -> WorkflowInfo:
        """Hold a workflow: none of its steps starts until it is released."""

    @_Steering(path=f"{_ONE}/release", id="release_workflow", needs=CANCEL)
    async def release(self, workflow_id: str) -> WorkflowInfo:
        """Release a held workflow."""

    @_Steering(path=f"{_STEP}/review", id="review_step", body=ReviewBody)
    async def review_step(self, review: Review) -> WorkflowInfo:
        """Approve or reject a step that waits for an approval, or add a note to it."""

    @_Steering(path=f"{_STEP}/dependencies", id="add_dependencies", body=DependenciesBody, needs=CANCEL)
    async def add_dependencies(self, item: NewDependencies) -> WorkflowInfo:
        """Let a step of a graph that has not started wait for others of the graph, too."""

    @_Steering(path=f"{_STEP}/retry", id="retry_step", needs=CANCEL)
    async def retry_step(self, address: StepAddress) -> WorkflowInfo:
        """Run a failed or cancelled step again, with everything after it; the other steps go on."""

    @_Steering(path=f"{_STEP}/cancel", id="cancel_step", needs=CANCEL)
    async def cancel_step(self, address: StepAddress) -> WorkflowInfo:
        """Cancel a step with all steps inside it, including active jobs."""

    @Call(
        "POST",
        "/jobs/{id}/activate",
        "activate_job",
        "Jobs",
        ChangedJobAnswer,
        body=ActivationBody,
        may_be_empty=True,
        large=True,
        needs=CANCEL,
    )
    async def activate(self, job_id: str, data: bytes | None = None, failure: Failure | None = None) -> ChangedJob:
        """Activate a pending job: make it available, or resume it with a ``result`` or ``error`` if it is suspended."""


class NoteCalls(Calls):
    """Calls about notes of jobs and workflows."""

    @Call(
        "POST",
        "/jobs/{id}/info",
        "note_job",
        "Jobs",
        NoteAnswer,
        body=JobNoteBody,
        status=201,
        needs=CANCEL_OR_DEQUEUE,
        once=True,
    )
    async def add_to_job(
        self, job_id: str, note: bytes, worker_id: str | None = None, attempt: int | None = None
    ) -> Note:
        """Add a note to a job: any JSON value."""

    @Call("GET", "/jobs/{id}/info", "list_job_notes", "Jobs", NotesAnswer)
    async def of_job(self, job_id: str) -> list[Note]:
        """List the notes of a job, oldest first."""

    @Call(
        "POST",
        f"{_ONE}/info",
        "note_workflow",
        _TAG,
        NoteAnswer,
        body=NoteBody,
        status=201,
        needs=CANCEL_OR_DEQUEUE,
        once=True,
    )
    async def add_to_workflow(self, workflow_id: str, note: bytes) -> Note:
        """Add a note to a workflow: any JSON value."""

    @Call("GET", f"{_ONE}/info", "list_workflow_notes", _TAG, NotesAnswer)
    async def of_workflow(self, workflow_id: str) -> list[Note]:
        """List the notes of a workflow and its jobs, oldest first."""


class WorkflowBulkCalls(Calls):
    """Calls about all workflows that match a filter."""

    @Handled(
        "POST",
        "/workflows/cancel",
        "cancel_workflows",
        _BULK,
        BulkWorkflowsAnswer,
        body=CancelWorkflowsBody,
        needs=CANCEL,
        wait=MAX_SWEEP_SECONDS,
    )
    async def cancel(self, chosen: WorkflowConditions, *, stop_active: bool = False, dry_run: bool = False) -> Sweep:
        """Cancel all workflows that match a ``filter``: by default those that are pending or running.

        Active jobs may finish; with ``stop_active``, they are cancelled, too. With ``dry_run``, nothing is changed.
        """

    @Handled(
        "POST",
        "/workflows/retry",
        "retry_workflows",
        _BULK,
        BulkWorkflowsAnswer,
        body=BulkWorkflowsBody,
        needs=CANCEL,
        wait=MAX_SWEEP_SECONDS,
    )
    async def retry(self, chosen: WorkflowConditions, *, dry_run: bool = False) -> Sweep:
        """Retry all finished workflows that match a ``filter``: by default those that are failed or compensated.

        Their steps that did not succeed run again. With ``dry_run``, nothing is changed.
        """

    @Handled(
        "POST",
        "/workflows/fork",
        "fork_workflows",
        _BULK,
        BulkWorkflowsAnswer,
        body=ForkWorkflowsBody,
        needs=CANCEL,
        wait=MAX_SWEEP_SECONDS,
    )
    async def fork(self, chosen: WorkflowConditions, *, from_step: str | None = None, dry_run: bool = False) -> Sweep:
        """Run all workflows that match a ``filter`` again as new ones, by default those that are failed or compensated.

        They begin at ``from_step``, or at their start. Those that were forked from there before are left alone. With
        ``dry_run``, nothing is changed.
        """

    @Handled(
        "POST",
        "/workflows/hold",
        "hold_workflows",
        _BULK,
        BulkWorkflowsAnswer,
        body=BulkWorkflowsBody,
        needs=CANCEL,
        wait=MAX_SWEEP_SECONDS,
    )
    async def hold(self, chosen: WorkflowConditions, *, dry_run: bool = False) -> Sweep:
        """Hold all unfinished workflows that match a ``filter``, except those that are held.

        None of their steps starts until they are released. With ``dry_run``, nothing is changed.
        """

    @Handled(
        "POST",
        "/workflows/release",
        "release_workflows",
        _BULK,
        BulkWorkflowsAnswer,
        body=BulkWorkflowsBody,
        needs=CANCEL,
        wait=MAX_SWEEP_SECONDS,
    )
    async def release(self, chosen: WorkflowConditions, *, dry_run: bool = False) -> Sweep:
        """Release all held workflows that match a ``filter``. With ``dry_run``, nothing is changed."""

    @Handled(
        "POST",
        "/workflows/pin",
        "pin_workflows",
        _BULK,
        BulkWorkflowsAnswer,
        body=PinWorkflowsBody,
        needs=CANCEL,
        wait=MAX_SWEEP_SECONDS,
    )
    async def pin(
        self,
        chosen: WorkflowConditions,
        *,
        flow: str,
        version: str,
        from_version: str | None = None,
        dry_run: bool = False,
    ) -> Sweep:
        """Pin all flows with the name ``flow`` in unfinished workflows that match a ``filter`` to a ``version``.

        Only workers that support this version go on with them. With ``from_version``, only those are moved that are
        pinned to it. Those that run in a worker now are refused. With ``dry_run``, nothing is changed.
        """

    @Handled(
        "POST",
        "/workflows/delete",
        "delete_workflows",
        _BULK,
        BulkWorkflowsAnswer,
        body=BulkWorkflowsBody,
        needs=ADMIN_ONLY,
        wait=MAX_SWEEP_SECONDS,
    )
    async def delete(self, chosen: WorkflowConditions, *, dry_run: bool = False) -> Sweep:
        """Delete all finished workflows that match a ``filter``, with all that they and their jobs have left.

        Those with results that a fork uses, or with items in a collection, are left alone. With ``dry_run``, nothing is
        changed.
        """

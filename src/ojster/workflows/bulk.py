"""Bulk operations on the workflows that a filter selects, which are changed in small transactions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

from ojster.core.errors import NotFound, OjsterError
from ojster.jobs.queries import no_workflow
from ojster.jobs.sweeps import Course, SweepBatch, SweepBatchResult
from ojster.storage.transaction import Transaction
from ojster.workflows.read.selection import WorkflowConditions, matches, walk
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.cancellation import cancel_now, refuse_cancellation
from ojster.workflows.run.control import hold_now, refuse_hold, refuse_release, unhold_now
from ojster.workflows.run.fork import Fork, fork_once, refuse_fork
from ojster.workflows.run.retry import refuse_retry, retry_now
from ojster.workflows.run.steps import steer
from ojster.workflows.stored_workflow import Workflow, WorkflowState, find_workflow


class WorkflowAction(StrEnum):
    """Action of a bulk operation on workflows."""

    CANCEL = "cancel"
    RETRY = "retry"
    FORK = "fork"
    HOLD = "hold"
    RELEASE = "release"

    @property
    def past(self) -> str:
        """The past participle, such as ``cancelled``."""
        return _PAST[self]


_PAST: Final = {"cancel": "cancelled", "retry": "retried", "fork": "forked", "hold": "held", "release": "released"}

_UNFINISHED: Final = (WorkflowState.PENDING, WorkflowState.RUNNING, WorkflowState.COMPENSATING)

ALLOWED_STATES: Final[dict[WorkflowAction, tuple[str, ...]]] = {
    WorkflowAction.CANCEL: (*_UNFINISHED, WorkflowState.CANCELLING, WorkflowState.CANCELLED),
    WorkflowAction.RETRY: (WorkflowState.FAILED, WorkflowState.CANCELLED, WorkflowState.COMPENSATED),
    WorkflowAction.FORK: (
        WorkflowState.COMPLETED,
        WorkflowState.FAILED,
        WorkflowState.CANCELLED,
        WorkflowState.COMPENSATED,
    ),
    WorkflowAction.HOLD: _UNFINISHED,
    WorkflowAction.RELEASE: _UNFINISHED,
}
"""States in which workflows can be cancelled, retried, forked, held or released.

A cancelled one can be cancelled again, to stop its active jobs.
"""

DEFAULT_STATES: Final[dict[WorkflowAction, tuple[str, ...]]] = {
    WorkflowAction.CANCEL: (WorkflowState.PENDING, WorkflowState.RUNNING),
    WorkflowAction.RETRY: (WorkflowState.FAILED, WorkflowState.COMPENSATED),
    WorkflowAction.FORK: (WorkflowState.FAILED, WorkflowState.COMPENSATED),
    WorkflowAction.HOLD: _UNFINISHED,
    WorkflowAction.RELEASE: _UNFINISHED,
}
"""Default states of a filter that names none.

A cancellation leaves out what is being undone, and a retry or a fork what somebody has cancelled.
"""


class WorkflowBatch(SweepBatch, frozen=True):
    """Part of the workflows that the filter ``chosen`` selected.

    ``stop_active``: a cancellation stops their active jobs, too. ``from_step``: they run again from this step on.
    """

    stop_active: bool = False
    from_step: str | None = None
    chosen: WorkflowConditions = WorkflowConditions()


def perform_batch(tx: Transaction, batches: Sequence[WorkflowBatch]) -> list[SweepBatchResult]:
    """Perform the action on workflows that a filter selected, except those that it would no longer select."""
    return [_perform(tx, batch) for batch in batches]


def _perform(tx: Transaction, batch: WorkflowBatch) -> SweepBatchResult:
    change = _change(batch)

    def change_if_selected(run: Advance, workflow: Workflow) -> None:
        if not matches(run.tx, workflow, batch.chosen):
            raise no_workflow(workflow.id)
        change(run, workflow)

    outcomes = {id: steer(tx, id, change_if_selected) for id in batch.ids}
    return _result({id: outcome if isinstance(outcome, OjsterError) else None for id, outcome in outcomes.items()})


def _change(batch: WorkflowBatch) -> Callable[[Advance, Workflow], None]:
    """Return what changes a locked workflow, or raises the refusal."""
    match WorkflowAction(batch.action):
        case WorkflowAction.CANCEL:
            return partial(cancel_now, stop_active=batch.stop_active, by=batch.by)
        case WorkflowAction.RETRY:
            return retry_now
        case WorkflowAction.FORK:
            return partial(_fork, batch)
        case WorkflowAction.HOLD:
            return hold_now
        case WorkflowAction.RELEASE:
            return unhold_now


def _fork(batch: WorkflowBatch, run: Advance, workflow: Workflow) -> None:
    with run.tx.savepoint():  # what a refusal leaves behind is not part of the next one
        fork_once(run.tx, workflow, _fork_of(batch, workflow))


def _fork_of(batch: WorkflowBatch, workflow: Workflow) -> Fork:
    return Fork(workflow.id, batch.from_step, by=batch.by)


def foresee_batch(tx: Transaction, batches: Sequence[WorkflowBatch]) -> list[SweepBatchResult]:
    """Return what ``perform_batch`` would do now, and change nothing. Each workflow is judged for itself."""
    return [_result({id: _foresee(tx, id, batch) for id in batch.ids}) for batch in batches]


def _foresee(tx: Transaction, id: str, batch: WorkflowBatch) -> OjsterError | None:
    workflow = find_workflow(tx, id)
    if workflow is None or not matches(tx, workflow, batch.chosen):
        return no_workflow(id)
    match WorkflowAction(batch.action):
        case WorkflowAction.CANCEL:
            return refuse_cancellation(workflow, stop_active=batch.stop_active)
        case WorkflowAction.RETRY:
            return refuse_retry(tx, workflow)
        case WorkflowAction.FORK:
            return refuse_fork(tx, workflow, _fork_of(batch, workflow))
        case WorkflowAction.HOLD:
            return refuse_hold(workflow)
        case WorkflowAction.RELEASE:
            return refuse_release(workflow)


def _result(refusals: dict[str, OjsterError | None]) -> SweepBatchResult:
    """Return the results, without the workflows that are deleted, or that the filter would no longer select."""
    kept = {id: refusal for id, refusal in refusals.items() if not isinstance(refusal, NotFound)}
    return SweepBatchResult(list(kept), list(kept.values()))


COURSE: Final[Course[WorkflowConditions, WorkflowBatch]] = Course(walk, foresee_batch, perform_batch)
"""How a sweep of workflows goes."""

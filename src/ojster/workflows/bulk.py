"""Bulk operations on the workflows that a filter selects, which are changed in small transactions."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from ojster.core.errors import NotFound, OjsterError
from ojster.jobs.queries import no_workflow
from ojster.jobs.sweeps import Course, SweepBatch, SweepBatchResult
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction
from ojster.workflows.read.selection import WorkflowConditions, matches, walk
from ojster.workflows.run.advance import Advance
from ojster.workflows.run.cancellation import WorkflowCancellation, cancel_now, refuse_cancellation
from ojster.workflows.run.control import hold_now, refuse_hold, refuse_release, unhold_now
from ojster.workflows.run.deletion import hide_now, refuse_deletion, subjects_of
from ojster.workflows.run.fork import Fork, fork_once, refuse_fork
from ojster.workflows.run.pins import Pin, pin_now, refuse_pin
from ojster.workflows.run.retry import refuse_retry, retry_now
from ojster.workflows.run.steps import steer
from ojster.workflows.stored_workflow import StoredWorkflow, WorkflowState, find_workflow


class WorkflowAction(StrEnum):
    """Action of a bulk operation on workflows."""

    CANCEL = "cancel"
    RETRY = "retry"
    FORK = "fork"
    HOLD = "hold"
    RELEASE = "release"
    PIN = "pin"
    DELETE = "delete"

    @property
    def past(self) -> str:
        """The past participle, such as ``cancelled``."""
        return _PAST[self]


_PAST: Final = {
    "cancel": "cancelled",
    "retry": "retried",
    "fork": "forked",
    "hold": "held",
    "release": "released",
    "pin": "pinned",
    "delete": "deleted",
}

_UNFINISHED: Final = (WorkflowState.PENDING, WorkflowState.RUNNING, WorkflowState.COMPENSATING)

_MAY_GO_ON: Final = (
    *_UNFINISHED,
    WorkflowState.CANCELLING,
    WorkflowState.CANCELLED,
    WorkflowState.FAILED,
    WorkflowState.COMPENSATED,
)
"""States in which steps may still start: branches go on after the end of a workflow is decided."""

_FINISHED: Final = (
    WorkflowState.COMPLETED,
    WorkflowState.FAILED,
    WorkflowState.CANCELLED,
    WorkflowState.COMPENSATED,
    WorkflowState.RETRIED,
)

ALLOWED_STATES: Final[dict[WorkflowAction, tuple[str, ...]]] = {
    WorkflowAction.CANCEL: (*_UNFINISHED, WorkflowState.CANCELLING, WorkflowState.CANCELLED),
    WorkflowAction.RETRY: (WorkflowState.FAILED, WorkflowState.CANCELLED, WorkflowState.COMPENSATED),
    WorkflowAction.FORK: (
        WorkflowState.COMPLETED,
        WorkflowState.FAILED,
        WorkflowState.CANCELLED,
        WorkflowState.COMPENSATED,
    ),
    WorkflowAction.HOLD: _MAY_GO_ON,
    WorkflowAction.RELEASE: _MAY_GO_ON,
    WorkflowAction.PIN: (*_UNFINISHED, WorkflowState.CANCELLING),
    WorkflowAction.DELETE: _FINISHED,
}
"""States in which workflows can be cancelled, retried, forked, held, released, pinned or deleted.

A cancelled one can be cancelled again, to stop its active jobs.
"""

DEFAULT_STATES: Final[dict[WorkflowAction, tuple[str, ...]]] = {
    WorkflowAction.CANCEL: (WorkflowState.PENDING, WorkflowState.RUNNING),
    WorkflowAction.RETRY: (WorkflowState.FAILED, WorkflowState.COMPENSATED),
    WorkflowAction.FORK: (WorkflowState.FAILED, WorkflowState.COMPENSATED),
    WorkflowAction.HOLD: _UNFINISHED,
    WorkflowAction.RELEASE: _MAY_GO_ON,
    WorkflowAction.PIN: (*_UNFINISHED, WorkflowState.CANCELLING),
    WorkflowAction.DELETE: _FINISHED,
}
"""Default states of a filter that names none.

A cancellation leaves out what is being undone, and a retry or a fork what somebody has cancelled.
"""


class WorkflowBatch(SweepBatch, frozen=True):
    """Part of the workflows that the filter ``chosen`` selected.

    ``stop_active``: a cancellation stops their active jobs, too. ``from_step``: they run again from this step on.
    ``pin``: which flows are pinned to which version.
    """

    stop_active: bool = False
    from_step: str | None = None
    pin: Pin = Pin()
    chosen: WorkflowConditions = WorkflowConditions()


@for_each
def perform_batch(tx: Transaction, batch: WorkflowBatch) -> SweepBatchResult:
    """Perform the action on workflows that a filter selected, except those that it would no longer select."""
    _, change = _ACTIONS[WorkflowAction(batch.action)]

    def change_if_selected(run: Advance, workflow: StoredWorkflow) -> None:
        if not matches(run.tx, workflow, batch.chosen):
            raise no_workflow(workflow.id)
        change(run, workflow, batch)

    outcomes = {id: steer(tx, id, change_if_selected) for id in batch.ids}
    refusals = {id: outcome if isinstance(outcome, OjsterError) else None for id, outcome in outcomes.items()}
    result = _result(refusals, batch)
    if batch.action != WorkflowAction.DELETE:
        return result
    # Now: as soon as this is committed, retention may delete them, and with them what their jobs are called.
    hidden = [id for id, outcome in outcomes.items() if not isinstance(outcome, OjsterError)]
    return msgspec.structs.replace(result, deleted=subjects_of(tx, hidden))


def _cancel(run: Advance, workflow: StoredWorkflow, batch: WorkflowBatch) -> None:
    cancel_now(run, workflow, WorkflowCancellation(workflow.id, batch.stop_active, batch.by))


def _fork(run: Advance, workflow: StoredWorkflow, batch: WorkflowBatch) -> None:
    with run.tx.savepoint():  # what a refusal leaves behind is not part of the next one
        fork_once(run.tx, workflow, _fork_of(batch, workflow))


def _fork_of(batch: WorkflowBatch, workflow: StoredWorkflow) -> Fork:
    return Fork(workflow.id, batch.from_step, by=batch.by)


_Refuse = Callable[[Transaction, StoredWorkflow, WorkflowBatch], OjsterError | None]
_Change = Callable[[Advance, StoredWorkflow, WorkflowBatch], None]

_ACTIONS: Final[dict[WorkflowAction, tuple[_Refuse, _Change]]] = {
    WorkflowAction.CANCEL: (
        lambda tx, workflow, batch: refuse_cancellation(workflow, stop_active=batch.stop_active),
        _cancel,
    ),
    WorkflowAction.RETRY: (lambda tx, workflow, batch: refuse_retry(tx, workflow), retry_now),
    WorkflowAction.FORK: (lambda tx, workflow, batch: refuse_fork(tx, workflow, _fork_of(batch, workflow)), _fork),
    WorkflowAction.HOLD: (lambda tx, workflow, batch: refuse_hold(workflow), hold_now),
    WorkflowAction.RELEASE: (lambda tx, workflow, batch: refuse_release(workflow), unhold_now),
    WorkflowAction.PIN: (
        lambda tx, workflow, batch: refuse_pin(tx, workflow, batch.pin),
        lambda run, workflow, batch: pin_now(run, workflow, batch.pin),
    ),
    WorkflowAction.DELETE: (
        lambda tx, workflow, batch: refuse_deletion(tx, workflow),
        lambda run, workflow, _: hide_now(run.tx, workflow),
    ),
}
"""What says why a workflow cannot be changed, and what changes a locked workflow, or raises the refusal."""


@for_each
def foresee_batch(tx: Transaction, batch: WorkflowBatch) -> SweepBatchResult:
    """Return what ``perform_batch`` would do now, and change nothing. Each workflow is judged for itself."""
    return _result({id: _foresee(tx, id, batch) for id in batch.ids}, batch)


def _foresee(tx: Transaction, id: str, batch: WorkflowBatch) -> OjsterError | None:
    workflow = find_workflow(tx, id)
    if workflow is None or not matches(tx, workflow, batch.chosen):
        return no_workflow(id)
    refuse, _ = _ACTIONS[WorkflowAction(batch.action)]
    return refuse(tx, workflow, batch)


def _result(refusals: dict[str, OjsterError | None], batch: WorkflowBatch) -> SweepBatchResult:
    """Return the results, without the workflows that are deleted, or that the filter would no longer select.

    Of those that were named, also the ones are shown that have nothing to pin.
    """
    is_named = batch.action == WorkflowAction.PIN and batch.chosen.ids
    kept = {id: refusal for id, refusal in refusals.items() if is_named or not isinstance(refusal, NotFound)}
    return SweepBatchResult(list(kept), list(kept.values()))


COURSE: Final[Course[WorkflowConditions, WorkflowBatch]] = Course(walk, foresee_batch, perform_batch)
"""How a sweep of workflows goes."""

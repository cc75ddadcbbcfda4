"""Bulk operations: push, cancel, retry or delete many jobs, all or none, or each by itself.

Named jobs are handled in one transaction (``perform``). Jobs that a filter selects, however many, are handled in small
transactions (``perform_batch``), so that other callers do not wait: see ``BulkService.sweep``.

Spec: ojs-bulk-operations
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from enum import StrEnum
from typing import Any, Final

import msgspec

from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import Job
from ojster.core.states import FINISHED, JobState
from ojster.jobs import interventions
from ojster.jobs.extension import settle
from ojster.jobs.idempotency import Key, StoredReply, recall, remember
from ojster.jobs.new_job import NewJob
from ojster.jobs.push import Pushed, admit, find_room, follow_up_pushes, push
from ojster.jobs.sweeps import SweepBatch, SweepBatchResult
from ojster.jobs.transitions import ChangedJob
from ojster.storage.call import for_each, runs_first
from ojster.storage.transaction import Later, Transaction


class Action(StrEnum):
    """Action of a bulk operation."""

    ENQUEUE = "enqueue"
    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"

    @property
    def past(self) -> str:
        """The past participle: ``enqueued``, ``cancelled``, ``retried`` or ``deleted``."""
        return _PAST[self]


_PAST: Final = {
    Action.ENQUEUE: "enqueued",
    Action.CANCEL: "cancelled",
    Action.RETRY: "retried",
    Action.DELETE: "deleted",
}

ALLOWED_STATES: Final[dict[Action, frozenset[str]]] = {
    Action.CANCEL: frozenset(state.value for state in JobState if state not in FINISHED),
    Action.RETRY: frozenset(interventions.RETRIED_STATES),
    Action.DELETE: frozenset(state.value for state in FINISHED),
}
"""States in which jobs can be cancelled, retried or deleted."""

DEFAULT_STATES: Final[dict[Action, tuple[str, ...]]] = {
    Action.CANCEL: (JobState.AVAILABLE.value, JobState.SCHEDULED.value),
    Action.RETRY: (JobState.DISCARDED.value, JobState.RETRYABLE.value),
    Action.DELETE: (JobState.COMPLETED.value, JobState.CANCELLED.value, JobState.DISCARDED.value),
}
"""Default states of a filter that names none. Spec: ojs-bulk-operations 6.1"""

ItemOutcome = Pushed | ChangedJob | Job | OjsterError
"""Result for one job."""


class NotExecuted(Conflict):
    """Refusal of an item because another item of the atomic request failed."""

    code = "x_not_executed"
    status = 424


def _not_executed() -> NotExecuted:
    return NotExecuted("Not executed: another job of the atomic request was refused. Fix that job and send it again.")


class Bulk(msgspec.Struct, frozen=True):
    """Request for an action on several jobs.

    Parameters
    ----------
    items:
        Jobs to push, or ids of existing jobs; an ``OjsterError`` refuses its item from the start.
    atomic:
        Whether nothing is done if one item fails.
    answer:
        Builds, from the outcomes of all items, the reply that is stored under ``key``.
    by:
        The name of the caller, if it is known.
    """

    action: Action
    items: Sequence[NewJob | str | OjsterError]
    atomic: bool
    answer: Callable[[Sequence[ItemOutcome]], StoredReply]
    key: Key | None = None
    by: str | None = None


class _RolledBack(Exception):
    """Rolls back the savepoint of a request."""

    def __init__(self, outcomes: Sequence[ItemOutcome | Later]) -> None:
        self.outcomes = outcomes


class _NoRoom(Exception):
    """An atomic request is refused before anything is done, so that nothing is undone but what records the refusal."""

    def __init__(self, outcomes: list[ItemOutcome | Later]) -> None:
        self.outcomes = outcomes


@for_each
def perform(tx: Transaction, bulk: Bulk) -> StoredReply | OjsterError | Later:
    """Perform each request in a savepoint; return its reply, or the stored reply of a repeated request."""
    if bulk.key is not None and (known := recall(tx, bulk.key)) is not None:
        return known
    outcomes: Sequence[ItemOutcome | Later]
    try:
        with tx.savepoint():
            outcomes = _do_all(tx, bulk)
    except _RolledBack as undone:
        outcomes = undone.outcomes
        for outcome in outcomes:
            if isinstance(outcome, Later):
                return outcome
        outcomes = [outcome if isinstance(outcome, OjsterError) else _not_executed() for outcome in outcomes]
    try:
        reply = bulk.answer(outcomes)
    except OjsterError as refusal:
        return refusal
    succeeded = sum(not isinstance(outcome, OjsterError) for outcome in outcomes)
    tell(tx, bulk.action, len(outcomes), succeeded, "atomic" if bulk.atomic else "partial")
    if bulk.key is not None:
        remember(tx, bulk.key, reply)
    return reply


class KeyedPush(msgspec.Struct, frozen=True):
    """A job that is pushed once for its idempotency key, and what formats the answer."""

    job: NewJob
    key: Key
    answer: Callable[[Pushed], StoredReply]


@runs_first
def push_once(tx: Transaction, batches: Sequence[KeyedPush]) -> list[StoredReply | OjsterError | Later]:
    """Push each job, or return the stored reply of the request that has pushed it."""
    known = [recall(tx, batch.key) for batch in batches]
    new: dict[tuple[str, str], int] = {}
    for place, batch in enumerate(batches):
        if known[place] is None:
            new.setdefault((batch.key.operation, batch.key.key), place)
    places = list(new.values())
    # In one call, which locks queues and tenants in one order.
    results = push(tx, [(batches[place].job,) for place in places]) if places else ()
    for place, pushed in zip(places, results, strict=True):
        if isinstance(pushed, list):
            reply = batches[place].answer(pushed[0])
            remember(tx, batches[place].key, reply)
            known[place] = reply
        else:
            known[place] = pushed
    # What is left repeats another request of this call.
    return [push_once(tx, [batch])[0] if reply is None else reply for batch, reply in zip(batches, known, strict=True)]


def _do_all(tx: Transaction, bulk: Bulk) -> list[ItemOutcome | Later]:
    """Do what a request asks for, in a savepoint that is rolled back if its failures undo the rest."""
    try:
        outcomes = _do(tx, bulk)
    except _NoRoom as refused:
        return refused.outcomes
    settle(tx)
    failed = [outcome for outcome in outcomes if isinstance(outcome, OjsterError)]
    if failed and (bulk.atomic or any(isinstance(outcome, Later) for outcome in failed)):
        raise _RolledBack(outcomes)
    return outcomes


def _do(tx: Transaction, bulk: Bulk) -> list[ItemOutcome | Later]:
    wanted = [(place, item) for place, item in enumerate(bulk.items) if not isinstance(item, OjsterError)]
    if bulk.atomic and len(wanted) < len(bulk.items):
        return [item if isinstance(item, OjsterError) else _not_executed() for item in bulk.items]
    outcomes: list[Any] = list(bulk.items)
    if bulk.action is Action.ENQUEUE:
        jobs = [item for _, item in wanted if isinstance(item, NewJob)]
        if bulk.atomic and (full := find_room(tx, [jobs])[0]) is not None:
            if isinstance(full, Later):
                raise _RolledBack([full])
            raise _NoRoom([_at(place, copy(full)) for place, _ in wanted])
        for (place, _), result in zip(wanted, _push(tx, jobs, bulk.atomic), strict=True):
            outcomes[place] = _at(place, result) if isinstance(result, OjsterError) else result[0]
        return outcomes
    ids = [item for _, item in wanted if isinstance(item, str)]
    for (place, _), outcome in zip(wanted, _OPERATIONS[bulk.action](tx, ids, bulk.by), strict=True):
        outcomes[place] = outcome
    return outcomes


def _at(place: int, refusal: OjsterError) -> OjsterError:
    """Return the refusal of an item, with its place in the request."""
    refusal.details = refusal.details | {"index": place}
    return refusal


def _push(tx: Transaction, jobs: Sequence[NewJob], atomic: bool) -> Sequence[Sequence[Pushed] | OjsterError | Later]:
    """Push jobs; ``atomic``: as one group, for which room was found.

    Spec: ojs-backpressure 9.3
    """
    groups = [(job,) for job in jobs]
    if not atomic:
        return push(tx, groups)
    results = admit(tx, groups)
    follow_up_pushes(tx, results)
    return results


_Steering = Callable[[Transaction, Sequence[str], str | None], Sequence[ChangedJob | Job | OjsterError]]

_Cancel = Callable[[Transaction, Sequence[interventions.Cancellation]], Sequence[ChangedJob | OjsterError]]


def _with(cancel: _Cancel) -> _Steering:
    return lambda tx, ids, by: cancel(tx, [interventions.Cancellation(id, by) for id in ids])


_OPERATIONS: Final[dict[Action, _Steering]] = {
    Action.CANCEL: _with(interventions.cancel),
    Action.RETRY: lambda tx, ids, by: interventions.retry(tx, ids),
    Action.DELETE: lambda tx, ids, by: interventions.delete(tx, ids),
}

_SWEEPS: Final = _OPERATIONS | {Action.CANCEL: _with(interventions.cancel_if_waiting)}
"""Operations on jobs that a filter selects: active ones are not cancelled before their workers have stopped them."""


@for_each
def perform_batch(tx: Transaction, batch: SweepBatch) -> SweepBatchResult:
    """Perform the action on jobs that a filter selected, except jobs that have left the selected states."""
    jobs = tx.lock_jobs(batch.ids)
    ids = [id for id in batch.ids if id in jobs and jobs[id].state in batch.states]
    outcomes = _SWEEPS[Action(batch.action)](tx, ids, batch.by)
    return SweepBatchResult(ids, [outcome if isinstance(outcome, OjsterError) else None for outcome in outcomes])


_REFUSALS: Final = {
    Action.CANCEL: interventions.refuse_cancellation,
    Action.RETRY: interventions.refuse_retry,
    Action.DELETE: interventions.refuse_deletion,
}
"""The conditions that the operations of a sweep check, without the operations."""


@for_each
def foresee_batch(tx: Transaction, batch: SweepBatch) -> SweepBatchResult:
    """Return what ``perform_batch`` would do now, and change nothing."""
    jobs = tx.find_jobs(batch.ids)
    ids = [id for id in batch.ids if id in jobs and jobs[id].state in batch.states]
    return SweepBatchResult(ids, [_REFUSALS[Action(batch.action)](id, jobs[id]) for id in ids])


class Summary(msgspec.Struct, frozen=True):
    """Totals of a bulk operation."""

    action: Action
    total: int
    succeeded: int


@for_each
def conclude(tx: Transaction, summary: Summary) -> None:
    """Record the end of a bulk operation that took several transactions."""
    tell(tx, summary.action, summary.total, summary.succeeded, "partial")


def tell(tx: Transaction, action: Action, total: int, succeeded: int, atomicity: str) -> None:
    """Record the totals of a bulk operation, as a ``batch.*`` and a ``bulk.*`` event.

    Spec: ojs-bulk-operations 12
    """
    failed = total - succeeded
    tx.emit_about(f"batch.{action.past}", action, total=total, succeeded=succeeded, failed=failed)
    detail = (
        {"succeeded": succeeded, "failed": failed, "atomicity": atomicity}
        if action is Action.ENQUEUE
        else {action.past: succeeded, "skipped": failed}
    )
    tx.emit_about(f"bulk.{action}.completed", action, total=total, **detail)

"""What is done to many jobs at once? Push, cancel, retry and delete, all or none, or each by itself (seed 004).

Jobs that are named are dealt with in one transaction (``perform``); those that a filter chooses, however many they are,
in small ones (``deal_with``), so that nobody waits for them: see ``Engine.sweep``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from enum import StrEnum
from typing import Final

import msgspec

from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import Job
from ojster.core.states import FINISHED, JobState
from ojster.jobs import interventions
from ojster.jobs.admission import Pushed, admit
from ojster.jobs.extension import settle
from ojster.jobs.idempotency import Key, Reply, recall, remember
from ojster.jobs.push import find_room, push
from ojster.jobs.request import NewJob
from ojster.jobs.transitions import Steered
from ojster.storage.transaction import Later, Transaction


class Action(StrEnum):
    """What is done to the jobs."""

    ENQUEUE = "enqueue"
    CANCEL = "cancel"
    RETRY = "retry"
    DELETE = "delete"

    @property
    def past(self) -> str:
        """What it has done: ``enqueued``, ``cancelled``, ``retried`` or ``deleted``."""
        return _PAST[self]


_PAST: Final = {
    Action.ENQUEUE: "enqueued",
    Action.CANCEL: "cancelled",
    Action.RETRY: "retried",
    Action.DELETE: "deleted",
}

ALLOWED: Final[dict[Action, frozenset[str]]] = {
    Action.CANCEL: frozenset(state.value for state in JobState if state not in FINISHED),
    Action.RETRY: frozenset((JobState.DISCARDED.value, JobState.RETRYABLE.value)),
    Action.DELETE: frozenset(state.value for state in FINISHED),
}
"""The states in which jobs can be cancelled, retried, deleted."""

USUAL: Final[dict[Action, tuple[str, ...]]] = {
    Action.CANCEL: (JobState.AVAILABLE.value, JobState.SCHEDULED.value),
    Action.RETRY: (JobState.DISCARDED.value, JobState.RETRYABLE.value),
    Action.DELETE: (JobState.COMPLETED.value, JobState.CANCELLED.value, JobState.DISCARDED.value),
}
"""The states of the jobs that a filter means which does not say (ojs-bulk-operations.md section 6.1)."""

Outcome = Pushed | Steered | Job | OjsterError
"""What became of one job."""


class NotDone(Conflict):
    """Nothing was wrong with this one, but with another, and it was all or none."""

    code = "not_executed"
    status = 424


def _not_done() -> NotDone:
    return NotDone("Another job of the request was refused.")


class Bulk(msgspec.Struct, frozen=True):
    """Something that is to be done to several jobs.

    Parameters
    ----------
    items:
        The jobs to push, or the ids of those that are there; or why one of them cannot be.
    atomic:
        Whether nothing is to be done if it cannot be done to all.
    answer:
        Makes of what became of each the answer that is kept under ``key``.
    """

    action: Action
    items: Sequence[NewJob | str | OjsterError]
    atomic: bool
    answer: Callable[[Sequence[Outcome]], Reply]
    key: Key | None = None


class _RolledBack(Exception):
    """What was done is undone: it was all or none."""

    def __init__(self, outcomes: Sequence[Outcome | Later]) -> None:
        self.outcomes = outcomes


def perform(tx: Transaction, bulks: Sequence[Bulk]) -> list[Reply | OjsterError | Later]:
    """Do what is asked, each in one go; return the answers, those to requests that were made before as they were."""
    return [_perform(tx, bulk) for bulk in bulks]


def _perform(tx: Transaction, bulk: Bulk) -> Reply | OjsterError | Later:
    if bulk.key is not None and (known := recall(tx, bulk.key)) is not None:
        return known
    outcomes: Sequence[Outcome | Later]
    try:
        with tx.savepoint():
            outcomes = _do(tx, bulk)
            settle(tx)
            failed = [outcome for outcome in outcomes if isinstance(outcome, OjsterError)]
            if failed and (bulk.atomic or any(isinstance(outcome, Later) for outcome in failed)):
                raise _RolledBack(outcomes)
    except _RolledBack as undone:
        outcomes = undone.outcomes
        for outcome in outcomes:
            if isinstance(outcome, Later):
                return outcome
        outcomes = [outcome if isinstance(outcome, OjsterError) else _not_done() for outcome in outcomes]
    try:
        reply = bulk.answer(outcomes)
    except OjsterError as refusal:
        return refusal
    succeeded = sum(not isinstance(outcome, OjsterError) for outcome in outcomes)
    tell(tx, bulk.action, len(outcomes), succeeded, "atomic" if bulk.atomic else "partial")
    if bulk.key is not None:
        remember(tx, bulk.key, reply)
    return reply


def _do(tx: Transaction, bulk: Bulk) -> list[Outcome | Later]:
    wanted = [(place, item) for place, item in enumerate(bulk.items) if not isinstance(item, OjsterError)]
    outcomes: list[Outcome | Later] = [item if isinstance(item, OjsterError) else _not_done() for item in bulk.items]
    if bulk.atomic and len(wanted) < len(bulk.items):
        return outcomes
    if bulk.action is Action.ENQUEUE:
        jobs = [item for _, item in wanted if isinstance(item, NewJob)]
        for (place, _), result in zip(wanted, _push(tx, jobs, bulk.atomic), strict=True):
            if isinstance(result, OjsterError):
                result.details = result.details | {"index": place}
                outcomes[place] = result
            else:
                outcomes[place] = result[0]
        return outcomes
    ids = [item for _, item in wanted if isinstance(item, str)]
    for (place, _), outcome in zip(wanted, _STEER[bulk.action](tx, ids), strict=True):
        outcomes[place] = outcome
    return outcomes


def _push(tx: Transaction, jobs: Sequence[NewJob], atomic: bool) -> Sequence[Sequence[Pushed] | OjsterError | Later]:
    """Push jobs. A queue takes all of an atomic request, or nothing (ojs-backpressure.md section 9.3)."""
    if atomic and (full := find_room(tx, [jobs])[0]) is not None:
        return [copy(full) for _ in jobs]
    groups = [(job,) for job in jobs]
    return admit(tx, groups) if atomic else push(tx, groups)


_Steering = Callable[[Transaction, Sequence[str]], Sequence[Steered | Job | OjsterError]]

_STEER: Final[dict[Action, _Steering]] = {
    Action.CANCEL: interventions.cancel,
    Action.RETRY: interventions.retry,
    Action.DELETE: interventions.delete,
}


class Some(msgspec.Struct, frozen=True):
    """Some of the jobs that a filter has chosen; those that are in none of ``states`` any more are left alone."""

    action: Action
    ids: Sequence[str]
    states: Sequence[str]


class Dealt(msgspec.Struct, frozen=True):
    """What became of some jobs: ``None`` for each that it was done to, and why not for the others."""

    ids: Sequence[str]
    refusals: Sequence[OjsterError | None]


def deal_with(tx: Transaction, some: Sequence[Some]) -> list[Dealt]:
    """Do what is asked to jobs that a filter has chosen, as far as they still are as they were."""
    results = []
    for one in some:
        jobs = tx.lock_jobs(one.ids)
        ids = [id for id in one.ids if id in jobs and jobs[id].state in one.states]
        outcomes = _STEER[one.action](tx, ids)
        results.append(Dealt(ids, [outcome if isinstance(outcome, OjsterError) else None for outcome in outcomes]))
    return results


class Summary(msgspec.Struct, frozen=True):
    """What a bulk operation has amounted to."""

    action: Action
    total: int
    succeeded: int


def conclude(tx: Transaction, summaries: Sequence[Summary]) -> list[None]:
    """Record that a bulk operation of several transactions is done."""
    for one in summaries:
        tell(tx, one.action, one.total, one.succeeded, "partial")
    return [None for _ in summaries]


def tell(tx: Transaction, action: Action, total: int, succeeded: int, atomicity: str) -> None:
    """Record what a bulk operation has amounted to, for readers of seed 004 and ojs-bulk-operations.md section 12."""
    failed = total - succeeded
    tx.emit_about(f"batch.{action.past}", action, total=total, succeeded=succeeded, failed=failed)
    detail = (
        {"succeeded": succeeded, "failed": failed, "atomicity": atomicity}
        if action is Action.ENQUEUE
        else {action.past: succeeded, "skipped": failed}
    )
    tx.emit_about(f"bulk.{action}.completed", action, total=total, **detail)

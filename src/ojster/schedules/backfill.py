"""Backfills: runs of a cron job for the occurrences of a time that has passed, because they were missed."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import msgspec

from ojster.core.errors import InvalidRequest, OjsterError
from ojster.schedules.cron import Cron, find, no_cron, write
from ojster.schedules.firing import facts_of_duplicate, facts_of_occurrence, facts_of_run, start
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.plan.values import NewWorkflow
from ojster.workflows.run.turns import SCHEDULED_LINE

MAX_BACKFILLED: Final = 200
"""Maximum number of occurrences that one call backfills, and weight of workflows: one transaction starts them."""

Concurrency = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
"""How many runs of a backfill run at once."""


class BackfillOrder(msgspec.Struct, frozen=True):
    """The occurrences of a cron job to backfill. Times are microseconds since the epoch.

    Parameters
    ----------
    name:
        The stored name of the cron job.
    since, until:
        The first and the last moment of the time.
    concurrency:
        How many of the runs run at once; each of so many lines is worked through in the order of the occurrences.
    dry_run:
        Start nothing; return the occurrences.
    by:
        The name of the caller, if it is known: it is the creator of the runs.
    """

    name: str
    since: int
    until: int
    concurrency: Concurrency = 1
    dry_run: bool = False
    by: str | None = None


class BackfilledRun(msgspec.Struct, frozen=True):
    """An occurrence, in microseconds since the epoch, and the id of the job or workflow that was started for it.

    Without an id, none was: in a dry run, or because its job would be a duplicate, which its policy ignores.
    """

    scheduled_for: int
    id: str | None


class Backfill(msgspec.Struct, frozen=True):
    """What a call has backfilled, and the occurrence at which the next one goes on; ``None``: nothing is left."""

    runs: tuple[BackfilledRun, ...]
    next: int | None


@for_each
@returns_refusal
def backfill(tx: Transaction, order: BackfillOrder) -> Backfill:
    """Start the runs of occurrences that have passed, the oldest first, at most ``MAX_BACKFILLED``.

    A refused run refuses the whole order.
    """
    with tx.savepoint():
        return _backfill(tx, order)


def _backfill(tx: Transaction, order: BackfillOrder) -> Backfill:
    # The number of runs is read and written back: a run that fires meanwhile would not be counted.
    cron = find(tx, order.name, tx.for_update)
    if cron is None:
        raise no_cron(order.name)
    _refuse_range(tx, order)
    occurrences = list(islice(cron.schedule.between(order.since, order.until), MAX_BACKFILLED + 1))
    runs: list[BackfilledRun] = []
    weight = 0
    for number, occurrence in enumerate(occurrences):
        if max(number, weight) >= MAX_BACKFILLED:
            break
        id = None
        if not order.dry_run:
            # Lines above that of the schedule, which goes on beside the backfill, whatever its overlap policy is.
            line = SCHEDULED_LINE + 1 + number % order.concurrency
            id, heavy = _start(tx, cron, occurrence, order, line)
            weight += heavy
        runs.append(BackfilledRun(occurrence, id))
    if made := sum(run.id is not None for run in runs):
        write(tx, msgspec.structs.replace(cron, run_count=cron.run_count + made))
    return Backfill(tuple(runs), occurrences[len(runs)] if len(runs) < len(occurrences) else None)


def _refuse_range(tx: Transaction, order: BackfillOrder) -> None:
    if order.until > tx.now:
        raise InvalidRequest(
            "'until' is in the future. Backfill a time that has passed; the schedule does the rest.", field="until"
        )
    if order.since > order.until:
        raise InvalidRequest("'since' is after 'until'. Exchange them.", field="since")


def _start(tx: Transaction, cron: Cron, occurrence: int, order: BackfillOrder, line: int) -> tuple[str | None, int]:
    """Start the run of an occurrence; return its id, if it is no duplicate, and, for a workflow, its weight."""
    started = start(tx, cron, occurrence, order.by, line)
    if isinstance(started, OjsterError):
        raise started
    facts = facts_of_occurrence(cron, occurrence)
    if not started.is_new:
        facts |= facts_of_duplicate(started)
        tx.emit_about("cron.skipped", cron.name, **facts, manual=True, backfill=True)
        return None, 0
    run = started.run
    if isinstance(run, NewWorkflow) and run.target is not None:
        raise InvalidRequest(
            f"The workflow of this cron job has the target {run.target!r:.80}, which each run holds from its start, so "
            "that no other one can wait for it. Trigger the cron job instead, once for each occurrence.",
            field="name",
        )
    facts |= facts_of_run(run)
    tx.emit_about("cron.triggered", cron.name, **facts, manual=True, backfill=True)
    return run.id, run.weight if isinstance(run, NewWorkflow) else 0

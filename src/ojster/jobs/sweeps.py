"""Sweeps: an action on every row of a table that matches a filter, in small transactions.

A sweep walks over the table, oldest row first, in bounded steps, and changes what matches in batches. A ``Course`` says
how the rows of a table are selected, and what becomes of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from ojster.core.errors import OjsterError
from ojster.storage.call import TransactionFunction
from ojster.storage.database import Database
from ojster.storage.transaction import Transaction

SWEEP_BATCH_SIZE: Final = 200
"""Maximum weight of what a sweep changes in one transaction: a few milliseconds of work. A job has the weight 1."""

PART_ROWS: Final = 5_000
"""Maximum number of rows that a sweep in parts examines before its caller is asked again: about half a second."""

MAX_ITEM_RESULTS: Final = 1_000
"""Maximum number of results for single items that a bulk operation returns."""

MAX_SWEEP_SECONDS: Final = 3_600.0
"""Read timeout for a sweep or a prune, in seconds, in addition to the usual 30."""

F = TypeVar("F")
B = TypeVar("B", bound="SweepBatch")


class WalkStep(msgspec.Struct, Generic[F], frozen=True):
    """One step of a walk over all matching rows, oldest first.

    Parameters
    ----------
    chosen:
        The filter.
    after:
        ``seq`` at which the previous step ended; 0 in the first step.
    until:
        ``seq`` at which the walk ends, so that it terminates while rows are added; ``None``: the latest at this step.
    window:
        Maximum number of rows that the step scans; ``None``: as many as a step of such a walk usually does.
    """

    chosen: F
    after: int = 0
    until: int | None = None
    window: int | None = None


class WalkResult(msgspec.Struct, Generic[F], frozen=True):
    """Result of a step.

    Parameters
    ----------
    ids:
        Ids of the matching rows.
    next:
        The next step; ``None``: the walk has ended.
    weights:
        The amount of work that each row is; ``None``: 1.
    """

    ids: list[str]
    next: WalkStep[F] | None
    weights: list[int] | None = None


class WalkMatch(msgspec.Struct, frozen=True):
    """A row that matches a filter, and the amount of work that it is."""

    id: str
    weight: int = 1


Select = Callable[[Transaction, F, str, dict[str, Any]], list[WalkMatch]]
"""Returns the rows of a subquery, given with its parameters, that match a filter, in the order of their ``seq``."""


def take_step(tx: Transaction, step: WalkStep[F], table: str, window: int, select: Select[F]) -> WalkResult[F]:
    """Execute one step of a walk over a table. It scans at most ``window`` rows, however few match."""
    until, window = step.until, step.window or window
    if until is None:
        ((until,),) = tx.execute(f"SELECT coalesce(max(seq), 0) FROM {table}")
    bounds = {"after": step.after, "until": until, "window": window}
    scanned = f"SELECT seq FROM {table} WHERE seq > :after AND seq <= :until ORDER BY seq LIMIT :window"
    ((last, rows),) = tx.execute(f"SELECT max(seq), count(*) FROM ({scanned}) AS looked_at", bounds)
    if not rows:
        return WalkResult([], None)
    bounds["last"] = last
    # The limit keeps the planner from reading all rows in a state by another index, to sort them by seq.
    rows_of_step = f"(SELECT * FROM {table} WHERE seq > :after AND seq <= :last ORDER BY seq LIMIT :window)"
    matches = select(tx, step.chosen, rows_of_step, bounds)
    following = WalkStep(step.chosen, last, until, step.window) if rows == window else None
    return WalkResult([match.id for match in matches], following, [match.weight for match in matches])


Walk = TransactionFunction[WalkStep[F], WalkResult[F]]
"""A transaction function that executes one step of each walk."""


async def parts(
    database: Database, walk: Walk[F], chosen: F, most: int = SWEEP_BATCH_SIZE
) -> AsyncIterator[tuple[list[str], int]]:
    """Yield the ids of all rows that match now, oldest first, in parts, each with its weight.

    Parameters
    ----------
    most:
        Maximum weight of a part. A heavier row is a part of its own.
    """
    step: WalkStep[F] | None = WalkStep(chosen)
    while step is not None:
        result: WalkResult[F] = await database.read(walk, step)
        for part in _batches(result, most):
            yield part
        step = result.next


def _batches(result: WalkResult[F], most: int) -> Iterator[tuple[list[str], int]]:
    """Yield what a step has found in batches of at most a weight, each with its weight."""
    ids: list[str] = []
    total = 0
    for id, weight in zip(result.ids, result.weights or [1] * len(result.ids), strict=True):
        if ids and total + weight > most:
            yield ids, total
            ids, total = [], 0
        ids.append(id)
        total += weight
    if ids:
        yield ids, total


class SweepBatch(msgspec.Struct, frozen=True):
    """Part of the items that a filter selected; those that are no longer in one of ``states`` are skipped.

    ``by`` is the name of the caller, if it is known.
    """

    action: str
    ids: Sequence[str]
    states: Sequence[str]
    by: str | None = None


class SweepBatchResult(msgspec.Struct, frozen=True):
    """Results for the items of a ``SweepBatch`` that were not skipped: ``None`` for success, or the refusal.

    ``deleted``: the ids of all that a deletion takes, as events name them.
    """

    ids: Sequence[str]
    refusals: Sequence[OjsterError | None]
    deleted: Sequence[str] = ()


class Course(msgspec.Struct, Generic[F, B], frozen=True):
    """How a sweep finds its items, what it would do with a batch of them, and what does it."""

    walk: Walk[F]
    foresee: TransactionFunction[B, SweepBatchResult]
    perform: TransactionFunction[B, SweepBatchResult]


class Sweep:
    """Result of a bulk operation on the items that match a filter.

    Attributes
    ----------
    matched, succeeded:
        Number of matching items, and of those that were changed.
    items:
        The first ``MAX_ITEM_RESULTS`` ids, each with its refusal, or ``None`` for success.
    as_of:
        When it began, in microseconds since the epoch, if it was a dry run. A filter that ends here selects nothing
        that finished later.
    deleted:
        The ids of all that was deleted, as events name them.
    next:
        If a part was asked for, where the next one begins: ``after`` and ``until`` of its step; ``None``: it was the
        last one.
    """

    def __init__(self, action: str, as_of: int | None = None) -> None:
        self.action = action
        self.as_of = as_of
        self.matched = 0
        self.succeeded = 0
        self.items: list[tuple[str, OjsterError | None]] = []
        self.deleted: set[str] = set()
        self.next: tuple[int, int] | None = None

    def __repr__(self) -> str:
        """Show the numbers, for a shell."""
        what = f"matched={self.matched}, succeeded={self.succeeded}, failed={self.failed}"
        return f"<Sweep {self.action}: {what}{', dry run' if self.as_of is not None else ''}>"

    @property
    def failed(self) -> int:
        """Number of matching items that were refused."""
        return self.matched - self.succeeded

    def add(self, dealt: SweepBatchResult) -> None:
        """Add the results of one transaction."""
        self.matched += len(dealt.ids)
        self.deleted.update(dealt.deleted)
        self.succeeded += sum(refusal is None for refusal in dealt.refusals)
        room = MAX_ITEM_RESULTS - len(self.items)
        self.items += list(zip(dealt.ids[:room], dealt.refusals[:room], strict=True))


async def sweep_all(database: Database, course: Course[F, B], chosen: F, batch: B, *, dry_run: bool = False) -> Sweep:
    """Perform an action on everything that matches now, in small transactions so that other callers do not wait.

    Parameters
    ----------
    batch:
        The action, without ids.
    dry_run:
        Change nothing, and return what would be done.
    """
    sweep = Sweep(batch.action, database.clock() + 1 if dry_run else None)  # bounds are excluded
    async for ids, weight in parts(database, course.walk, chosen):
        part = msgspec.structs.replace(batch, ids=ids)
        sweep.add(
            await (database.read(course.foresee, part) if dry_run else database.run(course.perform, part, weight))
        )
    return sweep


async def sweep_part(
    database: Database, course: Course[F, B], chosen: F, batch: B, position: tuple[int, int] | None
) -> Sweep:
    """Perform an action on what matches among the next ``PART_ROWS`` rows, so that a caller can stop between parts.

    Parameters
    ----------
    position:
        Where the part begins: ``next`` of the one before it; ``None``: at the oldest row.
    """
    after, until = position or (0, None)
    step = WalkStep(chosen, after, until, PART_ROWS)
    result: WalkResult[F] = await database.read(course.walk, step)
    sweep = Sweep(batch.action)
    for ids, weight in _batches(result, SWEEP_BATCH_SIZE):
        sweep.add(await database.run(course.perform, msgspec.structs.replace(batch, ids=ids), weight))
    if result.next is not None:
        assert result.next.until is not None
        sweep.next = result.next.after, result.next.until
    return sweep

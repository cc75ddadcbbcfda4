"""Finding available jobs, locked for the transaction that hands them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.job_table import PLAIN
from ojster.core.tenant import NOBODY
from ojster.jobs.claim_policy import Share
from ojster.jobs.extension import hooks
from ojster.storage.memory import Local
from ojster.storage.transaction import Query, Row, Transaction

MANY_QUEUES: Final = 8
"""From this many queues on, ask first which have jobs, where each look takes a round trip."""


def select_available(tx: Transaction, share: Share, kind: str, parameters: Sequence[str], limit: int) -> list[Job]:
    """Return the next jobs of a kind that the workers of a share can run; ``kind`` as of ``available_jobs``."""
    return tx.available_jobs(kind + share.can_run, (*parameters, *share.values), limit)


def query_of_plain(tx: Transaction, share: Share, queue: str, tenant: str, limit: int) -> Query:
    """Return the first query of ``next_plain``."""
    return tx.available_query(PLAIN + share.can_run, (queue, tenant, *share.values), limit)


def next_plain(
    tx: Transaction, share: Share, queue: str, tenant: str, limit: int, rows: Iterable[Row] | None = None
) -> list[Job]:
    """Return the next jobs without a limit or requirements, at most one of those that share an exclusive key.

    ``rows``: the rows of ``query_of_plain``, if they are read already.
    """
    asked = limit
    while True:
        if rows is None:
            available = select_available(tx, share, PLAIN, (queue, tenant), asked)
        else:
            available, rows = [Job(*row) for row in rows], None
        chosen = one_of_each(tx, queue, available)
        if len(chosen) >= limit or len(available) < asked or len(chosen) == len(available):
            return chosen[:limit]
        asked *= 2  # some were left out; there may be others behind them


def one_of_each(tx: Transaction, queue: str, available: list[Job], taken: Set[str] = frozenset()) -> list[Job]:
    """Leave out jobs that share an exclusive key with an earlier one. ``taken``: the keys of jobs before all these."""
    keys = [job.exclusive_key for job in available]
    if not any(keys):
        return available
    chosen = [
        job
        for place, (job, key) in enumerate(zip(available, keys, strict=True))
        if key is None or (key not in taken and key not in keys[:place])
    ]
    pass_over(tx, queue, available, chosen)
    return chosen


def pass_over(tx: Transaction, queue: str, available: list[Job], chosen: list[Job]) -> None:
    """Let others look again who passed over jobs that were locked here and then left out."""
    if tx.skip_locked and len(chosen) < len(available):
        tx.effects.opened.add(queue)


def by_priority(job: Job) -> tuple[int, int]:
    """Return by what jobs are sorted: priority, then age."""
    return -job.priority, job.seq


class _Habit(msgspec.Struct):
    """What the last claim of this process has shown."""

    is_plain: bool = False
    """Whether no policy that has usage probes was in use."""


_HABIT: Final = Local[_Habit](_Habit)


class FirstLook:
    """The first look of a claim at its queues, sent in one message with the usage probes of its policies.

    It saves a round trip for each claim. The probes may show that the claim looks in another way; then what was found
    is left, and looked for again. So a claim looks ahead only where the last one has found no policy in use.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._place: tuple[Share, str, str, int] | None = None
        self._rows: Sequence[Row] = ()

    def look(self, share: Share | None, limit: int) -> list[Row]:
        """Return the rows of the usage probes, and find jobs for the only share of a claim (``None``: it has several).

        A share with traits may depend on locks that come before those on jobs.
        """
        tx, habit, known = self._tx, _HABIT(self._tx), hooks(self._tx)
        queues = () if share is None or share.traits or not habit.is_plain else share.queues
        if share is None or not 0 < len(queues) <= MANY_QUEUES:
            used = tx.execute(known.usage_probes)
        else:
            self._place = (share, queues[0], share.tenant or NOBODY, limit)
            ahead = [foresight for foresee in known.foresee_start if (foresight := foresee(tx, limit)) is not None]
            queries = [query for foresight in ahead for query in foresight.queries]
            used, self._rows, *rows = tx.execute_together(
                [(known.usage_probes, ()), query_of_plain(tx, *self._place), *queries]
            )
            for foresight in ahead:
                foresight.keep(rows[: len(foresight.queries)])
                rows = rows[len(foresight.queries) :]
        habit.is_plain = not used
        return used

    def take(self, *place: Share | str | int) -> Sequence[Row] | None:
        """Return the rows of ``query_of_plain``, once; ``None``: it must be asked."""
        if place != self._place:
            return None
        rows, self._rows, self._place = self._rows, (), None
        return rows

    def close(self) -> None:
        """Let those look again who have passed over jobs that were found here and left."""
        if self._place is not None and self._rows:
            _HABIT(self._tx).is_plain = False
            self._tx.effects.opened.add(self._place[1])

"""Finding available jobs, locked for the transaction that hands them out."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.core.job import Job
from ojster.core.job_table import PLAIN
from ojster.jobs.claim_policy import Share
from ojster.storage.transaction import Transaction


def select_available(tx: Transaction, share: Share, kind: str, parameters: Sequence[str], limit: int) -> list[Job]:
    """Return the next jobs of a kind that the workers of a share can run; ``kind`` as of ``available_jobs``."""
    return tx.available_jobs(kind + share.can_run, (*parameters, *share.values), limit)


def next_plain(tx: Transaction, share: Share, queue: str, tenant: str, limit: int) -> list[Job]:
    """Return the next jobs without a limit or requirements, at most one of those that share an exclusive key."""
    asked = limit
    while True:
        available = select_available(tx, share, PLAIN, (queue, tenant), asked)
        chosen = one_of_each(tx, queue, available)
        if len(chosen) >= limit or len(available) < asked or len(chosen) == len(available):
            return chosen[:limit]
        asked *= 2  # some were left out; there may be others behind them


def one_of_each(tx: Transaction, queue: str, available: list[Job]) -> list[Job]:
    """Leave out jobs that share an exclusive key with an earlier one."""
    keys = [job.exclusive_key for job in available]
    if not any(keys):
        return available
    chosen = [job for place, job in enumerate(available) if keys[place] is None or keys[place] not in keys[:place]]
    pass_over(tx, queue, available, chosen)
    return chosen


def pass_over(tx: Transaction, queue: str, available: list[Job], chosen: list[Job]) -> None:
    """Let others look again who passed over jobs that were locked here and then left out."""
    if tx.skip_locked and len(chosen) < len(available):
        tx.effects.opened.add(queue)


def by_priority(job: Job) -> tuple[int, int]:
    """Return by what jobs are sorted: priority, then age."""
    return -job.priority, job.seq

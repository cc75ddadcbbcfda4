"""What is there? Jobs one by one, in lists, and in numbers. Reads only. (INFO, ojs-core.md section 7.7)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.database.transaction import JOB_COLUMNS_OF_J, Transaction
from ojster.model.envelope import Job

DEFAULT_PAGE: Final = 50
LARGEST_PAGE: Final = 200


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs to list; ``None`` matches all. Newest first, one page.

    Parameters
    ----------
    type:
        A job type, or a prefix that ends in ``*``.
    dead:
        Whether the job is a dead letter.
    before:
        Only jobs older than this one, by ``seq``: where the last page ended.
    """

    state: str | None = None
    queue: str | None = None
    type: str | None = None
    dead: bool | None = None
    before: int | None = None
    limit: int = DEFAULT_PAGE
    offset: int = 0


class JobPage(msgspec.Struct, frozen=True):
    """One page of jobs, how many there are in all, and the ``before`` of the next page."""

    jobs: list[Job]
    total: int
    next_before: int | None


def find(tx: Transaction, ids: Sequence[str]) -> list[Job | None]:
    """Return the job of each id, or ``None``."""
    found = tx.find_jobs(ids)
    return [found.get(id) for id in ids]


def list_jobs(tx: Transaction, filters: Sequence[JobFilter]) -> list[JobPage]:
    """Return a page of jobs for each filter."""
    return [_page(tx, chosen) for chosen in filters]


def _page(tx: Transaction, chosen: JobFilter) -> JobPage:
    conditions, parameters = _conditions(chosen)
    where = " AND ".join(conditions) or "TRUE"
    total = _count(tx, chosen, where, parameters)
    page = where if chosen.before is None else f"{where} AND seq < :before"
    rows = tx.execute(
        f"SELECT {JOB_COLUMNS_OF_J}, p.envelope FROM "
        f"(SELECT * FROM jobs WHERE {page} ORDER BY seq DESC LIMIT :limit OFFSET :offset) AS j "
        "JOIN payloads AS p ON p.seq = j.seq ORDER BY j.seq DESC",
        parameters | {"before": chosen.before, "limit": chosen.limit + 1, "offset": chosen.offset},
    )
    jobs = [Job(*row) for row in rows]
    more = len(jobs) > chosen.limit
    jobs = jobs[: chosen.limit]
    return JobPage(jobs, total, jobs[-1].seq if more else None)


def _conditions(chosen: JobFilter) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    parameters: dict[str, Any] = {}
    if chosen.dead is not None:
        conditions.append(f"dead = {int(chosen.dead)}")
    for name in ("state", "queue"):
        if (value := getattr(chosen, name)) is not None:
            conditions.append(f"{name} = :{name}")
            parameters[name] = value
    if chosen.type is not None:
        if chosen.type.endswith("*"):
            prefix = chosen.type[:-1]
            conditions.append("type >= :type AND type < :type_end")
            parameters |= {"type": prefix, "type_end": prefix + "\U0010ffff"}
        else:
            conditions.append("type = :type")
            parameters["type"] = chosen.type
    return conditions, parameters


def _count(tx: Transaction, chosen: JobFilter, where: str, parameters: dict[str, Any]) -> int:
    """How many jobs match: from the counts that are kept, where they know it."""
    if chosen.type is not None or chosen.dead is not None:
        return int(tx.execute(f"SELECT count(*) FROM jobs WHERE {where}", parameters)[0][0])
    return int(
        tx.execute(f"SELECT CAST(coalesce(sum(jobs), 0) AS BIGINT) FROM job_counts WHERE {where}", parameters)[0][0]
    )


def count_jobs(tx: Transaction, queues: Sequence[str | None]) -> list[dict[str, dict[str, int]]]:
    """Return the number of jobs by queue and state, for one queue or (``None``) for all."""
    results = []
    for queue in queues:
        counts: dict[str, dict[str, int]] = {}
        for name, state, jobs in tx.execute(
            "SELECT queue, state, jobs FROM job_counts WHERE CAST(:queue AS TEXT) IS NULL OR queue = :queue "
            "ORDER BY queue, state",
            {"queue": queue},
        ):
            counts.setdefault(name, {})[state] = jobs
        results.append(counts)
    return results

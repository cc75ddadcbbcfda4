"""Reads of jobs: single jobs, pages of jobs, and job counts.

Spec: ojs-core 7.7 (INFO)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.errors import Conflict, NotFound, OjsterError
from ojster.core.ids import MOST_IDS_COMPARED, ids_beginning_with, is_job_id
from ojster.core.job import Job
from ojster.core.job_table import JOB_COLUMNS_OF_J
from ojster.core.parsing import Bounded, PageLimit, PageOffset
from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START, called, names_of, qualify
from ojster.jobs.filter_walk import JobFilter, conditions
from ojster.jobs.names import INTERNAL_QUEUES_RANGE
from ojster.storage.transaction import Transaction

DEFAULT_PAGE: Final = 50
"""Default number of jobs in a page."""
LARGEST_PAGE: Final = 200
"""Maximum number of jobs in a page."""
MAX_EXAMINED: Final = 250_000
"""Number of jobs, the newest, that are examined for a page by conditions that no index has, such as the type."""


class Page(Bounded, frozen=True):
    """Size, position and order of a page.

    Parameters
    ----------
    before:
        ``seq`` at which the previous page ended: only older jobs are returned. Valid with the default order only.
    sort:
        ``created_at``, ``scheduled_at`` or ``priority``.
    ascending:
        Whether the smallest value comes first. By default the greatest does.
    is_bounded:
        Whether at most ``MAX_EXAMINED`` jobs are examined for the page, if it begins with the newest.
    """

    limit: PageLimit = DEFAULT_PAGE
    offset: PageOffset = 0
    before: int | None = None
    sort: str = "created_at"
    ascending: bool = False
    is_bounded: bool = False


_ORDERS: Final = {"created_at": "seq", "scheduled_at": "due_at", "priority": "priority"}


class JobPage(msgspec.Struct, frozen=True):
    """A page of jobs.

    Parameters
    ----------
    total:
        Number of matches; unless the page is complete, among the jobs that were examined for it.
    next_before:
        ``before`` for the next page; ``None``: there is none. A page that is not complete may have fewer jobs than its
        limit, even none, and a next page.
    is_complete:
        Whether all jobs were examined. Otherwise ``MAX_EXAMINED`` were, and the next page goes on with older ones.
    """

    jobs: list[Job]
    total: int
    next_before: int | None
    is_complete: bool = True


def find(tx: Transaction, requests: Sequence[tuple[str, str | None]]) -> list[Job | OjsterError]:
    """Return the job of each id, or the error.

    The beginning of an id, of at least six characters, stands for the only id of the tenant that begins so; ``None`` as
    the tenant: of all.
    """
    full = [_full_id(tx, id, tenant) for id, tenant in requests]
    jobs = tx.find_jobs([id for id in full if isinstance(id, str)])
    return [id if isinstance(id, OjsterError) else jobs.get(id) or no_job(id) for id in full]


def _full_id(tx: Transaction, id: str, tenant: str | None) -> str | OjsterError:
    return id if is_job_id(id) else only_id_beginning(tx, "jobs", id, tenant)


def only_id_beginning(
    tx: Transaction, table: str, start: str, tenant: str | None, visible: str = "true"
) -> str | OjsterError:
    """Return the only id of a tenant (``None``: of all) in a table that begins with a text, or why it is not clear.

    ``visible``: which rows count. If there is none, or the text is too short for a beginning, it is returned as it is.
    """
    if (bounds := ids_beginning_with(start)) is None:
        return start
    condition = "" if tenant is None else "WHERE tenant = :tenant "
    rows = tx.execute(
        f"""
        SELECT id
        FROM (
            SELECT id, tenant
            FROM {table}
            WHERE id BETWEEN :first AND :last AND {visible}
            ORDER BY id
            LIMIT :most
        ) AS near {condition}
        LIMIT 2
        """,
        {"first": bounds[0], "last": bounds[1], "most": MOST_IDS_COMPARED}
        | ({} if tenant is None else {"tenant": tenant}),
    )
    if len(rows) == 2:
        return Conflict(f"The ids of several {table} begin with {start}. Give more characters.", resource_id=start)
    return str(rows[0][0]) if rows else start


def find_owners(tx: Transaction, requests: Sequence[tuple[str, ...]]) -> list[dict[str, tuple[str, str]]]:
    """Return the tenant and the queue of each existing job, by job id, for each request."""
    return [{id: (job.tenant, job.queue) for id, job in tx.find_jobs(ids).items()} for ids in requests]


def no_job(id: str) -> NotFound:
    """Return the error for a job that does not exist."""
    return NotFound(f"There is no job {id}.", resource_type="job", resource_id=id)


def list_jobs(tx: Transaction, requests: Sequence[tuple[JobFilter, Page]]) -> list[JobPage]:
    """Return a page of jobs for each filter."""
    return [_page(tx, chosen, page) for chosen, page in requests]


def _page(tx: Transaction, chosen: JobFilter, page: Page) -> JobPage:
    where, parameters = conditions(chosen)
    is_in_parts = _needs_parts(tx, chosen, page)
    floor = _floor(tx, page) if is_in_parts else None
    is_complete = not is_in_parts or (floor is None and page.before is None)
    if floor is not None:
        where, parameters = f"{where} AND seq >= :floor", parameters | {"floor": floor}
    inside = where if page.before is None else f"{where} AND seq < :before"
    if is_complete:
        total = _count(tx, chosen, where, parameters)
    else:
        counted = tx.execute(f"SELECT count(*) FROM jobs WHERE {inside}", parameters | {"before": page.before})
        total = int(counted[0][0])
    direction = "ASC" if page.ascending else "DESC"
    column = _ORDERS[page.sort]
    order = f"{{0}}{column} {direction}" + f", {{0}}seq {direction}" * (column != "seq")
    rows = tx.execute(
        f"""
        SELECT {JOB_COLUMNS_OF_J}, {tx.envelope}
        FROM (
            SELECT *
            FROM jobs
            WHERE {inside}
            ORDER BY {order.format("")}
            LIMIT :limit OFFSET :offset
        ) AS j
        JOIN payloads AS p ON p.seq = j.seq
        ORDER BY {order.format("j.")}
        """,
        parameters | {"before": page.before, "limit": page.limit + 1, "offset": page.offset},
    )
    jobs = [Job(*row) for row in rows]
    more = len(jobs) > page.limit
    jobs = jobs[: page.limit]
    return JobPage(jobs, total, jobs[-1].seq if more else floor, is_complete)


def _needs_parts(tx: Transaction, chosen: JobFilter, page: Page) -> bool:
    """Return whether a list is too long to be examined at once.

    Pages in another order need all matches, and of dead letters and jobs of a cron job there are few. Others are
    examined in parts if more jobs than ``MAX_EXAMINED`` are in the states and the queue that are asked for.
    """
    is_in_order = page.sort == "created_at" and not (page.ascending or page.offset)
    has_few = chosen.dead is not None or chosen.cron_name is not None
    if not (page.is_bounded and is_in_order) or has_few:
        return False
    if _is_counted(chosen):  # the first rows of the index match, except jobs that are hidden among them
        return (
            chosen.hides_internal
            and _count_by_state(tx, _with_internal(chosen)) - _count_by_state(tx, chosen) > MAX_EXAMINED
        )
    return _count_by_state(tx, _with_internal(chosen)) > MAX_EXAMINED


def _with_internal(chosen: JobFilter) -> JobFilter:
    return msgspec.structs.replace(chosen, internal=True)


def _floor(tx: Transaction, page: Page) -> int | None:
    """Return the smallest ``seq`` that is examined for a page of a long list; ``None``: all that are left."""
    ((oldest, newest),) = tx.execute("SELECT (SELECT min(seq) FROM jobs), (SELECT max(seq) FROM jobs)")
    if oldest is None:
        return None
    end = newest + 1 if page.before is None else min(page.before, newest + 1)
    floor: int = end - MAX_EXAMINED
    return floor if floor > oldest else None


def _is_counted(chosen: JobFilter) -> bool:
    """Return whether ``job_counts`` has the number of matching jobs."""
    known = JobFilter(states=chosen.states, queue=chosen.queue, tenant=chosen.tenant, internal=chosen.internal)
    return chosen == known and chosen.tenant != ""


def _count(tx: Transaction, chosen: JobFilter, where: str, parameters: dict[str, Any]) -> int:
    """Return the number of matching jobs: from ``job_counts`` if it covers the filter, else by counting."""
    if _is_counted(chosen):
        return _count_by_state(tx, chosen)
    return int(tx.execute(f"SELECT count(*) FROM jobs WHERE {where}", parameters)[0][0])


def _count_by_state(tx: Transaction, chosen: JobFilter) -> int:
    """Return the number of jobs in the states, the queue and the tenant of a filter, whatever else it asks for."""
    where, parameters = conditions(JobFilter(states=chosen.states, internal=True))
    names, bounds = _names_of_counts(chosen)
    query = f"SELECT CAST(coalesce(sum(jobs), 0) AS BIGINT) FROM job_counts WHERE {names} AND {where}"
    return int(tx.execute(query, parameters | bounds)[0][0])


def _names_of_counts(chosen: JobFilter) -> tuple[str, dict[str, str]]:
    """Return the condition on the queue names of ``job_counts`` that covers the filter, and its parameters."""
    if chosen.queue is not None:
        return "queue = :name", {"name": qualify(chosen.tenant or "", chosen.queue)}
    first, end = names_of(chosen.tenant) if chosen.tenant else (NO_TENANT_START, NO_TENANT_END)
    names, bounds = "queue >= :first AND queue < :end", {"first": first, "end": end}
    if not chosen.hides_internal:
        return names, bounds
    low, high = (qualify(chosen.tenant or "", bound) for bound in INTERNAL_QUEUES_RANGE)
    return f"{names} AND NOT (queue >= :internal AND queue < :others)", bounds | {"internal": low, "others": high}


def count_jobs(tx: Transaction, queues: Sequence[str | None]) -> list[dict[str, dict[str, int]]]:
    """Return the number of jobs by queue and state, for one queue or (``None``) for all."""
    results = []
    for queue in queues:
        counts: dict[str, dict[str, int]] = {}
        for name, state, jobs in tx.execute(
            "SELECT queue, state, jobs FROM job_counts WHERE queue >= :first AND queue <= :last ORDER BY queue, state",
            {"first": queue or NO_TENANT_START, "last": queue or NO_TENANT_END},
        ):
            counts.setdefault(name, {})[state] = jobs
        results.append(counts)
    return results


def counts_of_tenant(tx: Transaction, tenant: str) -> dict[str, dict[str, int]]:
    """Return the number of a tenant's jobs by qualified queue name and state.

    The changes of this transaction are included.
    """
    first, end = names_of(tenant)
    counts: dict[str, dict[str, int]] = {}
    rows = tx.execute(
        "SELECT queue, state, jobs FROM job_counts WHERE queue >= :first AND queue < :end", {"first": first, "end": end}
    )
    for queue, state, jobs in rows:
        counts.setdefault(queue, {})[state] = jobs
    for (queue, state), change in tx.effects.counts.items():
        if first <= queue < end:
            states = counts.setdefault(queue, {})
            states[state] = states.get(state, 0) + change
    return counts


def count_dead_letters(tx: Transaction, requests: Sequence[None]) -> list[dict[str, int]]:
    """Return the number of dead letters by queue, for each request."""
    depths: dict[str, int] = dict(tx.execute("SELECT queue, count(*) FROM jobs WHERE dead = 1 GROUP BY 1 ORDER BY 1"))
    return [depths for _ in requests]


def count_jobs_of_tenant(tx: Transaction, tenants: Sequence[str]) -> list[dict[str, dict[str, int]]]:
    """Return the number of jobs of each tenant by queue and state."""
    return [{called(name): states for name, states in counts_of_tenant(tx, tenant).items()} for tenant in tenants]


def no_workflow(id: str) -> NotFound:
    """Return the refusal for a missing workflow."""
    return NotFound(f"Workflow {id} not found.", resource_type="workflow", resource_id=id)

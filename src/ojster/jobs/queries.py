"""Reads of jobs: single jobs, and job counts; what a page of jobs is.

Spec: ojs-core 7.7 (INFO)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Final, TypeVar

import msgspec

from ojster.core.errors import Conflict, NotFound, OjsterError
from ojster.core.ids import MOST_IDS_COMPARED, canonical_job_id, ids_beginning_with, is_job_id
from ojster.core.job import Job
from ojster.core.parsing import Bounded, PageLimit, PageOffset, refuse_unknown
from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START, called, names_of
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction

R = TypeVar("R")

DEFAULT_PAGE: Final = 50
"""Default number of jobs in a page."""
LARGEST_PAGE: Final = 200
"""Maximum number of jobs in a page."""


class Page(Bounded, frozen=True):
    """Size, position and order of a page.

    Parameters
    ----------
    before:
        ``seq`` at which the previous page ended: the page goes on from there. Valid in the order of arrival only.
    sort:
        ``created_at``, ``scheduled_at``, ``priority``, ``changed_at`` or ``attempt``.
    ascending:
        Whether the smallest value comes first. By default the greatest does.
    is_bounded:
        Whether at most ``MAX_EXAMINED`` or ``MAX_SEARCHED`` jobs are examined for the page.
    is_counted:
        Whether the numbers of the page are needed, ``total`` and ``examined``. Who reads all pages of a long list can
        do without: then they say nothing, and nothing is counted for them, except by a server that is asked over HTTP.
    """

    limit: PageLimit = DEFAULT_PAGE
    offset: PageOffset = 0
    before: int | None = None
    sort: str = "created_at"
    ascending: bool = False
    is_bounded: bool = False
    is_counted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unknown("sort", self.sort, _KEYS)

    @property
    def is_by_arrival(self) -> bool:
        """Whether jobs are in the order of their arrival, or the reverse."""
        return self.sort == "created_at"

    @property
    def key(self) -> str:
        """Expression of columns by which jobs are sorted."""
        return _KEYS[self.sort]


_KEYS: Final = {
    "created_at": "seq",
    "scheduled_at": "due_at",
    "priority": "priority",
    "attempt": "attempt",
    # A job that waits for another attempt became available, or failed, after the start of the attempt before.
    "changed_at": """
        coalesce(
            finished_at,
            CASE WHEN enqueued_at > started_at THEN enqueued_at ELSE coalesce(started_at, enqueued_at, created_at) END
        )
    """,
}

SORTS: Final = {
    "newest": ("created_at", False),
    "oldest": ("created_at", True),
    "priority": ("priority", False),
    "changed": ("changed_at", False),
    "attempts": ("attempt", False),
}
"""Orders of lists of jobs: what they are sorted by, and whether the smallest comes first."""


class JobPage(msgspec.Struct, frozen=True):
    """A page of jobs.

    Parameters
    ----------
    total:
        Number of matches; unless the page is complete, among the jobs that were examined for it.
    next_before:
        ``before`` for the next page; ``None``: there is none, or the order is another than that of arrival. A page that
        is not complete may have fewer jobs than its limit, even none, and a next page.
    is_complete:
        Whether all jobs were examined. Otherwise, the next page in the order of arrival goes on with others.
    examined:
        How many jobs, in the states and queues of the filter, were examined; ``None``: all.
    """

    jobs: list[Job]
    total: int
    next_before: int | None
    is_complete: bool = True
    examined: int | None = None


def find(tx: Transaction, requests: Sequence[tuple[str, str | None, bool]]) -> list[Job | OjsterError]:
    """Return the job of each id, or the error.

    The beginning of an id, of at least six characters, stands for the only id of the tenant that begins so; ``None`` as
    the tenant: of all. The last of each request is whether the error may name ids of any queue's jobs.
    """
    full = [_full_id(tx, *request) for request in requests]
    jobs = tx.find_jobs([id for id in full if isinstance(id, str)])
    return [id if isinstance(id, OjsterError) else jobs.get(id) or no_job(id) for id in full]


def _full_id(tx: Transaction, id: str, tenant: str | None, names_others: bool) -> str | OjsterError:
    return id if is_job_id(id) else only_id_beginning(tx, "jobs", id, tenant, names_others=names_others)


def only_id_beginning(
    tx: Transaction, table: str, start: str, tenant: str | None, visible: str = "true", *, names_others: bool = True
) -> str | OjsterError:
    """Return the only id of a tenant (``None``: of all) in a table that begins with a text, or why it is not clear.

    ``visible``: which rows count. ``names_others``: whether the error may name some of several ids. If there is none,
    or the text is too short for a beginning, it is returned as it is.
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
        some = f", such as {' and '.join(str(id) for (id,) in rows)}" if names_others else ""
        message = f"The ids of several {table} begin with {start}{some}. Give more characters."
        return Conflict(message, resource_id=start)
    return str(rows[0][0]) if rows else start


def find_owners(tx: Transaction, requests: Sequence[tuple[str, ...]]) -> list[dict[str, tuple[str, str]]]:
    """Return the tenant and the queue of each existing job, by job id, for each request."""
    return [{id: (job.tenant, job.queue) for id, job in tx.find_jobs(ids).items()} for ids in requests]


def no_job(id: str) -> NotFound:
    """Return the error for a job that does not exist."""
    return NotFound(f"There is no job {id}.", resource_type="job", resource_id=id)


def whole_job_id(text: str) -> str:
    """Return the id of a job in lower case; raise ``NotFound`` for all else, such as its beginning, a time to guess."""
    if not is_job_id(id := canonical_job_id(text)):
        raise no_job(text)
    return id


def for_each_job(
    function: Callable[[Transaction, Job], R],
) -> Callable[[Transaction, Sequence[str]], list[R | NotFound]]:
    """Make a transaction function that takes ids of one that reads a single job; a job that is missing is refused."""

    @wraps(function)
    def for_all(tx: Transaction, ids: Sequence[str]) -> list[R | NotFound]:
        jobs = tx.find_jobs(ids)
        return [function(tx, jobs[id]) if id in jobs else no_job(id) for id in ids]

    return for_all


@for_each
def count_jobs(tx: Transaction, queue: str | None) -> dict[str, dict[str, int]]:
    """Return the number of jobs by queue and state, for one queue or (``None``) for all."""
    counts: dict[str, dict[str, int]] = {}
    for name, state, jobs in tx.execute(
        "SELECT queue, state, jobs FROM job_counts WHERE queue >= :first AND queue <= :last ORDER BY queue, state",
        {"first": queue or NO_TENANT_START, "last": queue or NO_TENANT_END},
    ):
        counts.setdefault(name, {})[state] = jobs
    return counts


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

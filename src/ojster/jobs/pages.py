"""Pages of jobs that match a filter.

A page of a long list examines a bounded number of jobs, and the next page goes on where it has stopped, so that a page
costs the same with a thousand jobs and with millions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ojster.core.job import Job
from ojster.core.job_table import JOB_COLUMNS_OF_J
from ojster.core.states import JobState
from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START, names_of, qualify
from ojster.jobs import search
from ojster.jobs.filter_walk import JobFilter, conditions, values_of
from ojster.jobs.names import INTERNAL_QUEUES_RANGE
from ojster.jobs.queries import JobPage, Page
from ojster.jobs.search import MatchingJob
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction

MAX_EXAMINED: Final = 250_000
"""Number of jobs that are examined for a page by columns of their rows, such as the type."""

MAX_SEARCHED: Final = 50_000
"""Number of jobs, the newest, that are examined by their contents, by worker or id, or sorted other than by time."""

ENOUGH_COMPARED: Final = 2_000
"""Number of candidates of a search after which a full page ends it; until then, it counts the matches."""

MAX_COMPARED: Final = 10_000
"""Number of candidates after which any page of a search ends: comparing takes some microseconds each."""

FEW: Final = 10_000
"""Number of jobs up to which all are read and sorted for a page, where an index has them in another order."""

_ALWAYS_DUE: Final = frozenset({JobState.ACTIVE, JobState.SCHEDULED, JobState.RETRYABLE})
"""States in which each job has a time at which the engine must do something."""


@for_each
def list_jobs(tx: Transaction, request: tuple[JobFilter, Page]) -> JobPage:
    """Return a page of jobs for each filter."""
    chosen, page = request
    most = _most_examined(tx, chosen, page)
    examined = _Range(*_ends(page, None)) if most is None else _bounded(tx, page, most)
    is_complete = most is None or (examined.end is None and page.before is None)
    if chosen.is_searched:
        return _searched(tx, chosen, page, examined, is_complete=is_complete)
    where, parameters = conditions(chosen)
    inside, within = f"{where} AND {examined.condition}", parameters | examined.parameters
    total = _total(tx, chosen, page, where if is_complete else inside, within, is_complete=is_complete)
    # After the last match, the database would look for another one through the rest of the jobs.
    wanted = page.limit + 1 if total is None else max(0, min(page.limit + 1, total - page.offset))
    if total is not None and total <= FEW and chosen.states and _ALWAYS_DUE.issuperset(chosen.states):
        inside += " AND due_at IS NOT NULL"  # for the index of these
    direction = "ASC" if page.ascending else "DESC"
    first, outer = ("", "") if page.is_by_arrival else (f"{page.key} {direction}, ", f"j.key {direction}, ")
    rows = tx.execute(
        f"""
        SELECT {JOB_COLUMNS_OF_J}, {tx.envelope}
        FROM (
            SELECT *, {page.key} AS key
            FROM jobs
            WHERE {inside}
            ORDER BY {first}seq {direction}
            LIMIT :limit OFFSET :offset
        ) AS j
        JOIN payloads AS p ON p.seq = j.seq
        ORDER BY {outer}j.seq {direction}
        """,
        within | {"limit": wanted, "offset": page.offset},
    )
    jobs = [Job(*row) for row in rows]
    following = jobs[page.limit - 1].seq if len(jobs) > page.limit else examined.end
    number = None if is_complete else _examined(tx, chosen, page, examined)
    return JobPage(jobs[: page.limit], total or 0, following if page.is_by_arrival else None, is_complete, number)


class _Range(NamedTuple):
    """The jobs that are examined: from one ``seq`` to another, both included; ``None``: there is no bound.

    ``end``: where the next page goes on; ``None``: no other jobs are left.
    """

    first: int | None
    last: int | None
    end: int | None = None

    @property
    def condition(self) -> str:
        """The SQL condition of these jobs."""
        bounds = [(self.first, "seq >= :first_seq"), (self.last, "seq <= :last_seq")]
        return " AND ".join(["TRUE", *(condition for bound, condition in bounds if bound is not None)])

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the condition."""
        return {"first_seq": self.first, "last_seq": self.last}


def _ends(page: Page, otherwise: int | None) -> tuple[int | None, int | None]:
    """Return the first and the last ``seq`` that a page may have, by the place where the page before has ended."""
    if page.ascending and page.is_by_arrival:
        return (otherwise if page.before is None else page.before + 1), None
    return None, (otherwise if page.before is None else page.before - 1)


def _bounded(tx: Transaction, page: Page, most: int) -> _Range:
    """Return the jobs to examine for a page of a long list."""
    ((oldest, newest),) = tx.execute("SELECT (SELECT min(seq) FROM jobs), (SELECT max(seq) FROM jobs)")
    if oldest is None:
        return _Range(None, None)
    first, last = _ends(page, oldest if page.ascending and page.is_by_arrival else newest)
    if first is not None:
        last = max(first, oldest) + most - 1
        return _Range(first, last, last if last < newest else None)
    assert last is not None
    first = min(last, newest) - most + 1
    return _Range(first, last, first if first > oldest else None)


def _examined(tx: Transaction, chosen: JobFilter, page: Page, examined: _Range) -> int | None:
    return examined_in(tx, chosen, examined.condition, examined.parameters) if page.is_counted else None


def examined_in(tx: Transaction, chosen: JobFilter, condition: str, parameters: dict[str, Any]) -> int:
    """Return how many of the jobs in a range are in the states, the queues and the tenant of a filter."""
    where, known = conditions(
        JobFilter(states=chosen.states, queue=chosen.queue, tenant=chosen.tenant, internal=not chosen.hides_internal)
    )
    return _number(tx, f"{where} AND {condition}", known | parameters)


def _searched(tx: Transaction, chosen: JobFilter, page: Page, examined: _Range, *, is_complete: bool) -> JobPage:
    """Return a page of the jobs whose contents match."""
    where, parameters = conditions(chosen)
    rows = f"SELECT * FROM jobs WHERE {where} AND {examined.condition}"
    matching: list[MatchingJob] = []
    compared, end = 0, examined.end
    in_order = page.is_by_arrival
    wanted = page.offset + page.limit
    for part in search.parts(
        tx,
        chosen.contents,
        rows,
        parameters | examined.parameters,
        key=page.key,
        newest_first=not (in_order and page.ascending),
    ):
        matching += part.matches
        compared += part.compared
        enough = ENOUGH_COMPARED if in_order and len(matching) > wanted else MAX_COMPARED
        if page.is_bounded and compared >= enough:
            is_complete, end = False, part.last
            examined = _until(examined, part.last, ascending=in_order and page.ascending)
            break
    if not in_order:
        matching.sort(key=lambda match: (match.key is not None, match.key, match.seq), reverse=not page.ascending)
    matches = matching[page.offset : wanted]
    following = matches[-1].seq if len(matching) > wanted else end
    number = None if is_complete else _examined(tx, chosen, page, examined)
    jobs = _jobs(tx, [match.seq for match in matches])
    return JobPage(jobs, len(matching), following if in_order else None, is_complete and page.before is None, number)


def _until(examined: _Range, seq: int, *, ascending: bool) -> _Range:
    return examined._replace(last=seq) if ascending else examined._replace(first=seq)


def _jobs(tx: Transaction, seqs: Sequence[int]) -> list[Job]:
    rows = tx.execute(
        f"""
        SELECT {JOB_COLUMNS_OF_J}, {tx.envelope}
        FROM jobs AS j
        JOIN payloads AS p ON p.seq = j.seq
        WHERE j.seq {tx.among}
        """,
        (tx.integers(seqs),),
    )
    jobs = {job.seq: job for job in (Job(*row) for row in rows)}
    return [jobs[seq] for seq in seqs]


def _most_examined(tx: Transaction, chosen: JobFilter, page: Page) -> int | None:
    """Return how many jobs are examined for a page; ``None``: all, because the page asks for it, or there are few.

    Of dead letters, and of the jobs of a cron job or a workflow, there are few. Others are examined in parts if more
    jobs are in the states and the queue that are asked for.
    """
    has_few = any(condition is not None for condition in (chosen.dead, chosen.cron_name, chosen.workflow))
    if not page.is_bounded or has_few:
        return None
    if page.is_by_arrival and _is_counted(chosen):  # the first rows of the index match, except jobs that are hidden
        hidden = _count_by_state(tx, _with_internal(chosen)) - _count_by_state(tx, chosen)
        return MAX_EXAMINED if chosen.hides_internal and hidden > MAX_EXAMINED else None
    most = MAX_EXAMINED if page.is_by_arrival and chosen.has_index else MAX_SEARCHED
    return most if _count_by_state(tx, _with_internal(chosen)) > most else None


def _with_internal(chosen: JobFilter) -> JobFilter:
    return msgspec.structs.replace(chosen, internal=True)


def _is_counted(chosen: JobFilter) -> bool:
    """Return whether ``job_counts`` has the number of matching jobs."""
    known = JobFilter(states=chosen.states, queue=chosen.queue, tenant=chosen.tenant, internal=chosen.internal)
    return chosen == known and chosen.tenant != ""


def _total(
    tx: Transaction, chosen: JobFilter, page: Page, where: str, parameters: dict[str, Any], *, is_complete: bool
) -> int | None:
    """Return the number of matching jobs; ``None``: the page needs none, and ``job_counts`` does not cover the filter.

    ``where``: the condition of those that are counted otherwise.
    """
    if is_complete and _is_counted(chosen):
        return _count_by_state(tx, chosen)
    return _number(tx, where, parameters) if page.is_counted else None


def _number(tx: Transaction, where: str, parameters: dict[str, Any]) -> int:
    return int(tx.execute(f"SELECT count(*) FROM jobs WHERE {where}", parameters)[0][0])


def _count_by_state(tx: Transaction, chosen: JobFilter) -> int:
    """Return the number of jobs in the states, the queue and the tenant of a filter, whatever else it asks for."""
    where, parameters = conditions(JobFilter(states=chosen.states, internal=True))
    names, bounds = _names_of_counts(chosen)
    query = f"SELECT CAST(coalesce(sum(jobs), 0) AS BIGINT) FROM job_counts WHERE {names} AND {where}"
    return int(tx.execute(query, parameters | bounds)[0][0])


def _names_of_counts(chosen: JobFilter) -> tuple[str, dict[str, Any]]:
    """Return the condition on the queue names of ``job_counts`` that covers the filter, and its parameters."""
    if queues := values_of(chosen.queue):
        own = {f"name_{place}": qualify(chosen.tenant or "", name) for place, name in enumerate(queues)}
        return f"queue IN (:{', :'.join(own)})", own
    first, end = names_of(chosen.tenant) if chosen.tenant else (NO_TENANT_START, NO_TENANT_END)
    names, bounds = "queue >= :first AND queue < :end", {"first": first, "end": end}
    if not chosen.hides_internal:
        return names, bounds
    low, high = (qualify(chosen.tenant or "", bound) for bound in INTERNAL_QUEUES_RANGE)
    return f"{names} AND NOT (queue >= :internal AND queue < :others)", bounds | {"internal": low, "others": high}

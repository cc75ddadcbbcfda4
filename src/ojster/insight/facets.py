"""Facets of a list of jobs: how many jobs each value of a filter would leave.

Jobs by state and queue are counted all the time. Other facets are counted among the newest jobs, so that a question
costs the same with a thousand jobs and with millions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from ojster.core.parsing import matches_any
from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START, called, names_of
from ojster.jobs import search
from ojster.jobs.filter_walk import JobFilter, conditions, values_of
from ojster.jobs.names import is_internal
from ojster.jobs.scope import Scope
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction

MAX_EXAMINED: Final = 20_000
"""Number of jobs, the newest, among which jobs are counted by type and by error."""

MAX_VALUES: Final = 50
"""Number of values of a facet that are shown, the most frequent."""

MAX_COMPARED: Final = 4_000
"""Number of jobs whose contents are compared with a search."""

Facet = Literal["state", "queue", "type", "error_type"]
FACETS: Final[tuple[Facet, ...]] = get_args(Facet)

_Combination = tuple[str, str, str, str | None]


class FacetQuestion(msgspec.Struct, frozen=True):
    """A filter, which has the conditions of ``LIST_FILTERS`` alone, and what its caller may see."""

    chosen: JobFilter
    scope: Scope


class Facets(msgspec.Struct, frozen=True):
    """For each facet its values and their numbers of jobs, the most frequent first.

    A facet is counted under the other conditions of the filter, not under its own, so that it shows what another
    choice would give.

    Parameters
    ----------
    examined:
        Number of jobs, the newest, among which jobs were counted.
    is_complete:
        Whether no others can match.
    exact:
        The facets whose numbers are those of all jobs. Those of the others are lower bounds.
    """

    values: Mapping[Facet, Sequence[tuple[str, int]]]
    examined: int
    is_complete: bool
    exact: tuple[Facet, ...]


@for_each
def count_facets(tx: Transaction, question: FacetQuestion) -> Facets:
    """Return the facets for each filter."""
    chosen, scope = question.chosen, question.scope
    newest, examined, is_complete = _newest(tx, chosen, scope.tenant)
    numbers = {key: number for key, number in newest.items() if scope.covers(key[1])}
    counts = {name: _counted(numbers, chosen, place) for place, name in enumerate(FACETS)}
    exact = FACETS if is_complete else ()
    known = JobFilter(states=chosen.states, queue=chosen.queue, internal=chosen.internal)
    if scope.tenant != "" and chosen == known:
        kept = _exact(tx, chosen, scope)
        counts |= kept
        exact = exact or tuple(kept)
    values = {name: counted.most_common(MAX_VALUES) for name, counted in counts.items()}
    return Facets(values, examined, is_complete, exact)


def _newest(tx: Transaction, chosen: JobFilter, tenant: str | None) -> tuple[dict[_Combination, int], int, bool]:
    """Count the newest jobs by state, queue, type and error type.

    Those of a tenant (``None``: of all) that fulfil the other conditions of the filter.

    Returns
    -------
    tuple
        The numbers of jobs, how many were examined, and whether no others can match.
    """
    # Jobs without a tenant have no index of their own: they are looked for among the newest of all. Nor have times.
    is_nobody = tenant == "" and chosen.cron_name is None
    with_index = JobFilter(tenant=tenant, cron_name=chosen.cron_name, workflow=chosen.workflow, internal=True)
    own, of_tenant = conditions(with_index)
    since, until = chosen.created_after, chosen.created_before
    others = JobFilter(
        tenant=tenant,
        created_after=since,
        created_before=until,
        worker=chosen.worker,
        id=chosen.id,
        internal=not chosen.hides_internal,
    )
    timely, times = conditions(others)
    inside, outside = ("TRUE", f"{own} AND {timely}") if is_nobody else (own, timely)
    window = f"""
        SELECT seq, {_COLUMNS}, created_at, CASE WHEN {outside} THEN 1 ELSE 0 END AS matches
        FROM jobs
        WHERE {inside}
        ORDER BY seq DESC
        LIMIT :most
    """
    bounds = of_tenant | times | {"most": MAX_EXAMINED}
    if chosen.is_searched:
        return _matching(tx, chosen, window, f"{inside} AND {outside}", bounds)
    rows = tx.execute(
        f"""
        SELECT {_COLUMNS}, matches, count(*), min(created_at)
        FROM ({window}) AS newest
        GROUP BY {_COLUMNS}, matches
        """,
        bounds,
    )
    numbers = {tuple(key): number for *key, matches, number, _ in rows if matches}
    examined = sum(number for *_, number, _ in rows)
    oldest = min((at for *_, at in rows), default=0)
    return numbers, examined, examined < MAX_EXAMINED or (since is not None and oldest <= since)


_COLUMNS: Final = "state, queue, type, error_type"


def _matching(
    tx: Transaction, chosen: JobFilter, window: str, condition: str, bounds: dict[str, Any]
) -> tuple[dict[_Combination, int], int, bool]:
    """Count the jobs of a window whose contents match, as ``_newest`` does, at most as many as ``MAX_COMPARED``."""
    query = f"SELECT count(*), min(seq) FROM ({window}) AS newest WHERE seq >= :first_seq"
    ((examined, first),) = tx.execute(query, bounds | {"first_seq": 0})
    is_complete = examined < MAX_EXAMINED
    rows = f"SELECT * FROM jobs WHERE {condition} AND seq >= :first_seq"
    seqs: list[int] = []
    compared = 0
    for part in search.parts(tx, chosen.contents, rows, bounds | {"first_seq": first or 0}, newest_first=True):
        seqs += [match.seq for match in part.matches]
        compared += part.compared
        if compared >= MAX_COMPARED:
            ((examined, _),) = tx.execute(query, bounds | {"first_seq": part.last})
            is_complete = False
            break
    numbers: dict[_Combination, int] = {}
    if seqs:
        counts = tx.execute(
            f"SELECT {_COLUMNS}, count(*) FROM jobs WHERE seq {tx.among} GROUP BY {_COLUMNS}", (tx.integers(seqs),)
        )
        numbers = {tuple(key): number for *key, number in counts}
    return numbers, examined, is_complete


def _counted(numbers: dict[_Combination, int], chosen: JobFilter, place: int) -> Counter[str]:
    counted: Counter[str] = Counter()
    for key, number in numbers.items():
        value = key[place]
        if value is not None and all(_fits(key, chosen, other) for other in range(len(FACETS)) if other != place):
            counted[value] += number
    return counted


def _fits(key: _Combination, chosen: JobFilter, place: int) -> bool:
    value = key[place]
    if place == 0:
        return not chosen.states or value in chosen.states
    wanted = values_of((chosen.queue, chosen.type, chosen.error_type)[place - 1])
    if not wanted or value is None:
        return not wanted
    return matches_any(value, wanted)


def _exact(tx: Transaction, chosen: JobFilter, scope: Scope) -> dict[Facet, Counter[str]]:
    """Return the facets ``state`` and ``queue`` from the counts that are kept of all jobs."""
    first, end = names_of(scope.tenant) if scope.tenant else (NO_TENANT_START, NO_TENANT_END)
    states: Counter[str] = Counter()
    queues: Counter[str] = Counter()
    for name, state, jobs in tx.execute(
        "SELECT queue, state, jobs FROM job_counts WHERE queue >= :first AND queue < :end AND jobs > 0",
        {"first": first, "end": end},
    ):
        queue = called(name)
        if not scope.covers(queue) or (chosen.hides_internal and is_internal(queue)):
            continue
        if chosen.queue is None or queue in values_of(chosen.queue):
            states[state] += jobs
        if not chosen.states or state in chosen.states:
            queues[queue] += jobs
    return {"state": states, "queue": queues}

"""Facets of a list of jobs: how many jobs each value of a filter would leave.

Jobs by state and queue are counted all the time. Other facets are counted among the newest jobs, so that a question
costs the same with a thousand jobs and with millions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START, called, names_of
from ojster.jobs.filter_walk import JobFilter, conditions
from ojster.jobs.names import is_internal
from ojster.jobs.scope import Scope
from ojster.storage.transaction import Transaction

MAX_EXAMINED: Final = 20_000
"""Number of jobs, the newest, among which jobs are counted by type and by error."""

MAX_VALUES: Final = 50
"""Number of values of a facet that are shown, the most frequent."""

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


def count_facets(tx: Transaction, questions: Sequence[FacetQuestion]) -> list[Facets]:
    """Return the facets for each filter."""
    return [_count(tx, question.chosen, question.scope) for question in questions]


def _count(tx: Transaction, chosen: JobFilter, scope: Scope) -> Facets:
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

    Those of a tenant (``None``: of all) that a cron job has enqueued and that were created in time, if the filter asks
    for that.

    Returns
    -------
    tuple
        The numbers of jobs, how many were examined, and whether no others can match.
    """
    columns = "state, queue, type, error_type"
    # Jobs without a tenant have no index of their own: they are looked for among the newest of all. Nor have times.
    is_nobody = tenant == "" and chosen.cron_name is None
    own, of_tenant = conditions(JobFilter(tenant=tenant, cron_name=chosen.cron_name, internal=True))
    since, until = chosen.created_after, chosen.created_before
    timely, times = conditions(JobFilter(created_after=since, created_before=until, internal=not chosen.hides_internal))
    inside, outside = ("TRUE", f"{own} AND {timely}") if is_nobody else (own, timely)
    rows = tx.execute(
        f"""
        SELECT {columns}, matches, count(*), min(created_at)
        FROM (
            SELECT {columns}, created_at, CASE WHEN {outside} THEN 1 ELSE 0 END AS matches
            FROM jobs
            WHERE {inside}
            ORDER BY seq DESC
            LIMIT :most
        ) AS newest
        GROUP BY {columns}, matches
        """,
        of_tenant | times | {"most": MAX_EXAMINED},
    )
    numbers = {tuple(key): number for *key, matches, number, _ in rows if matches}
    examined = sum(number for *_, number, _ in rows)
    oldest = min((at for *_, at in rows), default=0)
    return numbers, examined, examined < MAX_EXAMINED or (since is not None and oldest <= since)


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
    wanted = (chosen.queue, chosen.type, chosen.error_type)[place - 1]
    if wanted is None:
        return True
    return value is not None and (value.startswith(wanted[:-1]) if wanted.endswith("*") else value == wanted)


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
        if chosen.queue in (None, queue):
            states[state] += jobs
        if not chosen.states or state in chosen.states:
            queues[queue] += jobs
    return {"state": states, "queue": queues}

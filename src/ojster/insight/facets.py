"""Facets of a list of jobs: how many jobs each value of a filter would leave.

Jobs by state and queue are counted all the time. Other facets are counted among the newest jobs, so that a question
costs the same with a thousand jobs and with millions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.tenant import NO_TENANT_END, NO_TENANT_START, called, names_of
from ojster.jobs.filter_walk import JobFilter, conditions
from ojster.jobs.scope import Scope
from ojster.storage.transaction import Transaction

MAX_EXAMINED: Final = 20_000
"""Number of jobs, the newest, among which jobs are counted by type and by error."""

MAX_VALUES: Final = 50
"""Number of values of a facet that are shown, the most frequent."""

FACETS: Final = ("state", "queue", "type", "error_type")

_Combination = tuple[str, str, str, str | None]


class FacetQuestion(msgspec.Struct, frozen=True):
    """A filter, of which ``states``, ``queue``, ``type`` and ``error_type`` count, and what its caller may see."""

    chosen: JobFilter
    scope: Scope


class Facets(msgspec.Struct, frozen=True):
    """For each facet its values and their numbers of jobs, the most frequent first.

    A facet is counted under the other conditions of the filter, not under its own, so that it shows what another
    choice would give.

    Parameters
    ----------
    examined:
        Number of jobs among which types and errors were counted.
    is_complete:
        Whether there are no others.
    """

    values: dict[str, list[tuple[str, int]]]
    examined: int
    is_complete: bool


def count_facets(tx: Transaction, questions: Sequence[FacetQuestion]) -> list[Facets]:
    """Return the facets for each filter."""
    return [_count(tx, one.chosen, one.scope) for one in questions]


def _count(tx: Transaction, chosen: JobFilter, scope: Scope) -> Facets:
    newest = _newest(tx, scope.tenant)
    examined = sum(newest.values())
    found = {key: number for key, number in newest.items() if scope.covers(key[1])}
    counts = {name: _counted(found, chosen, place) for place, name in enumerate(FACETS)}
    if chosen.type is None and chosen.error_type is None and scope.tenant != "":
        counts |= _exact(tx, chosen, scope)
    values = {name: counted.most_common(MAX_VALUES) for name, counted in counts.items()}
    return Facets(values, examined, examined < MAX_EXAMINED)


def _newest(tx: Transaction, tenant: str | None) -> dict[_Combination, int]:
    """Return the newest jobs of a tenant, or of all, counted by state, queue, type and error type."""
    columns = "state, queue, type, error_type"
    own, parameters = conditions(JobFilter(tenant=tenant))
    # Jobs without a tenant have no index of their own: they are looked for among the newest of all.
    inside, outside = ("TRUE", own) if tenant == "" else (own, "TRUE")
    rows = tx.execute(
        f"SELECT {columns}, count(*) FROM "
        f"(SELECT {columns}, tenant FROM jobs WHERE {inside} ORDER BY seq DESC LIMIT :most) AS newest "
        f"WHERE {outside} GROUP BY {columns}",
        parameters | {"most": MAX_EXAMINED},
    )
    return {(state, queue, type, error): number for state, queue, type, error, number in rows}


def _counted(found: dict[_Combination, int], chosen: JobFilter, place: int) -> Counter[str]:
    counted: Counter[str] = Counter()
    for key, number in found.items():
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


def _exact(tx: Transaction, chosen: JobFilter, scope: Scope) -> dict[str, Counter[str]]:
    """Return the facets ``state`` and ``queue`` from the counts that are kept of all jobs."""
    first, end = names_of(scope.tenant) if scope.tenant else (NO_TENANT_START, NO_TENANT_END)
    states: Counter[str] = Counter()
    queues: Counter[str] = Counter()
    for name, state, jobs in tx.execute(
        "SELECT queue, state, jobs FROM job_counts WHERE queue >= :first AND queue < :end AND jobs > 0",
        {"first": first, "end": end},
    ):
        queue = called(name)
        if not scope.covers(queue):
            continue
        if chosen.queue in (None, queue):
            states[state] += jobs
        if not chosen.states or state in chosen.states:
            queues[queue] += jobs
    return {"state": states, "queue": queues}

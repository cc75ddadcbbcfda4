"""Endpoints that survey many jobs at once: facets, failures in groups, and what needs attention."""

from __future__ import annotations

from typing import Final

from ojster.core.access import INSPECT
from ojster.insight.attention import attention
from ojster.insight.facets import FacetQuestion, count_facets
from ojster.insight.failures import FailureQuestion, group_failures
from ojster.insight.wire import AttentionAnswer, FacetsAnswer, FacetValueBody, FailuresAnswer
from ojster.jobs.filters import filter_of
from ojster.server.admin import ADMIN, TAG
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.jobs import LIST_FILTERS
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route

_FAILURES: Final = ("queue", "type", "error_type")


async def show_facets(request: HttpRequest) -> Answer:
    """Count jobs by ``state``, ``queue``, ``type`` and ``error_type``, each under the other conditions of a list.

    Jobs by state and queue are exact without other conditions. Everything else is counted among the newest jobs,
    so that the answer comes as quickly with millions. ``exact`` names the facets whose numbers are no lower bounds.
    """
    query, scope = request.query, request.service.scope
    chosen = filter_of({name: query.get(name) for name in LIST_FILTERS})
    found = await scope.survey(count_facets, FacetQuestion(chosen, scope))
    shown: dict[str, list[FacetValueBody]] = {
        name: [FacetValueBody(value, jobs) for value, jobs in values] for name, values in found.values.items()
    }
    return Answer(encode(FacetsAnswer(shown, found.examined, found.is_complete, found.exact)))


async def show_failures(request: HttpRequest) -> Answer:
    """Group jobs that gave up, and jobs that wait for another attempt, by type, error type and message.

    Messages that differ in numbers, ids and quoted values are one group.
    """
    query, scope = request.query, request.service.scope
    chosen = filter_of({name: query.get(name) for name in _FAILURES})
    found = await scope.survey(group_failures, FailureQuestion(chosen, scope))
    return Answer(encode(FailuresAnswer(found.groups, found.examined, found.is_complete)))


async def show_attention(request: HttpRequest) -> Answer:
    """Show what needs the attention of an operator, the worst first; an empty list if all is well."""
    request.service.scope.need_view_of_all_queues()
    return Answer(encode(AttentionAnswer(await attention(request.service.database))))


ROUTES: Final = (
    Route("GET", f"{BASE}/job-facets", show_facets, "Jobs", answer=FacetsAnswer, query=LIST_FILTERS),
    Route("GET", f"{BASE}/failures", show_failures, "Jobs", answer=FailuresAnswer, query=_FAILURES),
    Route("GET", f"{ADMIN}/attention", show_attention, TAG, answer=AttentionAnswer, needs=INSPECT),
)

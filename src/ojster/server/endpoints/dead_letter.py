"""Endpoints for dead letters.

Spec: ojs-http-binding 12
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.jobs.answer_wire import JobPageAnswer
from ojster.jobs.filters import filter_of
from ojster.server.answer import Answer
from ojster.server.endpoints.jobs import job_page
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, PAGE, Route


async def list_dead_letters(request: HttpRequest) -> Answer:
    """List the dead letters (kept jobs with exhausted retries), newest first, optionally only some."""
    query = request.query
    conditions = {name: query[name] for name in _FILTERS if name in query}
    chosen = msgspec.structs.replace(filter_of(conditions), dead=True)
    return await job_page(request, chosen)


_TAG: Final = "Dead letters"

_TIMES: Final = ("since", "until", "discarded_after", "discarded_before")

_FILTERS: Final[tuple[str, ...]] = ("queue", "type", "error_type", *_TIMES, "internal")
"""Query parameters that select dead letters; ``since`` and ``until`` are about their creation."""

ROUTES: Final = (
    Route("GET", f"{BASE}/dead-letter", list_dead_letters, _TAG, None, JobPageAnswer, query=(*_FILTERS, *PAGE)),
)

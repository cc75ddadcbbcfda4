"""Endpoints for the execution history and the lineage of jobs.

Spec: ojs-execution-history 7
"""

from __future__ import annotations

from typing import Final

from ojster.jobs import history_wire
from ojster.jobs.explanation import Explanation
from ojster.jobs.history_wire import HistoryAnswer, PurgedHistoryAnswer, show_entry
from ojster.server.answer import Answer, encode
from ojster.server.pages import page_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route

LARGEST_PAGE: Final = 1_000
"""Maximum number of history entries in one answer."""


async def show_history(request: HttpRequest) -> Answer:
    """Show the execution history of a job, oldest entry first."""
    limit, offset, after = page_of(request.query, largest=LARGEST_PAGE)
    entries = await request.service.jobs.history(request.path["id"])
    begin = offset if after is None else after
    end = begin + limit
    shown = HistoryAnswer(
        [show_entry(entry, request.path["id"], number) for number, entry in enumerate(entries[begin:end], begin)],
        len(entries),
        str(end) if end < len(entries) else None,
    )
    clamped = int(request.query.get("limit") or 0) > LARGEST_PAGE
    return Answer(encode(shown), headers=((b"x-ojs-limit-clamped", b"true"),) if clamped else ())


async def purge_history(request: HttpRequest) -> Answer:
    """Delete the execution history of a job up to now."""
    deleted = await request.service.jobs.purge_history(request.path["id"])
    return Answer(encode(PurgedHistoryAnswer(deleted)))


async def show_lineage(request: HttpRequest) -> Answer:
    """Show the predecessors and successors of a job in its workflow."""
    return Answer(encode(history_wire.show_lineage(await request.service.jobs.lineage(request.path["id"]))))


async def explain_job(request: HttpRequest) -> Answer:
    """Say why a job waits: a pause, a limit, no worker that can run it, its turn, or a time."""
    return Answer(encode(await request.service.jobs.explain(request.path["id"])))


_TAG: Final = "History"

ROUTES: Final = (
    Route("GET", f"{BASE}/jobs/{{id}}/history", show_history, _TAG, answer=HistoryAnswer, query=("limit", "cursor")),
    Route("GET", f"{BASE}/jobs/{{id}}/explanation", explain_job, _TAG, answer=Explanation),
    Route("DELETE", f"{BASE}/jobs/{{id}}/history", purge_history, _TAG, answer=PurgedHistoryAnswer),
    Route("GET", f"{BASE}/jobs/{{id}}/lineage", show_lineage, _TAG, answer=history_wire.LineageAnswer),
)

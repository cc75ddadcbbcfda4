"""Endpoint for the execution history of jobs.

Spec: ojs-execution-history 7
"""

from __future__ import annotations

from typing import Final

from ojster.jobs.history_wire import HistoryAnswer, show_entry
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


_TAG: Final = "History"

ROUTES: Final = (
    Route("GET", f"{BASE}/jobs/{{id}}/history", show_history, _TAG, answer=HistoryAnswer, query=("limit", "cursor")),
)

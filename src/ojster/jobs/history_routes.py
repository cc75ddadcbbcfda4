"""Endpoints for the execution history and the lineage of jobs.

Spec: ojs-execution-history 7
"""

from __future__ import annotations

from typing import Any, Final

from ojster.server.pages import page_of
from ojster.server.request import Answer, HttpRequest, encode
from ojster.server.route import BASE, Route

LARGEST_PAGE: Final = 1_000
"""Maximum number of history entries in one answer."""


async def show_history(exchange: HttpRequest) -> Answer:
    """Show the execution history of a job, oldest entry first."""
    limit, offset, after = page_of(exchange.query, largest=LARGEST_PAGE)
    entries = await exchange.engine.jobs.history(exchange.path["id"])
    begin = offset if after is None else after
    end = begin + limit
    shown: dict[str, Any] = {
        "events": [
            entry.to_wire(exchange.path["id"], number) for number, entry in enumerate(entries[begin:end], begin)
        ],
        "total": len(entries),
        "next_cursor": str(end) if end < len(entries) else None,
    }
    clamped = int(exchange.query.get("limit") or 0) > LARGEST_PAGE
    return Answer(encode(shown), headers=((b"x-ojs-limit-clamped", b"true"),) if clamped else ())


async def purge_history(exchange: HttpRequest) -> Answer:
    """Delete the execution history of a job up to now."""
    deleted = await exchange.engine.jobs.purge_history(exchange.path["id"])
    return Answer(encode({"deleted": True, "events_deleted": deleted}))


async def show_lineage(exchange: HttpRequest) -> Answer:
    """Show the predecessors and successors of a job in its workflow."""
    found = await exchange.engine.jobs.lineage(exchange.path["id"])
    shown = {
        "job_id": found.job_id,
        "parent_id": found.parent_id,
        "root_id": found.root_id,
        "workflow_id": found.workflow_id,
        "superseded_by": found.superseded_by,
        "parents": found.parents,
        "children": _tree(found.children),
    }
    return Answer(encode(shown))


def _tree(children: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"job_id": id, "children": _tree(more)} for id, more in children.items()]


_TAG: Final = "History"

ROUTES: Final = (
    Route("GET", f"{BASE}/jobs/{{id}}/history", show_history, _TAG, query=("limit", "cursor")),
    Route("DELETE", f"{BASE}/jobs/{{id}}/history", purge_history, _TAG),
    Route("GET", f"{BASE}/jobs/{{id}}/lineage", show_lineage, _TAG),
)

"""How have tasks done before? Their last runs, and counts of all. (seed 003: task history)"""

from __future__ import annotations

from typing import Final

from ojster.core.errors import InvalidRequest
from ojster.core.outcome import Outcome
from ojster.insight.task_values import TaskFilter
from ojster.server.request import Answer, Exchange, encode, whole
from ojster.server.route import BASE, Route


async def list_runs(exchange: Exchange) -> Answer:
    """List how jobs have ended that were recorded, the latest first: the last success, failure and few runs of each."""
    return Answer(encode({"runs": await exchange.engine.task_runs(_filter(exchange))}))


async def list_statistics(exchange: Exchange) -> Answer:
    """List how often tasks have succeeded and failed, and how long they took, by their names."""
    return Answer(encode({"statistics": await exchange.engine.task_statistics(_filter(exchange))}))


def _filter(exchange: Exchange) -> TaskFilter:
    query = exchange.query
    outcome = query.get("outcome")
    if outcome is not None and outcome not in list(Outcome):
        raise InvalidRequest(f"'outcome' must be one of {', '.join(Outcome)}, not {outcome[:40]!r}.", field="outcome")
    return TaskFilter(
        query.get("type"),
        query.get("subject"),
        query.get("context"),
        None if outcome is None else Outcome(outcome),
        whole(query, "limit", 100, 1),
    )


_TAG: Final = "Tasks"

ROUTES: Final = (
    Route("GET", f"{BASE}/tasks/runs", list_runs, _TAG, query=("type", "subject", "context", "outcome", "limit")),
    Route("GET", f"{BASE}/tasks/statistics", list_statistics, _TAG, query=("type", "subject", "context", "limit")),
)

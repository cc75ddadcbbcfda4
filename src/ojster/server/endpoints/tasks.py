"""Endpoints for the task history: the last runs of each task, and statistics of all runs."""

from __future__ import annotations

from typing import Final

from ojster.core.errors import InvalidRequest
from ojster.core.outcome import Outcome
from ojster.insight.task_values import TaskFilter
from ojster.insight.wire import TaskRunsAnswer, TaskStatisticsAnswer
from ojster.server.answer import Answer, encode
from ojster.server.pages import whole
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def list_runs(request: HttpRequest) -> Answer:
    """List recorded runs, latest first: the last success, the last failure and the latest few runs of each task."""
    return Answer(encode(TaskRunsAnswer(await request.service.tasks.runs(_filter(request)))))


async def list_statistics(request: HttpRequest) -> Answer:
    """List the success and failure counts and the durations of tasks, by type, subject and context."""
    return Answer(encode(TaskStatisticsAnswer(await request.service.tasks.statistics(_filter(request)))))


def _filter(request: HttpRequest) -> TaskFilter:
    query = request.query
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
    Route(
        "GET",
        f"{BASE}/tasks/runs",
        list_runs,
        _TAG,
        answer=TaskRunsAnswer,
        query=("type", "subject", "context", "outcome", "limit"),
    ),
    Route(
        "GET",
        f"{BASE}/tasks/statistics",
        list_statistics,
        _TAG,
        answer=TaskStatisticsAnswer,
        query=("type", "subject", "context", "limit"),
    ),
)

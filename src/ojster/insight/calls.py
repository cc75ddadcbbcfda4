"""Calls about the history of tasks, as a service, a server and its client have them."""

from __future__ import annotations

from typing import Final

from ojster.core.calls import Call, Calls
from ojster.core.outcome import Outcome
from ojster.core.parsing import PageLimit
from ojster.insight.task_values import TaskRun, TaskStatistics
from ojster.insight.wire import TaskRunsAnswer, TaskStatisticsAnswer

_TAG: Final = "Tasks"


class TaskCalls(Calls):
    """Calls about the history of tasks."""

    @Call("GET", "/tasks/runs", "list_runs", _TAG, TaskRunsAnswer)
    async def runs(
        self,
        type: str | None = None,
        subject: str | None = None,
        context: str | None = None,
        *,
        outcome: Outcome | None = None,
        limit: PageLimit = 100,
    ) -> list[TaskRun]:
        """List recorded runs, latest first: the last success, the last failure and the latest few runs of each task."""

    @Call("GET", "/tasks/statistics", "list_statistics", _TAG, TaskStatisticsAnswer)
    async def statistics(
        self, type: str | None = None, subject: str | None = None, context: str | None = None, *, limit: PageLimit = 100
    ) -> list[TaskStatistics]:
        """List the success and failure counts and the durations of tasks, by type, subject and context."""

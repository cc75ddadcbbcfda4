"""Calls about the history of tasks."""

from __future__ import annotations

from ojster.core.outcome import Outcome
from ojster.insight import task_history
from ojster.insight.calls import TaskCalls
from ojster.insight.task_values import MOST_SHOWN, TaskFilter, TaskRun, TaskStatistics
from ojster.jobs.scope import CapabilityService


class TaskService(CapabilityService, TaskCalls):
    """Calls about the history of tasks."""

    async def runs(
        self,
        type: str | None = None,
        subject: str | None = None,
        context: str | None = None,
        *,
        outcome: Outcome | None = None,
        limit: int = 100,
    ) -> list[TaskRun]:
        """Return the recorded runs of tasks that match, newest first, at most ``limit``; ``None`` matches all."""
        chosen = TaskFilter(type, subject, context, outcome, _clamped(limit), self.scope.tenant)
        return await self.scope.survey(task_history.list_runs, chosen)

    async def statistics(
        self, type: str | None = None, subject: str | None = None, context: str | None = None, *, limit: int = 100
    ) -> list[TaskStatistics]:
        """Return how often tasks have succeeded and failed, and how long they took; at most ``limit`` tasks."""
        chosen = TaskFilter(type, subject, context, None, _clamped(limit), self.scope.tenant)
        return await self.scope.survey(task_history.list_statistics, chosen)


def _clamped(limit: int) -> int:
    return min(limit, MOST_SHOWN)

"""Calls about the history of tasks."""

from __future__ import annotations

import msgspec

from ojster.insight import task_history
from ojster.insight.task_values import MOST_SHOWN as MOST_SHOWN_TASKS
from ojster.insight.task_values import TaskFilter, TaskRun, TaskStatistics
from ojster.jobs.scope import CapabilityService


class TaskService(CapabilityService):
    """Calls about the history of tasks."""

    async def runs(self, chosen: TaskFilter = TaskFilter()) -> list[TaskRun]:  # noqa: B008  (frozen)
        """Return the recorded runs of tasks that match, newest first."""
        return await self.scope.survey(task_history.list_runs, self._tasks(chosen))

    async def statistics(self, chosen: TaskFilter = TaskFilter()) -> list[TaskStatistics]:  # noqa: B008  (frozen)
        """Return how often tasks have succeeded and failed, and how long they took."""
        return await self.scope.survey(task_history.list_statistics, self._tasks(chosen))

    def _tasks(self, chosen: TaskFilter) -> TaskFilter:
        return msgspec.structs.replace(
            chosen, tenant=self.scope.tenant, limit=max(1, min(chosen.limit, MOST_SHOWN_TASKS))
        )

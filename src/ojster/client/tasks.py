"""Calls about the history of tasks, made to a server."""

from __future__ import annotations

from urllib.parse import urlencode

import msgspec

from ojster.client.connection import RemoteCapability
from ojster.insight.task_values import TaskFilter, TaskRun, TaskStatistics


class RemoteTasks(RemoteCapability):
    """Calls about the history of tasks."""

    async def runs(self, chosen: TaskFilter = TaskFilter()) -> list[TaskRun]:  # noqa: B008  (frozen)
        """Return recorded runs of tasks, latest first."""
        answer = await self._connection.call("GET", f"/tasks/runs?{_task_query(chosen)}")
        return msgspec.json.decode(answer["runs"], type=list[TaskRun])

    async def statistics(self, chosen: TaskFilter = TaskFilter()) -> list[TaskStatistics]:  # noqa: B008  (frozen)
        """Return the numbers of successes and failures of tasks, and their durations."""
        answer = await self._connection.call("GET", f"/tasks/statistics?{_task_query(chosen)}")
        return msgspec.json.decode(answer["statistics"], type=list[TaskStatistics])


def _task_query(chosen: TaskFilter) -> str:
    given = msgspec.structs.asdict(chosen)
    return urlencode({name: value for name, value in given.items() if value is not None and name != "tenant"})

"""Calls about the work of the system and the history of tasks, as a service, a server and its client have them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Struct

from ojster.core.access import INSPECT
from ojster.core.calls import MOMENT, Call, Calls
from ojster.core.outcome import Outcome
from ojster.core.parsing import PageLimit
from ojster.insight.attention import Finding
from ojster.insight.failures import Failures
from ojster.insight.task_values import TaskRun, TaskStatistics
from ojster.insight.wire import (
    AttentionAnswer,
    FacetsAnswer,
    StatisticsHistoryAnswer,
    SystemAnswer,
    SystemConfigurationAnswer,
    TaskRunsAnswer,
    TaskStatisticsAnswer,
    TimeAnswer,
)
from ojster.jobs.answer_wire import DeadLetterStatisticsAnswer

_TAG: Final = "Tasks"
_JOBS: Final = "Jobs"
_OPERATORS: Final = "Operators"

Period = Literal["1m", "5m", "1h", "1d"]
"""Length of a step of the statistics history."""

Moment = Annotated[int | None, MOMENT]
"""A time in microseconds since the epoch; ``None``: no bound."""


class ListConditions(Struct, frozen=True):
    """Conditions of a list of jobs, as it takes them: several values have commas between them (``split_values``).

    Parameters
    ----------
    since, until:
        Bounds of the time of creation, excluded.
    internal:
        Whether jobs of the server's own work count, too.
    """

    state: str | None = None
    queue: str | None = None
    type: str | None = None
    error_type: str | None = None
    cron_name: str | None = None
    error_text: str | None = None
    worker: str | None = None
    workflow: str | None = None
    tag: str | None = None
    where: str | None = None
    id: str | None = None
    since: Moment = None
    until: Moment = None
    internal: bool = False


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


class InsightCalls(Calls):
    """Calls about the work of the whole system, or of what the caller may see of it."""

    @Call("GET", "/job-facets", "show_facets", _JOBS, FacetsAnswer, recent=True)
    async def facets(self, chosen: ListConditions = ListConditions()) -> FacetsAnswer:  # noqa: B008  (frozen)
        """Count jobs by ``state``, ``queue``, ``type`` and ``error_type``, each under the other conditions of a list.

        Jobs by state and queue are exact without other conditions. Everything else is counted among the newest jobs,
        so that the answer comes as quickly with millions. ``exact`` names the facets whose numbers are no lower bounds.
        With ``internal=true``, jobs of the server's own work count, too, such as deliveries.
        """

    @Call("GET", "/failures", "show_failures", _JOBS, Failures, recent=True)
    async def failures(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,
        error_type: str | None = None,
        internal: bool = False,
    ) -> Failures:
        """Group jobs that gave up, and jobs that wait for another attempt, by type, error type and message.

        Messages that differ in numbers, ids and quoted values are one group. Jobs of the server's own work are left out
        unless ``internal`` or ``queue`` asks for them.
        """

    @Call("GET", "/admin/attention", "show_attention", _OPERATORS, AttentionAnswer, needs=INSPECT, recent=True)
    async def attention(self) -> list[Finding]:
        """Show what needs the attention of an operator, the worst first; an empty list if all is well."""

    @Call("GET", "/admin/stats", "show_stats", _OPERATORS, SystemAnswer, needs=INSPECT, recent=True)
    async def statistics(self) -> SystemAnswer:
        """Show system totals: queues, workers, jobs by state, throughput and uptime."""

    @Call(
        "GET", "/admin/stats/history", "show_history", _OPERATORS, StatisticsHistoryAnswer, needs=INSPECT, recent=True
    )
    async def history(
        self,
        period: Period = "5m",
        since: Moment = None,
        until: Moment = None,
        queue: str | None = None,
        type: str | None = None,
        worker: str | None = None,
        host: str | None = None,
    ) -> StatisticsHistoryAnswer:
        """Show the statistics history in steps of ``period`` (1m, 5m, 1h, 1d), of one ``queue``, one ``type``, or all.

        For a type, attempts that have ended are counted, with the time that they had waited; ``enqueued`` is 0. For a
        ``worker`` or a ``host``, jobs that have ended are counted, each by its last attempt, among the newest 50,000:
        ``counted_since`` is null if these are all. ``deployments`` are the times at which workers with new code came.
        """

    @Call(
        "GET",
        "/admin/dead-letter/stats",
        "count_dead_letters",
        _OPERATORS,
        DeadLetterStatisticsAnswer,
        also=("/dead-letter/stats",),
        recent=True,
    )
    async def dead_letters(self) -> DeadLetterStatisticsAnswer:
        """Show dead letter counts, by queue and error type, and their retention."""

    @Call("GET", "/admin/system/config", "show_system_config", _OPERATORS, SystemConfigurationAnswer)
    async def configuration(self) -> SystemConfigurationAnswer:
        """Show the settings of this server."""

    @Call("GET", "/time", "show_time", _OPERATORS, TimeAnswer)
    async def time(self) -> int:
        """Show the time by which jobs are due. The clock of the caller's machine may be wrong."""

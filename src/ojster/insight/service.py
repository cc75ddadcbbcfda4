"""Calls about the work of the system, and about the history of tasks."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.durations import HOUR, MINUTE, format_duration
from ojster.core.errors import InvalidRequest
from ojster.core.outcome import Outcome
from ojster.core.parsing import check_bounds
from ojster.core.states import JobState
from ojster.core.timestamps import format_optional
from ojster.core.wire import JobCountsBody
from ojster.fleet.service import FleetService
from ojster.fleet.worker_starts import list_deployments
from ojster.insight import task_history
from ojster.insight.attention import Finding, attention
from ojster.insight.calls import InsightCalls, ListConditions, Period, TaskCalls
from ojster.insight.facets import FacetQuestion, count_facets
from ojster.insight.failures import FailureQuestion, Failures, group_failures
from ojster.insight.readiness import uptime
from ojster.insight.task_values import MOST_SHOWN, TaskFilter, TaskRun, TaskStatistics
from ojster.insight.wire import (
    FacetsAnswer,
    FacetValueBody,
    ReplicaBody,
    StatisticsHistoryAnswer,
    SystemAnswer,
    SystemConfigurationAnswer,
)
from ojster.insight.work_of_workers import WorkerHistory, WorkerSpan, work_of_workers
from ojster.jobs import statistics
from ojster.jobs.answer_wire import DeadLetterLimitsInfo, DeadLetterStatisticsAnswer
from ojster.jobs.filters import filter_of
from ojster.jobs.names import check_queue_name, check_type
from ojster.jobs.scope import CapabilityService, Scope
from ojster.jobs.statistics import Span
from ojster.queues import overview


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
        self.scope.need_all_queues("The task history")
        chosen = TaskFilter(type, subject, context, outcome, _clamped(limit), self.scope.tenant)
        return await self.scope.survey(task_history.list_runs, chosen)

    async def statistics(
        self, type: str | None = None, subject: str | None = None, context: str | None = None, *, limit: int = 100
    ) -> list[TaskStatistics]:
        """Return how often tasks have succeeded and failed, and how long they took; at most ``limit`` tasks."""
        self.scope.need_all_queues("The task history")
        chosen = TaskFilter(type, subject, context, None, _clamped(limit), self.scope.tenant)
        return await self.scope.survey(task_history.list_statistics, chosen)


def _clamped(limit: int) -> int:
    return min(limit, MOST_SHOWN)


_PERIODS: Final[dict[Period, int]] = {"1m": 1, "5m": 5, "1h": 60, "1d": 1440}
"""Steps of the statistics history, in minutes."""

MAX_HISTORY_STEPS: Final = 10_000
"""Maximum number of steps in the statistics history."""


_TIMES: Final = frozenset({"since", "until"})


class InsightService(CapabilityService, InsightCalls):
    """Calls about the work of the whole system, or of what the caller may see of it."""

    def __init__(self, scope: Scope, fleet: FleetService) -> None:
        super().__init__(scope)
        self._fleet = fleet

    async def facets(self, chosen: ListConditions = ListConditions()) -> FacetsAnswer:  # noqa: B008  (frozen)
        """Count jobs by state, queue, type and error type, each under the other conditions.

        Raises
        ------
        InvalidRequest
            A condition is malformed.
        """
        members = {name: value for name, value in msgspec.structs.asdict(chosen).items() if name not in _TIMES}
        times = {"created_after": chosen.since, "created_before": chosen.until}
        chosen_jobs = msgspec.structs.replace(filter_of(members), **times)
        counted = await self.scope.survey(count_facets, FacetQuestion(chosen_jobs, self.scope))
        shown: dict[str, list[FacetValueBody]] = {
            name: [FacetValueBody(value, jobs) for value, jobs in values] for name, values in counted.values.items()
        }
        return FacetsAnswer(shown, counted.examined, counted.is_complete, counted.exact)

    async def failures(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,
        error_type: str | None = None,
        internal: bool = False,
    ) -> Failures:
        """Return jobs that gave up, and those that wait for another attempt, in groups.

        Raises
        ------
        InvalidRequest
            A condition is malformed.
        """
        chosen = filter_of({"queue": queue, "type": type, "error_type": error_type, "internal": internal})
        return await self.scope.survey(group_failures, FailureQuestion(chosen, self.scope))

    async def attention(self) -> list[Finding]:
        """Return what needs the attention of an operator, the worst first.

        Raises
        ------
        Forbidden
            The caller may see some queues alone.
        """
        self.scope.require_all_queues("What needs attention")
        return await attention(self.database)

    async def statistics(self) -> SystemAnswer:
        """Return totals of the system, and the uptime of this process.

        Raises
        ------
        Forbidden
            The caller may see some queues alone.
        """
        self.scope.require_all_queues("The totals of the system")
        queues = await self.scope.survey(overview.list_overviews, overview.OverviewRequest(is_aged=False))
        jobs = dict.fromkeys((state.value for state in JobState), 0)
        for queue in queues:
            for state, number in queue.counts.items():
                jobs[state] += number
        recent = await self.scope.survey(statistics.recent_work, overview.THROUGHPUT_MINUTES)
        workers, throughput = len(await self._fleet.all()), overview.throughput(recent)
        return SystemAnswer(len(queues), workers, JobCountsBody(**jobs), throughput, uptime())

    async def history(
        self,
        period: Period = "5m",
        since: int | None = None,
        until: int | None = None,
        queue: str | None = None,
        type: str | None = None,
        worker: str | None = None,
        host: str | None = None,
    ) -> StatisticsHistoryAnswer:
        """Return the work of the past, in steps.

        Parameters
        ----------
        period:
            Length of a step.
        since, until:
            The range, in microseconds since the epoch; by default the last hour.
        queue, type:
            The queue, or the job type, that is counted; ``None``: all.
        worker, host:
            The worker, or the host of workers, whose jobs are counted, among the newest ``MAX_JOBS``.

        Raises
        ------
        InvalidRequest
            The range has more than ``MAX_HISTORY_STEPS`` steps, a name is malformed, or there are two of them.
        Forbidden
            The caller may see some queues alone.
        """
        self.scope.require_all_queues("The history of the system")
        check_bounds("period", period, Period)
        end = self.database.clock() if until is None else until
        start = end - HOUR if since is None else since
        step = _PERIODS[period]
        if (end - start) // (step * MINUTE) > MAX_HISTORY_STEPS:
            raise InvalidRequest(f"The range has over {MAX_HISTORY_STEPS} steps. Use a longer 'period'.", field="since")
        names = {"queue": queue, "type": type, "worker": worker, "host": host}
        if len(named := [name for name, value in names.items() if value is not None]) > 1:
            message = f"Name one of {', '.join(names)}, not two: each is counted over all of the others."
            raise InvalidRequest(message, field=named[1])
        queue = None if queue is None else check_queue_name(queue)
        type = None if type is None else check_type(type)
        deployed = await self.scope.survey(list_deployments, (start, end))
        if worker is None and host is None:
            counted = WorkerHistory(await self.scope.survey(statistics.history, Span(start, end, step, queue, type)))
        else:
            span = WorkerSpan(start, end, step, worker, host)
            counted = await self.scope.survey(work_of_workers, span)
        return StatisticsHistoryAnswer.made_of(period, counted, deployed)

    async def dead_letters(self) -> DeadLetterStatisticsAnswer:
        """Return how many dead letters the caller sees, by queue and by error type, and how long they are kept."""
        counted = await self.scope.survey(overview.count_dead_letters, self.scope)
        retention = self.database.settings.retention
        age = None if retention.dead_letter is None else format_duration(retention.dead_letter)
        return DeadLetterStatisticsAnswer(
            counted.total,
            counted.by_queue,
            counted.by_error_type,
            format_optional(counted.oldest_at),
            format_optional(counted.newest_at),
            DeadLetterLimitsInfo(age, retention.most_dead_letters),
        )

    async def configuration(self) -> SystemConfigurationAnswer:
        """Return the settings of this process."""
        self.scope.require_all_tenants("The configuration")
        database, settings = self.database, self.database.settings
        retention: dict[str, str | int | None] = {
            name: None if age is None else format_duration(age)
            for name, age in msgspec.structs.asdict(settings.retention).items()
            if name != "most_dead_letters"
        }
        replica = database.replica
        return SystemConfigurationAnswer(
            backend=database.kind,
            schema_version=database.schema_version,
            default_visibility_timeout=format_duration(settings.default_lease),
            default_timeout=None if settings.default_timeout is None else format_duration(settings.default_timeout),
            heartbeat_timeout=format_duration(settings.heartbeat_timeout),
            max_job_bytes=settings.largest_job,
            max_batch_size=settings.largest_batch,
            retention=retention | {"most_dead_letters": settings.retention.most_dead_letters},
            replica=None if replica is None else ReplicaBody(replica.is_used, replica.lag),
        )

    async def time(self) -> int:
        """Return the time by which jobs are due, in microseconds since the epoch."""
        return self.database.clock()

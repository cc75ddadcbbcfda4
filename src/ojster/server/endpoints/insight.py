"""Endpoints for operators.

All paths are under ``/ojs/v1/admin``, so that a proxy can restrict access. Some dead-letter paths are also served under
``/ojs/v1``.

Spec: ojs-admin-api
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from ojster.core.access import INSPECT
from ojster.core.durations import HOUR, MINUTE, format_duration, parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.states import JobState
from ojster.core.timestamps import format_optional, format_timestamp, parse_timestamp
from ojster.core.wire import JobCountsBody
from ojster.insight.wire import (
    HistoryStepBody,
    MaintenanceAnswer,
    PruneAnswer,
    ReplicaBody,
    StatisticsHistoryAnswer,
    SystemAnswer,
    SystemConfigurationAnswer,
)
from ojster.jobs import statistics
from ojster.jobs.names import check_queue_name, check_type
from ojster.jobs.statistics import Span
from ojster.queues import overview
from ojster.queues.overview import throughput
from ojster.schedules.wire import MAINTENANCE, PRUNE, MaintenanceBody, PruneBody
from ojster.server.admin import ADMIN, TAG
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.status import STARTED
from ojster.server.request import HttpRequest
from ojster.server.route import Route
from ojster.storage import system
from ojster.storage.system import Maintenance

_PERIODS: Final = {"1m": 1, "5m": 5, "1h": 60, "1d": 1440}

_MAX_HISTORY_STEPS: Final = 10_000
"""Maximum number of steps in the statistics history."""


async def show_stats(request: HttpRequest) -> Answer:
    """Show system totals: queues, workers, jobs by state, throughput and uptime."""
    service = request.service
    service.scope.need_view_of_all_queues()
    queues = await service.scope.survey(overview.list_overviews, None)
    jobs = dict.fromkeys((state.value for state in JobState), 0)
    for one in queues:
        for state, number in one.counts.items():
            jobs[state] += number
    recent = await service.scope.survey(statistics.recent_work, overview.THROUGHPUT_MINUTES)
    workers, uptime = len(await service.fleet.all()), int(time.monotonic() - STARTED)
    return Answer(encode(SystemAnswer(len(queues), workers, JobCountsBody(**jobs), throughput(recent), uptime)))


async def show_history(request: HttpRequest) -> Answer:
    """Show the statistics history in steps of ``period`` (1m, 5m, 1h, 1d), of one ``queue``, one ``type``, or all.

    For a type, attempts that have ended are counted, with the time that they had waited; ``enqueued`` is 0.
    """
    request.service.scope.need_view_of_all_queues()
    query, now = request.query, request.service.database.clock()
    period = query.get("period", "5m")
    if period not in _PERIODS:
        raise InvalidRequest(f"'period' is one of {', '.join(_PERIODS)}, not {period[:20]!r}.", field="period")
    until = parse_timestamp(query["until"]) if "until" in query else now
    since = parse_timestamp(query["since"]) if "since" in query else until - HOUR
    step = _PERIODS[period]
    if (until - since) // (step * MINUTE) > _MAX_HISTORY_STEPS:
        raise InvalidRequest(f"The range has over {_MAX_HISTORY_STEPS} steps. Use a longer 'period'.", field="since")
    queue = check_queue_name(query["queue"]) if "queue" in query else None
    type = check_type(query["type"]) if "type" in query else None
    if queue is not None and type is not None:
        raise InvalidRequest("Name a queue or a type, not both: a type is counted over all queues.", field="type")
    steps = await request.service.scope.survey(statistics.history, Span(since, until, step, queue, type))
    data = [
        HistoryStepBody(
            format_timestamp(at),
            work.enqueued,
            work.processed,
            work.completed,
            work.failed,
            work.percentile(0.5),
            work.percentile(0.95),
            work.percentile(0.99),
            work.run_percentile(0.5),
            work.run_percentile(0.95),
            work.run_percentile(0.99),
        )
        for at, work in steps
    ]
    return Answer(encode(StatisticsHistoryAnswer(period, data)))


async def maintain(request: HttpRequest) -> Answer:
    """Enable or disable maintenance mode, in which workers claim no jobs and schedules create none."""
    body = await request.read(MAINTENANCE)
    now = request.service.database.clock()
    estimate = body.estimated_duration or body.duration
    duration = None if estimate is None else parse_duration(estimate)
    wish = Maintenance(now, body.reason, None if duration is None else now + duration) if body.enabled else None
    return _maintenance(await request.service.scope.do(system.maintain, wish))


async def prune(request: HttpRequest) -> Answer:
    """Delete all data past its retention now, instead of with the next maintenance task. ``dry_run``: only count it."""
    raw = await request.optional_body()
    body = request.decode(raw, PRUNE) if raw else PruneBody()
    done = await request.service.maintenance.prune(dry_run=body.dry_run)
    return Answer(encode(PruneAnswer(done, body.dry_run)))


async def show_maintenance(request: HttpRequest) -> Answer:
    """Show whether maintenance mode is enabled."""
    return _maintenance(await request.service.scope.look(system.find_maintenance, None))


def _maintenance(found: Maintenance | None) -> Answer:
    shown = MaintenanceAnswer(found is not None, found is not None)
    if found is not None:
        shown.reason = found.reason
        shown.enabled_at, shown.estimated_end = format_optional(found.enabled_at), format_optional(found.estimated_end)
    return Answer(encode(shown))


async def show_system_config(request: HttpRequest) -> Answer:
    """Show the settings of this server."""
    database = request.service.database
    settings = database.settings
    retention: dict[str, str | int | None] = {
        name: None if age is None else format_duration(age)
        for name, age in msgspec.structs.asdict(settings.retention).items()
        if name != "most_dead_letters"
    }
    replica = database.replica
    shown = SystemConfigurationAnswer(
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
    return Answer(encode(shown))


ROUTES: Final = (
    Route("GET", f"{ADMIN}/stats", show_stats, TAG, answer=SystemAnswer, needs=INSPECT),
    Route(
        "GET",
        f"{ADMIN}/stats/history",
        show_history,
        TAG,
        answer=StatisticsHistoryAnswer,
        query=("period", "since", "until", "queue", "type"),
        needs=INSPECT,
    ),
    Route("POST", f"{ADMIN}/prune", prune, TAG, PruneBody, PruneAnswer, may_be_empty=True),
    Route("GET", f"{ADMIN}/system/maintenance", show_maintenance, TAG, answer=MaintenanceAnswer, needs=INSPECT),
    Route("POST", f"{ADMIN}/system/maintenance", maintain, TAG, MaintenanceBody, MaintenanceAnswer),
    Route("GET", f"{ADMIN}/system/config", show_system_config, TAG, answer=SystemConfigurationAnswer),
)

"""Endpoints for operators.

All paths are under ``/ojs/v1/admin``, so that a proxy can restrict access. Some dead-letter paths are also served under
``/ojs/v1``.

Spec: ojs-admin-api
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ojster.core.durations import HOUR, MINUTE, format_duration, parse_duration
from ojster.core.errors import InvalidRequest, NotFound, Unsupported
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp, parse_timestamp
from ojster.fleet import workers
from ojster.fleet.ml_resources import ResourceLimits, check_defaults
from ojster.fleet.workers import Worker
from ojster.insight import overview, statistics
from ojster.insight.overview import QueueOverview, throughput
from ojster.insight.statistics import Span
from ojster.insight.status_routes import STARTED
from ojster.jobs import interventions
from ojster.jobs.bulk import Action
from ojster.jobs.dead_letter_routes import revive
from ojster.jobs.envelope import retry_policy, to_json
from ojster.jobs.filters import filter_of
from ojster.jobs.names import check_queue_name
from ojster.jobs.queries import Page
from ojster.jobs.selection import JobFilter
from ojster.jobs.service import Sweep
from ojster.queues import configuration
from ojster.queues.configuration import Configuration, QueueConfig
from ojster.queues.rate_limit import Limits, parse_limits
from ojster.queues.rules import Bound
from ojster.server import wire
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import Answer, HttpRequest, encode
from ojster.server.route import BASE, NUMBERED_PAGE, Route
from ojster.storage import system
from ojster.storage.system import Maintenance

ADMIN: Final = f"{BASE}/admin"

JOB_FILTER_PARAMETERS: Final = ("queue", "state", "type", "error_type", "since", "until")
"""Query parameters of the job search."""

_SORTS: Final = ("created_at", "scheduled_at", "priority")
_SHOWN_STATES: Final = tuple(state.value for state in JobState)
_PERIODS: Final = {"1m": 1, "5m": 5, "1h": 60, "1d": 1440}
_MAX_HISTORY_STEPS: Final = 10_000
"""Maximum number of steps in the statistics history."""


# Queues


async def list_admin_queues(exchange: HttpRequest) -> Answer:
    """List the queues with their job counts by state, throughput and latency."""
    page = numbered_page(exchange.query)
    found = await exchange.engine.scope.look(overview.list_overviews, None)
    items = [_queue(one) for one in found[page.offset : page.offset + page.size]]
    return Answer(encode({"items": items, "pagination": numbered_pagination(page, len(found))}))


async def show_admin_queue(exchange: HttpRequest) -> Answer:
    """Show a queue with its counts, throughput, latency and configuration."""
    name = check_queue_name(exchange.path["name"])
    found = await exchange.engine.scope.look(overview.show_queues, name)
    if found is None:
        raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
    shown = _queue(found.overview)
    shown["configuration"] = _configuration(found.overview.queue.limits, found.config)
    shown["oldest_available_at"] = _moment(found.oldest_at)
    return Answer(encode(shown))


def _queue(one: QueueOverview) -> dict[str, Any]:
    queue, hour = one.queue, one.hour
    return {
        "name": queue.name,
        "state": "paused" if queue.paused_at else "active",
        "counts": {state: one.counts.get(state, 0) for state in _SHOWN_STATES},
        "throughput": one.throughput(),
        "latency_ms": {name: hour.percentile(share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
        "paused": queue.paused_at is not None,
        "paused_at": _moment(queue.paused_at),
        "created_at": format_timestamp(queue.created_at),
    }


async def list_unrunnable(exchange: HttpRequest) -> Answer:
    """List the kinds of waiting jobs that no registered worker can run, with the reasons."""
    return Answer(encode({"unrunnable": await exchange.engine.fleet.unrunnable()}))


async def pause_admin_queue(exchange: HttpRequest) -> Answer:
    """Pause a queue: workers cannot claim its jobs, but clients can still enqueue."""
    queue = await exchange.engine.queues.pause(exchange.path["name"])
    return Answer(encode({"name": queue.name, "paused": True, "paused_at": _moment(queue.paused_at)}))


async def resume_admin_queue(exchange: HttpRequest) -> Answer:
    """Resume a paused queue, so that workers can claim its jobs."""
    queue = await exchange.engine.queues.resume(exchange.path["name"])
    return Answer(encode({"name": queue.name, "paused": False}))


async def show_queue_config(exchange: HttpRequest) -> Answer:
    """Show the configuration of a queue."""
    return Answer(encode(await _config_of(exchange, check_queue_name(exchange.path["name"]))))


async def configure_queue(exchange: HttpRequest) -> Answer:
    """Change the configuration of a queue, which need not exist. Omitted members keep their values."""
    name = check_queue_name(exchange.path["name"])
    body = await exchange.read(wire.QUEUE_CONFIG)
    change = Configuration(name, _limits(body), _retention_changes(body), _policy_changes(body))
    await exchange.engine.scope.do(configuration.configure, change)
    return Answer(encode(await _config_of(exchange, name)))


async def limit_admin_queue(exchange: HttpRequest) -> Answer:
    """Replace the concurrency limit and the rate limits of a queue. An empty body removes all limits."""
    name = check_queue_name(exchange.path["name"])
    limits = parse_limits(msgspec.to_builtins(await exchange.read(wire.QUEUE_LIMIT)), "rate_limit")
    await exchange.engine.scope.do(configuration.configure, Configuration(name, msgspec.structs.asdict(limits)))
    return Answer(encode(await _config_of(exchange, name)))


async def _config_of(exchange: HttpRequest, name: str) -> dict[str, Any]:
    found = await exchange.engine.scope.look(overview.show_queues, name)
    if found is None:
        raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
    return {"queue": name, "configuration": _configuration(found.overview.queue.limits, found.config)}


def _configuration(limits: Limits, config: QueueConfig) -> dict[str, Any]:
    shown: dict[str, Any] = limits.to_wire()
    if limits.rate is not None:
        shown["rate_limit"] = shown.pop("rate")
    kept = config.retention
    ages = {name: getattr(kept, name) for name in ("completed", "cancelled", "discarded")}
    if retention := {name: format_duration(age) for name, age in ages.items() if age is not None}:
        shown["retention"] = retention
    dead: dict[str, Any] = {}
    if kept.dead_letter is not None:
        dead["max_age"] = format_duration(kept.dead_letter)
    if kept.most_dead_letters is not None:
        dead["max_count"] = kept.most_dead_letters
    if dead:
        shown["dead_letter"] = {"retention": dead}
    if config.backpressure is not None:
        shown["backpressure"] = msgspec.to_builtins(config.backpressure)
    if config.ml_defaults:
        shown["ml_defaults"] = config.ml_defaults
    if config.ml_limits != ResourceLimits():
        limits_of_resources = msgspec.structs.asdict(config.ml_limits)
        shown["ml_limits"] = {name: limit for name, limit in limits_of_resources.items() if limit is not None}
    return shown


def _limits(body: wire.QueueConfigBody) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if body.concurrency is not UNSET:
        changes["concurrency"] = body.concurrency
    if body.rate_limit is not UNSET:
        given = parse_limits(body.rate_limit or {}, "configuration.rate_limit")
        changes["rate"] = given.rate
        if given.concurrency is not None:
            changes["concurrency"] = given.concurrency
    if body.throttle is not UNSET:
        changes["throttle"] = parse_limits({"throttle": body.throttle}, "configuration").throttle
    return changes


def _retention_changes(body: wire.QueueConfigBody) -> dict[str, int | None]:
    changes: dict[str, int | None] = {}
    if body.retention is not UNSET:
        given = dict.fromkeys(_FINISHED) if body.retention is None else body.retention
        for name, age in given.items():
            if name not in _FINISHED:
                raise InvalidRequest(
                    f"Unknown retention {name!r:.40}. Use one of {', '.join(_FINISHED)}.", field="retention"
                )
            changes[name] = None if age is None else parse_duration(age)
    if body.dead_letter is not UNSET:
        kept = wire.DeadLetterRetentionBody() if body.dead_letter is None else body.dead_letter.retention
        if body.dead_letter is None or kept.max_age is not UNSET:
            changes["dead_letter"] = parse_duration(kept.max_age) if isinstance(kept.max_age, str) else None
        if body.dead_letter is None or kept.max_count is not UNSET:
            changes["most_dead_letters"] = kept.max_count if isinstance(kept.max_count, int) else None
    return changes


_FINISHED: Final = ("completed", "cancelled", "discarded")


def _policy_changes(body: wire.QueueConfigBody) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if body.backpressure is not UNSET:
        changes["backpressure"] = None if body.backpressure is None else _bound(body.backpressure)
    if body.ml_defaults is not UNSET:
        changes["ml_defaults"] = body.ml_defaults or {}
        check_defaults(changes["ml_defaults"])
    if body.ml_limits is not UNSET:
        changes["ml_limits"] = body.ml_limits or ResourceLimits()
    return changes


def _bound(body: wire.BackpressureBody) -> Bound | None:
    if body.max_size_bytes:
        raise Unsupported("'max_size_bytes' is not supported. Bound the queue with 'max_depth' instead.")
    return Bound(body.max_depth, body.strategy, body.warning_threshold) if body.max_depth else None


async def purge_queue(exchange: HttpRequest) -> Answer:
    """Delete finished jobs of a queue in some ``states``; with ``older_than`` only those finished before it."""
    name = check_queue_name(exchange.path["name"])
    body = await exchange.read(wire.PURGE)
    _check_confirmed(body.confirm)
    if not body.states:
        raise InvalidRequest("'states' is empty. Name at least one state of finished jobs.", field="states")
    chosen = filter_of({"queue": name, "states": list(body.states), "older_than": body.older_than})
    found = await exchange.engine.jobs.sweep(Action.DELETE, chosen)
    return Answer(encode({"purged_count": found.succeeded, "skipped": found.failed, "states": list(body.states)}))


# Jobs


async def search_jobs(exchange: HttpRequest) -> Answer:
    """Search jobs by ``queue``, ``state``, ``type``, ``error_type``, ``since`` and ``until``, sorted by ``sort``."""
    return await _job_list(exchange, {})


async def _job_list(exchange: HttpRequest, more: Mapping[str, Any]) -> Answer:
    query = exchange.query
    page = numbered_page(query)
    sort, order = query.get("sort", "created_at"), query.get("order", "desc")
    if sort not in _SORTS or order not in ("asc", "desc"):
        raise InvalidRequest(f"Invalid sort: use {', '.join(_SORTS)} and 'asc' or 'desc'.", field="sort")
    chosen = filter_of({name: query.get(name) for name in JOB_FILTER_PARAMETERS})
    if more:
        chosen = msgspec.structs.replace(chosen, **more)
    wanted = Page(page.size, page.offset, sort=sort, ascending=order == "asc")
    found = await exchange.engine.jobs.select(chosen, wanted)
    items = [_summary(job) for job in found.jobs]
    return Answer(encode({"items": items, "pagination": numbered_pagination(page, found.total)}))


_SUMMARY: Final = frozenset(
    (
        "id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "enqueued_at",
        "started_at", "completed_at", "cancelled_at", "discarded_at", "scheduled_at", "next_attempt_at", "error",
        "worker_id", "tags", "workflow_id",
    )
)  # fmt: skip


def _members(job: Job) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(to_json(job), type=dict[str, msgspec.Raw])


def _summary(job: Job) -> dict[str, msgspec.Raw]:
    return {name: value for name, value in _members(job).items() if name in _SUMMARY}


async def inspect_job(exchange: HttpRequest) -> Answer:
    """Show a job with its envelope, errors and timestamps."""
    return Answer(encode(_detail(await exchange.engine.jobs.find(exchange.path["id"]))))


def _detail(job: Job) -> dict[str, Any]:
    shown: dict[str, Any] = dict(_members(job))
    due_at = job.due_at if job.state == JobState.SCHEDULED else None
    ends = {state: job.finished_at if job.state == state else None for state in ("completed", "cancelled", "discarded")}
    shown["retry_policy"] = shown.get("retry") or msgspec.to_builtins(retry_policy(job))
    shown.setdefault("errors", [])
    shown.setdefault("result", None)
    shown["dead_letter"] = bool(job.dead)
    shown["metadata"] = {
        "created_at": _moment(job.created_at),
        "enqueued_at": _moment(job.enqueued_at),
        "started_at": _moment(job.started_at),
        "scheduled_at": _moment(due_at),
        "expires_at": _moment(job.expires_at),
        **{f"{state}_at": _moment(at) for state, at in ends.items()},
    }
    return shown


async def cancel_admin_job(exchange: HttpRequest) -> Answer:
    """Cancel an unfinished job."""
    steered = await exchange.engine.jobs.cancel(exchange.path["id"])
    return Answer(encode({"id": steered.job.id, "state": steered.job.state, "previous_state": steered.before}))


async def retry_admin_job(exchange: HttpRequest) -> Answer:
    """Run a discarded or cancelled job again, with attempts and errors reset."""
    job = await exchange.engine.scope.do(interventions.revive, exchange.path["id"])
    return Answer(encode({"id": job.id, "state": job.state, "attempt": job.attempt}))


def _sweep_endpoint(action: Action, doc: str) -> Any:
    async def sweep(exchange: HttpRequest) -> Answer:
        body = await exchange.read(wire.CONFIRMED_FILTER)
        _check_confirmed(body.confirm)
        if not body.filter:
            raise InvalidRequest("'filter' is empty, which would select all jobs. Add a condition.", field="filter")
        return Answer(encode(_sweep_result(await exchange.engine.jobs.sweep(action, filter_of(body.filter)))))

    sweep.__name__ = f"{action}_admin_jobs"
    sweep.__doc__ = doc
    return sweep


def _sweep_result(found: Sweep) -> dict[str, Any]:
    errors = [{"job_id": job_id, "error": refusal.message} for job_id, refusal in found.items if refusal is not None]
    return {
        "action": found.action,
        "matched": found.matched,
        "succeeded": found.succeeded,
        "failed": found.failed,
        "errors": errors,
    }


def _check_confirmed(confirm: bool) -> None:
    if confirm is not True:
        raise InvalidRequest('"confirm" is not true. Send "confirm": true, as this cannot be undone.', field="confirm")


# Workers


async def list_admin_workers(exchange: HttpRequest) -> Answer:
    """List the workers, most recently seen first, with counts by state."""
    page = numbered_page(exchange.query)
    found = await exchange.engine.fleet.all()
    shown = [_worker(worker, _is_stale(exchange, worker)) for worker in found]
    summary = {"total": len(found), "running": 0, "quiet": 0, "stale": 0}
    for one in shown:
        state = one["state"] if one["state"] in summary else "quiet"
        summary[state] += 1
    items = shown[page.offset : page.offset + page.size]
    return Answer(encode({"items": items, "summary": summary, "pagination": numbered_pagination(page, len(found))}))


def _is_stale(exchange: HttpRequest, worker: Worker) -> bool:
    database = exchange.engine.database
    return database.clock() - worker.last_seen_at > database.settings.heartbeat_timeout


def _worker(worker: Worker, stale: bool) -> dict[str, Any]:
    shown = msgspec.structs.asdict(worker)
    shown["state"] = "stale" if stale else worker.state
    shown["started_at"] = format_timestamp(worker.started_at)
    shown["last_heartbeat_at"] = format_timestamp(shown.pop("last_seen_at"))
    return shown


async def show_admin_worker(exchange: HttpRequest) -> Answer:
    """Show a worker and the jobs that it runs."""
    worker = await exchange.engine.fleet.find(exchange.path["id"])
    held = await exchange.engine.scope.look(workers.held_jobs, worker.id)
    shown = _worker(worker, _is_stale(exchange, worker))
    return Answer(encode(shown | {"jobs": [_summary(job) for job in held]}))


async def quiet_worker(exchange: HttpRequest) -> Answer:
    """Quiet a worker: after its next heartbeat it claims no more jobs, and finishes those that it has."""
    worker = await exchange.engine.fleet.direct(exchange.path["id"], "quiet")
    return Answer(encode(_worker(worker, _is_stale(exchange, worker))))


async def deregister_worker(exchange: HttpRequest) -> Answer:
    """Remove a worker that has missed its heartbeats, and make its jobs available again."""
    await exchange.engine.scope.do(workers.deregister, exchange.path["id"])
    return Answer(encode({"deregistered": True, "id": exchange.path["id"]}))


# Statistics


async def show_stats(exchange: HttpRequest) -> Answer:
    """Show system totals: queues, workers, jobs by state, throughput and uptime."""
    engine = exchange.engine
    queues = await engine.scope.look(overview.list_overviews, None)
    jobs = dict.fromkeys(_SHOWN_STATES, 0)
    for one in queues:
        for state, number in one.counts.items():
            jobs[state] += number
    recent = await engine.scope.look(statistics.recent_work, overview.THROUGHPUT_MINUTES)
    shown = {
        "queues": len(queues),
        "workers": len(await engine.fleet.all()),
        "jobs": jobs,
        "throughput": throughput(recent),
        "uptime_seconds": int(time.monotonic() - STARTED),
    }
    return Answer(encode(shown))


async def show_history(exchange: HttpRequest) -> Answer:
    """Show the statistics history in steps of ``period`` (1m, 5m, 1h, 1d), of one ``queue`` or of all."""
    query, now = exchange.query, exchange.engine.database.clock()
    period = query.get("period", "5m")
    if period not in _PERIODS:
        raise InvalidRequest(f"'period' is one of {', '.join(_PERIODS)}, not {period[:20]!r}.", field="period")
    until = parse_timestamp(query["until"]) if "until" in query else now
    since = parse_timestamp(query["since"]) if "since" in query else until - HOUR
    step = _PERIODS[period]
    if (until - since) // (step * MINUTE) > _MAX_HISTORY_STEPS:
        raise InvalidRequest(f"The range has over {_MAX_HISTORY_STEPS} steps. Use a longer 'period'.", field="since")
    queue = check_queue_name(query["queue"]) if "queue" in query else None
    steps = await exchange.engine.scope.look(statistics.history, Span(since, until, step, queue))
    data = [
        {
            "timestamp": format_timestamp(at),
            "enqueued": work.enqueued,
            "processed": work.processed,
            "completed": work.completed,
            "failed": work.failed,
            "latency_p50_ms": work.percentile(0.5),
            "latency_p95_ms": work.percentile(0.95),
            "latency_p99_ms": work.percentile(0.99),
        }
        for at, work in steps
    ]
    return Answer(encode({"period": period, "data": data}))


# Dead letters


async def list_admin_dead_letters(exchange: HttpRequest) -> Answer:
    """List the dead letters, with the same filters as the job search."""
    return await _job_list(exchange, {"dead": True})


async def show_dead_letter(exchange: HttpRequest) -> Answer:
    """Show a dead letter with its envelope and errors."""
    job = await exchange.engine.jobs.find(exchange.path["id"])
    if not job.dead:
        raise NotFound(f"Job {job.id} is not a dead letter.", resource_type="dead_letter_job", resource_id=job.id)
    return Answer(encode(_detail(job)))


async def count_dead_letters(exchange: HttpRequest) -> Answer:
    """Show dead letter counts, by queue and error type, and their retention."""
    found = await exchange.engine.scope.look(overview.count_dead_letters, exchange.engine.scope.tenant)
    retention = exchange.engine.database.settings.retention
    shown = {
        "total": found.total,
        "by_queue": found.by_queue,
        "by_error_type": found.by_error_type,
        "oldest_at": _moment(found.oldest_at),
        "newest_at": _moment(found.newest_at),
        "retention": {
            "max_age": None if retention.dead_letter is None else format_duration(retention.dead_letter),
            "max_count": retention.most_dead_letters,
        },
    }
    return Answer(encode(shown))


async def retry_dead_letters(exchange: HttpRequest) -> Answer:
    """Run all dead letters that match a filter again, with attempts and errors reset."""
    return Answer(encode(_sweep_result(await exchange.engine.jobs.sweep(Action.RETRY, await _dead_letters(exchange)))))


async def purge_dead_letters(exchange: HttpRequest) -> Answer:
    """Delete dead letters permanently: all, those that match ``filter``, or those ``older_than`` a time."""
    found = await exchange.engine.jobs.sweep(Action.DELETE, await _dead_letters(exchange))
    return Answer(encode(_sweep_result(found) | {"purged_count": found.succeeded}))


async def _dead_letters(exchange: HttpRequest) -> JobFilter:
    body = await exchange.read(wire.DEAD_LETTERS)
    _check_confirmed(body.confirm)
    given = dict(body.filter or {})
    if body.older_than is not None:
        given["older_than"] = body.older_than
    chosen = filter_of(given)
    return msgspec.structs.replace(chosen, dead=True, states=(JobState.DISCARDED.value,))


async def delete_admin_dead_letter(exchange: HttpRequest) -> Answer:
    """Delete a discarded job permanently."""
    await exchange.engine.jobs.delete_dead(exchange.path["id"])
    return Answer(b"", 204)


async def retry_admin_dead_letter(exchange: HttpRequest) -> Answer:
    """Run a discarded job again, with attempts and errors reset."""
    job = await revive(exchange)
    return Answer(encode(_detail(job)))


# The system


async def maintain(exchange: HttpRequest) -> Answer:
    """Enable or disable maintenance mode, in which workers claim no jobs and schedules create none."""
    body = await exchange.read(wire.MAINTENANCE)
    now = exchange.engine.database.clock()
    duration = None if body.estimated_duration is None else parse_duration(body.estimated_duration)
    wish = Maintenance(now, body.reason, None if duration is None else now + duration) if body.enabled else None
    return _maintenance(await exchange.engine.scope.do(system.maintain, wish))


async def prune(exchange: HttpRequest) -> Answer:
    """Delete all data past its retention now, instead of with the next maintenance task. ``dry_run``: only count it."""
    raw = await exchange.optional_body()
    body = exchange.decode(raw, wire.PRUNE) if raw else wire.PruneBody()
    done = await exchange.engine.maintenance.prune(dry_run=body.dry_run)
    return Answer(encode({"pruned": done, "dry_run": body.dry_run}))


async def show_maintenance(exchange: HttpRequest) -> Answer:
    """Show whether maintenance mode is enabled."""
    return _maintenance(await exchange.engine.scope.look(system.find_maintenance, None))


def _maintenance(found: Maintenance | None) -> Answer:
    if found is None:
        return Answer(encode({"maintenance": False}))
    shown = {
        "maintenance": True,
        "reason": found.reason,
        "enabled_at": _moment(found.enabled_at),
        "estimated_end": _moment(found.estimated_end),
    }
    return Answer(encode(shown))


async def show_system_config(exchange: HttpRequest) -> Answer:
    """Show the settings of this server."""
    database = exchange.engine.database
    settings = database.settings
    retention = {
        name: None if age is None else format_duration(age)
        for name, age in msgspec.structs.asdict(settings.retention).items()
        if name != "most_dead_letters"
    }
    shown = {
        "backend": database.kind,
        "schema_version": database.schema_version,
        "default_visibility_timeout": format_duration(settings.default_lease),
        "default_timeout": None if settings.default_timeout is None else format_duration(settings.default_timeout),
        "heartbeat_timeout": format_duration(settings.heartbeat_timeout),
        "max_job_bytes": settings.largest_job,
        "max_batch_size": settings.largest_batch,
        "retention": retention | {"most_dead_letters": settings.retention.most_dead_letters},
    }
    return Answer(encode(shown))


def _moment(at: int | None) -> str | None:
    return None if at is None else format_timestamp(at)


_RETRY_ALL: Final = _sweep_endpoint(
    Action.RETRY, "Run all jobs that match a filter again: discarded, or waiting for a retry."
)
_CANCEL_ALL: Final = _sweep_endpoint(Action.CANCEL, "Cancel all jobs that match a filter.")
_DELETE_ALL: Final = _sweep_endpoint(Action.DELETE, "Delete all finished jobs that match a filter permanently.")
_SEARCH: Final = (*JOB_FILTER_PARAMETERS, "sort", "order", *NUMBERED_PAGE)
_TAG: Final = "Operators"

ROUTES: Final = (
    Route("GET", f"{ADMIN}/queues", list_admin_queues, _TAG, query=NUMBERED_PAGE),
    Route("GET", f"{ADMIN}/queues/{{name}}", show_admin_queue, _TAG),
    Route("POST", f"{ADMIN}/queues/{{name}}/pause", pause_admin_queue, _TAG),
    Route("POST", f"{ADMIN}/queues/{{name}}/resume", resume_admin_queue, _TAG),
    Route("GET", f"{ADMIN}/queues/{{name}}/config", show_queue_config, _TAG),
    Route("PUT", f"{ADMIN}/queues/{{name}}/config", configure_queue, _TAG, wire.QueueConfigBody),
    Route("PUT", f"{ADMIN}/queues/{{name}}/rate-limit", limit_admin_queue, _TAG, wire.QueueLimitBody),
    Route("DELETE", f"{ADMIN}/queues/{{name}}/jobs", purge_queue, _TAG, wire.PurgeBody),
    Route("GET", f"{ADMIN}/jobs", search_jobs, _TAG, query=_SEARCH),
    Route("GET", f"{ADMIN}/unrunnable", list_unrunnable, _TAG),
    Route("GET", f"{ADMIN}/jobs/{{id}}", inspect_job, _TAG),
    Route("POST", f"{ADMIN}/jobs/{{id}}/cancel", cancel_admin_job, _TAG),
    Route("POST", f"{ADMIN}/jobs/{{id}}/retry", retry_admin_job, _TAG),
    Route("POST", f"{ADMIN}/jobs/bulk/retry", _RETRY_ALL, _TAG, wire.ConfirmedFilterBody),
    Route("POST", f"{ADMIN}/jobs/bulk/cancel", _CANCEL_ALL, _TAG, wire.ConfirmedFilterBody),
    Route("POST", f"{ADMIN}/jobs/bulk/delete", _DELETE_ALL, _TAG, wire.ConfirmedFilterBody),
    Route("GET", f"{ADMIN}/workers", list_admin_workers, _TAG, query=NUMBERED_PAGE),
    Route("GET", f"{ADMIN}/workers/{{id}}", show_admin_worker, _TAG),
    Route("POST", f"{ADMIN}/workers/{{id}}/quiet", quiet_worker, _TAG),
    Route("DELETE", f"{ADMIN}/workers/{{id}}", deregister_worker, _TAG),
    Route("GET", f"{ADMIN}/stats", show_stats, _TAG),
    Route("GET", f"{ADMIN}/stats/history", show_history, _TAG, query=("period", "since", "until", "queue")),
    Route("GET", f"{ADMIN}/dead-letter", list_admin_dead_letters, _TAG, query=_SEARCH),
    Route(
        "POST",
        f"{ADMIN}/dead-letter/{{id}}/retry",
        retry_admin_dead_letter,
        _TAG,
        wire.DeadLetterRetryBody,
        may_be_empty=True,
    ),
    Route("DELETE", f"{ADMIN}/dead-letter/{{id}}", delete_admin_dead_letter, _TAG),
    *(
        route
        for base in (ADMIN, BASE)
        for route in (
            Route("GET", f"{base}/dead-letter/stats", count_dead_letters, _TAG),
            Route("GET", f"{base}/dead-letter/{{id}}", show_dead_letter, _TAG),
            Route("POST", f"{base}/dead-letter/retry", retry_dead_letters, _TAG, wire.DeadLettersBody),
            Route("DELETE", f"{base}/dead-letter", purge_dead_letters, _TAG, wire.DeadLettersBody),
        )
    ),
    Route("POST", f"{ADMIN}/prune", prune, _TAG, wire.PruneBody, may_be_empty=True),
    Route("GET", f"{ADMIN}/system/maintenance", show_maintenance, _TAG),
    Route("POST", f"{ADMIN}/system/maintenance", maintain, _TAG, wire.MaintenanceBody),
    Route("GET", f"{ADMIN}/system/config", show_system_config, _TAG),
)

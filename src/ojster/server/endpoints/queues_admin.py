"""Endpoints for operators about queues.

Spec: ojs-admin-api 6
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.access import INSPECT
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.states import JobState
from ojster.core.timestamps import format_optional, format_timestamp
from ojster.core.wire import JobCountsBody
from ojster.jobs.bulk import Action
from ojster.jobs.filters import filter_of
from ojster.jobs.names import check_queue_name
from ojster.jobs.rate_limit_wire import parse_limits
from ojster.jobs.wire import PURGE, PurgeBody
from ojster.queues import configuration, overview
from ojster.queues.answer_wire import (
    AdminQueueBody,
    AdminQueuesAnswer,
    LatencyBody,
    PurgedAnswer,
    QueueConfigurationAnswer,
    QueueDetailAnswer,
    QueuePausedAnswer,
    show_configuration,
)
from ojster.queues.configuration import Configuration
from ojster.queues.configuration_wire import configuration_of
from ojster.queues.overview import QueueOverview, throughput
from ojster.queues.wire import QUEUE_CONFIG, QUEUE_LIMIT, QueueConfigBody, QueueLimitBody
from ojster.server.admin import ADMIN, TAG
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.jobs_admin import check_confirmed
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import NUMBERED_PAGE, Route


async def list_admin_queues(request: HttpRequest) -> Answer:
    """List the queues with their job counts by state, throughput and latency."""
    request.service.scope.need_view_of_all_queues()
    page = numbered_page(request.query)
    found = await request.service.scope.survey(overview.list_overviews, None)
    items = [AdminQueueBody(**_members(one)) for one in found[page.offset : page.offset + page.size]]
    return Answer(encode(AdminQueuesAnswer(items, numbered_pagination(page, len(found)))))


async def show_admin_queue(request: HttpRequest) -> Answer:
    """Show a queue with its counts, throughput, latency and configuration."""
    request.service.scope.need_view_of_all_queues()
    name = check_queue_name(request.path["name"])
    found = await request.service.scope.look(overview.show_queues, name)
    if found is None:
        raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
    shown = QueueDetailAnswer(
        **_members(found.overview),
        configuration=show_configuration(found.overview.queue.limits, found.config),
        oldest_available_at=format_optional(found.oldest_at),
    )
    return Answer(encode(shown))


def _members(one: QueueOverview) -> dict[str, Any]:
    queue, hour = one.queue, one.hour
    return {
        "name": queue.name,
        "state": "active" if queue.paused_at is None else "paused",
        "counts": JobCountsBody(**{state.value: one.counts.get(state, 0) for state in JobState}),
        "throughput": throughput(one.recent),
        "latency_ms": LatencyBody(hour.percentile(0.5), hour.percentile(0.95), hour.percentile(0.99)),
        "paused": queue.paused_at is not None,
        "paused_at": format_optional(queue.paused_at),
        "created_at": format_timestamp(queue.created_at),
    }


async def pause_admin_queue(request: HttpRequest) -> Answer:
    """Pause a queue: workers cannot claim its jobs, but clients can still enqueue."""
    queue = await request.service.queues.pause(request.path["name"])
    return Answer(encode(QueuePausedAnswer(queue.name, True, format_optional(queue.paused_at))))


async def resume_admin_queue(request: HttpRequest) -> Answer:
    """Resume a paused queue, so that workers can claim its jobs."""
    queue = await request.service.queues.resume(request.path["name"])
    return Answer(encode(QueuePausedAnswer(queue.name, False)))


async def show_queue_config(request: HttpRequest) -> Answer:
    """Show the configuration of a queue."""
    return Answer(encode(await queue_configuration(request, check_queue_name(request.path["name"]))))


async def configure_queue(request: HttpRequest) -> Answer:
    """Change the configuration of a queue, which need not exist. Omitted members keep their values."""
    name = check_queue_name(request.path["name"])
    body = await request.read(QUEUE_CONFIG)
    await request.service.scope.do(configuration.configure, configuration_of(name, body))
    return Answer(encode(await queue_configuration(request, name)))


async def limit_admin_queue(request: HttpRequest) -> Answer:
    """Replace the concurrency limit and the rate limits of a queue. An empty body removes all limits."""
    name = check_queue_name(request.path["name"])
    limits = parse_limits(msgspec.to_builtins(await request.read(QUEUE_LIMIT)), "rate_limit")
    await request.service.scope.do(configuration.configure, Configuration(name, msgspec.structs.asdict(limits)))
    return Answer(encode(await queue_configuration(request, name)))


async def queue_configuration(request: HttpRequest, name: str) -> QueueConfigurationAnswer:
    """Return the configuration of a queue."""
    found = await request.service.scope.look(overview.show_queues, name)
    if found is None:
        raise NotFound(f"There is no queue {name!r}.", resource_type="queue", resource_id=name)
    return QueueConfigurationAnswer(name, show_configuration(found.overview.queue.limits, found.config))


async def purge_queue(request: HttpRequest) -> Answer:
    """Delete finished jobs of a queue in some ``states``; with ``older_than`` only those finished before it."""
    name = check_queue_name(request.path["name"])
    body = await request.read(PURGE)
    check_confirmed(body.confirm)
    if not body.states:
        raise InvalidRequest("'states' is empty. Name at least one state of finished jobs.", field="states")
    chosen = filter_of({"queue": name, "states": list(body.states), "older_than": body.older_than})
    found = await request.service.bulk.sweep(Action.DELETE, chosen)
    return Answer(encode(PurgedAnswer(found.succeeded, found.failed, body.states)))


ROUTES: Final = (
    Route(
        "GET", f"{ADMIN}/queues", list_admin_queues, TAG, answer=AdminQueuesAnswer, query=NUMBERED_PAGE, needs=INSPECT
    ),
    Route("GET", f"{ADMIN}/queues/{{name}}", show_admin_queue, TAG, answer=QueueDetailAnswer, needs=INSPECT),
    Route("POST", f"{ADMIN}/queues/{{name}}/pause", pause_admin_queue, TAG, answer=QueuePausedAnswer),
    Route("POST", f"{ADMIN}/queues/{{name}}/resume", resume_admin_queue, TAG, answer=QueuePausedAnswer),
    Route("GET", f"{ADMIN}/queues/{{name}}/config", show_queue_config, TAG, answer=QueueConfigurationAnswer),
    Route("PUT", f"{ADMIN}/queues/{{name}}/config", configure_queue, TAG, QueueConfigBody, QueueConfigurationAnswer),
    Route(
        "PUT", f"{ADMIN}/queues/{{name}}/rate-limit", limit_admin_queue, TAG, QueueLimitBody, QueueConfigurationAnswer
    ),
    Route("DELETE", f"{ADMIN}/queues/{{name}}/jobs", purge_queue, TAG, PurgeBody, PurgedAnswer),
)

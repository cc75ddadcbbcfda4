"""Endpoints for queues.

Spec: ojs-http-binding 11
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from ojster.jobs.names import check_queue_name
from ojster.queues.answer_wire import (
    QueueAnswer,
    QueueConfigurationAnswer,
    QueueCreatedAnswer,
    QueueDeletedAnswer,
    QueuesAnswer,
    QueueStatisticsAnswer,
    show_queue,
    show_statistics,
)
from ojster.queues.configuration import Configuration, configure
from ojster.queues.configuration_wire import configuration_of
from ojster.queues.wire import NEW_QUEUE, QUEUE_DELETION, NewQueueBody, QueueConfigBody, QueueDeletionBody
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.queues_admin import configure_queue, queue_configuration, show_queue_config
from ojster.server.pages import offset_page_of, offset_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, PAGE, Route, location


async def list_queues(request: HttpRequest) -> Answer:
    """List all queues, by name."""
    limit, offset = offset_page_of(request.query)
    queues = await request.service.queues.all()
    shown = [show_queue(queue) for queue in queues[offset : offset + limit]]
    return Answer(encode(QueuesAnswer(shown, offset_pagination(len(queues), limit, offset))))


async def queue_statistics(request: HttpRequest) -> Answer:
    """Show a queue with its job counts by state and its statistics for the last hour."""
    found = await request.service.queues.statistics(check_queue_name(request.path["name"]))
    return Answer(encode(show_statistics(found, request.service.database.clock())))


async def pause_queue(request: HttpRequest) -> Answer:
    """Pause a queue: workers cannot claim its jobs, but clients can still enqueue."""
    queue = await request.service.queues.pause(request.path["name"])
    return Answer(encode(QueueAnswer(show_queue(queue), "paused")))


async def resume_queue(request: HttpRequest) -> Answer:
    """Resume a paused queue, so that workers can claim its jobs."""
    queue = await request.service.queues.resume(request.path["name"])
    return Answer(encode(QueueAnswer(show_queue(queue), "active")))


async def create_queue(request: HttpRequest) -> Answer:
    """Create a queue with its configuration, before it has jobs. A push creates its queue as well."""
    body = await request.read(NEW_QUEUE)
    name = check_queue_name(body.name)
    change = configuration_of(name, body.config or body)
    queue = await request.service.queues.create(name)
    if change != Configuration(name):
        await request.service.scope.do(configure, change)
    made = await queue_configuration(request, name)
    shown = show_queue(queue)
    answer = QueueCreatedAnswer(name, shown.status, made.configuration, shown.created_at, shown)
    return Answer(encode(answer), 201, headers=(location("queues", name),))


async def delete_queue(request: HttpRequest) -> Answer:
    """Delete a queue and its configuration; ``strategy`` says what becomes of jobs that wait in it."""
    raw = await request.body()
    body = request.decode(raw, QUEUE_DELETION) if raw else QueueDeletionBody()
    name = check_queue_name(request.path["name"])
    changed = await request.service.queues.delete(name, body.strategy, body.target_queue)
    target = UNSET if body.target_queue is None else body.target_queue
    return Answer(encode(QueueDeletedAnswer(name, body.strategy, changed, target_queue=target)))


ROUTES: Final = (
    Route("POST", f"{BASE}/queues", create_queue, "Queues", NewQueueBody, QueueCreatedAnswer, 201, for_all=True),
    Route(
        "DELETE",
        f"{BASE}/queues/{{name}}",
        delete_queue,
        "Queues",
        QueueDeletionBody,
        QueueDeletedAnswer,
        may_be_empty=True,
        for_all=True,
    ),
    Route(
        "GET",
        f"{BASE}/queues/{{name}}/config",
        show_queue_config,
        "Queues",
        answer=QueueConfigurationAnswer,
        for_all=True,
    ),
    Route(
        "PUT",
        f"{BASE}/queues/{{name}}/config",
        configure_queue,
        "Queues",
        QueueConfigBody,
        QueueConfigurationAnswer,
        for_all=True,
    ),
    Route("GET", f"{BASE}/queues", list_queues, "Queues", answer=QueuesAnswer, query=PAGE),
    Route("GET", f"{BASE}/queues/{{name}}", queue_statistics, "Queues", answer=QueueStatisticsAnswer),
    Route("GET", f"{BASE}/queues/{{name}}/stats", queue_statistics, "Queues", answer=QueueStatisticsAnswer),
    Route("POST", f"{BASE}/queues/{{name}}/pause", pause_queue, "Queues", answer=QueueAnswer),
    Route("POST", f"{BASE}/queues/{{name}}/resume", resume_queue, "Queues", answer=QueueAnswer),
)

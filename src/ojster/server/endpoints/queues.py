"""Endpoints for queues.

Spec: ojs-http-binding 11
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from ojster.jobs.names import check_queue_name
from ojster.queues.answer_wire import (
    QueueConfigurationAnswer,
    QueueCreatedAnswer,
    QueueDeletedAnswer,
    show_queue,
    show_statistics,
)
from ojster.queues.calls import QueueCalls
from ojster.queues.configuration import Configuration, configure
from ojster.queues.configuration_wire import configuration_of
from ojster.queues.wire import NEW_QUEUE, QUEUE_DELETION, QueueConfigBody, QueueDeletionBody
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.endpoints.queues_admin import configure_queue, queue_configuration, show_queue_config
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route, location


async def _statistics(request: HttpRequest) -> Answer:
    found = await request.service.queues.statistics(check_queue_name(request.path["name"]))
    return Answer(encode(show_statistics(found, request.service.database.clock())))


async def _create(request: HttpRequest) -> Answer:
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


async def _delete(request: HttpRequest) -> Answer:
    raw = await request.body()
    body = request.decode(raw, QUEUE_DELETION) if raw else QueueDeletionBody()
    name = check_queue_name(request.path["name"])
    changed = await request.service.queues.delete(name, body.strategy, body.target_queue)
    target = UNSET if body.target_queue is None else body.target_queue
    return Answer(encode(QueueDeletedAnswer(name, body.strategy, changed, target_queue=target)))


ROUTES: Final = (
    *endpoints_of(
        QueueCalls,
        lambda service: service.queues,
        {QueueCalls.statistics: _statistics, QueueCalls.create: _create, QueueCalls.delete: _delete},
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
)

"""Endpoints for queues.

Spec: ojs-http-binding 11
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from ojster.jobs.names import check_queue_name
from ojster.queues.answer_wire import (
    QueueCreatedAnswer,
    QueueDeletedAnswer,
    show_queue,
    show_statistics,
)
from ojster.queues.calls import QueueCalls
from ojster.queues.configuration_wire import refuse_idle
from ojster.queues.wire import NEW_QUEUE, QUEUE_DELETION, QueueDeletionBody
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.request import HttpRequest
from ojster.server.route import location


async def _statistics(request: HttpRequest) -> Answer:
    statistics = await request.service.queues.statistics(check_queue_name(request.path["name"]))
    return Answer(encode(show_statistics(statistics, request.service.database.clock())))


async def _create(request: HttpRequest) -> Answer:
    body = await request.read(NEW_QUEUE)
    name = check_queue_name(body.name)
    refuse_idle(body)
    queues = request.service.queues
    shown = show_queue(await queues.create(name, body.config or body))
    made = await queues.configuration(name)
    answer = QueueCreatedAnswer(name, shown.status, made.configuration, shown.created_at, shown)
    return Answer(encode(answer), 201, headers=(location("queues", name),))


async def _delete(request: HttpRequest) -> Answer:
    raw = await request.body()
    body = request.decode(raw, QUEUE_DELETION) if raw else QueueDeletionBody()
    name = check_queue_name(request.path["name"])
    changed = await request.service.queues.delete(name, body.strategy, body.target_queue)
    target = UNSET if body.target_queue is None else body.target_queue
    return Answer(encode(QueueDeletedAnswer(name, body.strategy, changed, target_queue=target)))


ROUTES: Final = endpoints_of(
    QueueCalls,
    lambda service: service.queues,
    {QueueCalls.statistics: _statistics, QueueCalls.create: _create, QueueCalls.delete: _delete},
)

"""Endpoints for operators about queues.

Spec: ojs-admin-api 6
"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.timestamps import format_optional
from ojster.jobs.bulk import Action
from ojster.jobs.filters import filter_of
from ojster.jobs.names import check_queue_name
from ojster.jobs.wire import PURGE, PurgeBody
from ojster.queues.answer_wire import (
    PurgedAnswer,
    QueuePausedAnswer,
)
from ojster.server.admin import ADMIN, TAG
from ojster.server.answer import Answer, encode
from ojster.server.endpoints import queues
from ojster.server.endpoints.jobs_admin import check_confirmed
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def pause_admin_queue(request: HttpRequest) -> Answer:
    """Pause a queue: workers cannot claim its jobs, but clients can still enqueue."""
    queue = await request.service.queues.pause(request.path["name"])
    return Answer(encode(QueuePausedAnswer(queue.name, True, format_optional(queue.paused_at))))


async def resume_admin_queue(request: HttpRequest) -> Answer:
    """Resume a paused queue, so that workers can claim its jobs."""
    queue = await request.service.queues.resume(request.path["name"])
    return Answer(encode(QueuePausedAnswer(queue.name, False)))


async def purge_queue(request: HttpRequest) -> Answer:
    """Delete finished jobs of a queue in some ``states``; with ``older_than`` only those finished before it."""
    name = check_queue_name(request.path["name"])
    body = await request.read(PURGE)
    check_confirmed(body.confirm)
    if not body.states:
        raise InvalidRequest("'states' is empty. Name at least one state of finished jobs.", field="states")
    chosen = filter_of({"queue": name, "states": list(body.states), "older_than": body.older_than})
    sweep = await request.service.bulk.sweep(Action.DELETE, chosen)
    return Answer(encode(PurgedAnswer(sweep.succeeded, sweep.failed, body.states)))


ROUTES: Final = (
    *(
        msgspec.structs.replace(route, path=route.path.replace(BASE, ADMIN), tag=TAG)
        for route in queues.ROUTES
        if route.path.endswith("/config")
    ),
    Route("POST", f"{ADMIN}/queues/{{name}}/pause", pause_admin_queue, TAG, answer=QueuePausedAnswer),
    Route("POST", f"{ADMIN}/queues/{{name}}/resume", resume_admin_queue, TAG, answer=QueuePausedAnswer),
    Route("DELETE", f"{ADMIN}/queues/{{name}}/jobs", purge_queue, TAG, PurgeBody, PurgedAnswer),
)

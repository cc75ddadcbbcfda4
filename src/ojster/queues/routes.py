"""Endpoints for queues.

Spec: ojs-http-binding 11
"""

from __future__ import annotations

from typing import Final

from ojster.jobs.names import check_queue_name
from ojster.queues.answer_wire import QueueAnswer, QueuesAnswer, QueueStatisticsAnswer, show_queue, show_statistics
from ojster.server.answer import Answer, encode
from ojster.server.pages import offset_pagination, page_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, PAGE, Route


async def list_queues(exchange: HttpRequest) -> Answer:
    """List all queues, by name."""
    limit, offset, _ = page_of(exchange.query)
    queues = await exchange.engine.queues.all()
    shown = [show_queue(queue) for queue in queues[offset : offset + limit]]
    return Answer(encode(QueuesAnswer(shown, offset_pagination(len(queues), limit, offset))))


async def queue_statistics(exchange: HttpRequest) -> Answer:
    """Show a queue with its job counts by state and its statistics for the last hour."""
    found = await exchange.engine.queues.statistics(check_queue_name(exchange.path["name"]))
    return Answer(encode(show_statistics(found, exchange.engine.database.clock())))


async def pause_queue(exchange: HttpRequest) -> Answer:
    """Pause a queue: workers cannot claim its jobs, but clients can still enqueue."""
    queue = await exchange.engine.queues.pause(exchange.path["name"])
    return Answer(encode(QueueAnswer(show_queue(queue), "paused")))


async def resume_queue(exchange: HttpRequest) -> Answer:
    """Resume a paused queue, so that workers can claim its jobs."""
    queue = await exchange.engine.queues.resume(exchange.path["name"])
    return Answer(encode(QueueAnswer(show_queue(queue), "active")))


ROUTES: Final = (
    Route("GET", f"{BASE}/queues", list_queues, "Queues", answer=QueuesAnswer, query=PAGE),
    Route("GET", f"{BASE}/queues/{{name}}", queue_statistics, "Queues", answer=QueueStatisticsAnswer),
    Route("GET", f"{BASE}/queues/{{name}}/stats", queue_statistics, "Queues", answer=QueueStatisticsAnswer),
    Route("POST", f"{BASE}/queues/{{name}}/pause", pause_queue, "Queues", answer=QueueAnswer),
    Route("POST", f"{BASE}/queues/{{name}}/resume", resume_queue, "Queues", answer=QueueAnswer),
)

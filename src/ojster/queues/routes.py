"""Endpoints for queues.

Spec: ojs-http-binding 11
"""

from __future__ import annotations

from typing import Any, Final

from ojster.core.durations import SECOND
from ojster.core.states import JobState
from ojster.core.timestamps import format_timestamp
from ojster.jobs.names import check_queue_name
from ojster.queues.queues import Queue
from ojster.queues.rate_limit import Limits
from ojster.server.pages import page_of, pagination
from ojster.server.request import Answer, HttpRequest, encode
from ojster.server.route import BASE, PAGE, Route


async def list_queues(exchange: HttpRequest) -> Answer:
    """List all queues, by name."""
    limit, offset, _ = page_of(exchange.query)
    queues = await exchange.engine.queues.all()
    after = offset + limit
    return Answer(
        encode(
            {
                "queues": [_queue(queue) for queue in queues[offset:after]],
                "pagination": pagination(len(queues), limit, offset, None) | {"has_more": after < len(queues)},
            }
        )
    )


async def queue_statistics(exchange: HttpRequest) -> Answer:
    """Show a queue with its job counts by state and its statistics for the last hour."""
    found = await exchange.engine.queues.statistics(check_queue_name(exchange.path["name"]))
    counts = {state.value: found.counts.get(state.value, 0) for state in JobState}
    started = found.completed + found.failed
    return Answer(
        encode(
            {
                "queue": _queue(found.queue) | counts,
                "status": "paused" if found.queue.paused_at else "active",
                "stats": {
                    "queue": found.queue.name,
                    "depth": counts["available"],
                    **counts,
                    "enqueued_last_hour": found.enqueued,
                    "completed_last_hour": found.completed,
                    "failed_last_hour": found.failed,
                    "avg_duration_ms": found.ran // 1000 // found.completed if found.completed else 0,
                    "avg_wait_ms": found.waited // 1000 // started if started else 0,
                    "throughput_per_second": round(started / 3600, 4),
                },
                "computed_at": format_timestamp(exchange.engine.database.clock()),
            }
        )
    )


async def pause_queue(exchange: HttpRequest) -> Answer:
    """Pause a queue: workers cannot claim its jobs, but clients can still enqueue."""
    queue = await exchange.engine.queues.pause(exchange.path["name"])
    return Answer(encode({"queue": _queue(queue), "status": "paused"}))


async def resume_queue(exchange: HttpRequest) -> Answer:
    """Resume a paused queue, so that workers can claim its jobs."""
    queue = await exchange.engine.queues.resume(exchange.path["name"])
    return Answer(encode({"queue": _queue(queue), "status": "active"}))


def _queue(queue: Queue) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": queue.name,
        "status": "paused" if queue.paused_at else "active",
        "paused": queue.paused_at is not None,
        "created_at": format_timestamp(queue.created_at),
    }
    if queue.paused_at is not None:
        shown["paused_at"] = format_timestamp(queue.paused_at)
    if queue.limits != Limits():
        shown["rate_limit"] = queue.limits.to_wire()
        rate = queue.limits.rate
        if rate is not None and rate.period == SECOND:
            shown["rate_limit"]["max_per_second"] = rate.limit
    return shown


ROUTES: Final = (
    Route("GET", f"{BASE}/queues", list_queues, "Queues", query=PAGE),
    Route("GET", f"{BASE}/queues/{{name}}", queue_statistics, "Queues"),
    Route("GET", f"{BASE}/queues/{{name}}/stats", queue_statistics, "Queues"),
    Route("POST", f"{BASE}/queues/{{name}}/pause", pause_queue, "Queues"),
    Route("POST", f"{BASE}/queues/{{name}}/resume", resume_queue, "Queues"),
)

"""Endpoints for workers themselves: their heartbeats, and what the server tells them.

Spec: ojs-worker-protocol
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.core.access import DEQUEUE
from ojster.core.durations import MILLISECOND
from ojster.core.timestamps import format_timestamp
from ojster.fleet.answer_wire import (
    HeartbeatAnswer,
    WorkerInfo,
    show_worker,
)
from ojster.fleet.calls import FleetCalls
from ojster.fleet.requirements import read_provided
from ojster.fleet.wire import HEARTBEAT, HandlerBody, HeartbeatBody
from ojster.fleet.workers import Heartbeat
from ojster.jobs.names import read_type
from ojster.jobs.versions import HandledVersions, parse_handled
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.endpoints.worker_protocol import types_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def heartbeat(request: HttpRequest) -> Answer:
    """Record a worker's heartbeat, extend the leases of its jobs, and return the server's directive."""
    body = await request.read(HEARTBEAT)
    read_provided(body.capabilities)  # reject malformed capabilities
    service = request.service
    active = body.active_jobs if isinstance(body.active_jobs, list) else body.active_job_ids
    pulse = await service.fleet.beat(
        Heartbeat(
            worker_id=body.worker_id,
            active_jobs=tuple(active if body.job_id is None else dict.fromkeys([*active, body.job_id])),
            lease=body.visibility_timeout_ms * 1000 if body.visibility_timeout_ms else None,
            state=body.state,
            hostname=body.hostname,
            pid=body.pid,
            queues=tuple(body.queues),
            labels=tuple(body.labels),
            concurrency=body.concurrency,
            pool=body.pool,
            handlers=_handled(body.handlers),
            job_types=None if body.job_types is None else types_of(body.job_types),
            capabilities=body.capabilities,
            attempts=body.attempts,
            code_version=body.code_version,
        ),
        body.wait_ms / 1000,
    )
    now = format_timestamp(service.database.clock())
    patience = pulse.timeout // MILLISECOND
    shown = HeartbeatAnswer(pulse.directive, pulse.extended, pulse.cancelled, pulse.lost, pulse.woken, patience, now)
    return Answer(encode(shown))


def _handled(bodies: Sequence[HandlerBody]) -> tuple[HandledVersions, ...]:
    """Return the versions of job types of which a worker handles only some, without duplicates, sorted by type."""
    ranges: dict[str, set[HandledVersions | None]] = {}
    for body in bodies[:MAX_HANDLERS]:
        type = read_type(encode(body.type))
        ranges.setdefault(type, set()).add(parse_handled(type, body.versions))
    limited = [item for accepted in ranges.values() if None not in accepted for item in accepted if item is not None]
    return tuple(sorted(limited, key=lambda item: (item.type, item.low, item.high)))


MAX_HANDLERS: Final = 1_000
"""Maximum number of handlers read from a heartbeat; more are ignored."""


async def check_worker(request: HttpRequest) -> Answer:
    """Show whether a worker accepts jobs. Answers 503 if it does not.

    Spec: ojs-graceful-shutdown 8.1
    """
    worker = await request.service.fleet.find(request.path["id"])
    return Answer(encode(show_worker(worker)), 200 if worker.state == "running" else 503)


ROUTES: Final = (
    Route("POST", f"{BASE}/workers/heartbeat", heartbeat, "Workers", HeartbeatBody, HeartbeatAnswer, needs=DEQUEUE),
    Route("POST", f"{BASE}/workers/beat", heartbeat, "Workers", HeartbeatBody, HeartbeatAnswer, needs=DEQUEUE),
    Route("GET", f"{BASE}/workers/{{id}}/health", check_worker, "Workers", answer=WorkerInfo, more=(503,)),
    *endpoints_of(FleetCalls, lambda service: service.fleet),
)

"""Endpoints for workers themselves: their heartbeats, and what the server tells them.

Spec: ojs-worker-protocol
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.core.access import Operation
from ojster.core.durations import MILLISECOND
from ojster.core.timestamps import format_timestamp
from ojster.fleet.answer_wire import (
    HeartbeatAnswer,
    RemovedWorkerAnswer,
    WorkerAnswer,
    WorkerInfo,
    WorkersAnswer,
    show_worker,
)
from ojster.fleet.requirements import read_provided
from ojster.fleet.wire import DIRECTIVE, HEARTBEAT, DirectiveBody, HandlerBody, HeartbeatBody
from ojster.fleet.workers import Heartbeat
from ojster.jobs.names import read_type
from ojster.jobs.versions import Handled, parse_handled
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.worker_protocol import types_of
from ojster.server.pages import offset_page_of, offset_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, DEQUEUE, PAGE, Route


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
        ),
        body.wait_ms / 1000,
    )
    now = format_timestamp(service.database.clock())
    patience = pulse.timeout // MILLISECOND
    shown = HeartbeatAnswer(pulse.directive, pulse.extended, pulse.cancelled, pulse.lost, pulse.woken, patience, now)
    return Answer(encode(shown))


def _handled(bodies: Sequence[HandlerBody]) -> tuple[Handled, ...]:
    """Return the job types of which a worker handles only some versions, without duplicates, sorted by type."""
    found = [(parse_handled(read_type(encode(body.type)), body.versions)) for body in bodies[:MAX_HANDLERS]]
    return tuple(sorted({one.type: one for one in found if one is not None}.values(), key=lambda one: one.type))


MAX_HANDLERS: Final = 1_000
"""Maximum number of handlers read from a heartbeat; more are ignored."""


async def list_workers(request: HttpRequest) -> Answer:
    """List the workers that send heartbeats."""
    limit, offset = offset_page_of(request.query, default=200)
    workers = await request.service.fleet.all()
    shown = [show_worker(worker) for worker in workers[offset : offset + limit]]
    return Answer(encode(WorkersAnswer(shown, offset_pagination(len(workers), limit, offset))))


async def check_worker(request: HttpRequest) -> Answer:
    """Show whether a worker accepts jobs. Answers 503 if it does not.

    Spec: ojs-graceful-shutdown 8.1
    """
    worker = await request.service.fleet.find(request.path["id"])
    return Answer(encode(show_worker(worker)), 200 if worker.state == "running" else 503)


async def direct_worker(request: HttpRequest) -> Answer:
    """Set the directive that a worker gets with its next heartbeat: ``running``, ``quiet`` or ``terminate``."""
    body = await request.read(DIRECTIVE)
    worker = await request.service.fleet.direct(request.path["id"], body.directive)
    return Answer(encode(WorkerAnswer(show_worker(worker))))


async def remove_worker(request: HttpRequest) -> Answer:
    """Remove a worker that has stopped, and make its jobs available again.

    ``lost=true`` means that it did not stop cleanly; the attempts of its jobs then count.
    """
    await request.service.fleet.leave(request.path["id"], lost=request.query.get("lost") == "true")
    return Answer(encode(RemovedWorkerAnswer(request.path["id"])))


ROUTES: Final = (
    Route("POST", f"{BASE}/workers/heartbeat", heartbeat, "Workers", HeartbeatBody, HeartbeatAnswer, needs=DEQUEUE),
    Route("POST", f"{BASE}/workers/beat", heartbeat, "Workers", HeartbeatBody, HeartbeatAnswer, needs=DEQUEUE),
    Route("GET", f"{BASE}/workers", list_workers, "Workers", answer=WorkersAnswer, query=PAGE),
    Route("GET", f"{BASE}/workers/{{id}}/health", check_worker, "Workers", answer=WorkerInfo, more=(503,)),
    Route("POST", f"{BASE}/workers/{{id}}/directive", direct_worker, "Workers", DirectiveBody, WorkerAnswer),
    Route(
        "DELETE",
        f"{BASE}/workers/{{id}}",
        remove_worker,
        "Workers",
        answer=RemovedWorkerAnswer,
        query=("lost",),
        needs=(Operation.DEQUEUE, Operation.ADMIN),
    ),
)

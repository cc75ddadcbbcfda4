"""Endpoints for operators about workers.

Spec: ojs-admin-api 8
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.timestamps import format_timestamp
from ojster.fleet import workers
from ojster.fleet.workers import Worker
from ojster.jobs.admin_routes import summary
from ojster.server.admin import ADMIN, TAG
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import Answer, HttpRequest, encode
from ojster.server.route import NUMBERED_PAGE, Route


async def list_unrunnable(exchange: HttpRequest) -> Answer:
    """List the kinds of waiting jobs that no registered worker can run, with the reasons."""
    return Answer(encode({"unrunnable": await exchange.engine.fleet.unrunnable()}))


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
    return Answer(encode(shown | {"jobs": [summary(job) for job in held]}))


async def quiet_worker(exchange: HttpRequest) -> Answer:
    """Quiet a worker: after its next heartbeat it claims no more jobs, and finishes those that it has."""
    worker = await exchange.engine.fleet.direct(exchange.path["id"], "quiet")
    return Answer(encode(_worker(worker, _is_stale(exchange, worker))))


async def deregister_worker(exchange: HttpRequest) -> Answer:
    """Remove a worker that has missed its heartbeats, and make its jobs available again."""
    await exchange.engine.scope.do(workers.deregister, exchange.path["id"])
    return Answer(encode({"deregistered": True, "id": exchange.path["id"]}))


ROUTES: Final = (
    Route("GET", f"{ADMIN}/unrunnable", list_unrunnable, TAG),
    Route("GET", f"{ADMIN}/workers", list_admin_workers, TAG, query=NUMBERED_PAGE),
    Route("GET", f"{ADMIN}/workers/{{id}}", show_admin_worker, TAG),
    Route("POST", f"{ADMIN}/workers/{{id}}/quiet", quiet_worker, TAG),
    Route("DELETE", f"{ADMIN}/workers/{{id}}", deregister_worker, TAG),
)

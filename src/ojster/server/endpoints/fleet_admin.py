"""Endpoints for operators about workers.

Spec: ojs-admin-api 8
"""

from __future__ import annotations

from typing import Final

from ojster.fleet.answer_wire import (
    AdminWorkerBody,
    AdminWorkersAnswer,
    WorkerCountsBody,
)
from ojster.fleet.answer_wire import show_admin_worker as show_worker
from ojster.fleet.workers import KnownWorker
from ojster.server.admin import ADMIN, TAG
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.jobs_admin import summary
from ojster.server.pages import numbered_page, numbered_pagination
from ojster.server.request import HttpRequest
from ojster.server.route import NUMBERED_PAGE, Route


async def list_admin_workers(request: HttpRequest) -> Answer:
    """List the workers, most recently seen first, with counts by state."""
    page = numbered_page(request.query)
    workers = await request.service.fleet.all()
    shown = [show_worker(worker, stale=_is_stale(request, worker)) for worker in workers]
    counts = WorkerCountsBody(len(workers))
    for worker in shown:
        state = worker.state if worker.state in ("running", "stale") else "quiet"
        setattr(counts, state, getattr(counts, state) + 1)
    items = shown[page.offset : page.offset + page.size]
    return Answer(encode(AdminWorkersAnswer(items, counts, numbered_pagination(page, len(workers)))))


def _is_stale(request: HttpRequest, worker: KnownWorker) -> bool:
    database = request.service.database
    return database.clock() - worker.last_seen_at > database.settings.heartbeat_timeout


async def show_admin_worker(request: HttpRequest) -> Answer:
    """Show a worker and the jobs that it runs."""
    worker = await request.service.fleet.find(request.path["id"])
    held = await request.service.fleet.jobs_of(request.path["id"])
    shown = show_worker(worker, stale=_is_stale(request, worker))
    shown.jobs = [summary(job) for job in held]
    return Answer(encode(shown))


async def quiet_worker(request: HttpRequest) -> Answer:
    """Quiet a worker: after its next heartbeat it claims no more jobs, and finishes those that it has."""
    worker = await request.service.fleet.direct(request.path["id"], "quiet")
    return Answer(encode(show_worker(worker, stale=_is_stale(request, worker))))


ROUTES: Final = (
    Route("GET", f"{ADMIN}/workers", list_admin_workers, TAG, answer=AdminWorkersAnswer, query=NUMBERED_PAGE),
    Route("GET", f"{ADMIN}/workers/{{id}}", show_admin_worker, TAG, answer=AdminWorkerBody),
    Route("POST", f"{ADMIN}/workers/{{id}}/quiet", quiet_worker, TAG, answer=AdminWorkerBody),
)

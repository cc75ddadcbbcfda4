"""How are jobs pushed, looked at and steered? (ojs-http-binding.md sections 7 and 9)"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.engine.control import Steered
from ojster.engine.inspect import JobFilter
from ojster.engine.outcome import Progress
from ojster.model.envelope import Job
from ojster.model.errors import InvalidRequest, OjsterError, PayloadTooLarge, Unsupported
from ojster.model.job import read_members
from ojster.model.states import STATE_NAMES, JobState
from ojster.model.timestamps import format_timestamp
from ojster.server import wire
from ojster.server.exchange import Answer, Exchange, encode, page_of, pagination, wait_ms
from ojster.server.route import BASE, PAGE, Route

MOST_IN_BATCH: Final = 1_000


async def enqueue(exchange: Exchange) -> Answer:
    """Enqueue a job. Answers 200 with the existing one if its uniqueness policy says so."""
    engine = exchange.engine
    job = await engine.prepare(await exchange.members())
    (pushed,) = await engine.push((job,))
    if pushed.existing:
        return Answer(b'{"job":%b,"deduplicated":true}' % pushed.job.to_json())
    location = (b"location", b"/ojs/v1/jobs/" + job.id.encode())
    return Answer(b'{"job":%b}' % pushed.job.to_json(), 201, (location,))


async def enqueue_batch(exchange: Exchange) -> Answer:
    """Enqueue several jobs, all or none."""
    body = await exchange.read(wire.BATCH)
    if body.mode not in (None, "atomic"):
        raise Unsupported(f"The mode {body.mode!r:.40} is not supported; a batch is 'atomic'.")
    if not body.jobs:
        raise InvalidRequest("'jobs' must hold at least one job.", field="jobs")
    if len(body.jobs) > MOST_IN_BATCH:
        raise PayloadTooLarge(
            f"The batch has {len(body.jobs)} jobs; at most {MOST_IN_BATCH} are allowed.", limit=MOST_IN_BATCH
        )
    engine = exchange.engine
    jobs = []
    for index, raw in enumerate(body.jobs):
        try:
            jobs.append(await engine.prepare(read_members(raw, "The job")))
        except OjsterError as error:
            error.message = f"The job at index {index} is invalid: {error.message}"
            error.details["index"] = index
            raise
    pushed = await engine.push(jobs)
    return Answer(b'{"jobs":[%b],"count":%d}' % (b",".join([one.job.to_json() for one in pushed]), len(pushed)), 201)


async def show_job(exchange: Exchange) -> Answer:
    """Show a job. With ``wait_ms``, answer as soon as it is finished, or after that time."""
    wait = wait_ms(exchange.query)
    engine, job_id = exchange.engine, exchange.path["id"]
    job = await engine.wait_for(job_id, wait) if wait else await engine.find(job_id)
    return Answer(b'{"job":%b}' % job.to_json())


async def cancel_job(exchange: Exchange) -> Answer:
    """Cancel a job that is not finished."""
    return _steered(await exchange.engine.cancel(exchange.path["id"]), "cancelled_at")


async def activate_job(exchange: Exchange) -> Answer:
    """Make a pending job available."""
    return _steered(await exchange.engine.activate(exchange.path["id"]), "activated_at")


def _steered(steered: Steered, stamp: str) -> Answer:
    job = steered.job
    at = job.finished_at if stamp == "cancelled_at" else job.enqueued_at
    shown = {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "state": job.state,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        stamp: format_timestamp(at or 0),
        "previous_state": steered.before,
    }
    return Answer(encode({"job": shown}))


async def report_progress(exchange: Exchange) -> Answer:
    """Report how far an active job is."""
    body = await exchange.read(wire.PROGRESS)
    item = Progress(exchange.path["id"], body.progress, body.message, body.worker_id, body.attempt)
    job = await exchange.engine.report(item)
    return _progress(job)


async def show_progress(exchange: Exchange) -> Answer:
    """Show how far a job is."""
    return _progress(await exchange.engine.find(exchange.path["id"]))


def _progress(job: Job) -> Answer:
    shown = msgspec.json.decode(job.progress) if job.progress else {"progress": 0, "message": None}
    return Answer(encode({"job_id": job.id, "state": job.state, **shown}))


async def list_jobs(exchange: Exchange) -> Answer:
    """List jobs, newest first, by ``state``, ``queue`` and ``type`` (which may end in ``*``)."""
    query = exchange.query
    state = query.get("state")
    if state is not None and state not in STATE_NAMES:
        raise InvalidRequest(f"There is no state {state[:40]!r}; there are {', '.join(JobState)}.", field="state")
    return await job_page(exchange, JobFilter(state=state, queue=query.get("queue"), type=query.get("type")))


async def job_page(exchange: Exchange, chosen: JobFilter) -> Answer:
    """Return a page of the jobs that are chosen, as the query asks for it."""
    limit, offset, before = page_of(exchange.query)
    page = await exchange.engine.list_jobs(msgspec.structs.replace(chosen, limit=limit, offset=offset, before=before))
    return Answer(
        b'{"jobs":[%b],"pagination":%b}'
        % (
            b",".join([job.to_json() for job in page.jobs]),
            encode(pagination(page.total, limit, offset, page.next_before)),
        )
    )


ROUTES: Final = (
    Route("POST", f"{BASE}/jobs", enqueue, "Jobs", wire.EnqueueBody, wire.JobAnswer, 201),
    Route("POST", f"{BASE}/jobs/batch", enqueue_batch, "Jobs", wire.BatchSchema, wire.JobsAnswer, 201),
    Route("GET", f"{BASE}/jobs", list_jobs, "Jobs", None, wire.JobPageAnswer, query=("state", "queue", "type", *PAGE)),
    Route("GET", f"{BASE}/jobs/{{id}}", show_job, "Jobs", None, wire.JobAnswer, query=("wait_ms",)),
    Route("DELETE", f"{BASE}/jobs/{{id}}", cancel_job, "Jobs"),
    Route("POST", f"{BASE}/jobs/{{id}}/activate", activate_job, "Jobs"),
    Route("PUT", f"{BASE}/jobs/{{id}}/progress", report_progress, "Jobs", wire.ProgressBody),
    Route("GET", f"{BASE}/jobs/{{id}}/progress", show_progress, "Jobs"),
)

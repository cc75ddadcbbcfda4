"""Which paths are there, and what does each do? One row of ``ROUTES`` for every endpoint."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ojster.engine.claim import Claim
from ojster.engine.control import Steered
from ojster.engine.cron import Cron
from ojster.engine.events import MOST_EVENTS, EventFilter
from ojster.engine.graph import WORKFLOW_STATES
from ojster.engine.inspect import JobFilter
from ojster.engine.outcome import Acknowledgement, FailureReport, Progress, Release
from ojster.engine.queues import Queue
from ojster.engine.workers import Heartbeat, Worker
from ojster.engine.workflow_views import WorkflowFilter
from ojster.engine.workflows import Review, StepAddress
from ojster.model.cron import CronSchedule
from ojster.model.envelope import Job
from ojster.model.errors import InvalidRequest, OjsterError, PayloadTooLarge, Unsupported
from ojster.model.failure import parse_failure
from ojster.model.job import Members, check_queue_name, read_job, read_members
from ojster.model.node import MOST_NODES
from ojster.model.states import STATE_NAMES, JobState
from ojster.model.timestamps import format_timestamp
from ojster.model.workflow import MOST_LEVELS
from ojster.model.workflow_info import WorkflowInfo
from ojster.server import wire
from ojster.server.exchange import Answer, Exchange, Handler, encode, page_of, pagination, whole
from ojster.version import __version__

BASE: Final = "/ojs/v1"
MOST_IN_BATCH: Final = 1_000


# Jobs


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
    wait = _wait_ms(exchange.query)
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
    return await _job_page(exchange, JobFilter(state=state, queue=query.get("queue"), type=query.get("type")))


async def _job_page(exchange: Exchange, chosen: JobFilter) -> Answer:
    limit, offset, before = page_of(exchange.query)
    page = await exchange.engine.list_jobs(msgspec.structs.replace(chosen, limit=limit, offset=offset, before=before))
    return Answer(
        b'{"jobs":[%b],"pagination":%b}'
        % (
            b",".join([job.to_json() for job in page.jobs]),
            encode(pagination(page.total, limit, offset, page.next_before)),
        )
    )


# Workflows


async def create_workflow(exchange: Exchange) -> Answer:
    """Create a workflow: a chain, a group, a batch, a saga, a graph or a map, nested as one likes."""
    info = await exchange.engine.create_workflow(await exchange.members())
    return _workflow(info, 201, ((b"location", f"{BASE}/workflows/{info.id}".encode()),))


async def show_workflow(exchange: Exchange) -> Answer:
    """Show a workflow with all its steps, or, with ``steps=false``, without.

    With ``wait_ms``, answer when it has finished, or after that time; with ``version`` too, as soon as it has another.
    """
    query = exchange.query
    info = await exchange.engine.show_workflow(
        exchange.path["id"],
        wait=_wait_ms(query),
        version=whole(query, "version", 0, 0) if "version" in query else None,
        steps=query.get("steps") != "false",
    )
    return _workflow(info)


async def list_workflows(exchange: Exchange) -> Answer:
    """List workflows without their steps, newest first, by ``state``, ``type`` and ``name``."""
    query = exchange.query
    state = query.get("state")
    if state is not None and state not in WORKFLOW_STATES:
        raise InvalidRequest(
            f"There is no state {state[:40]!r} of workflows; there are {', '.join(WORKFLOW_STATES)}.", field="state"
        )
    limit, offset, before = page_of(query)
    page = await exchange.engine.list_workflows(
        WorkflowFilter(state, query.get("type"), query.get("name"), before, limit, offset)
    )
    shown = pagination(page.total, limit, offset, page.next_before)
    return Answer(encode({"workflows": page.workflows, "pagination": shown}))


async def cancel_workflow(exchange: Exchange) -> Answer:
    """Cancel a workflow: what has not started never does, active jobs may finish."""
    return _workflow(await exchange.engine.cancel_workflow(exchange.path["id"]))


async def retry_workflow(exchange: Exchange) -> Answer:
    """Run again what did not succeed of a workflow that has finished."""
    return _workflow(await exchange.engine.retry_workflow(exchange.path["id"]))


async def hold_workflow(exchange: Exchange) -> Answer:
    """Let nothing of a workflow start until it is released."""
    return _workflow(await exchange.engine.hold_workflow(exchange.path["id"]))


async def release_workflow(exchange: Exchange) -> Answer:
    """Let a workflow go on that is held."""
    return _workflow(await exchange.engine.release_workflow(exchange.path["id"]))


async def review_step(exchange: Exchange) -> Answer:
    """Approve or reject a step that waits for it, or note what is said of it."""
    body = await exchange.read(wire.REVIEW)
    path = exchange.path
    return _workflow(
        await exchange.engine.review_step(Review(path["id"], path["step"], body.action, body.notes, body.author))
    )


async def cancel_step(exchange: Exchange) -> Answer:
    """Cancel a step and all that is inside it, active jobs too."""
    return _workflow(await exchange.engine.cancel_step(StepAddress(exchange.path["id"], exchange.path["step"])))


def _workflow(info: WorkflowInfo, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> Answer:
    return Answer(b'{"workflow":%b}' % info.to_json(), status, headers)


# Workers


async def fetch(exchange: Exchange) -> Answer:
    """Claim jobs for a worker. With ``wait_ms``, wait for one if there is none."""
    body = await exchange.read(wire.FETCH)
    request = Claim(
        queues=tuple([check_queue_name(name) for name in body.queues]),
        count=body.count,
        worker_id=body.worker_id,
        lease=body.visibility_timeout_ms * 1000 if body.visibility_timeout_ms else None,
    )
    if not body.wait_ms:
        jobs = await exchange.engine.fetch(request)
    else:
        jobs = await _until_gone(exchange, request, body.wait_ms / 1000)
    return Answer(b'{"jobs":[%b]}' % b",".join([job.to_json() for job in jobs]))


_TURNS_TO_NOTICE: Final = 3
"""How many turns of the loop it takes until a connection that was closed is known to be: read, close, tell."""


async def _until_gone(exchange: Exchange, request: Claim, wait: float) -> list[Job]:
    """Fetch with a wait that ends when the caller hangs up, so that no job is handed to nobody."""
    fetching = asyncio.create_task(exchange.engine.fetch(request, wait))
    gone = asyncio.create_task(exchange.gone())
    try:
        await asyncio.wait((fetching, gone), return_when=asyncio.FIRST_COMPLETED)
        if not fetching.done():
            return []
        jobs = await fetching
        for _ in range(_TURNS_TO_NOTICE if jobs else 0):
            await asyncio.sleep(0)
        if gone.done():
            exchange.engine.give_back(jobs)
            return []
        return jobs
    finally:
        fetching.cancel()
        gone.cancel()


async def acknowledge(exchange: Exchange) -> Answer:
    """Complete a job."""
    body = await exchange.read(wire.ACK)
    (outcome,) = await exchange.engine.acknowledge((_acknowledgement(body),))
    if isinstance(outcome, OjsterError):
        raise outcome
    return Answer(_completed(outcome))


def _acknowledgement(body: wire.AckBody) -> Acknowledgement:
    result = None if body.result is UNSET else bytes(body.result)
    return Acknowledgement(body.job_id, result, body.worker_id, body.attempt, tuple(map(bytes, body.append)))


def _completed(job: Job) -> bytes:
    at = format_timestamp(job.finished_at or 0)
    return (
        f'{{"acknowledged":true,"id":"{job.id}","job_id":"{job.id}","state":"completed","completed_at":"{at}",'
        f'"job":{{"id":"{job.id}","type":"{job.type}","state":"completed","attempt":{job.attempt}}}}}'
    ).encode()


async def acknowledge_batch(exchange: Exchange) -> Answer:
    """Complete several jobs; each acknowledgement is accepted or refused by itself."""
    body = await exchange.read(wire.ACK_BATCH)
    outcomes = await exchange.engine.acknowledge([_acknowledgement(ack) for ack in body.acks])
    return _batch(outcomes, _completed)


async def fail(exchange: Exchange) -> Answer:
    """Report that a job failed, or hand it back with ``requeue``."""
    body = await exchange.read(wire.NACK)
    engine = exchange.engine
    if body.requeue:
        (outcome,) = await engine.release((_release(body),))
    else:
        (outcome,) = await engine.fail((_failure_report(body),))
    if isinstance(outcome, OjsterError):
        raise outcome
    return Answer(_failed(outcome))


async def fail_batch(exchange: Exchange) -> Answer:
    """Report several failures or hand several jobs back; each is accepted or refused by itself."""
    body = await exchange.read(wire.NACK_BATCH)
    engine = exchange.engine
    failed = [_failure_report(one) for one in body.nacks if not one.requeue]
    released = [_release(one) for one in body.nacks if one.requeue]
    failures, releases = await asyncio.gather(engine.fail(failed), engine.release(released))
    outcomes = [(releases if one.requeue else failures).pop(0) for one in body.nacks]
    return _batch(outcomes, _failed)


def _failure_report(body: wire.NackBody) -> FailureReport:
    if body.error is None:
        raise InvalidRequest("The 'error' attribute is missing; it says why the job failed.", field="error")
    return FailureReport(body.job_id, parse_failure(body.error), body.worker_id, body.attempt)


def _release(body: wire.NackBody) -> Release:
    return Release(body.job_id, body.worker_id, body.attempt, body.delay_ms * 1000)


def _failed(job: Job) -> bytes:
    shown: dict[str, Any] = {
        "id": job.id,
        "job_id": job.id,
        "state": job.state,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
    }
    if job.state == JobState.RETRYABLE:
        shown["next_attempt_at"] = format_timestamp(job.due_at or 0)
        shown["retry_delay_ms"] = (job.retry_delay or 0) // 1000
    elif job.state == JobState.DISCARDED:
        shown["discarded_at"] = shown["completed_at"] = format_timestamp(job.finished_at or 0)
        shown["dead_letter"] = bool(job.dead)
    shown["job"] = {"id": job.id, "type": job.type, "state": job.state, "attempt": job.attempt}
    return encode(shown)


def _batch(outcomes: Sequence[Job | OjsterError], show: Any) -> Answer:
    results = [
        encode({"error": outcome.to_wire()}) if isinstance(outcome, OjsterError) else show(outcome)
        for outcome in outcomes
    ]
    return Answer(b'{"results":[%b]}' % b",".join(results))


async def heartbeat(exchange: Exchange) -> Answer:
    """Report a worker's health, extend the leases of its jobs, and learn what is wanted of it."""
    body = await exchange.read(wire.HEARTBEAT)
    engine = exchange.engine
    active = body.active_jobs if isinstance(body.active_jobs, list) else body.active_job_ids
    pulse = await engine.beat(
        Heartbeat(
            worker_id=body.worker_id,
            active_jobs=tuple(active),
            lease=body.visibility_timeout_ms * 1000 if body.visibility_timeout_ms else None,
            state=body.state,
            hostname=body.hostname,
            pid=body.pid,
            queues=tuple(body.queues),
            labels=tuple(body.labels),
            concurrency=body.concurrency,
        )
    )
    return Answer(
        encode(
            {
                "state": pulse.directive,
                "jobs_extended": pulse.extended,
                "jobs_cancelled": pulse.cancelled,
                "jobs_lost": pulse.lost,
                "server_time": format_timestamp(engine.database.clock()),
            }
        )
    )


async def list_workers(exchange: Exchange) -> Answer:
    """List the workers that send heartbeats."""
    return Answer(encode({"workers": [_worker(worker) for worker in await exchange.engine.workers()]}))


async def direct_worker(exchange: Exchange) -> Answer:
    """Tell a worker, with its next heartbeat, to be running, quiet, or to terminate."""
    body = await exchange.read(wire.DIRECTIVE)
    return Answer(encode({"worker": _worker(await exchange.engine.direct(exchange.path["id"], body.directive))}))


async def remove_worker(exchange: Exchange) -> Answer:
    """Forget a worker that has stopped; jobs that it still holds are given to others."""
    await exchange.engine.leave(exchange.path["id"])
    return Answer(encode({"removed": True, "worker_id": exchange.path["id"]}))


def _worker(worker: Worker) -> dict[str, Any]:
    shown = msgspec.structs.asdict(worker)
    shown["worker_id"] = shown.pop("id")
    shown["started_at"] = format_timestamp(worker.started_at)
    shown["last_heartbeat_at"] = format_timestamp(shown.pop("last_seen_at"))
    return shown


# Queues


async def list_queues(exchange: Exchange) -> Answer:
    """List all queues, by name."""
    limit, offset, _ = page_of(exchange.query)
    queues = await exchange.engine.queues()
    after = offset + limit
    return Answer(
        encode(
            {
                "queues": [_queue(queue) for queue in queues[offset:after]],
                "pagination": pagination(len(queues), limit, offset, None) | {"has_more": after < len(queues)},
            }
        )
    )


async def queue_statistics(exchange: Exchange) -> Answer:
    """Show how a queue does: its jobs by state, and what the last hour brought."""
    found = await exchange.engine.queue_statistics(check_queue_name(exchange.path["name"]))
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


async def pause_queue(exchange: Exchange) -> Answer:
    """Stop handing out the jobs of a queue. Jobs can still be enqueued."""
    queue = await exchange.engine.pause(exchange.path["name"])
    return Answer(encode({"queue": _queue(queue), "status": "paused"}))


async def resume_queue(exchange: Exchange) -> Answer:
    """Hand out the jobs of a queue again."""
    queue = await exchange.engine.resume(exchange.path["name"])
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
    if queue.max_per_second is not None:
        shown["rate_limit"] = {"max_per_second": queue.max_per_second}
    return shown


# Dead letters


async def list_dead_letters(exchange: Exchange) -> Answer:
    """List jobs that have used up their attempts and asked to be kept, newest first, by ``queue`` and ``type``."""
    query = exchange.query
    return await _job_page(exchange, JobFilter(dead=True, queue=query.get("queue"), type=query.get("type")))


async def retry_dead_letter(exchange: Exchange) -> Answer:
    """Run a discarded job again, as if it were new."""
    job = await exchange.engine.retry_dead(exchange.path["id"])
    at = format_timestamp(job.enqueued_at or 0).encode()
    return Answer(b'{"job":%b,"re_enqueued_at":"%b"}' % (job.to_json(), at))


async def delete_dead_letter(exchange: Exchange) -> Answer:
    """Delete a discarded job for good."""
    job = await exchange.engine.delete_dead(exchange.path["id"])
    return Answer(encode({"deleted": True, "job_id": job.id}))


# Cron jobs


async def list_crons(exchange: Exchange) -> Answer:
    """List the cron jobs, by name; with ``enabled=true`` or ``false`` only those that are, or are not."""
    limit, offset, _ = page_of(exchange.query)
    crons = await exchange.engine.crons()
    if (enabled := exchange.query.get("enabled")) is not None:
        crons = [cron for cron in crons if cron.enabled == (enabled == "true")]
    after = offset + limit
    shown = [_cron(cron) for cron in crons[offset:after]]
    page = pagination(len(crons), limit, offset, None) | {"has_more": after < len(crons)}
    return Answer(encode({"crons": shown, "cron_jobs": shown, "count": len(crons), "pagination": page}))


async def register_cron(exchange: Exchange) -> Answer:
    """Register a cron job, or update the one of that name."""
    body = await exchange.read(wire.CRON)
    expression = body.expression or body.cron
    if not expression:
        raise InvalidRequest("The cron job has no 'expression'.", field="expression")
    CronSchedule(expression, body.timezone)
    cron, is_new = await exchange.engine.register_cron(
        Cron(
            name=body.name,
            expression=expression,
            timezone=body.timezone,
            overlap_policy=body.overlap_policy,
            enabled=body.enabled,
            description=body.description,
            template=_template(body, exchange),
        )
    )
    location = (b"location", f"/ojs/v1/cron/{cron.name}".encode())
    return Answer(_cron_answer(cron), 201 if is_new else 200, (location,))


def _template(body: wire.CronBody, exchange: Exchange) -> bytes:
    """The enqueue request of each job of a cron job, proven to be valid."""
    job = body.job_template
    if job is None:
        if body.type is None:
            raise InvalidRequest("The cron job has no 'type' and no 'job_template'.", field="type")
        job = wire.JobTemplateBody(body.type, body.args, body.meta, body.options)
    options = dict(job.options)
    meta = dict(job.meta)
    if "meta" in options:
        meta |= read_members(options.pop("meta"), "options.meta")
    template = encode({"type": job.type, "args": job.args, "meta": meta, "options": options})
    database = exchange.engine.database
    read_job(read_members(template), database.clock(), largest=database.settings.largest_job)
    return template


async def show_cron(exchange: Exchange) -> Answer:
    """Show a cron job."""
    return Answer(_cron_answer(await exchange.engine.find_cron(exchange.path["name"])))


async def switch_cron(exchange: Exchange) -> Answer:
    """Enable or disable a cron job."""
    body = await exchange.read(wire.CRON_PATCH)
    return Answer(_cron_answer(await exchange.engine.switch_cron(exchange.path["name"], body.enabled)))


async def unregister_cron(exchange: Exchange) -> Answer:
    """Remove a cron job; jobs that it made stay."""
    cron = await exchange.engine.unregister_cron(exchange.path["name"])
    return Answer(encode({"deleted": True, "name": cron.name, "cron": _cron(cron)}))


def _cron_answer(cron: Cron) -> bytes:
    shown = _cron(cron)
    return encode({"cron": shown, "cron_job": shown})


def _cron(cron: Cron) -> dict[str, Any]:
    template: Members = read_members(cron.template, "The template")

    def moment(at: int | None) -> str | None:
        return None if at is None else format_timestamp(at)

    return {
        "name": cron.name,
        "expression": cron.expression,
        "cron": cron.expression,
        "timezone": cron.timezone,
        "overlap_policy": cron.overlap_policy,
        "enabled": cron.enabled,
        "status": "active" if cron.enabled else "disabled",
        "description": cron.description,
        **template,
        "job_template": template,
        "created_at": moment(cron.created_at),
        "last_run_at": moment(cron.last_run_at),
        "next_run_at": moment(cron.next_run_at),
        "run_count": cron.run_count,
    }


# The server itself


async def list_events(exchange: Exchange) -> Answer:
    """List what has been done lately, oldest first, by ``types``, ``queues`` and ``job_types``."""
    query, database = exchange.query, exchange.engine.database
    limit, _, _ = page_of(query, default=100, largest=MOST_EVENTS)
    after = query.get("after", "evt_0").removeprefix("evt_")
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidRequest("The parameter 'after' must be the id of an event.", field="after")
    filters = {name: tuple(filter(None, query.get(name, "").split(","))) for name in ("types", "queues", "job_types")}
    page = await database.select_events(EventFilter(after=int(after), limit=limit, **filters))
    return Answer(encode(page))


async def health(exchange: Exchange) -> Answer:
    """Tell whether the server and its database work; 503 if not."""
    database = exchange.engine.database
    started = time.perf_counter()
    backend: dict[str, Any] = {"type": database.kind, "status": "ok"}
    try:
        await asyncio.wait_for(exchange.engine.count_jobs("default"), timeout=5)
        backend["latency_ms"] = round((time.perf_counter() - started) * 1000, 3)
    except (OjsterError, TimeoutError) as error:
        backend |= {"status": "unhealthy", "error": str(error) or "no answer within 5 seconds"}
    healthy = backend["status"] == "ok"
    return Answer(
        encode(
            {
                "status": "ok" if healthy else "degraded",
                "version": "1.0",
                "uptime_seconds": int(time.monotonic() - STARTED),
                "backend": backend,
            }
        ),
        200 if healthy else 503,
    )


async def manifest(exchange: Exchange) -> Answer:
    """Tell what this server is and can do (ojs-http-binding.md section 21)."""
    settings = exchange.engine.database.settings
    capabilities: dict[str, Any] = {
        "batch_enqueue": True,
        "cron_jobs": True,
        "dead_letter": True,
        "delayed_jobs": True,
        "job_ttl": True,
        "pause_resume": True,
        "priority_queues": True,
        "rate_limiting": "queue, jobs per second",
        "schema_validation": False,
        "unique_jobs": {"strength": "strong", "mechanism": "check and insert in one transaction"},
        "workflows": {
            "types": ["chain", "group", "batch", "saga", "graph", "map"],
            "max_nesting": MOST_LEVELS,
            "max_nodes": MOST_NODES,
            "approvals": True,
            "conditions": _has_conditions(),
            "hold": True,
            "retry": True,
            "growth": "append in an acknowledgement",
        },
        "max_job_bytes": settings.largest_job,
    }
    return Answer(
        encode(
            {
                "specversion": "1.0",
                "ojs_version": "1.0",
                "implementation": {"name": "ojster", "version": __version__, "language": "python"},
                "conformance_level": 4,
                "protocols": ["http"],
                "backend": exchange.engine.database.kind,
                "capabilities": capabilities,
                "extensions": ["long-poll", "batch-acknowledge", "worker-directives", "events", "metrics"],
                "endpoints": {
                    "base_url": BASE,
                    "manifest": "/ojs/manifest",
                    "health": f"{BASE}/health",
                    "openapi": "/openapi.json",
                    "metrics": "/metrics",
                },
            }
        )
    )


def _has_conditions() -> bool:
    return importlib.util.find_spec("cel_expr_python") is not None


STARTED: Final = time.monotonic()


def _wait_ms(query: dict[str, str]) -> float:
    text = query.get("wait_ms", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise InvalidRequest("The parameter 'wait_ms' must be a number of milliseconds.", field="wait_ms")
    return int(text) / 1000


class Route(msgspec.Struct, frozen=True):
    """An endpoint: where it is, what it does, and the types that document it."""

    method: str
    path: str
    handler: Handler
    tag: str
    body: Any = None
    answer: Any = None
    status: int = 200
    query: tuple[str, ...] = ()


_PAGE: Final = ("limit", "cursor", "offset")

ROUTES: Final[tuple[Route, ...]] = (
    Route("POST", f"{BASE}/jobs", enqueue, "Jobs", wire.EnqueueBody, wire.JobAnswer, 201),
    Route("POST", f"{BASE}/jobs/batch", enqueue_batch, "Jobs", wire.BatchSchema, wire.JobsAnswer, 201),
    Route("GET", f"{BASE}/jobs", list_jobs, "Jobs", None, wire.JobPageAnswer, query=("state", "queue", "type", *_PAGE)),
    Route("GET", f"{BASE}/jobs/{{id}}", show_job, "Jobs", None, wire.JobAnswer, query=("wait_ms",)),
    Route("DELETE", f"{BASE}/jobs/{{id}}", cancel_job, "Jobs"),
    Route("POST", f"{BASE}/jobs/{{id}}/activate", activate_job, "Jobs"),
    Route("PUT", f"{BASE}/jobs/{{id}}/progress", report_progress, "Jobs", wire.ProgressBody),
    Route("GET", f"{BASE}/jobs/{{id}}/progress", show_progress, "Jobs"),
    Route("POST", f"{BASE}/workflows", create_workflow, "Workflows", wire.WorkflowBody, wire.WorkflowAnswer, 201),
    Route("GET", f"{BASE}/workflows", list_workflows, "Workflows", query=("state", "type", "name", *_PAGE)),
    Route(
        "GET",
        f"{BASE}/workflows/{{id}}",
        show_workflow,
        "Workflows",
        None,
        wire.WorkflowAnswer,
        query=("wait_ms", "version", "steps"),
    ),
    Route("DELETE", f"{BASE}/workflows/{{id}}", cancel_workflow, "Workflows", None, wire.WorkflowAnswer),
    Route("POST", f"{BASE}/workflows/{{id}}/retry", retry_workflow, "Workflows", None, wire.WorkflowAnswer),
    Route("POST", f"{BASE}/workflows/{{id}}/hold", hold_workflow, "Workflows", None, wire.WorkflowAnswer),
    Route("POST", f"{BASE}/workflows/{{id}}/release", release_workflow, "Workflows", None, wire.WorkflowAnswer),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/steps/{{step}}/review",
        review_step,
        "Workflows",
        wire.ReviewBody,
        wire.WorkflowAnswer,
    ),
    Route(
        "POST", f"{BASE}/workflows/{{id}}/steps/{{step}}/cancel", cancel_step, "Workflows", None, wire.WorkflowAnswer
    ),
    Route("POST", f"{BASE}/workers/fetch", fetch, "Workers", wire.FetchBody, wire.JobsAnswer),
    Route("POST", f"{BASE}/workers/ack", acknowledge, "Workers", wire.AckBody),
    Route("POST", f"{BASE}/workers/ack/batch", acknowledge_batch, "Workers", wire.AckBatchBody),
    Route("POST", f"{BASE}/workers/nack", fail, "Workers", wire.NackBody),
    Route("POST", f"{BASE}/workers/nack/batch", fail_batch, "Workers", wire.NackBatchBody),
    Route("POST", f"{BASE}/workers/heartbeat", heartbeat, "Workers", wire.HeartbeatBody),
    Route("GET", f"{BASE}/workers", list_workers, "Workers"),
    Route("POST", f"{BASE}/workers/{{id}}/directive", direct_worker, "Workers", wire.DirectiveBody),
    Route("DELETE", f"{BASE}/workers/{{id}}", remove_worker, "Workers"),
    Route("GET", f"{BASE}/queues", list_queues, "Queues", query=_PAGE),
    Route("GET", f"{BASE}/queues/{{name}}/stats", queue_statistics, "Queues"),
    Route("POST", f"{BASE}/queues/{{name}}/pause", pause_queue, "Queues"),
    Route("POST", f"{BASE}/queues/{{name}}/resume", resume_queue, "Queues"),
    Route(
        "GET",
        f"{BASE}/dead-letter",
        list_dead_letters,
        "Dead letters",
        None,
        wire.JobPageAnswer,
        query=("queue", "type", *_PAGE),
    ),
    Route("POST", f"{BASE}/dead-letter/{{id}}/retry", retry_dead_letter, "Dead letters", None, wire.JobAnswer),
    Route("DELETE", f"{BASE}/dead-letter/{{id}}", delete_dead_letter, "Dead letters"),
    Route("GET", f"{BASE}/cron", list_crons, "Cron jobs", query=("enabled", *_PAGE)),
    Route("POST", f"{BASE}/cron", register_cron, "Cron jobs", wire.CronBody, status=201),
    Route("GET", f"{BASE}/cron/{{name}}", show_cron, "Cron jobs"),
    Route("PATCH", f"{BASE}/cron/{{name}}", switch_cron, "Cron jobs", wire.CronPatchBody),
    Route("DELETE", f"{BASE}/cron/{{name}}", unregister_cron, "Cron jobs"),
    Route("GET", f"{BASE}/events", list_events, "Server", query=("types", "queues", "job_types", "after", "limit")),
    Route("GET", f"{BASE}/health", health, "Server"),
    Route("GET", "/ojs/manifest", manifest, "Server"),
)

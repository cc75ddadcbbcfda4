"""How are jobs pushed, looked at and steered? (ojs-http-binding.md sections 7 and 9)"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import msgspec

from ojster.agents.budgets import Account
from ojster.core.errors import InvalidRequest, OjsterError, PayloadTooLarge, QueueFull
from ojster.core.job import Job
from ojster.core.parsing import read_value
from ojster.core.timestamps import format_timestamp
from ojster.jobs.admission import Pushed
from ojster.jobs.checkpoints import Checkpoint, NewCheckpoint
from ojster.jobs.envelope import to_json
from ojster.jobs.failure import Failure, parse_failure
from ojster.jobs.filters import filter_of
from ojster.jobs.messages import Progress
from ojster.jobs.queries import Page
from ojster.jobs.request import NewJob
from ojster.jobs.selection import JobFilter
from ojster.jobs.transitions import Steered
from ojster.queues import limits
from ojster.queues.backpressure import pressures
from ojster.queues.rules import may_be_bounded
from ojster.server import wire
from ojster.server.request import Answer, Exchange, encode, page_of, pagination, wait_ms
from ojster.server.route import BASE, PAGE, Route
from ojster.workflows.notes import NewNote


async def enqueue(exchange: Exchange) -> Answer:
    """Enqueue a job. Answers 200 with the existing one if its uniqueness policy says so."""
    engine = exchange.engine
    job = await engine.prepare(await exchange.members())
    (pushed,) = await _push_patiently(exchange, job)
    if pushed.existing:
        return Answer(b'{"job":%b,"deduplicated":true}' % to_json(pushed.job))
    told: dict[str, str] = {}
    if job.limit is not None:
        with contextlib.suppress(OjsterError):  # the job is pushed, whatever else can be told
            told |= await engine.look(limits.limit_headers, job.limit.key)
    if may_be_bounded(engine.database.memory, job.queue):
        with contextlib.suppress(OjsterError):
            pressure = await engine.look(pressures, job.queue)
            told |= pressure.headers() if pressure is not None else {}
    headers = [(name.lower().encode(), value.encode()) for name, value in told.items()]
    headers.append((b"location", b"/ojs/v1/jobs/" + job.id.encode()))
    warnings = b',"warnings":' + encode(job.warnings) if job.warnings else b""
    return Answer(b'{"job":%b%b}' % (to_json(pushed.job), warnings), 201, headers)


LONGEST_BLOCK: Final = 60.0
"""How long a push may wait for a place in a full queue, in seconds."""

LOOK_AGAIN: Final = 0.1
"""How often it looks whether there is one, in seconds."""


async def _push_patiently(exchange: Exchange, job: NewJob) -> list[Pushed]:
    """Push a job; if its queue is full, wait as long as the request says (ojs-backpressure.md section 5.2)."""
    wait = 0.0
    if (text := exchange.header(b"ojs-block-timeout")) is not None:
        try:
            wait = min(LONGEST_BLOCK, max(0.0, float(text)))
        except ValueError:
            raise InvalidRequest(f"OJS-Block-Timeout must be a number of seconds, not {text[:40]!r}.") from None
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        try:
            return await exchange.engine.push((job,))
        except QueueFull as full:
            if full.details["strategy"] != "block" or loop.time() >= deadline or exchange.engine.draining:
                raise
        await asyncio.sleep(LOOK_AGAIN)


async def show_job(exchange: Exchange) -> Answer:
    """Show a job. With ``wait_ms``, answer as soon as it is finished, or after that time."""
    wait = wait_ms(exchange.query)
    engine, job_id = exchange.engine, exchange.path["id"]
    job = await engine.wait_for(job_id, wait) if wait else await engine.find(job_id)
    return Answer(b'{"job":%b}' % to_json(job))


async def cancel_job(exchange: Exchange) -> Answer:
    """Cancel a job that is not finished."""
    return _steered(await exchange.engine.cancel(exchange.path["id"]), "cancelled_at")


async def adjust_job(exchange: Exchange) -> Answer:
    """Raise or lower the priority of an unfinished job; only who administers may raise it."""
    body = await exchange.read(wire.ADJUSTMENT)
    job = await exchange.engine.adjust_priority(exchange.path["id"], body.priority_adjustment)
    shown = encode({"priority_adjustment": body.priority_adjustment})[1:]
    return Answer(b'{"job":%b,%b' % (to_json(job), shown))


async def activate_job(exchange: Exchange) -> Answer:
    """Let a pending job go on: make it available, or, if it waits, resume it with what it waits for."""
    data, failure, _ = await resumption_of(exchange)
    return _steered(await exchange.engine.activate(exchange.path["id"], data, failure), "activated_at")


async def resumption_of(exchange: Exchange) -> tuple[bytes | None, Failure | None, str | None]:
    """Return what the body, which may be empty, says of what a job waits for: that, or why it will not come.

    Also which step is meant.
    """
    body = exchange.decode(await exchange.optional_body() or b"{}", wire.RESUME)
    failure = None
    if body.error is not None:
        if body.result is not msgspec.UNSET:
            raise InvalidRequest("A job is resumed with a 'result' or an 'error', not with both.", field="error")
        error = {"code": "resumed_with_error", "message": body.error} if isinstance(body.error, str) else body.error
        failure = msgspec.structs.replace(parse_failure(error), retryable=False)
    if body.result is not msgspec.UNSET:
        read_value(body.result, "result")
        if len(body.result) > (largest := exchange.engine.database.settings.largest_job):
            raise PayloadTooLarge(f"The result takes {len(body.result)} bytes; at most {largest} are allowed.")
    return None if body.result is msgspec.UNSET else bytes(body.result), failure, body.step


async def note_job(exchange: Exchange) -> Answer:
    """Note something of a job: any JSON value."""
    note = await note_of(exchange)
    return Answer(encode({"note": await exchange.engine.add_note(NewNote(note, job_id=exchange.path["id"]))}), 201)


async def note_of(exchange: Exchange) -> bytes:
    """Return what is to be noted."""
    body = await exchange.read(wire.NOTE)
    read_value(body.note, "note")
    return bytes(body.note)


async def list_job_notes(exchange: Exchange) -> Answer:
    """List what was noted of a job, the oldest first."""
    return Answer(encode({"notes": await exchange.engine.job_notes(exchange.path["id"])}))


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
    fraction = min(1.0, max(0.0, body.progress))
    item = Progress(exchange.path["id"], fraction, body.message, body.worker_id, body.attempt)
    job = await exchange.engine.report(item)
    return _progress(job)


async def show_progress(exchange: Exchange) -> Answer:
    """Show how far a job is."""
    return _progress(await exchange.engine.find(exchange.path["id"]))


def _progress(job: Job) -> Answer:
    shown = msgspec.json.decode(job.progress) if job.progress else {"progress": 0, "message": None}
    return Answer(encode({"job_id": job.id, "state": job.state, **shown}))


async def account_agent(exchange: Exchange) -> Answer:
    """Note what an agent's task uses; 429 if a call is about to be made and there are too few tokens left for it."""
    body = await exchange.read(wire.AGENT_USAGE)
    item = Account(
        exchange.path["id"],
        body.tokens,
        body.estimated,
        body.is_estimate,
        body.model,
        body.tool_result,
        body.worker_id,
        body.attempt,
    )
    state = await exchange.engine.account(item)
    return Answer(
        encode(
            {
                "job_id": item.job_id,
                "tokens_used": state.tokens_used,
                "token_budget": state.budget,
                "tokens_left": state.left,
                "agent": state,
            }
        )
    )


async def save_checkpoint(exchange: Exchange) -> Answer:
    """Save how far a job has got, for the attempt after this one; at most 1 MiB."""
    body = await exchange.read(wire.CHECKPOINT)
    item = NewCheckpoint(exchange.path["id"], bytes(body.state), body.worker_id, body.attempt)
    return _checkpoint(await exchange.engine.save_checkpoint(item))


async def show_checkpoint(exchange: Exchange) -> Answer:
    """Show what a job has saved."""
    return _checkpoint(await exchange.engine.find_checkpoint(exchange.path["id"]))


async def clear_checkpoint(exchange: Exchange) -> Answer:
    """Delete what a job has saved."""
    existed = await exchange.engine.clear_checkpoint(exchange.path["id"])
    return Answer(encode({"deleted": True, "existed": existed, "job_id": exchange.path["id"]}))


def _checkpoint(found: Checkpoint) -> Answer:
    """Show a checkpoint as the specification does, and as its conformance suite expects it: without a wrapper."""
    shown = {
        "job_id": found.job_id,
        "state": msgspec.Raw(found.state),
        "sequence": found.sequence,
        "created_at": format_timestamp(found.created_at),
    }
    return Answer(encode(shown | {"checkpoint": shown}))


async def list_jobs(exchange: Exchange) -> Answer:
    """List jobs, newest first, by ``state``, ``queue`` and ``type`` (which may end in ``*``)."""
    query = exchange.query
    chosen = filter_of({name: query.get(name) for name in ("state", "queue", "type")})
    return await job_page(exchange, chosen)


async def job_page(exchange: Exchange, chosen: JobFilter) -> Answer:
    """Return a page of the jobs that are chosen, as the query asks for it."""
    limit, offset, before = page_of(exchange.query)
    page = await exchange.engine.list_jobs(chosen, Page(limit, offset, before))
    return Answer(
        b'{"jobs":[%b],"pagination":%b}'
        % (
            b",".join([to_json(job) for job in page.jobs]),
            encode(pagination(page.total, limit, offset, page.next_before)),
        )
    )


ROUTES: Final = (
    Route("POST", f"{BASE}/jobs", enqueue, "Jobs", wire.EnqueueBody, wire.JobAnswer, 201),
    Route("GET", f"{BASE}/jobs", list_jobs, "Jobs", None, wire.JobPageAnswer, query=("state", "queue", "type", *PAGE)),
    Route("GET", f"{BASE}/jobs/{{id}}", show_job, "Jobs", None, wire.JobAnswer, query=("wait_ms",)),
    Route("PATCH", f"{BASE}/jobs/{{id}}", adjust_job, "Jobs", wire.AdjustmentBody, wire.JobAnswer),
    Route("DELETE", f"{BASE}/jobs/{{id}}", cancel_job, "Jobs"),
    Route("POST", f"{BASE}/jobs/{{id}}/cancel", cancel_job, "Jobs"),
    Route("POST", f"{BASE}/jobs/{{id}}/activate", activate_job, "Jobs", wire.ResumeBody, large=True),
    Route("POST", f"{BASE}/jobs/{{id}}/info", note_job, "Jobs", wire.NoteBody, status=201),
    Route("GET", f"{BASE}/jobs/{{id}}/info", list_job_notes, "Jobs"),
    Route("PUT", f"{BASE}/jobs/{{id}}/progress", report_progress, "Jobs", wire.ProgressBody),
    Route("GET", f"{BASE}/jobs/{{id}}/progress", show_progress, "Jobs"),
    Route("PUT", f"{BASE}/jobs/{{id}}/checkpoint", save_checkpoint, "Jobs", wire.CheckpointBody, large=True),
    Route("POST", f"{BASE}/jobs/{{id}}/checkpoint", save_checkpoint, "Jobs", wire.CheckpointBody, large=True),
    Route("POST", f"{BASE}/jobs/{{id}}/agent/usage", account_agent, "Jobs", wire.AgentUsageBody),
    Route("GET", f"{BASE}/jobs/{{id}}/checkpoint", show_checkpoint, "Jobs"),
    Route("DELETE", f"{BASE}/jobs/{{id}}/checkpoint", clear_checkpoint, "Jobs"),
)

"""Events have the data that ojs-events 4 and the documents of extensions require, of the types that they require."""

from __future__ import annotations

from typing import Any

import pytest

from ojster.core.durations import SECOND
from ojster.core.events import EventFilter
from ojster.core.timestamps import parse_timestamp
from ojster.fleet.workers import Heartbeat
from ojster.jobs.failure import Failure
from ojster.jobs.interventions import DeadLetterRetry
from ojster.jobs.messages import FailureReport, Progress
from tests.conftest import Bench, Http

pytestmark = pytest.mark.anyio

ERROR = {"code": str, "message": str}
JOB = {"job_type": str, "queue": str}
WORKFLOW = {"workflow_id": str, "workflow_name": str}
TIME = parse_timestamp

REQUIRED: dict[str, dict[str, Any]] = {
    "job.enqueued": JOB,
    "job.started": JOB | {"worker_id": str, "attempt": int},
    "job.completed": JOB | {"duration_ms": int, "attempt": int},
    "job.failed": JOB | {"attempt": int, "error": ERROR | {"retryable": bool}},
    "job.discarded": JOB | {"total_attempts": int, "last_error": ERROR},
    "job.retrying": JOB | {"attempt": int, "max_attempts": int, "next_retry_at": TIME, "error": ERROR},
    "job.cancelled": JOB,
    "job.heartbeat": JOB | {"worker_id": str, "attempt": int, "visible_until": TIME},
    "job.scheduled": JOB | {"scheduled_at": TIME},
    "job.expired": JOB | {"created_at": TIME, "expired_at": TIME, "ttl_ms": int},
    "job.progress": JOB | {"worker_id": str, "attempt": int, "progress_percent": float},
    "queue.paused": {"queue": str},
    "queue.resumed": {"queue": str},
    "worker.started": {"worker_id": str, "queues": list, "concurrency": int},
    "worker.stopped": {"worker_id": str, "reason": str},
    "cron.triggered": {"cron_name": str, "cron_expr": str, "job_type": str, "job_id": str, "scheduled_at": TIME},
    "cron.skipped": {"cron_name": str, "cron_expr": str, "job_type": str, "reason": str, "existing_job_id": str},
    "workflow.started": WORKFLOW | {"total_steps": int},
    "workflow.step_completed": WORKFLOW
    | {"step_id": str, "step_type": str, "duration_ms": int, "steps_remaining": int},
    "workflow.completed": WORKFLOW | {"total_steps": int, "duration_ms": int},
    "workflow.failed": WORKFLOW | {"failed_step_id": str, "failed_step_type": str, "error": ERROR},
}

TOOK_TOO_LONG = JOB | {
    "job_id": str,
    "timeout_kind": str,
    "limit_seconds": int,
    "elapsed_seconds": int,
    "attempt": int,
}
BULK = {"total": int, "skipped": int}
LIMIT = {"key": str, "strategy": str}

REQUIRED_BY_EXTENSIONS: dict[str, dict[str, Any]] = {
    "backpressure.warning": {"queue": str, "depth": int, "bound": int},
    "backpressure.rejected": {"queue": str, "depth": int, "bound": int, "job_type": str},
    "backpressure.dropped": JOB | {"job_id": str},
    "bulk.enqueue.completed": {"total": int, "succeeded": int, "failed": int, "atomicity": str},
    "bulk.cancel.completed": BULK | {"cancelled": int},
    "bulk.retry.completed": BULK | {"retried": int},
    "bulk.delete.completed": BULK | {"deleted": int},
    "job.discarded": REQUIRED["job.discarded"],
    "job.timeout": TOOK_TOO_LONG,
    "job.stalled": TOOK_TOO_LONG,
    "job.ttl_expired": TOOK_TOO_LONG,
    "job.total_timeout": TOOK_TOO_LONG,
    "rate_limit.exceeded": LIMIT | {"limit": int | dict, "current": int},
    "rate_limit.released": LIMIT | {"job_id": str},
    "rate_limit.dropped": JOB | {"key": str, "job_id": str},
    "rate_limit.dynamic_adjusted": {"key": str, "until": TIME, "reason": str},
    "scheduling.rebalanced": {"pool": str, "previous_strategy": str, "new_strategy": str},
}
"""Data that ojs-backpressure 10, ojs-bulk-operations 12, ojs-queue-config 5.3, ojs-timeouts 11, ojs-rate-limiting 11
and ojs-fair-scheduling 11 require."""


def check(data: dict[str, Any], required: dict[str, Any], place: str) -> None:
    for name, kind in required.items():
        assert name in data, f"{place} has no {name}: {data}"
        if isinstance(kind, dict):
            check(data[name], kind, f"{place}.{name}")
        elif kind is TIME:
            TIME(data[name])
        else:
            assert isinstance(data[name], kind), f"{place}.{name} is {data[name]!r}"


async def happen(bench: Bench, http: Http) -> None:
    """Make each of the events happen."""
    service = bench.service
    await service.fleet.beat(Heartbeat("w", queues=("default",), concurrency=3))
    job = await bench.push(retry={"max_attempts": 2, "jitter": False})
    job = await bench.fetch_one(worker_id="w")
    await service.jobs.report(Progress(job.id, 0.5, "half", "w", 1))
    await service.fleet.beat(Heartbeat("w", (job.id,), queues=("default",), concurrency=3))
    for _ in range(2):
        await service.jobs.fail([FailureReport(job.id, Failure("E", "no"), "w", job.attempt)])
        await bench.run_due(5)
        if found := await bench.fetch(worker_id="w"):
            (job,) = found
    await bench.push(scheduled_at="+PT1S", expires_at="+PT2S")
    await bench.run_due(3)
    await service.jobs.cancel((await bench.push()).id)
    await service.queues.pause("other")
    await service.queues.resume("other")
    body = {"name": "c", "expression": "* * * * *", "type": "t", "args": [], "overlap_policy": "skip"}
    made = await http("POST", "/ojs/v1/cron", body)
    assert made.status_code == 201, made.text
    await bench.run_due(60)
    await bench.run_due(60)
    for name, code in (("good", None), ("bad", "DISCARD")):
        steps = [{"type": name, "args": [], "options": {"queue": name}}]
        await http("POST", "/ojs/v1/workflows", {"type": "chain", "name": name, "steps": steps})
        step = await bench.fetch_one(name, worker_id="w")
        await (bench.ack(step) if code is None else bench.fail(step, code=code))
    await service.fleet.leave("w")


async def check_all(bench: Bench, required: dict[str, dict[str, Any]]) -> None:
    """Check that events of all types in a table happened, and that each has its data."""
    page = await bench.service.events.select(EventFilter(limit=1_000))
    seen = {event["type"] for event in page.events}
    assert required.keys() <= seen, f"these did not happen: {required.keys() - seen}"
    for event in page.events:
        check(event["data"], required.get(event["type"], {}), event["type"])


async def test_events_have_the_data_that_the_specification_requires(bench: Bench, http: Http) -> None:
    await happen(bench, http)
    await check_all(bench, REQUIRED)


async def happen_in_extensions(bench: Bench, http: Http) -> None:
    """Make each of the events of extensions happen."""
    for strategy in ("reject", "drop_oldest"):
        bound = {"backpressure": {"max_depth": 1, "strategy": strategy}}
        await http("PUT", "/ojs/v1/admin/queues/full/config", bound)
        await http("POST", "/ojs/v1/jobs/bulk", {"jobs": [{"type": "a", "args": [], "queue": "full"}] * 2})
    for action in ("cancel", "retry", "delete"):
        await http("POST", f"/ojs/v1/jobs/bulk/{action}", {"job_ids": [(await bench.push(queue=action)).id]})
    await bench.push(queue="deleted")
    await http("DELETE", "/ojs/v1/queues/deleted", {"strategy": "discard"})
    for name in ("timeout", "heartbeat_timeout", "enqueue_ttl", "total_timeout"):
        await http.push(type="t", options={name: 5})
        if name != "enqueue_ttl":
            await bench.fetch_one()
        await bench.run_due(9)
        await bench.fetch()
    for limit in (
        {"concurrency": 1},
        {"rate": {"limit": 1, "period": "PT1S"}},
        {"throttle": {"limit": 1, "period": "PT1S"}},
    ):
        (key,) = limit
        for _ in range(2):
            await bench.push(queue=key, rate_limit={"key": key, **limit})
        job = await bench.fetch_one(key)
        assert await bench.fetch(key) == []
        await http("POST", "/ojs/v1/workers/ack", {"job_id": job.id})
        await bench.run_due(2)
        job = await bench.fetch_one(key)
    error = {"type": "Slow", "message": "m", "rate_limit_until": "+PT30S"}
    await http("POST", "/ojs/v1/workers/nack", {"job_id": job.id, "error": error})
    for _ in range(2):
        await bench.push(queue="drop", rate_limit={"key": "drop", "concurrency": 1, "on_limit": "drop"})
        await bench.fetch("drop")
    for strategy in ("strict", "round-robin"):
        await http("PUT", "/ojs/v1/admin/pools/p", {"queues": ["full"], "strategy": strategy})


async def test_events_of_extensions_have_the_data_that_their_documents_require(bench: Bench, http: Http) -> None:
    await happen_in_extensions(bench, http)
    await check_all(bench, REQUIRED_BY_EXTENSIONS)


async def test_a_name_that_was_not_given_is_empty_in_events(bench: Bench, http: Http) -> None:
    """Readers in languages with types expect a text there."""
    for code in (None, "DISCARD"):
        await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": [{"type": "step", "args": []}]})
        step = await bench.fetch_one()
        await (bench.ack(step) if code is None else bench.fail(step, code=code))
    page = await bench.service.events.select(EventFilter(limit=1_000))
    told = {event["type"]: event["data"] for event in page.events}
    assert told["job.started"]["worker_id"] == ""
    about_workflows = {type for type in told if type.startswith("workflow.")}
    assert {"workflow.started", "workflow.completed", "workflow.failed"} < about_workflows
    assert {told[type]["workflow_name"] for type in about_workflows} == {""}
    for type, data in told.items():
        check(data, REQUIRED.get(type, {}), type)


async def test_a_silent_worker_stops_with_an_error(bench: Bench) -> None:
    await bench.service.fleet.beat(Heartbeat("w"))
    await bench.run_due(bench.service.database.settings.heartbeat_timeout / SECOND + 1)
    page = await bench.service.events.select(EventFilter(types=("worker.stopped",)))
    assert [event["data"]["reason"] for event in page.events] == ["error"]


async def test_a_worker_that_becomes_quiet_is_told_of_once(http: Http, bench: Bench) -> None:
    job = await bench.push()
    await bench.fetch_one(worker_id="w")
    for state in ("running", "quiet", "quiet", "running", "quiet"):
        body = {"worker_id": "w", "active_jobs": [job.id], "state": state}
        await http("POST", "/ojs/v1/workers/heartbeat", body)
    page = await bench.service.events.select(EventFilter(types=("worker.quiet",)))
    assert [event["data"] for event in page.events] == [{"worker_id": "w", "active_jobs": 1}] * 2


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.mark.parametrize(
    "meta",
    [
        {"trace_id": TRACE},
        {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        {"traceparent": "nonsense", "trace_id": TRACE},
        {"x": {"trace_id": "another"}, "trace_id": TRACE, "traceparent": f"00-{'0' * 32}-00f067aa0ba902b7-01"},
    ],
)
async def test_every_event_of_a_job_names_its_trace(bench: Bench, meta: dict[str, object]) -> None:
    """Spec: ojs-events 8.3"""
    done = await bench.push(meta=meta)
    await bench.ack(await bench.fetch_one(worker_id="w"))
    lost = await bench.push(meta=meta, retry={"max_attempts": 2, "jitter": False})
    await bench.fail(await bench.fetch_one(worker_id="w"))
    await bench.run_due(5)
    job = await bench.fetch_one(worker_id="w")
    await bench.service.jobs.report(Progress(job.id, 0.5, "half", "w", 2))
    await bench.fail(job)
    gone = await bench.push(meta=meta, scheduled_at="+PT1H")
    await bench.service.jobs.cancel(gone.id)
    page = await bench.service.events.select(EventFilter(limit=1_000))
    told = [event for event in page.events if event["subject"] in (done.id, lost.id, gone.id)]
    assert {"job.enqueued", "job.started", "job.completed", "job.failed", "job.retrying", "job.discarded"} <= {
        event["type"] for event in told
    }
    assert {event["data"].get("trace_id") for event in told} == {TRACE}


async def test_a_job_that_runs_again_with_another_trace_names_that_one(bench: Bench) -> None:
    job = await bench.push(meta={"trace_id": "old"}, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.fail(await bench.fetch_one())
    await bench.service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, None, None, {"trace_id": TRACE}, None))
    await bench.ack(await bench.fetch_one())
    page = await bench.service.events.select(EventFilter(types=("job.completed",)))
    assert [event["data"]["trace_id"] for event in page.events] == [TRACE]


async def test_a_trace_with_a_character_that_no_database_stores_is_not_repeated(bench: Bench) -> None:
    await bench.push(meta={"trace_id": "a\0b"})
    await bench.ack(await bench.fetch_one())
    page = await bench.service.events.select(EventFilter(limit=1_000))
    assert not any("trace_id" in event["data"] for event in page.events)


async def test_a_job_without_a_trace_has_events_without_one(bench: Bench) -> None:
    await bench.push(meta={"traceparent": "00-xyz", "trace_id": 7, "note": '"trace_id"'})
    await bench.ack(await bench.fetch_one())
    page = await bench.service.events.select(EventFilter(limit=1_000))
    assert not any("trace_id" in event["data"] for event in page.events)

"""Every setting has an effect: a scene ends in one way with the default, and in another with another value.

A setting without a scene fails. Times pass on the clock of the scene.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx
import msgspec
import pytest

from ojster import Retention, Settings
from ojster.audit.entries import AuditEvent, AuditQuery
from ojster.core.access import OPERATIONS, Access, Role
from ojster.core.declared_options import options_of
from ojster.core.errors import NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import Members, read_members
from ojster.core.public_settings import in_microseconds
from ojster.files.file import NewFile
from ojster.files.store import MemoryStore
from ojster.fleet.workers import Heartbeat
from ojster.jobs.job_logs import NewLine, NewLines
from ojster.jobs.scope import Caller
from ojster.schedules.retention import forget
from ojster.server.application import Application
from ojster.service import Service
from ojster.storage.open import MEMORY, open_database
from tests.conftest import Bench, Clock, Http, request

pytestmark = pytest.mark.anyio

Scene = Callable[[Bench], Awaitable[Any]]


class Effect(NamedTuple):
    """Another value of a setting, a scene, and what is seen at its end with the default and with that value."""

    value: Any
    scene: Scene
    by_default: Any
    otherwise: Any


@asynccontextmanager
async def bench_with(settings: Settings) -> AsyncIterator[Bench]:
    """A bench of an empty database in memory, opened as an application with these settings opens it."""
    clock = Clock()
    database = open_database(MEMORY, in_microseconds(settings), clock)
    service = Service(database, store=MemoryStore())
    try:
        yield Bench(service, clock)
    finally:
        await service.maintenance.stop()
        database.close()


@asynccontextmanager
async def over_http(bench: Bench) -> AsyncIterator[Http]:
    transport = httpx.ASGITransport(app=Application(bench.service, trusting=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield Http(client)


def written(body: Any) -> Members:
    return read_members(msgspec.json.encode(body))


async def refusal(call: Awaitable[Any]) -> str | None:
    """Return the code of the error with which a call is refused; ``None``: it is not."""
    try:
        await call
    except OjsterError as error:
        return error.code
    return None


async def state(bench: Bench, job: Job) -> str:
    """Return the state of a job after what is due; ``gone``: it is deleted."""
    await bench.run_due()
    await bench.run(forget, None)
    try:
        return (await bench.find(job)).state
    except NotFound:
        return "gone"


async def silence(bench: Bench) -> str:
    """A worker that sends no heartbeats says nothing for two minutes."""
    await bench.push()
    job = await bench.fetch_one()
    bench.clock.advance(120)
    return await state(bench, job)


async def long_run(bench: Bench) -> str:
    """A job runs for two minutes, with a lease of an hour."""
    await bench.push(retry={"max_attempts": 1})
    job = await bench.fetch_one(lease=3_600_000_000)
    bench.clock.advance(120)
    return await state(bench, job)


async def missing_heartbeats(bench: Bench) -> str:
    """A worker with a lease of an hour sends one heartbeat, and no more for ten seconds."""
    await bench.push()
    job = await bench.fetch_one(worker_id="w", lease=3_600_000_000)
    await bench.service.fleet.beat(Heartbeat("w", (job.id,)))
    bench.clock.advance(10)
    return await state(bench, job)


async def large_job(bench: Bench) -> str | None:
    return await refusal(bench.push("t", "x" * 3_000))


async def large_workflow(bench: Bench) -> str:
    """A reference stands for three thousand bytes."""
    steps = [{"type": "t", "args": [{"$ref": "params.big"}]}]
    body = {"type": "chain", "steps": steps, "params": {"big": "x" * 3_000}}
    made = await bench.service.workflows.create(written(body))
    return (await bench.service.workflows.show(made.id)).state


async def large_file(bench: Bench) -> str | None:
    return await refusal(bench.service.files.keep(b"x" * 3_000, NewFile()))


async def large_request(bench: Bench) -> int:
    async with over_http(bench) as http:
        jobs = [{"type": "t", "args": []}] * 101
        return (await http("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})).status_code


async def jobs_that_create_each_other(bench: Bench) -> int:
    """Each of five jobs, one after the other, is created by the success of the one before."""
    following: dict[str, Any] = {}
    for _ in range(4):
        job = {"type": "t", "args": [], **following}
        following = {"event_reactions": {"on_success": [{"action": "enqueue", "job": job}]}}
    await bench.service.jobs.enqueue([written({"type": "t", "args": [], **following})])
    run = 0
    while jobs := await bench.fetch():
        await bench.ack(jobs[0])
        run += 1
    return run


async def death_of_a_worker(bench: Bench) -> str:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    await bench.service.fleet.beat(Heartbeat("w", (job.id,)))
    bench.clock.advance(31)
    return await state(bench, job)


async def last_failure(bench: Bench) -> bool:
    await bench.push(retry={"max_attempts": 1})
    return bool((await bench.fail(await bench.fetch_one())).dead)


async def cancellation_of_anothers_job(bench: Bench) -> str | None:
    may = OPERATIONS[Role.CONTRIBUTOR]
    ada, bob = (bench.service.as_(Caller(None, Access(name, may))) for name in ("ada", "bob"))
    (pushed,) = await ada.jobs.enqueue([request()])
    return await refusal(bob.jobs.cancel(pushed.job.id))


async def push_without_a_tenant(bench: Bench) -> str | None:
    return await refusal(bench.push())


async def tenant_of_a_push(bench: Bench) -> str:
    return (await bench.push()).tenant


async def wrong_arguments(bench: Bench) -> tuple[int, bool]:
    """A job violates its schema: the status of the answer, and whether it has a warning."""
    async with over_http(bench) as http:
        await http("PUT", "/ojs/v1/admin/schemas/t/1", {"schema": {"type": "array", "minItems": 1}})
        answer = await http("POST", "/ojs/v1/jobs", {"type": "t", "args": []})
        return answer.status_code, "warning" in answer.text


async def completed(bench: Bench) -> str:
    await bench.push()
    job = await bench.ack(await bench.fetch_one())
    bench.clock.advance(120)
    return await state(bench, job)


async def cancelled(bench: Bench) -> str:
    job = await bench.push()
    await bench.service.jobs.cancel(job.id)
    bench.clock.advance(120)
    return await state(bench, job)


def failed(on_exhaustion: str) -> Scene:
    async def scene(bench: Bench) -> str:
        await bench.push(retry={"max_attempts": 1, "on_exhaustion": on_exhaustion})
        job = await bench.fail(await bench.fetch_one())
        bench.clock.advance(120)
        return await state(bench, job)

    return scene


async def dead_letters(bench: Bench) -> list[str]:
    """The states of two dead letters, the older one first."""
    dead = []
    for _ in range(2):
        await bench.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
        dead.append(await bench.fail(await bench.fetch_one()))
        bench.clock.advance(1)
    return [await state(bench, job) for job in dead]


async def audit_log(bench: Bench) -> int:
    """The number of entries after two minutes."""
    await bench.service.audit.record(AuditEvent(event="access.used", principal="ada", operation="cancel_job"))
    bench.clock.advance(120)
    await bench.run(forget, None)
    return len(await bench.service.audit.select(AuditQuery()))


async def logged_lines(bench: Bench) -> int:
    """The number of lines two minutes after the end of a job."""
    job = await bench.push()
    await bench.service.jobs.add_to_log(NewLines(job.id, [NewLine(bench.clock.now, "info", "shop", "sold")]))
    await bench.ack(await bench.fetch_one())
    bench.clock.advance(120)
    await state(bench, job)
    return len((await bench.service.jobs.log(job.id)).lines)


SETTINGS: Final[dict[str, Effect]] = {
    "default_lease": Effect(60, silence, "active", "available"),
    "default_timeout": Effect(60, long_run, "active", "discarded"),
    "heartbeat_timeout": Effect(5, missing_heartbeats, "active", "available"),
    "largest_job": Effect(2_000, large_job, None, "payload_too_large"),
    "largest_workflow": Effect(2_000, large_workflow, "running", "failed"),
    "largest_storage": Effect(2_000, large_file, None, "payload_too_large"),
    "largest_batch": Effect(100, large_request, 201, 413),
    "most_generations": Effect(2, jobs_that_create_each_other, 5, 3),
    "most_losses": Effect(0, death_of_a_worker, "available", "discarded"),
    "on_exhaustion": Effect("dead_letter", last_failure, False, True),
    "contributors_cancel": Effect("own", cancellation_of_anothers_job, None, "permission_denied"),
    "tenants": Effect("required", push_without_a_tenant, None, "invalid_request"),
    "default_tenant": Effect("acme", tenant_of_a_push, "", "acme"),
    "schema_mode": Effect("strict", wrong_arguments, (201, True), (422, False)),
    "retention": Effect(Retention(completed=60), completed, "completed", "gone"),
}
"""The scene of each setting."""

RETENTION: Final[dict[str, Effect]] = {
    "completed": Effect(60, completed, "completed", "gone"),
    "cancelled": Effect(60, cancelled, "cancelled", "gone"),
    "discarded": Effect(60, failed("discard"), "discarded", "gone"),
    "dead_letter": Effect(60, failed("dead_letter"), "discarded", "gone"),
    "most_dead_letters": Effect(1, dead_letters, ["discarded", "discarded"], ["gone", "discarded"]),
    "audit": Effect(60, audit_log, 1, 0),
    "logs": Effect(60, logged_lines, 1, 0),
}
"""The scene of each period of retention."""


def test_each_setting_has_a_scene() -> None:
    assert SETTINGS.keys() == options_of(Settings).keys()
    assert RETENTION.keys() == options_of(Retention).keys()
    for effect in (*SETTINGS.values(), *RETENTION.values()):
        assert effect.by_default != effect.otherwise


@pytest.mark.parametrize("name", SETTINGS)
async def test_a_setting_has_an_effect(name: str) -> None:
    effect = SETTINGS[name]
    async with bench_with(Settings()) as bench:
        assert await effect.scene(bench) == effect.by_default
    async with bench_with(Settings(**{name: effect.value})) as bench:
        assert await effect.scene(bench) == effect.otherwise


@pytest.mark.parametrize("name", RETENTION)
async def test_a_period_of_retention_has_an_effect(name: str) -> None:
    effect = RETENTION[name]
    async with bench_with(Settings()) as bench:
        assert await effect.scene(bench) == effect.by_default
    async with bench_with(Settings(retention=Retention(**{name: effect.value}))) as bench:
        assert await effect.scene(bench) == effect.otherwise


async def test_schemas_without_a_mode_may_be_ignored() -> None:
    async with bench_with(Settings(schema_mode="off")) as bench:
        assert await wrong_arguments(bench) == (201, False)

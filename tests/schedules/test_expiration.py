"""Expiration delays of jobs, workflows, queues and workspaces: how long finished jobs and workflows are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojster import App, chain
from ojster.collections.items import NewItem, Where
from ojster.core.durations import DAY, HOUR
from ojster.core.errors import InvalidRequest, InvalidWorkflow, NotFound
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.jobs.expiration import read_expiration_delay, shown_expiration_delay
from ojster.jobs.messages import Acknowledgement, Release
from ojster.queues.configuration import Configuration, configure
from ojster.tenancy.tenants import TenantChange, put_tenants
from tests.conftest import Bench, shown

pytestmark = pytest.mark.anyio

A_DAY = 86_400.0


async def push(bench: Bench, **more: Any) -> Job:
    body = {"type": "t", "args": [], **more}
    (pushed,) = await bench.service.jobs.enqueue([read_members(msgspec.json.encode(body))])
    return pushed.job


async def done(bench: Bench, **more: Any) -> str:
    """Push and complete a job, and return its ID."""
    job = await push(bench, **more)
    await bench.ack(await bench.fetch_one(more.get("options", {}).get("queue", "default")))
    return job.id


async def left(bench: Bench, ids: Iterable[str]) -> list[bool]:
    """Return, for each ID, whether the job still exists."""
    found = []
    for id in ids:
        try:
            await bench.find(id)
            found.append(True)
        except NotFound:
            found.append(False)
    return found


async def test_s97_a_job_is_kept_for_as_long_as_it_says_itself(bench: Bench) -> None:
    usual, short, long, ever = (
        await done(bench),
        await done(bench, expiration_delay="PT1H"),
        await done(bench, expiration_delay="P3D"),
        await done(bench, expiration_delay="never"),
    )
    everything = (usual, short, long, ever)
    await bench.service.maintenance.prune()
    assert await left(bench, everything) == [True, True, True, True]
    bench.clock.advance(3_601)
    assert await bench.service.maintenance.prune(dry_run=True) == {"jobs": 1, "workflows": 0, "files": 0}
    assert await bench.service.maintenance.prune() == {"jobs": 1, "workflows": 0, "files": 0}
    assert await left(bench, everything) == [True, False, True, True]
    bench.clock.advance(A_DAY)
    await bench.service.maintenance.prune()
    assert await left(bench, everything) == [False, False, True, True]
    bench.clock.advance(36_500 * A_DAY)
    await bench.service.maintenance.prune()
    assert await left(bench, everything) == [False, False, False, True]


async def test_it_is_counted_from_the_end_of_the_job_however_it_ended(bench: Bench) -> None:
    completed = await push(bench, expiration_delay="PT1H", options={"queue": "a"})
    failed = await push(bench, expiration_delay="PT1H", options={"queue": "b", "retry": {"max_attempts": 1}})
    dead = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    buried = await push(bench, expiration_delay="PT1H", options={"queue": "c", "retry": dead})
    cancelled = await push(bench, expiration_delay="PT1H", options={"queue": "d"})
    waiting = await push(bench, expiration_delay="PT1H", options={"queue": "e"})
    bench.clock.advance(2 * A_DAY)
    await bench.ack(await bench.fetch_one("a"))
    await bench.fail(await bench.fetch_one("b"))
    await bench.fail(await bench.fetch_one("c"))
    await bench.service.jobs.cancel(cancelled.id)
    ids = [job.id for job in (completed, failed, buried, cancelled, waiting)]
    bench.clock.advance(3_599)
    await bench.service.maintenance.prune()
    assert await left(bench, ids) == [True] * 5
    bench.clock.advance(2)
    assert await bench.service.maintenance.prune() == {"jobs": 4, "workflows": 0, "files": 0}
    assert await left(bench, ids) == [False, False, False, False, True]


async def test_a_dead_letter_that_is_run_again_is_kept_from_its_next_end_on(bench: Bench) -> None:
    policy = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    job = await push(bench, expiration_delay="PT1H", options={"retry": policy})
    await bench.fail(await bench.fetch_one())
    bench.clock.advance(3_000)
    await bench.service.jobs.retry_dead(job.id)
    bench.clock.advance(3_000)
    await bench.run_due()
    await bench.service.maintenance.prune()
    assert (await bench.find(job)).state == "available"
    await bench.ack(await bench.fetch_one())
    bench.clock.advance(3_000)
    await bench.service.maintenance.prune()
    assert (await bench.find(job)).state == "completed"
    bench.clock.advance(601)
    await bench.service.maintenance.prune()
    assert await left(bench, [job.id]) == [False]


async def test_what_a_job_shows_is_what_it_has_said(bench: Bench) -> None:
    id = await done(bench, expiration_delay="P3D")
    job = shown(await bench.find(id))
    assert job["expiration_delay"] == "P3D"
    assert "scheduled_at" not in job


async def test_dead_letters_that_are_to_be_kept_are_not_among_those_that_are_too_many(bench: Bench) -> None:
    policy = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    kept = await push(bench, expiration_delay="never", options={"retry": policy})
    for _ in range(3):
        await push(bench, options={"retry": policy})
    for job in await bench.fetch(count=4):
        await bench.fail(job)
    await bench.run(configure, Configuration("default", retention={"most_dead_letters": 1}))
    assert (await bench.service.maintenance.prune())["jobs"] == 2
    assert await left(bench, [kept.id]) == [True]


async def test_s97_a_workspace_sets_the_default_retention_of_its_jobs(bench: Bench) -> None:
    await bench.run(put_tenants, TenantChange("long", {"retention": 5 * DAY}))
    await bench.run(put_tenants, TenantChange("ever", {"retention": 0}))
    await bench.run(put_tenants, TenantChange("short", {"retention": HOUR}))

    async def of(tenant: str, **more: Any) -> str:
        return await done(bench, meta={"tenant_id": tenant}, **more)

    ids = [
        await of("long"),
        await of("ever"),
        await of("short"),
        await of("short", expiration_delay="P2D"),
        await of("other"),
        await of("ever", expiration_delay="PT1H"),
    ]
    bench.clock.advance(3_601)
    assert await bench.service.maintenance.prune(dry_run=True) == {"jobs": 2, "workflows": 0, "files": 0}
    assert await bench.service.maintenance.prune() == {"jobs": 2, "workflows": 0, "files": 0}
    assert await left(bench, ids) == [True, True, False, True, True, False]
    bench.clock.advance(1.5 * A_DAY)
    await bench.service.maintenance.prune()
    assert await left(bench, ids) == [True, True, False, True, False, False]
    bench.clock.advance(4 * A_DAY)
    await bench.service.maintenance.prune()
    assert await left(bench, ids) == [False, True, False, False, False, False]


async def test_what_a_queue_says_comes_before_what_a_workspace_says(bench: Bench) -> None:
    await bench.run(put_tenants, TenantChange("acme", {"retention": 10 * DAY}))
    await bench.run(configure, Configuration("brief", retention={"completed": HOUR}))
    await bench.run(configure, Configuration("silent", retention={"discarded": HOUR}))
    meta = {"tenant_id": "acme"}
    brief = await done(bench, meta=meta, options={"queue": "brief"})
    silent = await done(bench, meta=meta, options={"queue": "silent"})
    nobodys = await done(bench, options={"queue": "silent"})
    bench.clock.advance(2 * A_DAY)
    assert (await bench.service.maintenance.prune(dry_run=True))["jobs"] == 2
    await bench.service.maintenance.prune()
    assert await left(bench, [brief, silent, nobodys]) == [False, True, False]


@pytest.mark.parametrize("way", ["removed", "replaced", "replaced by a job", "deleted with the collection"])
async def test_retention_deletes_a_job_once_no_collection_holds_it(bench: Bench, way: str) -> None:
    await bench.run(configure, Configuration("own", retention={"completed": HOUR}))
    await bench.service.collections.create("releases")
    collects = {"on_success": [{"action": "collect", "collection": "releases", "name": "it"}]}
    held = await done(bench, event_reactions=collects)
    bench.clock.advance(2 * A_DAY)
    assert (await bench.service.maintenance.prune())["jobs"] == 0
    match way:
        case "removed":
            await bench.service.collections.remove(Where("releases"), "it")
        case "replaced":
            await bench.service.collections.add(Where("releases"), NewItem("it", b"1", replace=True))
        case "replaced by a job":
            await done(bench, event_reactions=collects)
        case _:
            await bench.service.collections.delete("releases", force=True)
    await bench.service.maintenance.prune()
    assert await left(bench, [held]) == [False]


async def flow(bench: Bench, **more: Any) -> str:
    body = {
        "type": "chain",
        "steps": [{"type": "a", "args": []}, {"type": "group", "jobs": [{"type": "b", "args": []}]}],
    }
    info = await bench.service.workflows.create(read_members(msgspec.json.encode(body | more)))
    return info.id


async def run_all(bench: Bench) -> None:
    while jobs := await bench.fetch(count=10):
        for job in jobs:
            await bench.ack(job)


async def test_s98_a_tree_of_jobs_goes_as_a_whole_when_its_workflow_does(bench: Bench) -> None:
    usual, short, ever = (
        await flow(bench),
        await flow(bench, expiration_delay="PT1H"),
        await flow(bench, expiration_delay="never"),
    )
    await run_all(bench)
    bench.clock.advance(3_601)
    assert await bench.service.maintenance.prune(dry_run=True) == {"jobs": 2, "workflows": 1, "files": 0}
    assert await bench.service.maintenance.prune() == {"jobs": 2, "workflows": 1, "files": 0}
    with pytest.raises(NotFound):
        await bench.service.workflows.show(short)
    bench.clock.advance(10 * A_DAY)
    assert await bench.service.maintenance.prune() == {"jobs": 2, "workflows": 1, "files": 0}
    with pytest.raises(NotFound):
        await bench.service.workflows.show(usual)
    assert (await bench.service.workflows.show(ever)).expiration_delay == "never"


async def test_s98_an_old_job_of_a_workflow_that_runs_is_kept(bench: Bench) -> None:
    await flow(bench, expiration_delay="PT1H")
    first = await bench.fetch_one()
    await bench.ack(first)
    bench.clock.advance(10 * A_DAY)
    assert await bench.service.maintenance.prune() == {"jobs": 0, "workflows": 0, "files": 0}
    assert (await bench.find(first)).state == "completed"


async def test_a_workflow_of_a_workspace_is_kept_as_long_as_that_says(bench: Bench) -> None:
    await bench.run(put_tenants, TenantChange("long", {"retention": 5 * DAY}))
    await bench.run(put_tenants, TenantChange("short", {"retention": HOUR}))
    await bench.run(put_tenants, TenantChange("ever", {"retention": 0}))
    for tenant in ("long", "short", "ever"):
        await flow(bench, metadata={"tenant_id": tenant})
    await run_all(bench)
    bench.clock.advance(3_601)
    assert (await bench.service.maintenance.prune())["workflows"] == 1
    bench.clock.advance(3 * A_DAY)
    assert (await bench.service.maintenance.prune())["workflows"] == 0
    bench.clock.advance(3 * A_DAY)
    assert (await bench.service.maintenance.prune(dry_run=True))["workflows"] == 1
    assert (await bench.service.maintenance.prune())["workflows"] == 1


async def test_a_workflow_that_is_retried_is_kept_from_its_next_end_on(bench: Bench) -> None:
    id = await flow(bench, expiration_delay="PT1H", options={"retry": {"max_attempts": 1}})
    await bench.fail(await bench.fetch_one())
    bench.clock.advance(3_000)
    await bench.service.workflows.retry(id)
    bench.clock.advance(3_000)
    await bench.service.maintenance.prune()
    await run_all(bench)
    bench.clock.advance(3_000)
    await bench.service.maintenance.prune()
    assert (await bench.service.workflows.show(id)).state == "completed"
    bench.clock.advance(601)
    assert (await bench.service.maintenance.prune())["workflows"] == 1


async def test_a_workflow_that_was_run_again_stays_until_the_next_attempt_has_finished(bench: Bench) -> None:
    plan = {"type": "chain", "steps": [{"type": "a", "args": []}]}
    await bench.service.definitions.create("plan", read_members(msgspec.json.encode(plan)))
    start = {"definition": "plan", "expiration_delay": "PT1S"}
    first = await bench.service.workflows.create(read_members(msgspec.json.encode(start)))
    job = await bench.fetch_one()
    await bench.service.jobs.release([Release(job.id, job.worker_id, job.attempt, then="retry")])
    following = (await bench.service.workflows.show(first.id)).next_attempt
    assert following is not None
    bench.clock.advance(3_600)
    await bench.run_due()
    assert await bench.service.maintenance.prune() == {"jobs": 0, "workflows": 0, "files": 0}
    assert (await bench.service.workflows.show(following)).expiration_delay == "PT1S"
    await run_all(bench)
    bench.clock.advance(2)
    assert (await bench.service.maintenance.prune())["workflows"] == 2


async def test_pruning_goes_on_in_small_transactions_until_nothing_is_left(bench: Bench) -> None:
    members = read_members(b'{"type":"t","args":[],"expiration_delay":"PT1S"}')
    await bench.service.jobs.enqueue([dict(members) for _ in range(1_200)])
    for _ in range(2):
        await bench.service.jobs.acknowledge(
            [_ack(job) for job in await bench.fetch(count=600)],
        )
    bench.clock.advance(2)
    assert (await bench.service.maintenance.prune(dry_run=True))["jobs"] == 1_200
    assert (await bench.service.maintenance.prune())["jobs"] == 1_200
    assert (await bench.service.jobs.count())["default"]["completed"] == 0


def _ack(job: Job) -> Any:
    return Acknowledgement(job.id, None, job.worker_id, job.attempt)


@pytest.mark.parametrize("delay", [3, "", "tomorrow", "P1", ["P1D"], "-P1D", "P101Y"])
async def test_what_is_no_delay_is_refused(bench: Bench, delay: Any) -> None:
    with pytest.raises(InvalidRequest, match="expiration_delay"):
        await push(bench, expiration_delay=delay)
    with pytest.raises(InvalidWorkflow, match="expiration_delay"):
        await flow(bench, expiration_delay=delay)


@given(st.integers(0, 100 * 365 * DAY))
@settings(max_examples=50)
def test_a_delay_is_read_as_it_is_shown(delay: int) -> None:
    assert read_expiration_delay(msgspec.json.encode(shown_expiration_delay(delay))) == delay


async def test_in_python_jobs_and_workflows_say_it_too(bench: Bench) -> None:
    app = App("sqlite:///:memory:")

    @app.job("greet", expiration_delay=3_600)
    def greet(name: str) -> str:
        return name

    body = greet.request(("ada",), {})
    assert msgspec.json.decode(body["expiration_delay"]) == "PT3600.0S"
    request = chain(greet.s("ada")).request(expiration_delay="never")
    assert msgspec.json.decode(request["expiration_delay"]) == "never"

"""Workers get only jobs of the types that they have handlers for."""

from __future__ import annotations

import asyncio

import pytest

from ojster.core.errors import OjsterError
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.messages import FailureReport
from ojster.jobs.scope import Caller
from tests.conftest import Bench, Http, request
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def appear(bench: Bench, worker_id: str, *types: str) -> None:
    """Let a worker say that it has handlers for these types, and for no others."""
    await bench.service.fleet.beat(Heartbeat(worker_id=worker_id, queues=("default",), job_types=tuple(sorted(types))))


async def test_a_worker_gets_only_types_that_it_handles(bench: Bench) -> None:
    await appear(bench, "mailer", "email.send", "email.read")
    await bench.push("report.build", priority=5)
    wanted = [await bench.push("email.send"), await bench.push("email.read")]
    assert [job.id for job in await bench.fetch(count=9, worker_id="mailer")] == [job.id for job in wanted]
    assert await bench.fetch(count=9, worker_id="mailer") == []


async def test_a_worker_that_says_nothing_gets_every_type(bench: Bench) -> None:
    jobs = [await bench.push("email.send"), await bench.push("report.build")]
    assert [job.id for job in await bench.fetch(count=9, worker_id="foreign")] == [job.id for job in jobs]


async def test_a_fetch_can_name_the_types_itself(bench: Bench) -> None:
    await bench.push("report.build")
    job = await bench.push("email.send")
    found = await bench.service.jobs.fetch(Claim(("default",), 9, worker_id="new", types=("email.send",)))
    assert [one.id for one in found] == [job.id]


async def test_a_worker_whose_handlers_change_gets_the_new_types(bench: Bench) -> None:
    job = await bench.push("report.build")
    await appear(bench, "w", "email.send")
    assert await bench.fetch(worker_id="w") == []
    await appear(bench, "w", "email.send", "report.build")
    assert [one.id for one in await bench.fetch(worker_id="w")] == [job.id]


async def test_a_waiting_fetch_is_answered_with_a_type_that_it_handles(bench: Bench) -> None:
    for worker_id, type in (("mailer", "email.send"), ("builder", "report.build")):
        await appear(bench, worker_id, type)
    waiting = {
        name: asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 1, worker_id=name), 30.0))
        for name in ("mailer", "builder")
    }
    for _ in range(5):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        for name, type in (("builder", "report.build"), ("mailer", "email.send")):
            job = await bench.push(type)
            assert [one.id for one in await waiting[name]] == [job.id]


async def test_the_last_of_many_waiting_fetches_is_found(bench: Bench) -> None:
    await appear(bench, "builder", "report.build")
    for number in range(20):
        await appear(bench, f"mailer{number}", "email.send")
    waiting = [
        asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 1, worker_id=f"mailer{number}"), 30.0))
        for number in range(20)
    ]
    builder = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 1, worker_id="builder"), 30.0))
    for _ in range(5):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        job = await bench.push("report.build")
        assert [one.id for one in await builder] == [job.id]
        jobs = [await bench.push("email.send") for _ in range(20)]
        found = [one.id for fetch in waiting for one in await fetch]
    assert sorted(found) == sorted(one.id for one in jobs)


async def test_jobs_that_nobody_handles_are_reported(bench: Bench) -> None:
    await appear(bench, "mailer", "email.send")
    await bench.push("email.send")
    oldest = await bench.push("report.build")
    await bench.push("report.build")
    (stuck,) = await bench.service.fleet.unrunnable()
    assert (stuck.type, stuck.jobs, stuck.job_id) == ("report.build", 2, oldest.id)
    assert stuck.reasons == ["it has no handler for 'report.build'"]


async def test_a_job_without_a_handler_is_handed_back_and_its_attempt_does_not_count(bench: Bench) -> None:
    job = await bench.push("report.build", retry={"max_attempts": 1})
    for _ in range(4):
        (claimed,) = await bench.fetch(worker_id="old")
        failure = Failure("UnknownJobType", "This worker has no handler for it.")
        (found,) = await bench.service.jobs.fail([FailureReport(claimed.id, failure, "old", claimed.attempt)])
        assert not isinstance(found, OjsterError)
        assert (found.state, found.attempt) == ("scheduled", 0)
        await bench.run_due(after=6)
    assert (await bench.find(job)).state == "available"


async def test_types_are_named_over_http(bench: Bench, http: Http) -> None:
    body = {"worker_id": "w", "queues": ["default"], "job_types": ["email.send", "email.read@2", "email.send"]}
    assert (await http("POST", "/ojs/v1/workers/heartbeat", body)).status_code == 200
    await http.push(type="report.build")
    job = await http.push(type="email.read")
    assert [one["id"] for one in await http.fetch(worker_id="w", count=9)] == [job["id"]]
    (other,) = await http.fetch(worker_id="x", job_types=["report.build"])
    assert other["type"] == "report.build"


@pytest.mark.parametrize("types", [["No Type"], "email.send", [1], ["a"] * 1_001])
async def test_what_is_no_list_of_types_is_refused(http: Http, types: object) -> None:
    refused = await http("POST", "/ojs/v1/workers/fetch", {"queues": ["default"], "job_types": types})
    assert refused.status_code == 400
    assert (await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "job_types": types})).status_code == 400


async def test_a_worker_of_a_tenant_with_resources_of_its_own_is_woken(bench: Bench) -> None:
    acme = bench.service.as_(Caller("acme"))
    said = Heartbeat("host/1", queues=("default",), job_types=("email.send",), capabilities={"memory_gb": 4})
    await acme.fleet.beat(said)
    waiting = asyncio.create_task(acme.jobs.fetch(Claim(("default",), 1, worker_id="host/1"), 30.0))
    for _ in range(5):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        (pushed,) = await acme.jobs.enqueue([request("email.send")])
        assert [one.id for one in await waiting] == [pushed.job.id]


async def test_a_worker_with_an_empty_list_gets_nothing_and_disturbs_nobody(bench: Bench) -> None:
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 1, worker_id="idle"), 30.0))
    for _ in range(5):
        await asyncio.sleep(0)
    await appear(bench, "idle")
    job = await bench.push("email.send")
    assert [one.id for one in await bench.fetch(worker_id="other")] == [job.id]
    assert await bench.fetch(worker_id="idle") == []
    waiting.cancel()


async def test_a_fetch_that_began_before_its_worker_was_known_does_not_hold_up_others(bench: Bench) -> None:
    early = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 1, worker_id="early"), 30.0))
    for _ in range(5):
        await asyncio.sleep(0)
    await appear(bench, "early", "report.build")
    other = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 1, worker_id="foreign"), 30.0))
    for _ in range(5):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        job = await bench.push("email.send")
        assert [one.id for one in await other] == [job.id]
    early.cancel()


async def test_a_waiting_worker_that_gains_a_type_gets_the_jobs_that_wait_for_it(bench: Bench) -> None:
    await appear(bench, "w", "email.send")
    job = await bench.push("report.build")
    waiting = asyncio.create_task(bench.service.jobs.fetch(Claim(("default",), 1, worker_id="w"), 30.0))
    for _ in range(5):
        await asyncio.sleep(0)
    await appear(bench, "w", "email.send", "report.build")
    async with asyncio.timeout(PATIENCE):
        assert [one.id for one in await waiting] == [job.id]

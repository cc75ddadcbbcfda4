"""Workers learn at once of cancellations and orders: their heartbeats wait at the server for news."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import ojster
from ojster.core.durations import SECOND
from ojster.core.settings import ServiceSettings
from ojster.fleet.workers import Heartbeat, HeartbeatResponse
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.wakeups import Wakeups
from tests.conftest import Bench, Http
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


def beat(service: Service, *jobs: str, wait: float = 30.0, state: str = "running") -> asyncio.Task[HeartbeatResponse]:
    """Send a heartbeat that waits for news."""
    return asyncio.create_task(service.fleet.beat(Heartbeat("w", jobs, state=state), wait))


async def waits(bench: Bench) -> None:
    """Wait until the worker's heartbeat is recorded: its waiter was armed before that, so no news can be lost."""
    seen = len(await bench.service.fleet.all())
    while not seen:
        await asyncio.sleep(0)
        seen = len(await bench.service.fleet.all())
    for _ in range(3):
        await bench.service.fleet.all()


async def patient(bench: Bench, *jobs: str, state: str = "running") -> asyncio.Task[HeartbeatResponse]:
    """Send a heartbeat that waits for news; again if it was woken for nothing."""
    while True:
        waiting = beat(bench.service, *jobs, state=state)
        await waits(bench)
        if not waiting.done():
            return waiting
        assert (await waiting).woken


@pytest.fixture
def never_woken_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins to listen is woken, and everybody now and then, since a notification may have been lost."""
    monkeypatch.setattr(Wakeups, "wake_all", lambda self: None)


async def test_a_cancellation_ends_the_wait(bench: Bench) -> None:
    job = await bench.push()
    await bench.fetch_one(worker_id="w")
    waiting = await patient(bench, job.id)
    await bench.service.jobs.cancel(job.id)
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).woken
        assert (await beat(bench.service, job.id)).cancelled == [job.id]


async def test_a_job_that_began_after_the_heartbeat_ends_the_wait_too(bench: Bench) -> None:
    waiting = beat(bench.service)
    await waits(bench)
    await bench.push()
    claimed = await bench.fetch_one(worker_id="w")
    await bench.service.jobs.cancel(claimed.id)
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).woken


@pytest.mark.needs("notifications")
@pytest.mark.usefixtures("never_woken_for_nothing")
async def test_completions_and_the_cancellation_of_others_jobs_do_not_end_the_wait(bench: Bench) -> None:
    for _ in range(3):
        await bench.push()
    mine, theirs = await bench.fetch_one(worker_id="w"), await bench.fetch_one(worker_id="x")
    waiting = await patient(bench, mine.id)
    await bench.ack(mine)
    await bench.service.jobs.cancel(theirs.id)
    await waits(bench)
    assert not waiting.done()
    waiting.cancel()


async def test_an_order_ends_the_wait(bench: Bench) -> None:
    await beat(bench.service, wait=0)
    waiting = beat(bench.service)
    await waits(bench)
    await bench.service.fleet.direct("w", "quiet")
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).woken or (await waiting).directive == "quiet"
        assert (await beat(bench.service)).directive == "quiet"


async def test_a_worker_that_obeys_already_waits(bench: Bench) -> None:
    await beat(bench.service, wait=0)
    await bench.service.fleet.direct("w", "quiet")
    waiting = await patient(bench, state="quiet")  # the news of the order may come late: that, too, wakes once
    waiting.cancel()


@pytest.mark.usefixtures("never_woken_for_nothing")
async def test_the_wait_ends_with_its_time(bench: Bench) -> None:
    assert not (await bench.service.fleet.beat(Heartbeat("alone"), 0.01)).woken


async def test_another_process_can_cancel(bench: Bench, url: str) -> None:
    if ":memory:" in url:
        pytest.skip("a database in memory has one process")
    job = await bench.push()
    await bench.fetch_one(worker_id="w")
    waiting = beat(bench.service, job.id)
    await waits(bench)
    other = Service(open_database(url))
    try:
        await other.jobs.cancel(job.id)
        async with asyncio.timeout(PATIENCE):
            assert (await waiting).woken
    finally:
        await other.close()


async def test_a_heartbeat_for_an_old_attempt_says_that_it_is_lost(bench: Bench, http: Http) -> None:
    await bench.push(retry={"max_attempts": 3, "initial_interval": "PT1S", "jitter": False})
    first = await bench.fetch_one(worker_id="w")
    await bench.fail(first)
    await bench.run_due(1)
    second = await bench.fetch_one(worker_id="w")
    body: dict[str, object] = {"worker_id": "w", "active_jobs": [first.id], "attempts": {first.id: 1}}
    old = (await http("POST", "/ojs/v1/workers/heartbeat", body)).json()
    assert (old["jobs_extended"], old["jobs_lost"]) == ([], [first.id])
    body["attempts"] = {second.id: 2}
    new = (await http("POST", "/ojs/v1/workers/heartbeat", body)).json()
    assert (new["jobs_extended"], new["jobs_lost"]) == ([second.id], [])


async def test_a_heartbeat_may_name_one_job(bench: Bench, http: Http) -> None:
    await bench.push()
    job = await bench.fetch_one(worker_id="w")
    bench.clock.advance(5)
    body = {"worker_id": "w", "job_id": job.id, "visibility_timeout_ms": 60_000}
    answer = (await http("POST", "/ojs/v1/workers/heartbeat", body)).json()
    assert answer["jobs_extended"] == [job.id]
    assert (await bench.find(job)).due_at == bench.clock.now + 60 * SECOND


async def test_heartbeats_wait_over_http(bench: Bench, http: Http) -> None:
    job = await bench.push()
    await bench.fetch_one(worker_id="w")
    body = {"worker_id": "w", "active_jobs": [job.id], "wait_ms": 30_000}
    waiting = asyncio.create_task(http("POST", "/ojs/v1/workers/heartbeat", body))
    await waits(bench)
    await bench.service.jobs.cancel(job.id)
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).json()["woken"] is True
    refused = await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "wait_ms": 60_001})
    assert refused.status_code == 400


class TestPatience:
    """A server with little patience: its workers are told, and send heartbeats more often."""

    @pytest.fixture
    def engine_settings(self) -> ServiceSettings:
        return ServiceSettings(heartbeat_timeout=3 * SECOND)

    async def test_the_server_says_how_long_a_worker_may_be_silent(self, http: Http) -> None:
        answer = await http("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"})
        assert answer.json()["heartbeat_timeout_ms"] == 3_000


async def test_a_worker_sends_heartbeats_as_often_as_its_server_needs_them(tmp_path: Path) -> None:
    app = ojster.App(f"sqlite:///{tmp_path}/jobs.db", settings=ojster.Settings(heartbeat_timeout=1.5))
    app.job("t")(lambda: None)
    worker = ojster.Worker(app)
    assert worker._heartbeat_interval() == pytest.approx(5.0)
    running = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(PATIENCE):
            while worker._patience != 1.5:
                await asyncio.sleep(0.01)
        assert worker._heartbeat_interval() == pytest.approx(0.5)
    finally:
        worker.stop()
        await running
        await app.aclose()

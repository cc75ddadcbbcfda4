"""After an outage of the database, no lease ends before workers had time to report."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster import App, Worker
from ojster.core.errors import BackendUnavailable
from ojster.fleet.workers import Heartbeat
from ojster.jobs.claim_policy import Claim
from ojster.schedules.due_work import run_due
from ojster.service import Service
from ojster.storage.open import open_database, wait_for_database
from ojster.storage.outages import OUTAGE_GRACE_SECONDS, Outages
from ojster.storage.postgres import clock as postgres_clock
from ojster.storage.postgres.database import PostgresDatabase
from ojster.storage.sqlite import lock
from ojster.storage.transaction import Transaction
from tests import forked
from tests.conftest import SERVER_VARIABLE, Bench, Clock, request
from tests.waiting import PATIENCE
from tests.workflows.bench import WorkflowBench, chain, job

pytestmark = pytest.mark.anyio

LEASE_SECONDS = 5.0
OUTAGE_SECONDS = 35.0


@contextmanager
def locked(url: str) -> Iterator[Callable[[], None]]:
    """Lock a SQLite file as another process would; yield what unlocks it."""
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as other:
        other.set_busy_timeout(10_000)
        other.execute("BEGIN IMMEDIATE")

        def unlock() -> None:
            if other.in_transaction:
                other.execute("ROLLBACK")

        try:
            yield unlock
        finally:
            unlock()


async def lease_ends(bench: Bench) -> str:
    await bench.push()
    return (await bench.fetch_one(worker_id="w", lease=round(LEASE_SECONDS * 1e6))).id


async def timeout_is_over(bench: Bench) -> str:
    await bench.push(timeout=5, retry={"max_attempts": 1})
    return (await bench.fetch_one(worker_id="w")).id


async def worker_is_silent(bench: Bench) -> str:
    await bench.push()
    held = await bench.fetch_one(worker_id="w")
    await bench.service.fleet.beat(Heartbeat("w", (held.id,), lease=3_600_000_000))
    return held.id


@pytest.mark.parametrize("hold", [lease_ends, timeout_is_over, worker_is_silent])
async def test_what_ended_during_an_outage_is_still_reported_after_it(
    bench: Bench, hold: Callable[[Bench], Awaitable[str]]
) -> None:
    done = await bench.find(await hold(bench))
    bench.service.database.outages.begin()
    due = await bench.run_due(after=OUTAGE_SECONDS)
    assert due is not None
    assert due == bench.clock.now + round(OUTAGE_GRACE_SECONDS * 1e6)
    await bench.run_due(after=OUTAGE_GRACE_SECONDS - 0.1)
    assert (await bench.ack(done)).state == "completed"


@pytest.mark.parametrize("hold", [lease_ends, timeout_is_over, worker_is_silent])
async def test_what_nobody_reports_ends_with_the_grace_period(
    bench: Bench, hold: Callable[[Bench], Awaitable[str]]
) -> None:
    held = await hold(bench)
    bench.service.database.outages.begin()
    await bench.run_due(after=OUTAGE_SECONDS)
    await bench.run_due(after=OUTAGE_GRACE_SECONDS)
    assert (await bench.find(held)).state != "active"


async def test_what_ended_before_an_outage_does_not_wait_for_its_end(bench: Bench) -> None:
    held = await lease_ends(bench)
    bench.clock.advance(LEASE_SECONDS)
    await bench.push()
    bench.service.database.outages.begin()
    await bench.run_due(after=OUTAGE_SECONDS)
    assert (await bench.find(held)).state == "available"


async def test_a_workflow_waits_for_the_worker_of_a_stopped_step_that_could_not_confirm_during_an_outage(
    flow: WorkflowBench,
) -> None:
    await flow.create(chain(job("a"), job("b")) | {"on_cancel": job("tidy")})
    await flow.fetch_one(worker_id="w", lease=round(LEASE_SECONDS * 1e6))
    await flow.cancel_step("0")
    flow.service.database.outages.begin()
    await flow.run_due(OUTAGE_SECONDS)
    assert (await flow.step("0")).stopping
    await flow.run_due(OUTAGE_GRACE_SECONDS)
    assert not (await flow.step("0")).stopping


@given(st.lists(st.tuples(st.floats(0.1, 20), st.floats(0, 20), st.booleans()), max_size=30), st.floats(0.1, 60))
def test_a_lease_ends_soon_although_the_database_is_slow_all_the_time(
    steps: list[tuple[float, float, bool]], lease: float
) -> None:
    """Each step: a pause, a transaction that takes some time, and whether that is noticed as an outage."""
    outages, now, lease_end = Outages(), 0, round(lease * 1e6)
    for pause, took, slow in steps:
        now += round(pause * 1e6)
        overdue_before = now - lease_end
        if slow:
            outages.begin()
        now += round(took * 1e6)
        expired = lease_end <= outages.horizon(now).ended_by
        outages.note_write(now, lambda now=now: now)  # type: ignore[misc]
        if expired:
            return
        longest = max(pause + took for pause, took, _ in steps)
        assert overdue_before <= (OUTAGE_GRACE_SECONDS + 2 * longest) * 1e6


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "OUTAGE_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
async def test_finished_jobs_are_reported_when_the_lock_of_the_file_ends_that_lasted_longer_than_their_leases(
    file_url: str, clock: Clock
) -> None:
    """The search for expired leases comes before the report, as it does in a process that waits for the lease's end."""
    bench = Bench(Service(open_database(file_url, clock=clock)), clock)
    held = await bench.find(await lease_ends(bench))
    with locked(file_url) as unlock:
        clock.advance(OUTAGE_SECONDS)
        waiting = asyncio.create_task(bench.run_due())
        while bench.service.database.outages._since is None:
            await asyncio.sleep(0.001)
        reporting = asyncio.create_task(bench.ack(held))
        unlock()
        await waiting
    assert (await reporting).state == "completed"
    await bench.service.close()


@pytest.mark.usefixtures("impatient")
async def test_a_process_that_could_not_write_spares_leases_when_it_can_again(
    file_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "BUSY_TIMEOUT", 0)
    bench = Bench(Service(open_database(file_url, clock=clock)), clock)
    held = await bench.find(await lease_ends(bench))
    with locked(file_url):
        clock.advance(OUTAGE_SECONDS)
        with pytest.raises(BackendUnavailable, match=r"another process has kept it locked for .* Let that process end"):
            await bench.ack(held)
    await bench.run_due()
    assert (await bench.ack(held)).state == "completed"
    await bench.service.close()


async def test_a_process_that_lost_its_connections_spares_leases(postgres_url: str, clock: Clock) -> None:
    url = f"{postgres_url}&application_name=outage"
    bench = Bench(Service(open_database(url, clock=clock)), clock)
    held = await bench.find(await lease_ends(bench))
    clock.advance(OUTAGE_SECONDS)
    with psycopg.connect(os.environ[SERVER_VARIABLE], autocommit=True) as other:
        ending = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'outage'"
        assert other.execute(ending).fetchall()
    await bench.run_due()
    assert (await bench.ack(held)).state == "completed"
    await bench.service.close()


async def test_a_lease_outlives_a_jump_of_the_clock_of_postgresql(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = open_database(postgres_url)
    assert isinstance(database, PostgresDatabase)
    service = Service(database)
    await service.jobs.enqueue([request()])
    (held,) = await service.jobs.fetch(Claim(("default",), 1, "w", round(LEASE_SECONDS * 1e6)))
    before = database.clock()
    monkeypatch.setattr(postgres_clock, "NOW", f"{postgres_clock.NOW} + 300000000")
    with psycopg.connect(database.conninfo) as connection:
        database._look_around(connection)  # as each heartbeat does
    assert database.clock() - before > 200_000_000
    await database.run(run_due, None)
    assert (await service.jobs.find(held.id)).state == "active"
    monkeypatch.setattr(database, "clock", lambda: before + (300 + 15) * 10**6)  # until others have measured it
    assert await database.run(run_due, None) is not None
    assert (await service.jobs.find(held.id)).state == "active"
    assert (await service.fleet.beat(Heartbeat("w", (held.id,)))).extended == [held.id]
    await service.close()


async def test_a_transaction_that_took_very_long_counts_as_an_outage(bench: Bench) -> None:
    """The database has hung: its other callers could not write either."""
    held = await lease_ends(bench)
    database = bench.service.database
    bench.clock.advance(OUTAGE_SECONDS)

    def run_due_slowly(tx: Transaction, requests: Sequence[None]) -> list[int | None]:
        tx.began = time.monotonic() - 10
        return run_due(tx, requests)

    await database.run(run_due_slowly, None)
    assert (await bench.find(held)).state == "active"


def test_a_file_that_is_locked_is_opened_and_read(file_url: str) -> None:
    with locked(file_url):
        begun = time.monotonic()
        open_database(file_url).close()
        assert time.monotonic() - begun < lock.BUSY_TIMEOUT / 1000


def test_a_process_says_what_it_waits_for_and_waits_for_no_longer_than_it_may(
    file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with locked(file_url) as unlock:
        wait_for_database(file_url, 0.4)  # more than a busy machine needs for the first look
        path = file_url.removeprefix("sqlite:///")
        assert f"waiting for the database file {path}, for 0 s at most: another process has locked it" in caplog.text
        waiting = threading.Thread(target=wait_for_database, args=(file_url, 60))
        waiting.start()
        unlock()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()


@pytest.mark.slow
async def test_a_worker_completes_what_it_ran_while_its_file_was_locked_for_longer_than_the_lease(
    file_url: str, tmp_path: Path
) -> None:
    """So does a worker that starts meanwhile, in a process of its own; and both together run each job once."""
    (tmp_path / "shop.py").write_text(
        "import time\nfrom ojster import App\napp = App()\n"
        '@app.job("nap", retry={"max_attempts": 1})\ndef nap(seconds: float) -> float:\n    time.sleep(seconds)\n'
        "    return seconds\n"
    )
    app = App(file_url)

    @app.job("nap", retry={"max_attempts": 1})
    def nap(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    log = tmp_path / "log"
    handles = [await nap.aenqueue(number / 10) for number in range(10)]
    worker = Worker(app, lease=1.0, concurrency=10)
    running = asyncio.create_task(worker.run())
    while any([(await app.client().jobs.find(handle.id)).state == "available" for handle in handles]):
        await asyncio.sleep(0.01)
    with locked(file_url) as unlock, log.open("wb") as output:
        command = [sys.executable, "-m", "ojster", "worker", "shop:app", "--url", file_url]
        second = forked.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
        while "waiting for the database file" not in log.read_text():
            await asyncio.sleep(0.05)
        await asyncio.sleep(3)
        unlock()
    assert [await handle.aresult(PATIENCE) for handle in handles] == [number / 10 for number in range(10)]
    assert [(await app.client().jobs.find(handle.id)).attempt for handle in handles] == [1] * 10
    worker.stop()
    await running
    while "started" not in log.read_text():
        await asyncio.sleep(0.05)
    second.terminate()
    assert second.wait(PATIENCE) == 0, log.read_text()
    await app.aclose()

"""Which jobs run at the same time, and the watch over the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ojster import App, Job
from ojster.core.errors import OjsterError
from ojster.jobs.messages import Release
from ojster.jobs.service import JobService
from ojster.storage.transaction import Transaction
from ojster.worker import crash_isolation, execution, loop_watch
from ojster.worker.crash_isolation import CrashIsolation, WorkerPlace
from ojster.worker.loop_watch import LoopWatch
from ojster.worker.worker import Worker
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def soon() -> None:
    """Let all tasks go on that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def begin(isolation: CrashIsolation, *, suspect: bool) -> asyncio.Task[WorkerPlace]:
    return asyncio.create_task(isolation.join(suspect=suspect))


async def test_a_suspect_waits_for_the_others_and_runs_alone() -> None:
    rung = 0

    def ring() -> None:
        nonlocal rung
        rung += 1

    jobs = CrashIsolation(ring)
    first, second = [await jobs.join(suspect=False) for _ in range(2)]
    assert not jobs.is_closed
    suspect = begin(jobs, suspect=True)
    await soon()
    assert jobs.is_closed, "no more jobs are fetched"
    assert not suspect.done()
    jobs.leave(first)
    jobs.leave(second)
    place = await asyncio.wait_for(suspect, PATIENCE)
    late, other = begin(jobs, suspect=False), begin(jobs, suspect=True)
    await soon()
    assert not late.done()
    assert not other.done(), "one suspect after the other"
    jobs.leave(place)
    await soon()
    assert late.done() is not other.done()
    before = rung
    for task in (late, other):
        jobs.leave(await asyncio.wait_for(task, PATIENCE))
        await soon()
    assert not jobs.is_closed
    assert rung > before, "the worker is told that it may fetch again"


async def test_a_suspect_that_goes_on_is_not_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_isolation, "ALONE_SECONDS", 0.01)
    jobs = CrashIsolation(lambda: None)
    long = await jobs.join(suspect=True)
    next_one = await asyncio.wait_for(jobs.join(suspect=True), PATIENCE)
    beside = await asyncio.wait_for(jobs.join(suspect=False), PATIENCE)
    for place in (long, next_one, beside):
        jobs.leave(place)
    assert not jobs.is_closed


async def test_a_suspect_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_isolation, "PATIENCE_SECONDS", 0.01)
    jobs = CrashIsolation(lambda: None)
    await jobs.join(suspect=False)
    place = await asyncio.wait_for(jobs.join(suspect=True), PATIENCE)
    assert jobs.is_closed
    jobs.leave(place)
    assert not jobs.is_closed


async def test_a_suspect_that_is_cancelled_while_it_waits_leaves_no_trace() -> None:
    jobs = CrashIsolation(lambda: None)
    ordinary = await jobs.join(suspect=False)
    waiting = begin(jobs, suspect=True)
    await soon()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not jobs.is_closed
    jobs.leave(ordinary)


async def test_what_blocks_the_loop_is_logged_with_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_watch, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(loop_watch, "BLOCKED_SECONDS", 0.05)
    watch = LoopWatch()
    await asyncio.sleep(0.02)
    with caplog.at_level(logging.WARNING, "ojster"):
        deadline = time.monotonic() + PATIENCE
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)  # blocks the loop
    watch.stop()
    assert len(caplog.records) == 1
    assert "test_what_blocks_the_loop" in caplog.text


@pytest.mark.parametrize("first", ["the loop", "its watch"])
def test_a_process_that_stood_still_does_not_blame_a_handler(
    first: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr(loop_watch, "time", SimpleNamespace(monotonic=lambda: now))

    def stand_still(_: float) -> bool:
        nonlocal now
        if now > 100:
            return True
        now += 60
        if first == "the loop":
            watch._seen = now
        return False

    watch: Any = SimpleNamespace(_seen=now, _stopped=SimpleNamespace(wait=stand_still), backup_heartbeat=None)
    with caplog.at_level(logging.WARNING, "ojster"):
        LoopWatch._watch(watch)
    (record,) = caplog.records
    assert record.getMessage().startswith("this process has stood still for 60 seconds")


def _lose(tx: Transaction, ids: Sequence[str]) -> list[None]:
    """Record that workers have died with jobs."""
    jobs = tx.lock_jobs(ids)
    tx.execute_many("UPDATE jobs SET losses = 1 WHERE seq = ?", [(job.seq,) for job in jobs.values()])
    return [None for _ in ids]


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_jobs_that_begin_alone_all_run_one_by_one(shared_url: str, tenant: str | None) -> None:
    """The worker hands back those that it cannot begin yet, without counting an attempt."""
    app = App(shared_url, tenant=tenant)
    running: list[int] = []

    @app.job("careful")
    async def careful(number: int) -> int:
        running.append(number)
        await asyncio.sleep(0.01)
        assert running == [number], "nobody runs beside it"
        running.remove(number)
        return number

    handles = [await careful.aenqueue(number) for number in range(6)]
    await app.service().database.run_many(_lose, [handle.id for handle in handles])
    await asyncio.wait_for(Worker(app).run(until_empty=True), PATIENCE)
    jobs = [await app.client().jobs.find(handle.id) for handle in handles]
    assert [(job.state, job.attempt, job.losses) for job in jobs] == [("completed", 1, 1)] * 6
    await app.aclose()


@pytest.mark.parametrize("place", [0, 2, 5])
async def test_jobs_that_were_fetched_with_one_that_begins_alone_are_not_handed_back(
    shared_url: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[str] = []
    release = JobService.release

    async def note(self: JobService, items: Sequence[Release]) -> list[Job | OjsterError]:
        released.extend(item.job_id for item in items)
        return await release(self, items)

    monkeypatch.setattr(JobService, "release", note)
    app = App(shared_url)

    @app.job("ordinary")
    async def ordinary() -> None:
        await asyncio.sleep(0.01)

    handles = [await ordinary.aenqueue() for _ in range(6)]
    await app.service().database.run(_lose, handles[place].id)
    await asyncio.wait_for(Worker(app, concurrency=6).run(until_empty=True), PATIENCE)
    jobs = [await app.client().jobs.find(handle.id) for handle in handles]
    assert {(job.state, job.attempt) for job in jobs} == {("completed", 1)}
    assert not released
    await app.aclose()


async def test_a_job_that_times_out_while_it_waits_to_begin_alone_runs_later(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timeout includes the wait; then it is handed back, and this worker may run it again."""
    monkeypatch.setattr(execution, "OVERLAP_DELAY_SECONDS", 600.0)
    app = App(shared_url)
    may_end = asyncio.Event()
    ran: list[str] = []
    limits: list[asyncio.Timeout] = []
    timeout_at = asyncio.timeout_at

    def note(when: float | None) -> asyncio.Timeout:
        limits.append(timeout_at(when))
        return limits[-1]

    monkeypatch.setattr(asyncio, "timeout_at", note)

    @app.job("long")
    async def long() -> None:
        ran.append("long")
        await may_end.wait()

    @app.job("careful", timeout=2 * PATIENCE)
    async def careful() -> None:
        ran.append("careful")

    await long.aenqueue()
    worker = Worker(app, concurrency=2)
    running = asyncio.create_task(worker.run())
    while not ran:
        await asyncio.sleep(0.01)
    await app.client().queues.pause("default")
    handle = await careful.aenqueue()
    await app.service().database.run(_lose, handle.id)
    limits.clear()
    await app.client().queues.resume("default")
    async with asyncio.timeout(PATIENCE):
        while not limits:
            await asyncio.sleep(0.01)
        limits[0].reschedule(0)
        while not limits[0].expired():
            await asyncio.sleep(0.01)
    assert ran == ["long"]
    may_end.set()
    async with asyncio.timeout(PATIENCE):
        await handle.aresult()
    worker.stop()
    await running
    assert ran == ["long", "careful"]
    assert (await handle.arefresh()).job.attempt == 1
    await app.aclose()

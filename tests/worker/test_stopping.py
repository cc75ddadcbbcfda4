"""A worker says that an attempt has stopped only when its handler runs no longer."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

import pytest

from ojster import App, Depends, Job, JobContext, JobFailed, Retry, Worker, chain, result_of
from ojster.jobs.claim_policy import Claim
from ojster.storage.outages import Outages
from ojster.worker import execution
from tests.time_limits import exhaust_time

pytestmark = pytest.mark.anyio

LIMIT = 30.0
"""Time after which a test gives up, in seconds."""


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("end", ["cancel", "timeout"])
async def test_a_branch_starts_when_the_handler_has_really_stopped(app: App, kind: str, end: str) -> None:
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    running = asyncio.Event()

    @app.job("coroutine")
    async def coroutine(context: JobContext) -> None:
        running.set()
        if end == "timeout":
            exhaust_time(context)
        try:
            await asyncio.sleep(LIMIT)
        finally:
            await asyncio.sleep(0.2)
            seen.append("stopped")

    @app.job("thread")
    def thread(context: JobContext) -> None:
        loop.call_soon_threadsafe(running.set)
        if end == "timeout":
            exhaust_time(context)
        context.wait_cancelled(LIMIT)
        context.wait_cancelled(0.2)
        seen.append("stopped")

    @app.job("tidy")
    def tidy() -> None:
        seen.append("tidied")

    limit = LIMIT if end == "timeout" else None
    once = Retry(max_attempts=1)
    steps = {
        "thread": thread.using(retry=once, timeout=limit).s(),
        "coroutine": coroutine.using(retry=once, timeout=limit).s(),
    }
    run = await app.astart(chain(steps[kind]), on_cancel=tidy.s(), on_error=tidy.s())
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(LIMIT):
            await running.wait()
            if end == "cancel":
                await run.acancel(stop_active=True)
            while not (await run.arefresh()).finished:
                await asyncio.sleep(0.01)
    finally:
        worker.stop(0)
        await working
    assert seen == ["stopped", "tidied"]


@pytest.mark.parametrize("kind", ["unaware", "aware", "with a dependency", "raising"])
async def test_a_thread_that_succeeds_after_its_stop_has_taken_effect_if_that_can_be_told(app: App, kind: str) -> None:
    begun, may_end = threading.Event(), threading.Event()
    undone: list[int] = []

    def work(job: JobContext) -> int:
        begun.set()
        may_end.wait(LIMIT)
        if kind == "raising":
            raise ValueError("no")
        return 0 if kind == "aware" and job.cancelled else 7

    if kind == "with a dependency":

        @app.job("work")
        def depending(job: JobContext, dependency: object = Depends(object)) -> int:
            return work(job)

    else:
        app.job("work")(work)

    @app.job("undo")
    async def undo(number: int | None) -> None:
        undone.append(number or 0)

    @app.job("first")
    async def first() -> None: ...

    step = app.handlers["work"].s().set(id="work", compensate=undo.s(result_of("work")))
    run = await app.astart(chain(first.s().set(compensate=undo.s(1)), step))
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(LIMIT):
            while not begun.is_set():
                await asyncio.sleep(0.01)
            await run.acancel(stop_active=True)
            while worker.abandoned == 0:
                await asyncio.sleep(0.01)
            may_end.set()
            while not (await app.client().workflows.show(run.id)).finished:
                await asyncio.sleep(0.02)
    finally:
        may_end.set()
        worker.stop()
        await working
    assert undone == ([7, 1] if kind == "unaware" else [1])


async def test_a_worker_that_runs_until_empty_reports_what_its_threads_still_run(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojster.worker.worker.LAST_REPORT_SECONDS", 0.0)
    monkeypatch.setattr("ojster.worker.worker.DRAIN_CHECK_SECONDS", 0.0)
    may_end, fetched = threading.Event(), asyncio.Semaphore(0)

    @app.job("late", timeout=LIMIT, retry=1)
    def late(job: JobContext) -> None:
        exhaust_time(job)
        may_end.wait(LIMIT)

    handle = await late.aenqueue()
    worker = Worker(app)
    fetch = app.service().jobs.fetch

    async def counted(request: Claim, wait: float = 0.0) -> list[Job]:
        if worker.abandoned:
            fetched.release()
        return await fetch(request, wait)

    monkeypatch.setattr(app.service().jobs, "fetch", counted)
    running = asyncio.create_task(worker.run(until_empty=True))
    for _ in range(5):
        looking = asyncio.create_task(fetched.acquire())
        await asyncio.wait((looking, running), timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
        looking.cancel()
    may_end.set()
    await asyncio.wait_for(running, LIMIT)
    await handle.arefresh()
    assert (handle.state, worker.abandoned) == ("discarded", 0)


@pytest.mark.parametrize("concurrency", [1, 2], ids=["all places", "one place"])
async def test_a_worker_that_runs_until_empty_gives_functions_beyond_their_time_the_grace_period_to_end(
    app: App, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr("ojster.worker.worker.LAST_REPORT_SECONDS", 0.0)
    monkeypatch.setattr("ojster.worker.worker.DRAIN_CHECK_SECONDS", 0.01)
    may_end = threading.Event()

    @app.job("endless", timeout=2 * LIMIT, retry=1)
    def endless(job: JobContext) -> None:
        exhaust_time(job)
        may_end.wait(2 * LIMIT)

    await endless.aenqueue()
    worker = Worker(app, concurrency=concurrency, grace=0)
    try:
        await asyncio.wait_for(worker.run(until_empty=True), LIMIT)
        assert worker.abandoned == 1
    finally:
        may_end.set()
    async with asyncio.timeout(LIMIT):
        while worker.abandoned:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("concurrency", [1, 2], ids=["all places", "one place"])
async def test_a_worker_that_runs_until_empty_ends_without_a_coroutine_that_ignores_its_cancellation(
    app: App, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr("ojster.worker.worker.LAST_REPORT_SECONDS", 0.0)
    monkeypatch.setattr("ojster.worker.worker.DRAIN_CHECK_SECONDS", 0.01)
    running, may_end = asyncio.Event(), asyncio.Event()

    @app.job("stubborn")
    async def stubborn() -> None:
        running.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    job = await stubborn.aenqueue()
    worker = Worker(app, concurrency=concurrency, grace=0)
    working = asyncio.create_task(worker.run(until_empty=True))
    try:
        async with asyncio.timeout(LIMIT):
            await running.wait()
            await app.client().jobs.cancel(job.id)
        await asyncio.wait((working,), timeout=LIMIT)
        assert working.done()
        assert worker.abandoned == 1
    finally:
        may_end.set()
        await working


async def test_a_worker_that_has_not_begun_has_left_no_handler_behind(app: App) -> None:
    @app.job("t")
    async def t() -> None: ...

    assert Worker(app).abandoned == 0


@pytest.fixture
def timeouts_end_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process count as one that had an outage before: no lease would end in its first seconds."""
    monkeypatch.setattr(Outages, "begin", lambda *_: None)


@pytest.mark.usefixtures("timeouts_end_leases")
@pytest.mark.parametrize("grace", [None, 10])
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_a_handler_may_return_a_partial_result_in_its_grace_period(
    app: App, kind: str, grace: int | None
) -> None:
    released = threading.Event()

    @app.job("thread")
    def thread(job: JobContext) -> str:
        while not job.cancelled:
            time.sleep(0.01)
        released.wait(0 if grace else LIMIT)
        return "partial"

    @app.job("coroutine")
    async def coroutine() -> str:
        try:
            await asyncio.sleep(LIMIT)
        except asyncio.CancelledError:
            if grace is None:
                raise
        return "partial"

    handle = await app.handlers[kind].using(timeout=1, grace_period=grace, retry=1).aenqueue()
    worker = Worker(app, grace=1)
    running = asyncio.create_task(worker.run())
    try:
        if grace is None:
            with pytest.raises(JobFailed, match="longer than 1 seconds"):
                await handle.aresult(LIMIT)
        else:
            assert await handle.aresult(LIMIT) == "partial"
    finally:
        released.set()
        worker.stop()
        await running
    assert worker.abandoned == 0


async def test_a_timeout_does_not_end_the_cleanup_of_a_cancelled_handler(app: App) -> None:
    seen: list[float | None] = []
    running = asyncio.Event()

    @app.job("slow", timeout=LIMIT)
    async def slow(context: JobContext) -> None:
        running.set()
        try:
            await asyncio.sleep(LIMIT)
        finally:
            await asyncio.sleep(0.1)
            assert context.time_limit is not None
            seen.append(context.time_limit.when())

    job = await slow.aenqueue()
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    try:
        async with asyncio.timeout(LIMIT):
            await running.wait()
            await app.client().jobs.cancel(job.id)
            while not seen:
                await asyncio.sleep(0.01)
                assert seen or worker.active, "the handler ended before it had cleaned up"
    finally:
        worker.stop(0)
        await working
    assert seen == [None]


@pytest.mark.usefixtures("timeouts_end_leases")
async def test_two_attempts_of_a_job_never_run_at_the_same_time_in_one_process(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "OVERLAP_DELAY_SECONDS", 0.05)
    loop = asyncio.get_running_loop()
    begun, may_end = asyncio.Event(), threading.Event()
    running: list[int] = []
    overlaps: list[int] = []

    @app.job("stubborn")
    def stubborn(context: JobContext) -> int:
        overlaps.extend(running)
        running.append(context.attempt)
        if context.attempt == 1:
            loop.call_soon_threadsafe(begun.set)
            may_end.wait(LIMIT)
        running.remove(context.attempt)
        return context.attempt

    retry = Retry(max_attempts=100, initial_interval=0.01, jitter=False)  # on a slow machine, more run into the timeout
    handle = await stubborn.using(retry=retry, timeout=1).aenqueue()
    worker = Worker(app, concurrency=4)
    working = asyncio.create_task(worker.run())
    async with asyncio.timeout(LIMIT):
        await begun.wait()
        while [entry.type for entry in await app.client().jobs.history(handle.id)].count("job.attempt_started") < 3:
            await asyncio.sleep(0.02)  # it was claimed again, and handed back
        assert running == [1]
        may_end.set()
        assert await handle.aresult() >= 2
    assert overlaps == []
    worker.stop()
    await working

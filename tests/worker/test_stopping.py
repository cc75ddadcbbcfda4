"""A worker says that an attempt has stopped only when its handler runs no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ojster import App, JobContext, Retry, Worker, chain

pytestmark = pytest.mark.anyio

LIMIT = 30.0
"""Time after which a test gives up, in seconds."""


@pytest.fixture
async def app(shared_url: str) -> AsyncIterator[App]:
    made = App(shared_url)
    yield made
    await made.aclose()


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("end", ["cancel", "timeout"])
async def test_a_branch_starts_when_the_handler_has_really_stopped(app: App, kind: str, end: str) -> None:
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    running = asyncio.Event()

    @app.job("coroutine")
    async def coroutine() -> None:
        running.set()
        try:
            await asyncio.sleep(LIMIT)
        finally:
            await asyncio.sleep(0.2)
            seen.append("stopped")

    @app.job("thread")
    def thread(context: JobContext) -> None:
        loop.call_soon_threadsafe(running.set)
        context.wait_cancelled(LIMIT)
        context.wait_cancelled(0.2)
        seen.append("stopped")

    @app.job("tidy")
    def tidy() -> None:
        seen.append("tidied")

    limit = 1 if end == "timeout" else None
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
                await run.cancel(stop_active=True)
            while not (await run.refresh()).finished:
                await asyncio.sleep(0.01)
    finally:
        worker.stop(0)
        await working
    assert seen == ["stopped", "tidied"]


async def test_a_timeout_does_not_end_the_cleanup_of_a_cancelled_handler(app: App) -> None:
    seen: list[str] = []
    running = asyncio.Event()

    @app.job("slow", timeout=1)
    async def slow() -> None:
        running.set()
        try:
            await asyncio.sleep(LIMIT)
        finally:
            await asyncio.sleep(1.2)  # beyond the timeout
            seen.append("cleaned up")

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

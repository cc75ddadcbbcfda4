"""Ready-made middleware around handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import structlog

from ojster import App, JobFailed, Worker
from ojster.middleware import structlog_context, timeouts

pytestmark = pytest.mark.anyio


@pytest.fixture
def app() -> Iterator[App]:
    with App("sqlite:///:memory:") as made:
        yield made


async def test_jobs_of_a_type_have_a_timeout_of_their_own(app: App) -> None:
    @app.job("slow", retry=1)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.job("own", retry=1)
    async def own() -> None:
        raise TimeoutError("its own")

    @app.job("other")
    async def other() -> str:
        return "done"

    app.execution_middleware.append(timeouts({"slow": 0.01, "own": 60}))
    late, failed, done = await slow.aenqueue(), await own.aenqueue(), await other.aenqueue()
    await Worker(app).run(until_empty=True)
    with pytest.raises(JobFailed, match=r"lets a job of type slow run for 0\.01 seconds at most"):
        await late.aresult()
    with pytest.raises(JobFailed, match="its own"):
        await failed.aresult()
    assert await done.aresult() == "done"


async def test_what_a_handler_logs_with_structlog_says_in_which_job(app: App) -> None:
    entries = structlog.testing.LogCapture()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, entries])
    app.execution_middleware.append(structlog_context)

    @app.job("plain")
    def plain() -> None:
        structlog.get_logger().info("in a thread")

    try:
        handle = await plain.aenqueue()
        await Worker(app).run(until_empty=True)
        structlog.get_logger().info("afterwards")
    finally:
        structlog.reset_defaults()
    assert [{**entry, "log_level": ""} for entry in entries.entries] == [
        {
            "event": "in a thread",
            "log_level": "",
            "job_id": handle.id,
            "job_type": "plain",
            "queue": "default",
            "attempt": 1,
        },
        {"event": "afterwards", "log_level": ""},
    ]

"""Ready-made middleware around handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
import structlog

from ojster import App, Discard, Retry, Snooze, Worker
from ojster.handlers.outcomes import JobFailed
from ojster.middleware import sentry_errors, structlog_context, timeouts
from ojster.reactions import retry_after
from ojster.testing import JobTester

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


@pytest.mark.parametrize(
    ("only_final", "told"),
    [
        (False, ["failing 1", "failing 2", "failing 3", "discarded 1", "hopeless 1"]),
        (True, ["failing 3", "discarded 1", "hopeless 1"]),
    ],
)
async def test_sentry_gets_what_handlers_raise_with_their_job(app: App, only_final: bool, told: list[str]) -> None:
    events: list[dict[str, Any]] = []
    rested: list[bool] = []

    def keep(event: Any, hint: Any) -> None:
        events.append(event)

    sentry_sdk.init("http://key@127.0.0.1:9/1", before_send=keep, default_integrations=False)
    app.execution_middleware.append(sentry_errors(only_final=only_final))

    @app.job("failing", retry=2, queue="mail", reactions={"on_failure": [retry_after("1d")]})
    def failing() -> None:
        raise ValueError("no")

    @app.job("hopeless", retry=Retry(max_attempts=2, give_up_on=[OSError]))
    def hopeless() -> None:
        raise ConnectionError

    @app.job("discarded")
    async def discarded() -> None:
        raise Discard("not needed")

    @app.job("snoozing")
    async def snoozing() -> None:
        if not rested:
            rested.append(True)
            raise Snooze(1)

    try:
        async with JobTester(app) as jobs:
            for handler in (failing, discarded, hopeless, snoozing):
                await handler.aenqueue()
            await jobs.adrain(check=False, scheduled=True)
    finally:
        sentry_sdk.init(default_integrations=False)
    assert sorted(
        f"{event['tags']['ojster.job_type']} {event['contexts']['ojster']['attempt']}" for event in events
    ) == sorted(told)
    first = next(event for event in events if event["tags"]["ojster.queue"] == "mail")
    assert first["exception"]["values"][-1]["value"] == "no"
    assert first["exception"]["values"][-1]["stacktrace"]["frames"][-1]["function"] == "failing"
    assert first["transaction"] == "failing"

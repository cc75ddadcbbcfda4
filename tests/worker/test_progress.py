"""The progress of a job that its handler reports."""

from __future__ import annotations

import json
import os

import pytest

from ojster import App, JobContext, Snooze, Worker
from ojster.service import Service
from tests.serving import serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("end", ["result", "failure", "snooze"])
async def test_the_last_progress_of_a_job_is_kept_however_soon_it_ends(app: App, kind: str, end: str) -> None:
    def work(context: JobContext) -> None:
        for number in range(1, 6):
            context.progress(number, 10, f"row {number}")
        if end == "failure":
            raise ValueError("no")
        if end == "snooze":
            raise Snooze(3600)

    @app.job("thread", retry=1)
    def thread(context: JobContext) -> None:
        work(context)

    @app.job("coroutine", retry=1)
    async def coroutine(context: JobContext) -> None:
        work(context)

    handle = await app.handlers[kind].aenqueue()
    await Worker(app).run(until_empty=True)
    job = (await handle.arefresh()).job
    assert job.state == {"result": "completed", "failure": "discarded", "snooze": "scheduled"}[end]
    progress = json.loads(job.progress or b"{}")
    assert progress["message"] == "row 5"
    assert progress["progress"] == (1.0 if end == "result" else 0.5)


@pytest.mark.parametrize("caller", ["process", "server"])
async def test_messages_that_no_request_could_carry_are_sent_as_far_as_it_can(
    service: Service, url: str, caller: str
) -> None:
    async with serving(service) as (_, port):
        app = App(url if caller == "process" else f"http://127.0.0.1:{port}")

        @app.job("copy")
        async def copy(context: JobContext, message: str) -> None:
            context.progress(1, 2, os.fsdecode(b"caf\xe9 ") + message)
            raise Snooze(3600)

        handles = [await copy.aenqueue(message) for message in ("", "a\0b", "x" * 2_000)]
        await Worker(app).run(until_empty=True)
        messages = [json.loads((await handle.arefresh()).job.progress or b"{}")["message"] for handle in handles]
        assert messages == ["caf? ", "caf? a\ufffdb", "caf? " + "x" * 995]
        await app.aclose()

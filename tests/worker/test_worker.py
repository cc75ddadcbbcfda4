"""The worker: every kind of handler, every outcome of a job, and a shutdown that loses no job."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from ojster import (
    App,
    BackendUnavailable,
    JobCancelled,
    JobContext,
    JobFailed,
    JobOptions,
    Sharing,
    Snooze,
    Worker,
)
from ojster.core.errors import OjsterError
from ojster.files.service import FileService
from ojster.handlers.job_handle import JobHandle
from ojster.handlers.job_options import request_of
from ojster.queues.pool import Pool
from ojster.queues.pools import put_pools
from ojster.server.application import Application
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.worker.registration import NoHandlers
from tests.serving import listening
from tests.time_limits import exhaust_time
from tests.waiting import PATIENCE
from tests.worker import handlers

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["database", "server"])
async def app(request: pytest.FixtureRequest, shared_url: str) -> AsyncIterator[App]:
    """The application of the test handlers, on a database and on a server."""
    made = handlers.app
    made.url = shared_url
    handlers.seen.clear()
    if request.param == "database":
        yield made
        await made.aclose()
        return
    service = made.service()
    async with listening(Application(service)) as made.url:
        made._service = None
        yield made
        await made.aclose()
        service.drain()


@asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(app, **options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop(grace=5)
        await asyncio.wait_for(running, PATIENCE)


async def push(app: App, type: str, *args: Any, **options: Any) -> JobHandle[Any]:
    declared = app.handlers[type]
    return await (declared.using(**options) if options else declared).aenqueue(*args)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def failure(handle: JobHandle[Any]) -> dict[str, Any]:
    with pytest.raises(JobFailed) as failed:
        await handle.aresult(PATIENCE)
    return failed.value.error


async def test_results_come_back_from_every_kind_of_handler(app: App) -> None:
    async with working(app):
        handle = await push(app, "echo", 1, "a", None, {"k": [1.5]})
        assert await handle.aresult(PATIENCE) == [1, "a", None, {"k": [1.5]}]
        number, thread, attempt = await (await push(app, "thread", 3)).aresult(PATIENCE)
        assert (number, attempt) == (3, 1)
        assert thread.startswith("ojster-job")
        doubled, _ = await (await push(app, "process", 21)).aresult(PATIENCE)
        assert doubled == 42


async def test_a_handler_sees_its_job(app: App) -> None:
    async with working(app):
        handle = await push(app, "context", 5, meta={"k": 1}, retry=1)
        result = await handle.aresult(PATIENCE)
    assert result == {"attempt": 1, "last": True, "meta": {"k": 1}, "same": True}


async def test_a_failing_handler_is_tried_again_and_may_succeed(app: App) -> None:
    async with working(app):
        handle = await push(app, "fail.twice")
        assert await handle.aresult(PATIENCE) == 3
    errors = [error["message"] for error in json.loads(handle.job.errors or b"[]")]
    assert errors == ["attempt 1", "attempt 2"]


async def test_an_attempt_resumes_from_the_last_checkpoint(app: App) -> None:
    async with working(app):
        assert await (await push(app, "resume.async")).aresult(PATIENCE) == [{"attempt": 2}]
        assert await (await push(app, "resume.plain")).aresult(PATIENCE) == [{"attempt": 1}]
        error = await failure(await push(app, "checkpoint.wrongly", retry=1))
        assert "acheckpoint" in error["message"]


async def test_a_handler_can_ask_for_a_pause_of_all_that_share_its_limit(app: App) -> None:
    async with working(app):
        await failure(await push(app, "enough", 60.0))
        second = await push(app, "enough", 0.0)
        free = await push(app, "echo", 1)
        assert await free.aresult(PATIENCE) == [1]
        assert (await second.arefresh()).state == "available"


async def test_errors_have_type_message_and_backtrace(app: App) -> None:
    async with working(app):
        error = await failure(await push(app, "fail.always", "value"))
    assert (error["type"], error["message"], error["attempt"]) == ("ValueError", "value", 2)
    assert "fail_always" in error["backtrace"][0]


async def test_some_exceptions_are_final(app: App) -> None:
    async with working(app):
        assert (await failure(await push(app, "fail.always", "key")))["attempt"] == 1
        assert (await failure(await push(app, "discard")))["code"] == "DISCARD"
        dead = await push(app, "die")
        assert (await failure(dead))["message"] == "look at this"
        assert (await app.client().jobs.retry_dead(dead.id)).state == "available"


async def test_a_snoozed_job_runs_again_without_counting_the_attempt(app: App) -> None:
    async with working(app):
        assert await (await push(app, "snooze")).aresult(PATIENCE) == 1


@pytest.mark.parametrize("type", ["slow", "process.slow"])
async def test_a_job_that_takes_too_long_fails_with_a_timeout(app: App, type: str) -> None:
    async with working(app) as worker, asyncio.timeout(PATIENCE):
        handle = await push(app, type)
        while not (running := [job for job in worker._attempts.contexts if job.time_limit is not None]):
            await asyncio.sleep(0.01)
        exhaust_time(running[0])
        assert (await failure(handle))["type"] == "timeout"


async def test_a_timeout_of_the_handlers_own_is_an_ordinary_error(app: App) -> None:
    async with working(app):
        assert (await failure(await push(app, "own.timeout")))["type"] == "TimeoutError"


async def test_a_child_process_may_raise_or_die(app: App) -> None:
    async with working(app):
        error = await failure(await push(app, "process.fail"))
        assert (error["type"], error["message"]) == ("ValueError", "in the child")
        assert "status 7" in (await failure(await push(app, "process.exit")))["message"]
        assert (await (await push(app, "process", 1)).aresult(PATIENCE))[0] == 2


async def test_child_processes_are_used_again(app: App) -> None:
    async with working(app, concurrency=1):
        pids = {(await (await push(app, "process", n)).aresult(PATIENCE))[1] for n in range(3)}
    assert len(pids) == 1


@pytest.mark.parametrize(("type", "words"), [("no.json", "not valid JSON"), ("large", "at most 1048576")])
async def test_a_result_that_cannot_be_kept_fails_the_job(
    app: App, monkeypatch: pytest.MonkeyPatch, type: str, words: str
) -> None:
    monkeypatch.setattr(FileService, "has_store", property(lambda files: False))
    async with working(app):
        assert words in (await failure(await push(app, type)))["message"]


async def test_a_result_that_is_not_json_fails_a_job_the_same_way_in_a_child_process(app: App) -> None:
    async with working(app):
        for type in ("no_text", "process.no_text"):
            error = await failure(await push(app, type))
            assert error["type"] == "TypeError"
            assert error["message"].startswith(f"The result of the handler of {type!r} is not valid JSON: ")


@pytest.mark.parametrize(
    ("kind", "type"),
    [
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancelled", "CancelledError"),
        ("half", "ValueError"),
    ],
)
async def test_nothing_that_a_handler_raises_stops_the_worker(app: App, kind: str, type: str) -> None:
    async with working(app):
        assert (await failure(await push(app, "raise", kind)))["type"].endswith(type)
        assert await (await push(app, "echo", 1)).aresult(PATIENCE) == [1]


async def test_what_is_no_number_is_refused_instead_of_becoming_null(app: App) -> None:
    with pytest.raises(TypeError, match="NaN"):
        await push(app, "echo", [{"x": float("inf")}])
    async with working(app):
        assert "NaN" in (await failure(await push(app, "nan")))["message"]


async def test_wrong_arguments_are_refused_when_the_job_is_enqueued(app: App) -> None:
    for type, args in (("process", ()), ("process", (1, 2)), ("context", ())):
        with pytest.raises(TypeError, match=r"argument"):
            await push(app, type, *args)


async def test_a_job_without_a_handler_waits_and_is_reported(app: App) -> None:
    async with working(app):
        (pushed,) = await app.client().jobs.enqueue([request_of("unheard.of", [], JobOptions(retry=1))])
        assert await (await push(app, "echo", 1)).aresult(PATIENCE) == [1]
        found = await app.client().jobs.find(pushed.job.id)
        assert (found.state, found.attempt) == ("available", 0)
        (stuck,) = await app.client().fleet.unrunnable()
        assert (stuck.type, stuck.jobs, stuck.reasons) == ("unheard.of", 1, ["it has no handler for 'unheard.of'"])


async def test_two_applications_on_one_queue_run_their_own_jobs(app: App) -> None:
    other = App(app.url)
    ran: list[str] = []

    @other.job("other.note")
    def note(text: str) -> None:
        ran.append(text)

    async with working(app):
        running = asyncio.create_task(Worker(other).run())
        try:
            async with asyncio.timeout(PATIENCE):
                mine = [await push(app, "echo", number) for number in range(20)]
                theirs = [await note.aenqueue(f"{number}") for number in range(20)]
                assert [await one.aresult() for one in mine] == [[number] for number in range(20)]
                for handle in theirs:
                    await handle.aresult()
                    assert (await handle.arefresh()).job.attempt == 1
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await other.aclose()
    assert sorted(ran, key=int) == [f"{number}" for number in range(20)]


async def test_a_worker_without_handlers_refuses_to_start(shared_url: str) -> None:
    empty = App(shared_url)
    with pytest.raises(NoHandlers, match=r"no job handlers.*import the modules"):
        await Worker(empty).run()
    await empty.aclose()


@pytest.mark.parametrize("type", ["sleep", "sleep.thread"])
async def test_a_cancelled_job_is_stopped(app: App, type: str) -> None:
    async with working(app) as worker:  # its heartbeats are ten seconds apart: it must be told
        handle = await push(app, type, 30.0)
        while worker.active == 0:
            await asyncio.sleep(0.01)
        await handle.acancel()
        with pytest.raises(JobCancelled):
            await handle.aresult(PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while worker.active:
                await asyncio.sleep(0.02)


async def test_never_more_jobs_run_than_there_are_places(app: App) -> None:
    most = running = 0

    async def count(context: JobContext, call: Any) -> Any:
        nonlocal most, running
        running += 1
        most = max(most, running)
        try:
            return await call()
        finally:
            running -= 1

    app.execution_middleware.append(count)
    try:
        async with working(app, concurrency=3):
            handles = await app.handlers["sleep"].aenqueue_many([(0.02,)] * 12)
            for handle in handles:
                assert await handle.aresult(PATIENCE) == "slept"
    finally:
        app.execution_middleware.clear()
    assert most == 3


async def test_middleware_wraps_every_job_from_the_outside_in(app: App) -> None:
    order: list[str] = []

    def layer(name: str) -> Any:
        async def wrap(context: JobContext, call: Any) -> Any:
            order.append(f"{name} before {context.job.type}")
            result = await call()
            order.append(f"{name} after")
            return [name, result]

        return wrap

    app.execution_middleware += [layer("outer"), layer("inner")]
    try:
        async with working(app):
            assert await (await push(app, "echo", 1)).aresult(PATIENCE) == ["outer", ["inner", [1]]]
    finally:
        app.execution_middleware.clear()
    assert order == ["outer before echo", "inner before echo", "inner after", "outer after"]


async def test_a_stopping_worker_finishes_what_it_runs(app: App) -> None:
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    handle = await push(app, "sleep", 0.3)
    while worker.active == 0:
        await asyncio.sleep(0.01)
    worker.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert (await handle.arefresh()).state == "completed"
    assert await app.client().fleet.all() == []


async def test_a_stopping_worker_hands_back_what_does_not_finish(app: App) -> None:
    worker = Worker(app, grace=0.1)
    running = asyncio.create_task(worker.run())
    handle = await push(app, "sleep", 30.0)
    waiting = await push(app, "sleep", 30.0, queue="other")
    while worker.active == 0:
        await asyncio.sleep(0.01)
    worker.stop()
    await asyncio.wait_for(running, PATIENCE)
    job = (await handle.arefresh()).job
    assert (job.state, job.attempt) == ("available", 0)
    assert (await waiting.arefresh()).state == "available"


async def test_a_quiet_worker_fetches_nothing_until_it_resumes(app: App) -> None:
    async with working(app) as worker:
        worker.quiet()
        handle = await push(app, "echo", 1)
        with pytest.raises(TimeoutError):
            await handle.aresult(0.2)
        worker.resume()
        assert await handle.aresult(PATIENCE) == [1]


async def test_a_worker_does_what_the_operator_says(app: App) -> None:
    worker = Worker(app, lease=1.2)
    running = asyncio.create_task(worker.run())
    client = app.client()
    async with asyncio.timeout(PATIENCE):
        while not await client.fleet.all():
            await asyncio.sleep(0.01)
        await client.fleet.direct(worker.id, "quiet")
        await until(lambda: worker.state == "quiet")
        await client.fleet.direct(worker.id, "running")
        await until(lambda: worker.state == "running")
        await client.fleet.direct(worker.id, "terminate")
        await running


async def test_a_worker_registers_the_applications_cron_jobs(app: App) -> None:
    declared = app.handlers["echo"]
    app.cron("@every 1s", 7, name="tick")(declared)
    try:
        async with working(app):
            async with asyncio.timeout(PATIENCE):
                while True:
                    with contextlib.suppress(Exception):
                        if (await app.client().schedules.find("tick")).run_count:
                            break
                    await asyncio.sleep(0.05)
    finally:
        app.crons.clear()


async def test_a_long_job_keeps_its_lease(app: App) -> None:
    async with working(app, lease=2.0):
        handle = await push(app, "sleep", 3.0)
        assert await handle.aresult(PATIENCE) == "slept"
    assert handle.job.attempt == 1


async def test_a_result_is_reported_after_a_server_outage(shared_url: str) -> None:
    """The worker keeps the outcome of a job until the server accepts it."""
    app = App(shared_url)

    @app.job("once")
    async def once() -> str:
        ran.append(1)
        return "done"

    ran: list[int] = []
    service: Service = app.service()
    refused = 0
    original = service.jobs.acknowledge

    async def acknowledge(items: Any) -> Any:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise BackendUnavailable("away")
        return await original(items)

    service.jobs.acknowledge = acknowledge  # type: ignore[method-assign]  # simulates an unreachable server
    handle = await once.aenqueue()
    async with working(app):
        assert await handle.aresult(PATIENCE) == "done"
    assert (len(ran), refused) == (1, 3)
    await app.aclose()


async def test_a_release_whose_answer_was_lost_does_not_hand_back_the_next_run(shared_url: str) -> None:
    app = App(shared_url)
    service: Service = app.service()
    original = service.jobs.release
    answers = asyncio.Queue[Any]()
    runs = calls = 0

    @app.job("twice")
    async def twice() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise Snooze(0)
        return str(*await answers.get())  # while it runs, the release is sent again

    async def release(items: Any) -> Any:
        nonlocal calls
        calls += 1
        outcomes = await original(items)
        if calls == 1:
            raise BackendUnavailable("the answer was lost")
        answers.put_nowait(outcomes)
        return outcomes

    service.jobs.release = release  # type: ignore[method-assign]
    handle = await twice.aenqueue()
    async with working(app):
        assert "another one has begun" in await handle.aresult(PATIENCE)
    await app.aclose()


async def test_a_worker_of_a_pool_gets_what_the_pool_allows(app: App) -> None:
    client = app.client()
    if isinstance(client, Service):
        await client.scope.do(put_pools, Pool("p", ("mine",), concurrency=2))
    else:
        async with httpx.AsyncClient(base_url=app.url) as http:
            answer = await http.put("/ojs/v1/admin/pools/p", json={"queues": ["mine"], "concurrency": 2})
            assert answer.status_code == 201
    outside = await push(app, "echo", 1)
    inside = await push(app, "echo", 2, queue="mine")
    async with working(app, queues=("default", "mine"), pool="p", sharing=Sharing("round-robin")):
        assert await inside.aresult(PATIENCE) == [2]
    assert (await client.jobs.find(outside.id)).state == "available"


async def test_a_worker_that_the_server_refuses_ends_with_the_reason(shared_url: str) -> None:
    service = Service(open_database(shared_url))
    async with listening(Application(service, guarded=True)) as url:
        app = App(url)

        @app.job("note")
        def note() -> None: ...

        async with asyncio.timeout(PATIENCE):
            with pytest.raises(OjsterError, match="token"):
                await Worker(app).run()
        await app.aclose()
        service.drain()
    await service.close()

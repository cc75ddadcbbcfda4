"""`App`: declare jobs, enqueue them from synchronous and asynchronous code, and wait for results."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ojster import (
    App,
    Duplicate,
    Flow,
    InvalidRequest,
    JobContext,
    JobFailed,
    JobOptions,
    JobType,
    NotFound,
    Retry,
    Run,
    Unique,
    Worker,
    chain,
    gate,
)
from ojster.api.loading import load_app
from ojster.core.ids import new_id
from ojster.handlers import job_handle
from tests.waiting import PATIENCE


@pytest.fixture
def app(shared_url: str) -> Iterator[App]:
    made = App(shared_url)
    yield made
    made.close()


def options_of(options: JobOptions) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(options.to_wire())
    return decoded


def test_a_declared_function_can_still_be_called(app: App) -> None:
    @app.job("add")
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert add(1) == 3
    assert add.__doc__ == "Add."


def test_the_beginning_of_an_id_finds_nothing_for_a_program(app: App) -> None:
    """It is a time, which is easy to guess: a view passes on what a visitor has written."""

    @app.job("add")
    def add(a: int) -> int:
        return a

    for started in range(2):
        job, workflow = add.enqueue(1), app.start(chain(add.s(1)))
        assert (app.find(job.id).id, app.find(job.id.upper()).id) == (job.id, job.id)
        assert app.find_workflow(workflow.id).id == workflow.id
        for length in (6, 8, 35):
            for id, find in ((job.id, app.find), (workflow.id, app.find_workflow)):
                with pytest.raises(NotFound) as raised:
                    find(id[:length])
                assert raised.value.details["resource_id"] == id[:length], f"after {started} others"


def test_the_longest_delay_is_at_least_the_first(app: App) -> None:
    delays = [
        options_of(JobOptions(retry=retry))["retry"].get("max_interval", "the default")
        for retry in (Retry(), Retry(initial_interval=3600), Retry(initial_interval=10, max_interval=20))
    ]
    assert delays == ["the default", "PT3600.0S", "PT20.0S"]


def test_a_retry_policy_sends_what_is_not_a_default(app: App) -> None:
    assert Retry().to_wire() == {"max_attempts": 3}
    chosen = Retry(max_attempts=5, initial_interval=2, max_interval=300, jitter=False, give_up_on=[ValueError])
    assert chosen.to_wire() == {
        "max_attempts": 5,
        "initial_interval": "PT2.0S",
        "jitter": False,
        "non_retryable_errors": ("builtins.ValueError",),
    }


def test_the_decorator_needs_no_parentheses(app: App) -> None:
    @app.job
    def add(a: int, b: int = 2) -> int:
        return a + b

    @app.job
    async def shout(job: JobContext, text: str) -> str:
        return f"{text.upper()} {job.attempt}"

    assert (add.type, shout.type, add(1)) == ("add", "shout", 3)
    handles = add.enqueue(1), shout.enqueue("hi")
    asyncio.run(run_all(app.url, add, shout))
    assert [handle.result(timeout=PATIENCE) for handle in handles] == [3, "HI 1"]
    with pytest.raises(ValueError, match="'add' already has a handler"):
        app.job(add.function)


async def run_all(url: str, *handlers: JobType[..., Any]) -> None:
    """Run the available jobs in an application of their own."""
    async with App(url) as other:
        other.handlers.update({one.type: one for one in handlers})
        await Worker(other).run(until_empty=True)


def test_a_block_disconnects_the_application(shared_url: str) -> None:
    with App(shared_url) as app:
        job = app.job("once")(len)
        assert job.enqueue("abc").job.state == "available"
    assert app._service is None


def test_plain_code_enqueues_and_finds(app: App) -> None:
    @app.job("add")
    def add(a: int, b: int = 2) -> int:
        return a + b

    handle = add.enqueue(1)
    assert (handle.state, handle.job.args) == ("available", [1])
    assert add.enqueue(1, b=5).job.args == [1, 5]
    assert app.find(handle.id).job.args == [1]
    many = add.enqueue_many([(1, 2), (3, 4)])
    assert [one.job.args for one in many] == [[1, 2], [3, 4]]
    assert add.enqueue_many([]) == []
    handle.cancel()
    assert handle.refresh().state == "cancelled"
    with pytest.raises(NotFound):
        app.find(new_id())


def test_arguments_that_do_not_fit_or_are_no_json_are_refused(app: App) -> None:
    @app.job("one")
    def one(a: int) -> None: ...

    with pytest.raises(TypeError):
        one.enqueue(b=1)  # type: ignore[call-arg]  # refused
    with pytest.raises(TypeError):
        one.enqueue(object())  # type: ignore[arg-type]  # refused


def test_a_context_is_no_argument_of_the_job(app: App) -> None:
    @app.job("with.context")
    def handler(context: JobContext, a: int, b: int = 1) -> None: ...

    assert handler.enqueue(5, b=6).job.args == [5, 6]
    assert handler.enqueue(a=5).job.args == [5, 1]


def test_options_are_checked_when_they_are_declared(app: App) -> None:
    with pytest.raises(InvalidRequest):
        app.job("BAD NAME")(lambda: None)
    with pytest.raises(InvalidRequest):
        app.job("a", queue="BAD")(lambda: None)
    with pytest.raises(InvalidRequest):
        app.job("b", retry=-1)(lambda: None)
    with pytest.raises(TypeError):
        app.job("c", colour="red")(lambda: None)  # type: ignore[call-overload]  # refused
    app.job("d")(lambda: None)
    with pytest.raises(ValueError, match="already has a handler"):
        app.job("d")(lambda: None)


def test_options_are_those_of_the_specification() -> None:
    retry = Retry(max_attempts=5, initial_interval=0.5, give_up_on=[ValueError, "auth.*"], dead_letter=True)
    unique = Unique(keys=["args"], period=timedelta(hours=1), on_conflict="ignore")
    wire = options_of(
        JobOptions(
            queue="q",
            priority=5,
            timeout=1.5,
            retry=retry,
            unique=unique,
            delay=2,
            expires_at=datetime(2030, 1, 1, tzinfo=UTC),
            tags=["x"],
        )
    )
    assert wire["queue"] == "q"
    assert wire["timeout_ms"] == 1500
    assert wire["retry"]["non_retryable_errors"] == ["builtins.ValueError", "auth.*"]
    assert wire["retry"]["on_exhaustion"] == "dead_letter"
    assert wire["unique"] == {"keys": ["type", "args"], "on_conflict": "ignore", "period": "PT3600.0S"}
    assert wire["scheduled_at"] == "+PT2.0S"
    assert wire["expires_at"] == "2030-01-01T00:00:00.000000Z"
    assert options_of(JobOptions(result_ttl=timedelta(hours=1), result_size_limit=10, heartbeat_timeout=0.5)) == {
        "heartbeat_timeout": 1,
        "result_ttl": 3600,
        "result_size_limit": 10,
    }
    assert options_of(JobOptions(result_ttl="never")) == {"result_ttl": -1}
    assert options_of(JobOptions(retry=4)) == {"retry": {"max_attempts": 4}}
    assert options_of(JobOptions()) == {}
    with pytest.raises(InvalidRequest, match="time zone"):
        options_of(JobOptions(scheduled_at=datetime(2030, 1, 1)))


def test_using_changes_options_for_one_job(app: App) -> None:
    @app.job("a", queue="q")
    def a() -> None: ...

    assert a.using(delay=60).enqueue().state == "scheduled"
    assert a.enqueue().state == "available"
    assert a.using(priority=7).enqueue().job.priority == 7
    assert a.using(meta={"k": 1}).enqueue().job.meta == {"k": 1}
    with pytest.raises(TypeError):
        a.using(colour="red")  # type: ignore[call-arg]  # refused


def test_a_unique_job_is_refused_or_found(app: App) -> None:
    @app.job("a", unique=Unique())
    def a(n: int) -> None: ...

    first = a.enqueue(1)
    with pytest.raises(Duplicate):
        a.enqueue(1)
    assert a.using(unique=Unique(on_conflict="ignore")).enqueue(1).id == first.id


def test_a_url_that_is_neither_database_nor_server_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        App("redis://localhost")


def test_the_environment_says_where_the_jobs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OJSTER_DATABASE_URL", "http://somewhere:1")
    assert App().url == "http://somewhere:1"


def test_an_application_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_module.py").write_text("from ojster import App\napp = App('sqlite:///x.db')\nother = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(load_app("some_module:app"), App)
    assert isinstance(load_app("some_module"), App)
    for wrong in ("some_module:other", "no_such_module:app", "some_module:missing"):
        with pytest.raises(InvalidRequest):
            load_app(wrong)


def test_a_forked_child_connects_anew(app: App) -> None:
    @app.job("a")
    def a(n: int) -> None: ...

    a.enqueue(1)
    child = os.fork()
    if child == 0:
        try:
            a.enqueue(2)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    a.enqueue(3)
    counts = app._event_loop_thread.call(app.service().jobs.count())
    assert counts["default"]["available"] == 3


@pytest.mark.anyio
async def test_asynchronous_code_enqueues_and_waits(shared_url: str) -> None:
    app = App(shared_url)

    @app.job("double")
    async def double(n: int) -> int:
        return n * 2

    handles = await double.aenqueue_many([(n,) for n in range(5)])
    await Worker(app).run(until_empty=True)
    assert [await handle.aresult(PATIENCE) for handle in handles] == [0, 2, 4, 6, 8]
    assert (await app.afind(handles[0].id)).state == "completed"
    waiting = await double.using(delay=60).aenqueue(1)
    with pytest.raises(TimeoutError):
        await waiting.aresult(0.01)
    await waiting.acancel()
    await app.aclose()


def test_an_app_can_be_closed_after_the_event_loop_of_its_worker(file_url: str) -> None:
    app = App(file_url)

    @app.job()
    def double(number: int) -> int:
        return 2 * number

    handle = double.enqueue(4)
    asyncio.run(Worker(app).run(until_empty=True))
    assert handle.result(PATIENCE) == 8
    app.close()


def test_a_workflow_keeps_its_own_name_and_options_when_it_is_started() -> None:
    app = App("sqlite:///:memory:")

    @app.job()
    def double(number: int) -> int:
        return 2 * number

    made = chain(double.s(1), name="publish").set(options={"queue": "reports"}).request(params={"n": 1})
    assert msgspec.json.decode(made["name"]) == "publish"
    assert msgspec.json.decode(made["options"]) == {"queue": "reports"}
    app.close()


@pytest.mark.anyio
async def test_a_wait_for_a_job_that_no_worker_takes_is_logged_once(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_handle, "TAKEN_WITHIN_SECONDS", 0.0)

    @app.job("mail.send")
    def send(to: str) -> str:
        return to

    @app.job("later")
    def later() -> None: ...

    with pytest.raises(TimeoutError):
        await (await later.using(delay=60).aenqueue()).aresult(timeout=0.01)
    assert caplog.text == ""  # it waits for its time
    job = await send.aenqueue("ada")
    with pytest.raises(TimeoutError):
        await job.aresult(timeout=0.01)
    assert [record.getMessage() for record in caplog.records] == [
        (
            f"no worker has taken the job {job.id} (mail.send) within 0 s. Start one that has a handler for "
            f"'mail.send'; in a test, call drain(). `ojster jobs explain {job.id}` says what it waits for."
        )
    ]


@pytest.mark.anyio
async def test_a_wait_for_a_workflow_none_of_whose_jobs_a_worker_takes_is_logged_once(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(job_handle, "TAKEN_WITHIN_SECONDS", 0.0)

    @app.flow("buy")
    async def buy(flow: Flow) -> None:
        await flow.sleep(60)

    @app.job("mail.send")
    def send() -> None: ...

    async def says(run: Run[Any]) -> str:
        caplog.clear()
        with pytest.raises(TimeoutError):
            await run.aresult(timeout=0.01)
        return caplog.text

    assert await says(await app.astart(chain(gate("review"), send.s()))) == ""
    assert await says(await app.astart(chain(send.using(delay=60).s()))) == ""
    for starts, type in ((chain(send.s(), send.s()), "mail.send"), (buy.s(), "buy")):
        run = await app.astart(starts)
        assert (await says(run)).count("no worker has taken the job") == 1
        assert f"Start one that has a handler for {type!r}" in caplog.text
    await Worker(app).run(until_empty=True)
    assert await says(run) == ""  # it sleeps


@pytest.mark.anyio
async def test_a_coroutine_that_a_handler_returns_is_refused_with_how_to_await_it(app: App) -> None:
    forgotten = asyncio.sleep(0)

    @app.job("forgets", retry=1)
    def forgets() -> Any:
        return forgotten

    job = await forgets.aenqueue()
    await Worker(app).run(until_empty=True)
    with pytest.raises(JobFailed, match="Await it in the handler, which then must be declared with 'async def'"):
        await job.aresult(PATIENCE)
    forgotten.close()

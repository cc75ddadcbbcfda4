"""Dependencies of handlers, and the start and end of worker processes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from ojster import App, Depends, Job, JobContext, JobFailed, Provided, Worker
from tests.worker import injected

pytestmark = pytest.mark.anyio


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    monkeypatch.setenv(injected.LOG, str(path))
    return path


@pytest.fixture
async def app(shared_url: str, log: Path) -> AsyncIterator[App]:
    injected.app.url = shared_url
    yield injected.app
    await injected.app.aclose()


def lines(log: Path, process: int | None = None) -> list[str]:
    """Return what one process has said: this one, or the only other."""
    said = [line.split(" ", 1) for line in log.read_text().splitlines()]
    ours = str(os.getpid())
    return [what for who, what in said if (who == ours) == (process is None)]


async def run(app: App, type: str, *args: Any) -> Any:
    handle = await app.handlers[type].aenqueue(*args)
    await Worker(app).run(until_empty=True)
    return await handle.aresult(5)


@pytest.mark.parametrize("type", ["in.thread", "on.loop"])
async def test_a_job_gets_what_its_handler_needs_and_it_is_cleaned_up(app: App, log: Path, type: str) -> None:
    tenant = app.handlers[type].options.meta and "ada"
    within = "session of connection"
    assert await run(app, type, 5) == [5, f"{type} {tenant} in {within}", within]
    said = [line for line in lines(log) if not line.startswith(("before", "after"))]
    assert said == [
        *("begins", "starts", "opens the pool", "opens a session", "commits"),
        *("closes the pool", "stops", "ends"),
    ]


@pytest.mark.parametrize("type", ["in.thread", "on.loop"])
async def test_a_generator_sees_the_exception_of_the_handler(app: App, log: Path, type: str) -> None:
    with pytest.raises(JobFailed, match="ValueError: no"):
        await run(app, type, 5, True)
    assert "rolls back" in lines(log)
    assert "commits" not in lines(log)


async def test_a_child_process_has_a_lifespan_and_dependencies_of_its_own(app: App, log: Path) -> None:
    within = "session of connection"
    assert await run(app, "in.child", 7) == [7, f"in.child ada in {within}", within]
    assert lines(log, process=1) == [
        *("begins", "starts", "opens the pool", "opens a session"),
        *("before in.child", "after in.child", "commits"),
        *("closes the pool", "stops", "ends"),
    ]
    assert lines(log) == ["begins", "starts", "stops", "ends"]


async def test_a_generator_in_a_child_process_sees_the_exception_of_the_handler(app: App, log: Path) -> None:
    with pytest.raises(JobFailed, match="ValueError: no"):
        await run(app, "in.child", 7, True)
    assert lines(log, process=1)[-5:] == ["after in.child", "rolls back", "closes the pool", "stops", "ends"]


async def test_the_worker_scope_is_opened_once_for_many_jobs(app: App, log: Path) -> None:
    for number in range(20):
        await app.handlers["on.loop"].aenqueue(number)
    await run(app, "in.thread", 1)
    assert lines(log).count("opens the pool") == lines(log).count("closes the pool") == 1
    assert lines(log).count("opens a session") == lines(log).count("commits") == 21


async def test_a_factory_may_take_the_context_but_not_in_a_child_process(app: App) -> None:
    assert await run(app, "on.loop.context") == 1
    with pytest.raises(JobFailed, match="A child process has no JobContext; use Job"):
        await run(app, "in.child.context")


async def test_a_class_is_a_factory(app: App) -> None:
    assert await run(app, "of.class") == "hello"


async def test_a_dependency_cannot_hide_the_exception_of_a_handler(app: App, log: Path) -> None:
    with pytest.raises(JobFailed, match=r"A dependency hid an exception of the handler: ValueError\('no'\)"):
        await run(app, "hidden")


async def test_a_failing_factory_fails_the_job_with_its_own_error(app: App, log: Path) -> None:
    with pytest.raises(JobFailed, match="OSError: no connection"):
        await run(app, "failing")
    assert "is not reached" not in lines(log)


async def test_middleware_of_threads_surrounds_plain_handlers_alone(app: App, log: Path) -> None:
    await run(app, "in.thread", 5)
    await run(app, "on.loop", 5)
    said = lines(log)
    assert [line for line in said if line.startswith(("before", "after"))] == ["before in.thread", "after in.thread"]
    assert said.index("opens a session") < said.index("before in.thread") < said.index("commits")


async def test_a_handler_can_be_called_with_stand_ins(app: App) -> None:
    assert injected.in_thread(1, by="me", within="nothing") == [1, "me", "nothing"]


@pytest.fixture
def empty() -> Iterator[App]:
    with App("sqlite:///:memory:") as made:
        yield made


def test_what_is_injected_is_no_argument_of_the_job(empty: App) -> None:
    @empty.job("one")
    def one(number: int, pool: Annotated[Any, Depends(list)] = Provided) -> None: ...

    assert one.enqueue(1).job.args == [1]
    assert one.enqueue(number=2).job.args == [2]
    with pytest.raises(TypeError, match="too many positional arguments"):
        one.enqueue(1, [])


def test_wrong_declarations_are_refused_where_they_are_made(empty: App) -> None:
    def before(pool: Annotated[Any, Depends(list)], number: int) -> None: ...

    def of_job(job: Job) -> str:
        return job.id

    def of_context(job: JobContext) -> str:
        return job.id

    def from_nothing(number: int) -> str:
        return str(number)

    def by_nothing(number: int = Provided) -> None: ...

    with pytest.raises(TypeError, match=r"'pool' has Depends\(…\), so it must follow those that are arguments"):
        empty.job(before)
    for factory in (of_job, of_context):
        with pytest.raises(TypeError, match="lives as long as the worker, so its parameter 'job' cannot"):
            Depends(factory, scope="worker")
    with pytest.raises(TypeError, match="the parameter 'number' needs a default, Depends"):
        Depends(from_nothing)
    with pytest.raises(TypeError, match="'number' is Provided, but by nothing"):
        empty.job(by_nothing)


class _Marker: ...


def test_an_annotation_that_cannot_be_read_in_time_is_refused_when_the_worker_starts(empty: App) -> None:
    @empty.job("early")
    def early(pool: Annotated[LaterPool, Depends(_Marker)]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    globals()["LaterPool"] = list
    try:
        with pytest.raises(TypeError, match="names a class that is defined after the handler"):
            Worker(empty)
    finally:
        del globals()["LaterPool"]


async def test_a_worker_does_not_start_if_its_lifespan_fails(empty: App) -> None:
    @empty.job("one")
    def one() -> None: ...

    @empty.on_startup
    def fail() -> None:
        raise OSError("no network")

    handle = await one.aenqueue()
    with pytest.raises(OSError, match="no network"):
        await Worker(empty).run(until_empty=True)
    assert (await empty.afind(handle.id)).job.attempt == 0

"""Dependencies of handlers, and the start and end of worker processes."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import pytest

from ojster import App, Depends, Job, JobContext, JobFailed, Provided, Worker, current_job
from tests.waiting import PATIENCE
from tests.worker import included, injected

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
    return await handle.aresult(PATIENCE)


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


async def test_a_child_process_frees_what_a_failed_handler_had_in_hand_at_once(app: App, log: Path) -> None:
    await injected.in_child_fails.aenqueue()
    kept = await injected.in_child_keeps.aenqueue()
    await Worker(app, concurrency=1).run(until_empty=True)  # one child process
    assert await kept.aresult(PATIENCE) == 0


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


async def test_an_included_handler_in_a_child_process_belongs_to_the_whole_application(
    shared_url: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = included.app
    app.url = shared_url
    monkeypatch.setenv("OJSTER_TEST_URL", shared_url)
    handle = await app.handlers["included.first"].aenqueue()
    await Worker(app).run(until_empty=True)
    second = await app.afind(await handle.aresult(PATIENCE))
    assert second.job.type == "included.second"
    assert lines(log, process=1) == ["starts", "layer", "first"]
    await app.aclose()


async def test_an_included_handler_in_a_child_process_needs_an_application_in_a_module() -> None:
    tasks = App()

    @tasks.job("one", process=True, retry=1)
    def one() -> None: ...

    async with App("sqlite:///:memory:") as hidden:
        hidden.include(tasks)
        handle = await one.aenqueue()
        await Worker(hidden).run(until_empty=True)
        with pytest.raises(JobFailed, match="so that must be at the top of a module, and not of '__main__'"):
            await handle.aresult()


class Counted:
    """A pool that fails if two jobs have the same connection."""

    def __init__(self, size: int) -> None:
        self.free: queue.Queue[int] = queue.Queue()
        for number in range(size):
            self.free.put(number)

    def __call__(self) -> Iterator[int]:
        number = self.free.get()
        try:
            yield number
        finally:
            self.free.put(number)


def time_out(context: JobContext, loop: asyncio.AbstractEventLoop) -> None:
    """Let the time of an attempt be over now, in a thread."""
    assert context.time_limit is not None
    loop.call_soon_threadsafe(context.time_limit.reschedule, 0)


async def test_what_a_thread_still_uses_after_its_timeout_is_not_given_to_another(empty: App) -> None:
    pool, loop = Counted(1), asyncio.get_running_loop()
    begun, go_on = asyncio.Event(), threading.Event()
    used: list[tuple[str, int]] = []

    def connection(given: int = Depends(pool.__call__)) -> int:
        return given

    @empty.job("slow", timeout=PATIENCE, retry=1)
    def slow(context: JobContext, one: int = Depends(connection)) -> None:
        time_out(context, loop)
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(PATIENCE)
        used.append(("slow", one))

    @empty.job("quick")
    def quick(one: int = Depends(connection)) -> None:
        used.append(("quick", one))

    first = await slow.aenqueue()
    worker = Worker(empty, concurrency=2)
    running = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
        while not worker.abandoned:
            await asyncio.sleep(0.01)
    assert pool.free.empty()
    second = await quick.aenqueue()
    go_on.set()
    with pytest.raises(JobFailed, match="timeout"):
        await first.aresult(PATIENCE)
    await second.aresult(PATIENCE)
    assert used == [("slow", 0), ("quick", 0)]
    worker.stop()
    await running
    assert pool.free.qsize() == 1


async def test_factories_that_wait_for_each_other_do_not_stop_the_worker(empty: App) -> None:
    pool = Counted(2)

    def connection(one: int = Depends(pool.__call__)) -> int:
        return one

    @empty.job("one", timeout=20)
    async def one(_: int = Depends(connection)) -> None:
        await asyncio.sleep(0.005)

    handles = await one.aenqueue_many([()] * 40)
    await asyncio.wait_for(Worker(empty, concurrency=40).run(until_empty=True), PATIENCE)
    assert [(await handle.arefresh()).state for handle in handles] == ["completed"] * 40
    assert pool.free.qsize() == 2


async def test_a_factory_that_hangs_is_counted_as_a_thread_that_goes_on(empty: App) -> None:
    go_on, loop = threading.Event(), asyncio.get_running_loop()

    def hang() -> None:
        time_out(current_job(), loop)
        go_on.wait(PATIENCE)

    @empty.job("one", timeout=PATIENCE, retry=1)
    def one(_: None = Depends(hang)) -> None: ...

    handle = await one.aenqueue()
    worker = Worker(empty)
    await worker.run(until_empty=True)
    assert (await handle.arefresh()).state == "discarded"
    assert worker.abandoned == 1
    go_on.set()
    deadline = time.monotonic() + PATIENCE
    while worker.abandoned and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert worker.abandoned == 0


async def test_what_lives_as_long_as_the_worker_knows_no_job_and_may_have_tasks(empty: App) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[asyncio.TaskGroup]:
        with pytest.raises(LookupError):
            current_job()
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            yield group
        seen.append("closed")

    @empty.job("one")
    async def one(group: Any = Depends(pool, scope="worker")) -> None:
        seen.append("used")

    await one.aenqueue()
    await one.aenqueue()
    await Worker(empty, concurrency=1).run(until_empty=True)
    assert seen == ["used", "used", "closed"]


async def test_jobs_fail_clearly_when_what_the_worker_has_opened_has_ended(empty: App) -> None:
    @asynccontextmanager
    async def pool() -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group:
            yield group

    @asynccontextmanager
    async def other(group: Any = Depends(pool, scope="worker")) -> AsyncIterator[int]:
        yield 1

    async def fail() -> None:
        raise OSError("the connection is lost")

    @empty.job("breaks")
    async def breaks(group: Any = Depends(pool, scope="worker")) -> None:
        group.create_task(fail())
        await asyncio.sleep(0.01)

    @empty.job("later", retry=1)
    async def later(one: int = Depends(other, scope="worker")) -> None: ...

    first, second = await breaks.aenqueue(), await later.aenqueue()
    with pytest.raises(ExceptionGroup):
        await Worker(empty, concurrency=1).run(until_empty=True)
    assert (await first.arefresh()).state == "completed"
    with pytest.raises(JobFailed, match="have started has ended; restart the worker"):
        await second.aresult()


async def test_a_plain_generator_enters_and_leaves_with_the_same_context_variables(empty: App) -> None:
    variable: ContextVar[int] = ContextVar("variable")

    def setting() -> Iterator[None]:
        token = variable.set(1)
        yield
        variable.reset(token)

    @empty.job("one", retry=1)
    def one(_: None = Depends(setting)) -> None: ...

    handle = await one.aenqueue()
    await Worker(empty).run(until_empty=True)
    await handle.aresult(PATIENCE)


async def test_the_reason_why_a_factory_fails_is_not_lost_in_one_that_hides_exceptions(empty: App) -> None:
    async def away() -> int:
        raise ConnectionError("the database is away")

    @empty.job("one", retry=1)
    async def one(_: None = Depends(injected.hider), number: int = Depends(away)) -> None: ...

    @asynccontextmanager
    async def swallow() -> AsyncIterator[None]:
        try:
            yield
        except ConnectionError:
            return

    @empty.job("two", retry=1)
    async def two(_: None = Depends(swallow), number: int = Depends(away)) -> None: ...

    first, second = await one.aenqueue(), await two.aenqueue()
    await Worker(empty).run(until_empty=True)
    with pytest.raises(JobFailed, match="ConnectionError: the database is away"):
        await first.aresult()
    with pytest.raises(JobFailed, match=r"hid an exception of the handler: ConnectionError\('the database is away'\)"):
        await second.aresult()


def test_a_scope_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'job' or 'worker', not 'process'"):
        Depends(list, scope="process")  # type: ignore[call-overload]

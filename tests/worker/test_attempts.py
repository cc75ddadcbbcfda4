"""Attempts that never wait share a task, and no handler notices it: the slow way, a task for each, does the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ojster import App, Worker
from ojster.core.job import Job
from ojster.handlers.context import JobContext
from ojster.worker import attempts as module
from ojster.worker.attempts import Attempts
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

Handler = Callable[[], Coroutine[Any, Any, None]]

seen: ContextVar[str] = ContextVar("seen", default="nothing")


class Runner:
    """Runs handlers as attempts, and notes what they say and how they end."""

    def __init__(self, *, alone: bool = False) -> None:
        self.said: list[object] = []
        self.ended: list[str] = []
        self.tasks: dict[str, asyncio.Task[Any] | None] = {}
        self._handlers: dict[str, Handler] = {}
        self.attempts = Attempts(self._run, lambda context: self.ended.append(context.job.id))
        if alone:  # the slow way
            self.attempts.begin = self._begin_alone  # type: ignore[method-assign]
        self.attempts.open()

    def _begin_alone(self, context: JobContext) -> None:
        attempt = module.Attempt(context)
        self.attempts._running[context.job.id, 0] = attempt
        self.attempts._begin_alone(attempt)

    def begin(self, name: str, handler: Handler, type: str | None = None) -> None:
        self._handlers[name] = handler
        job = SimpleNamespace(id=name, type=type or name, started_at=None)
        self.attempts.begin(cast("JobContext", SimpleNamespace(job=job)))

    async def _run(self, context: JobContext) -> None:
        name = context.job.id
        self.tasks[name] = asyncio.current_task()
        try:
            await self._handlers[name]()
        except BaseException as error:
            self.said.append((name, type(error).__name__))
        if self.tasks[name] is not asyncio.current_task():
            self.said.append((name, "has another task now"))

    async def end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.attempts:
                await asyncio.sleep(0)
            await asyncio.sleep(0)


def handlers(runner: Runner) -> dict[str, Handler]:
    """Handlers that do with tasks and contexts what handlers do."""

    def say(*words: object) -> None:
        runner.said.append(words)

    async def short() -> None:
        say("short", seen.get())
        seen.set("short")

    async def waits() -> None:
        seen.set("waits")
        await asyncio.sleep(0)
        say("waits", seen.get())

    async def child() -> None:
        seen.set("child")
        say("child", await asyncio.create_task(of_child()))

    async def of_child() -> str:
        return seen.get()

    async def limited() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.sleep(PATIENCE)
        except TimeoutError:
            say("limited", seen.get())

    async def grouped() -> None:
        with contextlib.suppress(BaseExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                await asyncio.sleep(PATIENCE)
        task = asyncio.current_task()
        assert task is not None
        say("grouped", task.cancelling())

    async def fails() -> None:
        raise ValueError("as it should")

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        say("cancels itself")

    async def cancels_itself_and_waits() -> None:
        await cancels_itself()
        try:
            await asyncio.sleep(0)
        finally:
            seen.set("cancelled")
            await asyncio.sleep(0)
            say("tidied", seen.get())

    async def exits() -> None:
        raise SystemExit(1)

    named = (short, waits, child, limited, grouped, cancels_itself, fails, cancels_itself_and_waits, exits)
    return {handler.__name__: handler for handler in named}


async def run_all(*, alone: bool) -> tuple[list[object], list[str]]:
    runner = Runner(alone=alone)
    for number in range(2):  # the second time, it is known which of them wait
        for name, handler in handlers(runner).items():
            runner.begin(f"{name} {number}", handler, name)
            runner.begin(f"{name} {number}, then", handlers(runner)["short"], "short")
        await runner.end()
    assert len(runner.ended) == 36
    return sorted(runner.said, key=str), sorted(runner.ended)


async def test_handlers_in_a_shared_task_do_what_they_do_in_tasks_of_their_own() -> None:
    shared = await run_all(alone=False)
    assert shared == await run_all(alone=True)
    assert shared[0].count(("short", "nothing")) == 20  # no handler sees what another has set


async def test_only_handlers_that_never_wait_share_a_task() -> None:
    runner = Runner()
    short, waits = handlers(runner)["short"], handlers(runner)["waits"]
    for number in range(3):
        runner.begin(f"short {number}", short, "short")
    runner.begin("waits 0", waits, "waits")
    runner.begin("short 3", short, "short")
    await runner.end()
    runner.begin("waits 1", waits, "waits")  # its type is known to wait now
    runner.begin("short 4", short, "short")
    await runner.end()
    tasks = runner.tasks
    assert tasks["short 0"] is tasks["short 1"] is tasks["short 2"] is tasks["waits 0"]
    assert len({tasks["waits 0"], tasks["short 3"], tasks["waits 1"], tasks["short 4"]}) == 4


async def test_attempts_are_stopped_wherever_they_are() -> None:
    runner = Runner()

    async def forever() -> None:
        await asyncio.sleep(PATIENCE)

    runner.begin("runs", forever)
    await asyncio.sleep(0)
    runner.begin("begins", forever)  # has not begun when it is stopped
    stopped = runner.attempts.with_tasks()
    assert [context.job.id for _, context in stopped] == ["runs", "begins"]
    for task, _ in stopped:
        task.cancel()
    await runner.end()
    assert (runner.said, sorted(runner.ended)) == ([("runs", "CancelledError")], ["begins", "runs"])


async def test_the_event_loop_has_its_turns_between_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 0.0)
    runner = Runner()
    for number in range(5):
        runner.begin(f"short {number}", handlers(runner)["short"], "short")
    await asyncio.sleep(0)
    assert runner.ended == ["short 0"]
    await runner.end()
    assert len(runner.ended) == 5


@pytest.fixture
async def app(shared_url: str) -> AsyncIterator[App]:
    made = App(shared_url)
    yield made
    await made.aclose()


async def test_jobs_of_a_worker_that_never_wait_share_a_task(app: App) -> None:
    tasks: list[object] = []
    jobs: list[Job] = []

    @app.job("short")
    async def short(number: int) -> int:
        tasks.append(asyncio.current_task())
        return number

    worker = Worker(app, concurrency=4)
    worker.on_end = lambda job, ending, lasted: jobs.append(job)
    handles = await short.aenqueue_many([(number,) for number in range(20)])
    await worker.run(until_empty=True)
    assert [await handle.aresult(PATIENCE) for handle in handles] == [*range(20)]
    assert len(tasks) == 20 > len(set(tasks))
    assert (worker.processed, worker.active, len(jobs)) == (20, 0, 20)

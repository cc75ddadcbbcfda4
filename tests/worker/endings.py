"""Handlers of every kind that end with any exception, in a module that child processes can import."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

from ojster import App, Depends, Job, JobContext, Retry

app = App("sqlite:///unused.db")


class Base(BaseException):
    """An exception that is no ``Exception``."""


class Stop(StopIteration):
    """An exception that would end an iteration."""


class Mute(Exception):
    """An exception without a message."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class NoText(Exception):
    """An exception with a message that is no text."""

    def __str__(self) -> Any:
        return None  # noqa: PLE0307  (that is the mistake)


class OddType(Exception):
    """An exception with an error type that is no text."""

    error_type = 5


class BrokenType(Exception):
    """An exception with an error type that cannot be computed."""

    @property
    def error_type(self) -> str:
        raise Base


ENDS: Final[dict[str, Callable[[], BaseException]]] = {
    "exception": lambda: ValueError("no"),
    "base": lambda: Base("no"),
    "group": lambda: ExceptionGroup("no", [ValueError("no")]),
    "base group": lambda: BaseExceptionGroup("no", [Base("no")]),
    "stop": StopIteration,
    "stop with a value": lambda: StopIteration(5),
    "subclass of stop": Stop,
    "subclass of stop with a value": lambda: Stop(5),
    "stop async": StopAsyncIteration,
    "generator exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "cancelled future": concurrent.futures.CancelledError,
    "timeout": TimeoutError,
    "exit": SystemExit,
    "exit with a status": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "recursion": RecursionError,
    "memory": MemoryError,
    "mute": Mute,
    "no text": NoText,
    "odd type": OddType,
    "broken type": BrokenType,
}
"""Ways in which a handler can end other than by a result."""

ONCE: Final = Retry(max_attempts=1)


def end(how: str) -> None:
    error = ENDS[how]()
    raise error


@app.job("async", retry=ONCE)
async def on_loop(how: str) -> None:
    await asyncio.sleep(0)
    end(how)


@app.job("thread", retry=ONCE)
def in_thread(how: str) -> None:
    end(how)


@app.job("process", retry=ONCE, process=True)
def in_process(how: str) -> None:
    end(how)


@app.job("class", retry=ONCE)
class Plain:
    def run(self, how: str) -> None:
        end(how)


@app.job("async.class", retry=ONCE)
class Asynchronous:
    async def run(self, how: str) -> None:
        end(how)


def end_of(job: Job) -> None:
    end(job.args[0])


def plain_factory(job: Job) -> None:
    end_of(job)


async def async_factory(job: Job) -> None:
    await asyncio.sleep(0)
    end_of(job)


def generator_factory(job: Job) -> Iterator[None]:
    end_of(job)
    yield


async def async_generator_factory(job: Job) -> AsyncIterator[None]:
    end_of(job)
    yield


def plain_cleanup(job: Job) -> Iterator[None]:
    yield
    end_of(job)


async def async_cleanup(job: Job) -> AsyncIterator[None]:
    yield
    end_of(job)


def observer() -> Iterator[None]:
    yield


async def async_observer() -> AsyncIterator[None]:
    yield


FACTORIES: Final[dict[str, Callable[..., Any]]] = {
    "factory": plain_factory,
    "async_factory": async_factory,
    "generator": generator_factory,
    "async_generator": async_generator_factory,
    "cleanup": plain_cleanup,
    "async_cleanup": async_cleanup,
}
"""Dependencies that end as the argument of the job says."""


def declare(name: str, factory: Callable[..., Any]) -> None:
    """Declare handlers of three kinds with a dependency that fails."""

    @app.job(f"thread.{name}", retry=ONCE)
    def in_thread(how: str, _: None = Depends(factory)) -> None: ...

    @app.job(f"async.{name}", retry=ONCE)
    async def on_loop(how: str, _: None = Depends(factory)) -> None: ...

    @app.job(f"process.{name}", retry=ONCE, process=True)
    def in_process(how: str, _: None = Depends(factory)) -> None: ...


for _name, _factory in FACTORIES.items():
    declare(_name, _factory)


@app.job("thread.dependencies", retry=ONCE)
def in_thread_with(how: str, one: None = Depends(observer), two: None = Depends(async_observer)) -> None:
    end(how)


@app.job("async.dependencies", retry=ONCE)
async def on_loop_with(how: str, one: None = Depends(observer), two: None = Depends(async_observer)) -> None:
    end(how)


@app.job("process.dependencies", retry=ONCE, process=True)
def in_process_with(how: str, one: None = Depends(observer), two: None = Depends(async_observer)) -> None:
    end(how)


@app.job("middleware", retry=ONCE)
async def in_middleware(how: str) -> None: ...


@app.job("thread.middleware", retry=ONCE)
def in_thread_middleware(how: str) -> None: ...


@app.job("process.middleware", retry=ONCE, process=True)
def in_process_middleware(how: str) -> None: ...


async def layer(context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
    if context.job.type == "middleware":
        end_of(context.job)
    return await call_next()


def thread_layer(job: Job, call_next: Callable[[], Any]) -> Any:
    if job.type in ("thread.middleware", "process.middleware"):
        end_of(job)
    return call_next()


app.execution_middleware.append(layer)
app.thread_middleware.append(thread_layer)

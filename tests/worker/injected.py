"""Handlers with dependencies and a lifespan, in a module that child processes can import."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

from ojster import App, Depends, Job, JobContext, Provided

LOG = "OJSTER_TEST_LOG"

app = App("sqlite:///unused.db")


def say(what: str) -> None:
    """Write a line to the log that tests read, with the process."""
    with Path(os.environ[LOG]).open("a") as file:
        file.write(f"{os.getpid()} {what}\n")


@app.lifespan
async def hooks(given: App) -> AsyncIterator[None]:
    assert given is app
    say("begins")
    yield
    say("ends")


@app.on_startup
async def start() -> None:
    await asyncio.sleep(0)
    say("starts")


@app.on_shutdown
def stop() -> None:
    say("stops")


async def open_pool() -> AsyncIterator[list[str]]:
    say("opens the pool")
    yield ["connection"]
    say("closes the pool")


Pool = Annotated[list[str], Depends(open_pool, scope="worker")]


@contextmanager
def session(pool: Pool) -> Iterator[str]:
    say("opens a session")
    try:
        yield f"session of {pool[0]}"
    except ValueError:
        say("rolls back")
        raise
    else:
        say("commits")


def who(job: Job, within: str = Depends(session)) -> str:
    return f"{job.type} {job.meta.get('tenant')} in {within}"


@app.job("in.thread", meta={"tenant": "ada"}, retry=1)
def in_thread(
    number: int, fails: bool = False, *, by: str = Depends(who), within: Annotated[str, Depends(session)]
) -> Any:
    if fails:
        raise ValueError("no")
    return [number, by, within]


@app.job("on.loop", retry=1)
async def on_loop(number: int, fails: bool = False, by: str = Depends(who), within: str = Depends(session)) -> Any:
    if fails:
        raise ValueError("no")
    return [number, by, within]


@app.job("in.child", process=True, meta={"tenant": "ada"}, retry=1)
def in_child(
    number: int, fails: bool = False, by: Annotated[str, Depends(who)] = Provided, within: str = Depends(session)
) -> Any:
    if fails:
        raise ValueError("no")

    async def nested() -> list[Any]:
        return [number, by, within]

    return asyncio.run(nested())  # a handler may run an event loop of its own


def attempt(job: JobContext) -> int:
    return job.attempt


@app.job("in.child.context", process=True, retry=1)
def in_child_context(number: int = Depends(attempt)) -> int:
    return number


class Data:
    """What a handler has in hand."""


in_hand: list[weakref.ref[Data]] = []


@app.job("in.child.fails", process=True, retry=1)
def in_child_fails(within: str = Depends(session)) -> None:
    gc.disable()
    data = Data()
    in_hand.append(weakref.ref(data))
    raise ValueError("no")


@app.job("in.child.keeps", process=True, retry=1)
def in_child_keeps() -> int:
    """Return how much of what failed handlers had in hand this process still has."""
    gc.enable()
    return sum(data() is not None for data in in_hand) if in_hand else -1


@app.job("on.loop.context")
async def on_loop_context(number: int = Depends(attempt)) -> int:
    return number


@asynccontextmanager
async def hider() -> AsyncIterator[None]:
    try:
        yield
    except ValueError:
        say("hides it")


@app.job("hidden", retry=1)
async def hidden(_: None = Depends(hider)) -> None:
    raise ValueError("no")


async def no_connection() -> str:
    raise OSError("no connection")


@app.job("failing", retry=1)
async def failing(_: str = Depends(no_connection)) -> None:
    say("is not reached")


class Settings:
    """A class that takes nothing is a factory, too."""

    greeting = "hello"


@app.job("of.class")
def of_class(settings: Annotated[Settings, Depends(Settings)]) -> str:
    return settings.greeting


def in_a_layer(job: Job, call_next: Callable[[], Any]) -> Any:
    say(f"before {job.type}")
    try:
        return call_next()
    finally:
        say(f"after {job.type}")


app.thread_middleware.append(in_a_layer)

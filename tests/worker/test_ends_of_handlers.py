"""Every way in which a handler can end ends its attempt, at once, with an error type of its own."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from ojster import App, Depends, JobContext, Worker
from tests.worker import endings

pytestmark = pytest.mark.anyio

LIMIT = 60.0
"""Time after which a test gives up, in seconds."""


@pytest.fixture
async def app(shared_url: str) -> AsyncIterator[App]:
    endings.app.url = shared_url
    yield endings.app
    await endings.app.aclose()


@pytest.mark.slow
async def test_every_exception_of_every_kind_of_handler_ends_the_attempt_with_its_own_type(app: App) -> None:
    handles = {
        (type, how): await handler.aenqueue(how) for type, handler in app.handlers.items() for how in endings.ENDS
    }
    async with asyncio.timeout(LIMIT):
        await Worker(app).run(until_empty=True)
    ends = {}
    for named, handle in handles.items():
        job = await app.client().jobs.find(handle.id)
        ends[named] = (job.state, *[error["type"] for error in json.loads(job.errors or b"[]")])
    assert ends == {
        (type, how): ("discarded", endings.ENDS[how]().__class__.__name__)
        for type in app.handlers
        for how in endings.ENDS
    }


class Data:
    """What a handler has in hand."""


async def through(context: JobContext, call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


def number() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("layered", [False, True])
async def test_what_a_handler_has_in_hand_when_it_fails_is_freed_at_once(url: str, layered: bool) -> None:
    app = App(url)
    if layered:
        app.execution_middleware.append(through)
    kept: dict[str, weakref.ref[Data]] = {}

    def fail(name: str) -> None:
        data = Data()
        kept[name] = weakref.ref(data)
        raise ValueError

    @app.job("plain", retry=1)
    def plain() -> None:
        fail("plain")

    @app.job("with.context", retry=1)
    def with_context(job: JobContext) -> None:
        fail("with.context")

    @app.job("with.dependency", retry=1)
    def with_dependency(number: int = Depends(number)) -> None:
        fail("with.dependency")

    @app.job("coroutine", retry=1)
    async def coroutine() -> None:
        fail("coroutine")

    for job_type in app.handlers.values():
        await job_type.aenqueue()
    gc.collect()
    gc.disable()
    try:
        async with asyncio.timeout(LIMIT):
            await Worker(app).run(until_empty=True)
        assert {name: data() for name, data in kept.items()} == dict.fromkeys(app.handlers)
    finally:
        gc.enable()
        await app.aclose()

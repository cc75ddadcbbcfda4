"""Every way in which a handler can end ends its attempt, at once, with an error type of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from ojster import App, Worker
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

"""When a worker sends heartbeats."""

from __future__ import annotations

import asyncio
import math

import pytest

from ojster.core.errors import BackendUnavailable
from ojster.worker.heartbeats import beat_for_ever
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("error", [BackendUnavailable("Nobody listens."), RuntimeError("a defect")])
async def test_a_heartbeat_that_fails_is_tried_again_long_before_the_next_is_due(error: Exception) -> None:
    """A worker that is not known yet gets no jobs; often it was started together with its server."""
    tries: list[float] = []
    arrived = asyncio.Event()

    async def beat(wait: float) -> bool:
        tries.append(wait)
        if len(tries) < 3:
            raise error
        arrived.set()
        return False

    beating = asyncio.create_task(beat_for_ever(beat, lambda: math.inf, asyncio.Event()))
    async with asyncio.timeout(PATIENCE):
        await arrived.wait()
    beating.cancel()


async def test_a_heartbeat_that_arrives_is_followed_when_the_next_is_due_or_there_is_news() -> None:
    news, beats = asyncio.Event(), asyncio.Queue[float]()

    async def beat(wait: float) -> bool:
        beats.put_nowait(wait)
        return False

    beating = asyncio.create_task(beat_for_ever(beat, lambda: math.inf, news))
    async with asyncio.timeout(PATIENCE):
        await beats.get()
        for _ in range(10):
            await asyncio.sleep(0)
        assert beats.empty()
        news.set()
        await beats.get()
    beating.cancel()

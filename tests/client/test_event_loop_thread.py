"""Blocking calls run in an event-loop thread; one that is interrupted has cleaned up when it raises."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from ojster.api.calling_thread import CallersLoop
from ojster.client.event_loop_thread import EventLoopThread


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # test processes may ignore the signal
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", [EventLoopThread, CallersLoop])
def test_an_interrupted_call_has_cleaned_up_when_it_raises(kind: type[EventLoopThread]) -> None:
    steps: list[str] = []

    async def call() -> None:
        main = threading.main_thread().ident
        assert main is not None
        try:
            signal.pthread_kill(main, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            for _ in range(5):  # closing takes several turns of the loop
                await asyncio.sleep(0)
            steps.append("cleaned up")

    loop = kind()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.call(call())
        assert steps == ["cleaned up"]
    finally:
        loop.close()

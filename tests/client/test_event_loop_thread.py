"""Blocking calls run in an event-loop thread; one that is interrupted has cleaned up when it raises."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from ojster.api.calling_thread import CallersLoop
from ojster.client.event_loop_thread import EventLoopThread
from ojster.handlers.provision import calling_thread
from tests.waiting import PATIENCE


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


def test_a_call_that_needs_the_thread_of_its_caller_at_once_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    begin = asyncio.run_coroutine_threadsafe

    def begin_and_look_away(*call: Any) -> Future[Any]:
        begun = begin(*call)
        assert asked.wait(PATIENCE)
        return begun

    async def call() -> int:
        used = asyncio.get_running_loop().run_in_executor(calling_thread.get(), threading.get_ident)
        asked.set()
        return await used

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", begin_and_look_away)
    loop = CallersLoop()
    try:
        assert loop.call(call()) == threading.get_ident()
    finally:
        loop.close()

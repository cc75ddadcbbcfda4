"""The event-loop thread, through which synchronous code makes asynchronous calls."""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def _warn_of_blocking(coroutine: Coroutine[Any, Any, object]) -> None:
    message = (
        "A blocking call in a coroutine holds up the event loop. Await the method with an 'a' before its name, such as "
        "aenqueue(); in place of plain_client(), the calls of client()."
    )
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=_caller_outside())
    except RuntimeWarning:  # the application has made errors of warnings
        coroutine.close()
        raise


async def _cancelled(coroutine: Coroutine[Any, Any, object]) -> None:
    tasks = [task for task in asyncio.all_tasks() if task.get_coro() is coroutine]
    for task in tasks:
        if not task.cancelling():  # a second cancellation would end its cleanup
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _caller_outside() -> int:
    """Return the stack level of the first caller outside of Ojster, for a warning."""
    level, frame = 3, sys._getframe(3)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ojster":
        level, frame = level + 1, frame.f_back
    return level


class EventLoopThread:
    """An event loop in a thread of its own, started by the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in the event-loop thread; return its result or raise its exception.

        Raises
        ------
        RuntimeError
            The caller runs in the event-loop thread, which would wait for itself.
        """
        loop = self._started()
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("Blocking call inside the event loop. Await the asynchronous method instead.")
        if asyncio._get_running_loop() is not None:
            _warn_of_blocking(coroutine)
        return self._result_of(coroutine, loop)

    def _result_of(self, coroutine: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> R:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, loop).result()
        except KeyboardInterrupt:
            self._end(coroutine, loop)
            raise

    @staticmethod
    def _end(coroutine: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> None:
        """Cancel a coroutine, and wait until it has cleaned up: a loop that stops before leaves it in the middle."""
        asyncio.run_coroutine_threadsafe(_cancelled(coroutine), loop).result()

    def close(self) -> None:
        """Stop the loop and its thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="ojster-event-loop", daemon=True)
                self._thread.start()
            return self._loop


class InEventLoopThread:
    """An object that waits for calls in an event-loop thread, as its plain methods do."""

    _event_loop_thread: EventLoopThread

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R:
        return self._event_loop_thread.call(call)

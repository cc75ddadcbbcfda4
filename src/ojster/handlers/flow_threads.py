"""Threads of local steps that are plain functions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final, TypeVar

from ojster.handlers.context import JobContext
from ojster.handlers.flow_loop import CallsAtOnce
from ojster.handlers.provision import calling_thread, threads_for
from ojster.handlers.raised import Raised, caught, value_of

T = TypeVar("T")

MAX_THREADS: Final = 64
"""Maximum number of local steps of a process that run in threads at once."""


@cache
def _threads() -> Executor:
    return threads_for(MAX_THREADS, "ojster-step")


class StepExecutor(CallsAtOnce):
    """For libraries that call plain functions in threads: at once in the function of a flow, elsewhere in a thread."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Call a function in a thread of local steps."""
        return (calling_thread.get(None) or _threads()).submit(fn, *args, **kwargs)


class StepThreads:
    """The plain functions that run for one flow. A thread cannot be stopped: its job is not handed back before it ends.

    Parameters
    ----------
    context:
        The job of the flow.
    """

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._running: set[concurrent.futures.Future[Any]] = set()

    async def call(self, function: Callable[[], T]) -> T:
        """Return the result of a function that runs in a thread, or raise what it raises."""
        run = partial(contextvars.copy_context().run, caught, function)
        future: concurrent.futures.Future[T | Raised] = (calling_thread.get(None) or _threads()).submit(run)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return value_of(await asyncio.wrap_future(future))

    def leave(self) -> None:
        """Let the worker wait for threads that still run before it hands the job back."""
        left = [future for future in list(self._running) if not future.cancel() and not future.done()]
        if not left:
            return
        ended = self._context.thread_ended = asyncio.Event()
        self._context.threads_left = len(left)
        waiting = set(left)

        def over(future: concurrent.futures.Future[Any]) -> None:
            waiting.discard(future)
            if not waiting:
                with suppress(RuntimeError):  # the loop is closed: the worker is gone
                    self._loop.call_soon_threadsafe(ended.set)

        for future in left:
            future.add_done_callback(over)

"""The threads of plain functions: they take calls from one queue, and wake the event loop once for all that have ended.

A call that waits in the queue must not wait behind a slow one, and most calls are short. To wake a thread for each
costs more than such a call. So at most one thread at a time, the scout, is on its way to the queue. If it finds more
than one call, it sends the next scout before it runs its own. While a call keeps the interpreter to itself, that scout
waits, and finds an empty queue if all were short. As soon as a call blocks, the scout runs the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any

from ojster.handlers.provision import calling_thread, threads_for
from ojster.handlers.raised import Raised, caught


class ThreadCall:
    """A function that runs in a thread, in a copy of the context in which this is made.

    Attributes
    ----------
    ended:
        Gets what the function has returned or raised. It may be cancelled.
    """

    __slots__ = ("_function", "_is_over", "_outcome", "_run", "ended")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._run = contextvars.copy_context().run
        self._function = function
        self._is_over = False
        self.ended: asyncio.Future[Any | Raised] = loop.create_future()

    def run(self) -> Any | Raised:
        """Run the function, in any thread, and return what it returns or raises."""
        self._outcome = self._run(caught, self._function)
        return self._outcome

    def end(self) -> None:
        """Tell that the function has ended, in the event loop."""
        self._is_over = True
        if not self.ended.done():
            self.ended.set_result(self._outcome)

    def wait_again(self) -> asyncio.Future[Any | Raised]:
        """Return a new ``ended``, after that was cancelled."""
        self.ended = self.ended.get_loop().create_future()
        if self._is_over:
            self.ended.set_result(self._outcome)
        return self.ended


class JobThreads:
    """Runs plain functions for the running event loop, each in the first thread that is free.

    Parameters
    ----------
    most:
        Maximum number of threads. They start when they are needed.
    """

    def __init__(self, most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads_for(most, "ojster-job")
        self._is_callers = calling_thread.get(None) is not None
        self._calls = deque[ThreadCall]()
        self._has_scout = False
        """Whether a thread will look into the queue. False is written before a look, and read after calls are added."""
        self._ended = deque[ThreadCall]()
        self._has_told = False
        """Whether the loop will look at the ended calls. False is written before it does, and read after one ends."""

    def submit(self, function: Callable[[], Any]) -> ThreadCall:
        """Call a function in a thread.

        Raises
        ------
        RuntimeError
            The threads are shut down.
        """
        call = ThreadCall(function, self._loop)
        self._calls.append(call)
        if not self._has_scout:
            try:
                self._send_scout()
            except RuntimeError:
                self.cancel(call)
                raise
        return call

    def cancel(self, call: ThreadCall) -> bool:
        """Drop a call; return whether its function has not begun, and never will."""
        try:
            self._calls.remove(call)
        except ValueError:
            return False
        return True

    def close(self) -> None:
        """Shut down the threads without waiting for those that still run."""
        self._calls.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._has_scout = False  # it was dropped

    def _send_scout(self) -> None:
        self._has_scout = True
        try:
            self._threads.submit(self._work)
        except RuntimeError:
            self._has_scout = False
            raise

    def _work(self) -> Any | Raised:
        """Run the calls of the queue, in a thread.

        The thread of a caller runs one, and learns its outcome: what the caller waits for may be over after it.
        """
        self._has_scout = False
        outcome: Any = None
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:  # another thread has taken the last one
                break
            if self._calls and not self._has_scout:
                with contextlib.suppress(RuntimeError):  # the worker ends, and has cancelled all that have not begun
                    self._send_scout()
            outcome = call.run()
            self._ended.append(call)
            if not self._has_told:
                self._has_told = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is gone
                    self._loop.call_soon_threadsafe(self._tell)
            if self._is_callers:
                return outcome
        return None

    def _tell(self) -> None:
        self._has_told = False
        while self._ended:
            self._ended.popleft().end()

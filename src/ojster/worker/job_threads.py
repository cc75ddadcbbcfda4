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
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from ojster.handlers.provision import calling_thread
from ojster.handlers.raised import Raised, caught

log = logging.getLogger(__name__)


class ThreadCall:
    """A function that runs in a thread, in a copy of the context in which this is made.

    Attributes
    ----------
    run:
        Runs the function, in any thread, and returns what it returns or raises. It is no method: an exception keeps the
        frames below it, and one that knows this call would keep the exception.
    outcome:
        What ``run`` has returned.
    ended:
        Gets the outcome. It may be cancelled.
    """

    __slots__ = ("_is_over", "ended", "outcome", "run")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.run: Callable[[], Any | Raised] = partial(contextvars.copy_context().run, caught, function)
        self.outcome: Any | Raised = None
        self._is_over = False
        self.ended: asyncio.Future[Any | Raised] = loop.create_future()

    def end(self) -> None:
        """Tell that the function has ended, in the event loop."""
        self._is_over = True
        if not self.ended.done():
            self.ended.set_result(self.outcome)

    def wait_again(self) -> asyncio.Future[Any | Raised]:
        """Return a new ``ended``, after that was cancelled."""
        self.ended = self.ended.get_loop().create_future()
        if self._is_over:
            self.ended.set_result(self.outcome)
        return self.ended


class JobThreads:
    """Runs plain functions for the running event loop, each in the first thread that is free.

    The interpreter does not end before the functions that run.

    Parameters
    ----------
    most:
        Maximum number of threads. They start when they are needed.
    """

    def __init__(self, most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._most = most
        self._caller = calling_thread.get(None)
        self._lock = threading.Lock()
        """Guards what follows."""
        self._calls = deque[ThreadCall]()
        self._started = 0
        """The number of threads."""
        self._asleep: list[threading.Lock] = []
        """What wakes each thread that sleeps; who was awake last is woken first."""
        self._has_scout = False
        self._is_closed = False
        self._ended: list[ThreadCall] = []
        """Calls that have ended, until the loop looks at them, which it is asked for when the first comes."""
        _all.add(self)

    def submit(self, function: Callable[[], Any]) -> ThreadCall:
        """Call a function in a thread.

        Raises
        ------
        RuntimeError
            The threads are closed, or none can be started.
        """
        call = ThreadCall(function, self._loop)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("The threads of this worker are closed.")
            self._calls.append(call)
            if self._caller is None and not self._has_scout and not self._send_scout() and not self._started:
                self._calls.pop()
                raise RuntimeError("No thread can be started for a plain function.")
        if self._caller is not None:
            # Its own work with the outcome comes before the event loop learns of it.
            self._caller.submit(self._run_now, call).add_done_callback(lambda _: self._note_end(call))
        return call

    def cancel(self, call: ThreadCall) -> bool:
        """Drop a call; return whether its function has not begun, and never will."""
        with self._lock:
            try:
                self._calls.remove(call)
            except ValueError:
                return False
            return True

    def close(self) -> None:
        """Let the threads end without waiting for those that still run; drop the calls that have not begun."""
        with self._lock:
            self._calls.clear()
        self.finish()

    def finish(self) -> None:
        """Take no more calls, and let the threads end; those calls begin whose outcomes somebody can still learn."""
        with self._lock:
            self._is_closed = True
            if self._loop.is_closed():
                self._calls.clear()
            while self._asleep:
                self._asleep.pop().release()

    def _send_scout(self) -> bool:
        """Wake or start a thread; return whether there was one. Those that are awake look into the queue anyway."""
        if self._asleep:
            self._asleep.pop().release()
            self._has_scout = True
        elif self._started < self._most:
            # No daemon: threads that a function starts are none either then, and the interpreter waits for them.
            thread = threading.Thread(target=self._run, name=f"ojster-job_{self._started}", daemon=False)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more, or the interpreter ends
                log.warning("cannot start another thread for plain functions: %s", error)
                return False
            self._started += 1
            self._has_scout = True
        return self._has_scout

    def _run(self) -> None:
        """Run the calls of the queue, and sleep while there are none."""
        woken = threading.Lock()
        woken.acquire()
        is_scout = True
        while True:
            call: ThreadCall | None = None
            with self._lock:
                if is_scout:
                    self._has_scout = is_scout = False
                if self._calls:
                    call = self._calls.popleft()
                    if self._calls and not self._has_scout:
                        self._send_scout()
                elif self._is_closed:
                    return
                else:
                    self._asleep.append(woken)
            if call is not None:
                call.outcome = call.run()
                self._note_end(call)
            else:
                woken.acquire()
                is_scout = True

    def _run_now(self, call: ThreadCall) -> Any | Raised:
        """Run a call in the thread of a caller, which learns its outcome: what it waits for may be over then."""
        if self.cancel(call):  # nobody has cancelled it before: now nobody can
            call.outcome = call.run()
        return call.outcome

    def _note_end(self, call: ThreadCall) -> None:
        with self._lock:
            self._ended.append(call)
            is_first = len(self._ended) == 1
        if is_first:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker is gone
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, []
        for call in ended:
            call.end()


_all: Final = WeakSet[JobThreads]()


def _finish_all() -> None:
    for threads in list(_all):
        threads.finish()


# As for a pool: the interpreter first does this, then waits for the threads, and only then calls what is registered
# with ``atexit``, which may close what their functions use.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]  # ``concurrent.futures`` uses it, too

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_all.clear)  # a child has no threads of its parent

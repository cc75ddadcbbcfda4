"""The thread of a caller, which runs plain functions while it waits for the jobs that it drains or enqueues."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from ojster.client.event_loop_thread import EventLoopThread
from ojster.handlers.provision import calling_thread
from ojster.handlers.raised import Raised

R = TypeVar("R")
P = ParamSpec("P")


class CallingThread(Executor):
    """Runs functions in a thread that waits for a call to end, and hands them to a new thread afterwards."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._waiting = 0
        """The number of calls that the thread waits for: a function that it runs can wait for another call."""
        self._awaited: list[Future[Any]] = []
        """These calls, once they have begun."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Let the thread run a function."""
        future = Future[R]()
        function = partial(fn, *args, **kwargs)
        with self._changed:
            if self._waiting:
                self._calls.append(partial(_run, future, function, self._awaited))
                self._changed.notify_all()
                return future
        # What a job needed is closed after its timeout, when the call may be over.
        threading.Thread(target=_run, args=(future, function, ()), name="ojster-job", daemon=True).start()
        return future

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Take functions while the block runs. A call begins in it: it may need this thread at once."""
        with self._changed:
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1

    def run_until(self, done: Future[Any]) -> None:
        """Run functions in this thread, which is ``waiting``, until a call is done."""
        done.add_done_callback(self._wake)
        self._awaited.append(done)
        try:
            while (call := self._next(done)) is not None:
                call()
        finally:
            self._awaited.remove(done)

    def _wake(self, _: Future[Any]) -> None:
        with self._changed:
            self._changed.notify_all()

    def _next(self, done: Future[Any]) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or done.done())
            # The outermost call leaves no function behind; others leave them to the calls around them.
            return self._calls.popleft() if self._calls and (self._waiting == 1 or not done.done()) else None


def _run(future: Future[R], function: Callable[[], R], awaited: Sequence[Future[Any]]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    result: Any = None
    raised: BaseException | None = None
    try:
        result = function()
    except BaseException as error:
        own_frame = error.__traceback__
        error.__traceback__ = own_frame and own_frame.tb_next  # backtraces begin at the function
        raised = error
    outcome = result.error if isinstance(result, Raised) else raised
    ends_test = isinstance(outcome, KeyboardInterrupt | _outcome_of_pytest())
    if ends_test:  # before the event loop learns the outcome: it would begin the next attempt
        for call in awaited:
            call.cancel()
    if raised is None:
        future.set_result(result)
    else:
        future.set_exception(raised)
    if ends_test and outcome is not None:
        raise outcome  # it is meant for the test, such as its time limit, not for the attempt


def _outcome_of_pytest() -> type[BaseException]:
    outcome: type[BaseException] = getattr(sys.modules.get("_pytest.outcomes"), "OutcomeException", KeyboardInterrupt)
    return outcome


class CallersLoop(EventLoopThread):
    """An event-loop thread that lets the thread of each caller run the plain functions of its jobs.

    So they use the connections, transactions and thread-local values of the caller, and a debugger stops in them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._local = threading.local()

    def _result_of(self, coroutine: Coroutine[Any, Any, R], loop: asyncio.AbstractEventLoop) -> R:
        thread: CallingThread | None = getattr(self._local, "thread", None)
        if thread is None:
            thread = self._local.thread = CallingThread()
        try:
            with thread.waiting():
                with in_thread(thread):
                    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
                thread.run_until(future)
        except BaseException:
            self._end(coroutine, loop)
            raise
        return future.result()


@contextmanager
def in_thread(thread: Executor | None) -> Iterator[None]:
    """Let the plain functions of what the block starts run in a thread that waits for them; ``None``: as elsewhere."""
    if thread is None:
        yield
        return
    token = calling_thread.set(thread)
    try:
        with _sensitive(thread):
            yield
    finally:
        calling_thread.reset(token)


@contextmanager
def _sensitive(thread: Executor) -> Iterator[None]:
    """Let ``sync_to_async`` of asgiref, through which coroutines use Django's connections, use the same thread."""
    asgiref: Any = sys.modules.get("asgiref.sync")
    if asgiref is None:
        yield
        return
    sensitive = asgiref.ThreadSensitiveContext()
    asgiref.SyncToAsync.context_to_thread_executor[sensitive] = thread
    token = asgiref.SyncToAsync.thread_sensitive_context.set(sensitive)
    executors = asgiref.AsyncToSync.executors
    outer, executors.current = getattr(executors, "current", None), None  # it has precedence, and its thread waits here
    try:
        yield
    finally:
        executors.current = outer
        asgiref.SyncToAsync.thread_sensitive_context.reset(token)


def waiting_thread() -> Executor | None:
    """Return the thread that waits for this coroutine; ``async_to_sync`` of asgiref, and so Django's tests, has one."""
    if (thread := calling_thread.get(None)) is not None:
        return thread
    asgiref: Any = sys.modules.get("asgiref.sync")
    if asgiref is None:
        return None
    bridge = asgiref.AsyncToSync
    thread = getattr(bridge.executors, "current", None) or bridge.loop_thread_executors.get(asyncio.get_running_loop())
    return cast("Executor | None", thread)

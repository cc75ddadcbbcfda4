"""The event loop in which the function of a flow runs: no sockets, no threads, and a clock that its events move.

Ordinary asyncio works in it: tasks, ``gather``, ``TaskGroup``, ``timeout``, ``sleep``. Each run of a flow gets the same
events in the same order, so that it takes the same way. What would make it take another is refused here.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from math import inf
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple
from weakref import WeakSet

from ojster.core.durations import LONGEST_SECONDS

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)


_UNWINDING_CALLS: Final = 10_000
"""How many calls an abandoned flow may make until what unwinds has ended."""

UNWINDS: Final[ContextVar[bool]] = ContextVar("unwinds", default=False)
"""Whether code must not be closed where it is: it is a library's, with task groups that must wait for their tasks."""

_TRIES: Final = 10
"""How often a coroutine of an abandoned flow is closed: each ``finally`` that awaits needs one more."""


class NotInFlow(RuntimeError):
    """The function of a flow did something that would not come out the same way when it runs again.

    Parameters
    ----------
    what:
        What it did.

    Examples
    --------
    >>> from ojster import NotInFlow
    >>> str(NotInFlow("A connection")).partition(". ")[0]
    'A connection is not possible in the function of a flow'
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not possible in the function of a flow. Do it in a step: await flow.step(…).")


class FlowLeft(BaseException):
    """The flow has left its worker. What unwinds gets it from what it awaits."""


class Never:
    """What never ends."""

    def __await__(self) -> Generator[None, None, None]:
        """Wait for ever."""
        while True:
            yield


class CallsAtOnce(Executor):
    """An executor that calls functions at once in the function of a flow."""


class FlowLoop(asyncio.AbstractEventLoop):
    """An event loop that runs only when it is told to.

    Parameters
    ----------
    began_at:
        The time at which it begins, in microseconds since the epoch.
    on_task:
        Called with each new task, and the task that creates it, ``None`` for the first.

    Attributes
    ----------
    now:
        Its time, in microseconds since the epoch.
    tasks:
        The tasks that have not ended, each with the one that has created it, in the order of their creation.
    flow:
        The flow whose function runs in it.
    """

    def __init__(self, began_at: int, on_task: Callable[[asyncio.Task[Any], asyncio.Task[Any] | None], None]) -> None:
        self.began_at = self.now = began_at
        self.tasks: dict[asyncio.Task[Any], asyncio.Task[Any] | None] = {}
        self._on_task = on_task
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, int]] = []
        """When, a number, what to call, and since when."""
        self._timer_number = 0
        self._contexts: dict[asyncio.Task[Any], Context] = {}
        self._unwound: WeakSet[asyncio.Future[Any]] | None = None
        self.flow: Any = None
        self._is_closed = False
        self._running = _RunningLoop(self)

    # Its owner

    def run_ready(self, calls: float = inf) -> None:
        """Run until every task waits, or the loop has made so many calls."""
        ready = self._ready
        if not ready:
            return
        with self._running:
            while ready and calls > 0:
                calls -= 1
                handle = ready.popleft()
                if not handle._cancelled:  # a call for each step would be seen
                    handle._run()

    @property
    def next_timer(self) -> int | None:
        """When the first timer is due, in microseconds since the epoch; ``None``: there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self.began_at + round(self._timers[0][0] * 1e6) if self._timers else None

    def fire(self) -> None:
        """Set the time to that of the first timer, and let it run."""
        self.now = max(self.now, self.next_timer or 0)
        self._ready.append(heapq.heappop(self._timers)[2])

    def timers(self) -> tuple[dict[Any, tuple[int, int]], dict[Any, int]]:
        """Return since when and until when futures sleep; and until when tasks may run, by their first timeout."""
        sleeps: dict[Any, tuple[int, int]] = {}
        limits: dict[Any, int] = {}
        for when, _, handle, since in self._timers:
            until = self.began_at + round(when * 1e6)
            callback: Any = handle._callback  # type: ignore[attr-defined]
            if handle.cancelled():
                continue
            if callback is asyncio.futures._set_result_unless_cancelled:  # type: ignore[attr-defined]
                sleeps[handle._args[0]] = (since, until)
            elif isinstance(around := getattr(callback, "__self__", None), asyncio.Timeout):
                task: Any = around._task  # type: ignore[attr-defined]
                limits[task] = min(until, limits.get(task, until))
        return sleeps, limits

    def abandon(self) -> None:
        """End without running anything: the coroutines are closed where they are."""
        self._is_closed = True
        for _, _, timer, _ in self._timers:
            if timer._args and isinstance(timer._args[0], asyncio.Future):  # ``asyncio.sleep``
                timer._context.run(self.unwind, timer._args[0])  # type: ignore[attr-defined]
        for future in self._unwound or ():
            if not future.done():
                future.set_exception(FlowLeft())
        if self._unwound:
            self.run_ready(_UNWINDING_CALLS)
        self._ready.clear()
        with self._running:
            for task in list(self.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                # What its context managers leave, they have entered in this task and in its context.
                asyncio.tasks._enter_task(self, task)
                try:
                    self._contexts[task].run(_close, task.get_coro())
                finally:
                    asyncio.tasks._leave_task(self, task)

    def adopt(self, before: Context, now: Context) -> None:
        """Let tasks see the context variables around a new run, where they have those around the one before.

        Such as the job, and the span that it is traced in. What the function itself has set stays.
        """
        changed = [(variable, value) for variable, value in now.items() if before.get(variable) is not value]
        for task in self.tasks:
            context = self._contexts[task]
            for variable, value in changed:
                if context.get(variable) is before.get(variable):
                    context.run(variable.set, value)

    # What tasks need

    def time(self) -> float:
        """Return the time since the flow began, in seconds."""
        return (self.now - self.began_at) / 1e6

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function when the tasks that are ready have run."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function after a delay, in seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function at a time of this loop; never in more than 100 years, whose time stamps have five digits."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_number += 1
        if when - self.time() <= LONGEST_SECONDS:
            heapq.heappush(self._timers, (when, self._timer_number, handle, self.now))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def unwind(self, future: asyncio.Future[Any]) -> None:
        """Let a future end with ``FlowLeft`` when the flow leaves, if what awaits it unwinds."""
        if UNWINDS.get():
            if self._unwound is None:  # few flows have code that unwinds
                self._unwound = WeakSet()
            self._unwound.add(future)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Return a task of this loop."""
        creator = asyncio.current_task(self) if asyncio._get_running_loop() is self else None
        context = copy_context() if context is None else context
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self._contexts[task] = context
        self.tasks[task] = creator
        task.add_done_callback(self._forget)
        self._on_task(task, creator)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)
        self._contexts.pop(task, None)

    def run_in_executor(self, executor: Executor | None, function: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call a function, if the executor does it at once: the end of a thread is no event of the flow."""
        if not isinstance(executor, CallsAtOnce):
            raise NotInFlow("asyncio.to_thread, or loop.run_in_executor,")
        future: asyncio.Future[T] = asyncio.Future(loop=self)
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def get_task_factory(self) -> None:
        """Return ``None``: tasks are those of asyncio."""

    def get_debug(self) -> bool:
        """Return whether the loop is in debug mode, which it has not."""
        return False

    def is_running(self) -> bool:
        """Return whether it runs at the moment."""
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        """Return whether it was abandoned."""
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what went wrong in a task that nobody awaits."""
        if not self._is_closed:
            log.error("in a flow: %s", context.get("message"), exc_info=context.get("exception"))


class _RunningLoop:
    """Makes a loop the running one of the thread, in the place of the one around. Each step of a flow needs it."""

    __slots__ = ("_around", "_hooks", "_loop")

    def __init__(self, loop: FlowLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._around, self._hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self._loop)
        sys.set_asyncgen_hooks(None, None)  # else the loop around would close the generators of this one

    def __exit__(self, *_: object) -> None:
        sys.set_asyncgen_hooks(*self._hooks)
        asyncio._set_running_loop(self._around)


def _close(coroutine: Any) -> None:
    for _ in range(_TRIES):
        try:
            coroutine.close()
            break
        except BaseException as error:  # a ``finally`` of the function awaits, or it catches everything
            log.debug("a task of a flow does not end at once: %r", error)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(self: FlowLoop, *args: object, **named: object) -> NoReturn:
        raise NotInFlow(_REFUSED[name])

    refuse.__name__ = name
    return refuse


_REFUSED: Final = {
    "call_soon_threadsafe": "A call from another thread",
    "create_connection": "A connection",
    "create_server": "A server",
    "create_unix_connection": "A connection",
    "create_datagram_endpoint": "A connection",
    "getaddrinfo": "A look at the name service",
    "getnameinfo": "A look at the name service",
    "subprocess_exec": "A child process",
    "subprocess_shell": "A child process",
    "add_reader": "Waiting for a socket",
    "add_writer": "Waiting for a socket",
    "sock_recv": "Reading from a socket",
    "sock_sendall": "Writing to a socket",
    "sock_connect": "A connection",
    "connect_read_pipe": "Reading from a pipe",
    "connect_write_pipe": "Writing to a pipe",
    "add_signal_handler": "Waiting for a signal",
}

for _name in _REFUSED:
    setattr(FlowLoop, _name, _refuse(_name))

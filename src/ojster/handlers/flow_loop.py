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
from contextvars import Context
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)


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


class Never:
    """What never ends."""

    def __await__(self) -> Generator[None, None, None]:
        """Wait for ever."""
        while True:
            yield


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
        The tasks that have not ended.
    """

    def __init__(self, began_at: int, on_task: Callable[[asyncio.Task[Any], asyncio.Task[Any] | None], None]) -> None:
        self.began_at = self.now = began_at
        self.tasks: set[asyncio.Task[Any]] = set()
        self._on_task = on_task
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_number = 0
        self._is_closed = False

    # Its owner

    def run_ready(self) -> None:
        """Run until every task waits."""
        around, hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(None, None)  # else the loop around would close the generators of this one
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(around)

    @property
    def next_timer(self) -> int | None:
        """When the first timer is due, in microseconds since the epoch; ``None``: there is none."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self.began_at + round(self._timers[0][0] * 1e6) if self._timers else None

    def fire(self) -> None:
        """Set the time to that of the first timer, and let it run."""
        self.now = max(self.now, self.next_timer or 0)
        _, _, handle = heapq.heappop(self._timers)
        self._ready.append(handle)

    def abandon(self) -> None:
        """End without running anything: the coroutines are closed where they are."""
        self._is_closed = True
        self._ready.clear()
        for task in list(self.tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine: Any = task.get_coro()
            for _ in range(_TRIES):
                try:
                    coroutine.close()
                    break
                except BaseException as error:  # a ``finally`` of the function awaits, or it catches everything
                    log.debug("a task of a flow does not end at once: %r", error)

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
        """Call a function at a time of this loop."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_number += 1
        heapq.heappush(self._timers, (when, self._timer_number, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Return a task of this loop."""
        creator = asyncio.current_task(self) if asyncio._get_running_loop() is self else None
        task: asyncio.Task[T] = asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        self._on_task(task, creator)
        return task

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
        log.error("in a flow: %s", context.get("message"), exc_info=context.get("exception"))


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(self: FlowLoop, *args: object, **named: object) -> NoReturn:
        raise NotInFlow(_REFUSED[name])

    refuse.__name__ = name
    return refuse


_REFUSED: Final = {
    "run_in_executor": "asyncio.to_thread, or loop.run_in_executor,",
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

"""The attempts that run on the event loop of a worker, and their tasks.

A task for each attempt costs a short coroutine as much as its own work. So attempts follow each other in one task until
a handler waits: it keeps the task, the attempts behind it get another, and the next ones of its job type get tasks of
their own. Between its first line and its last, a handler has one task that no other running handler has: timeouts, task
groups and ``asyncio.current_task()`` work as in a task of its own. Each attempt has a context of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, Final

from ojster.handlers.context import JobContext

TRIED_AGAIN: Final = 100
"""After a handler has waited, so many attempts of its job type get tasks of their own; then one is tried again."""

TURN_SECONDS: Final = 0.002
"""Time after which attempts that follow each other let the event loop do other things, in seconds."""

_NOTHING: Final = object()
"""In the place of what a coroutine waits for: it has ended."""

Steps = Coroutine[Any, Any, None]


class Attempt:
    """An attempt that runs, or is about to. ``task``: the one that it runs in; ``None``: it has not begun."""

    __slots__ = ("context", "task")

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.task: asyncio.Task[None] | None = None


class Attempts:
    """The attempts of a worker.

    Parameters
    ----------
    run:
        Runs an attempt to its end, and reports its outcome.
    on_end:
        Called after each attempt.
    """

    def __init__(self, run: Callable[[JobContext], Steps], on_end: Callable[[JobContext], None]) -> None:
        self._run = run
        self._on_end = on_end
        self._running: dict[tuple[str, int], Attempt] = {}
        """By job and start: its lease may have expired, and it was fetched again meanwhile. Threads may read it."""
        self._waiting: deque[Attempt] = deque()
        """Attempts that have not begun."""
        self._has_follower = False
        """Whether a task takes the attempts that have not begun."""
        self._patient: dict[str, int] = {}
        """Job types whose handlers wait, with the number of attempts that still get tasks of their own."""

    def open(self) -> None:
        """Let attempts run on the running event loop, each in a copy of the caller's context."""
        self.loop = asyncio.get_running_loop()
        self._around = contextvars.copy_context()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def contexts(self) -> list[JobContext]:
        """The contexts of all attempts. May be called in any thread."""
        return [attempt.context for attempt in list(self._running.values())]

    def begin(self, context: JobContext) -> None:
        """Run an attempt, at the latest from the next turn of the event loop on."""
        attempt = Attempt(context)
        self._running[context.job.id, context.job.started_at or 0] = attempt
        type = context.job.type
        left = self._patient.get(type, 0) if self._patient else 0
        if left:
            self._patient[type] = left - 1
            self._begin_alone(attempt)
            return
        if type in self._patient:
            self._patient[type] = TRIED_AGAIN  # one is tried, and not all that begin with it
        self._waiting.append(attempt)
        self._go_on()

    def _begin_alone(self, attempt: Attempt) -> None:
        """Give an attempt a task of its own."""
        attempt.task = self.loop.create_task(self._run(attempt.context), context=self._around.copy())
        attempt.task.add_done_callback(partial(self._forget, attempt))

    def with_tasks(self) -> list[tuple[asyncio.Task[None], JobContext]]:
        """Return all attempts with the tasks that stop them; those that have not begun get tasks of their own."""
        while self._waiting:
            self._begin_alone(self._waiting.popleft())
        attempts = list(self._running.values())
        return [(attempt.task, attempt.context) for attempt in attempts if attempt.task is not None]

    def _go_on(self) -> None:
        """Let another task take the attempts that have not begun, if none does."""
        if self._waiting and not self._has_follower:
            self._has_follower = True
            self.loop.create_task(self._follow_each_other(), context=self._around)

    async def _follow_each_other(self) -> None:
        """Run attempts until one of them waits, and then that one to its end."""
        task = asyncio.current_task()
        assert task is not None
        until = self.loop.time() + TURN_SECONDS
        while self._waiting:
            attempt = self._waiting.popleft()
            attempt.task = task
            steps, around = self._run(attempt.context), self._around.copy()
            awaited: Any = _NOTHING
            try:
                awaited = around.run(steps.send, None)
            except StopIteration:
                pass
            except BaseException:
                self._leave()
                self._forget(attempt)
                raise
            if awaited is not _NOTHING:
                task.add_done_callback(partial(self._forget, attempt))
                self._patient[attempt.context.job.type] = TRIED_AGAIN
                self._leave()
                await _rest_of(steps, around, awaited)
                return
            self._patient.pop(attempt.context.job.type, None)
            self._forget(attempt)
            if task.cancelling():  # the handler has asked for it, and has ended before it came
                break
            if self.loop.time() >= until:
                await asyncio.sleep(0)
                until = self.loop.time() + TURN_SECONDS
        self._leave()

    def _leave(self) -> None:
        """Leave the attempts that have not begun to another task."""
        self._has_follower = False
        self._go_on()

    def _forget(self, attempt: Attempt, _: object = None) -> None:
        del self._running[attempt.context.job.id, attempt.context.job.started_at or 0]
        self._on_end(attempt.context)


@types.coroutine
def _rest_of(steps: Steps, around: contextvars.Context, awaited: Any) -> Generator[Any, Any, None]:
    """Run a coroutine to its end that awaits something already, each step in its context, as its task would do it."""
    while True:
        try:
            step = partial(steps.send, (yield awaited))
        except GeneratorExit:
            around.run(steps.close)
            raise
        except BaseException as error:  # above all the cancellation of the task
            step = partial(steps.throw, error)
        try:
            awaited = around.run(step)
        except StopIteration:
            return

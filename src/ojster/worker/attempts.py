"""The attempts that run on the event loop of a worker, each in a task and a context of its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ojster.handlers.context import JobContext


class Attempts:
    """The attempts of a worker.

    Parameters
    ----------
    run:
        Runs an attempt to its end, and reports its outcome.
    on_end:
        Called after each attempt.
    """

    def __init__(
        self, run: Callable[[JobContext], Coroutine[Any, Any, None]], on_end: Callable[[JobContext], None]
    ) -> None:
        self._run = run
        self._on_end = on_end
        self._running: dict[tuple[str, int], tuple[asyncio.Task[None], JobContext]] = {}
        """By job and start: its lease may have expired, and it was fetched again meanwhile. Threads may read it."""

    def open(self) -> None:
        """Let attempts run on the running event loop, each in a copy of the caller's context."""
        self.loop = asyncio.get_running_loop()
        self._around = contextvars.copy_context()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def contexts(self) -> list[JobContext]:
        """The contexts of all attempts. May be called in any thread."""
        return [context for _, context in list(self._running.values())]

    @property
    def with_tasks(self) -> list[tuple[asyncio.Task[None], JobContext]]:
        """All attempts with their tasks."""
        return list(self._running.values())

    def begin(self, context: JobContext) -> None:
        """Run an attempt, from the next turn of the event loop on."""
        task = self.loop.create_task(self._run(context), context=self._around.copy())
        self._running[context.job.id, context.job.started_at or 0] = (task, context)
        task.add_done_callback(partial(self._forget, context))

    def _forget(self, context: JobContext, _: object) -> None:
        del self._running[context.job.id, context.job.started_at or 0]
        self._on_end(context)

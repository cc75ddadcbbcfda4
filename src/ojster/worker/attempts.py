"""The attempts that run on the event loop of a worker, each in a task and a context of its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ojster.client.interface import Client
from ojster.core.job import Job
from ojster.handlers.context import JobContext
from ojster.worker.reporting import send_progress


class Attempts:
    """The attempts of a worker.

    Parameters
    ----------
    worker_id:
        The worker's id.
    run:
        Runs an attempt to its end, and reports its outcome.
    on_ends:
        Called with the number of attempts that have ended, once for those of one turn of the event loop.
    """

    def __init__(
        self, worker_id: str, run: Callable[[JobContext], Coroutine[Any, Any, None]], on_ends: Callable[[int], None]
    ) -> None:
        self._worker_id = worker_id
        self._run = run
        self._on_ends = on_ends
        self._ended = 0
        self._running: dict[asyncio.Task[None], JobContext] = {}
        """A job may be there twice: its lease has expired, and it was fetched again. Threads may read it."""

    def open(self, client: Client, extend: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Let attempts run on the running event loop, each in a copy of the caller's context.

        Parameters
        ----------
        client:
            The worker's client.
        extend:
            Extends the leases.
        """
        self._client, self._send, self._extend = client, partial(send_progress, client), extend
        self._loop = asyncio.get_running_loop()
        self._around = contextvars.copy_context()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def contexts(self) -> list[JobContext]:
        """The contexts of all attempts. May be called in any thread."""
        return list(self._running.values())

    @property
    def with_tasks(self) -> list[tuple[asyncio.Task[None], JobContext]]:
        """All attempts with their tasks."""
        return list(self._running.items())

    def begin(self, job: Job) -> None:
        """Run an attempt of a job, from the next turn of the event loop on."""
        context = JobContext(job, self._worker_id, self._client, self._send, self._extend, self._loop)
        task = self._loop.create_task(self._run(context), context=self._around.copy())
        self._running[task] = context
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not self._ended:
            self._loop.call_soon(self._tell)
        self._ended += 1

    def _tell(self) -> None:
        ended, self._ended = self._ended, 0
        self._on_ends(ended)

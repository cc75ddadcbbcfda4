"""Attempts that the server has ended: the worker stops them, and confirms when they really run no longer.

A coroutine stops when it is cancelled, and a child process when it is killed. A thread cannot be stopped: the
confirmation waits until its function returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ojster.context import JobContext
from ojster.jobs.messages import hand_back
from ojster.worker.execution import Ending


class Stopping:
    """Stops attempts, and reports what became of them once they run no longer.

    Parameters
    ----------
    worker_id:
        The worker's id.
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._waiting: set[asyncio.Task[None]] = set()

    def stop(self, task: asyncio.Task[None], context: JobContext, tell: Callable[[Ending], None]) -> None:
        """Stop an attempt that the server has ended, and tell the server when it has stopped."""
        context.give_up()
        if not task.cancelling():  # at its timeout it stops already; a second cancellation would end its cleanup
            context.lift_timeout()
            task.cancel()
        confirmation = hand_back(context.job, self._worker_id)
        task.add_done_callback(lambda _: self.tell_when_stopped(context, confirmation, tell))

    def tell_when_stopped(self, context: JobContext, ending: Ending, tell: Callable[[Ending], None]) -> None:
        """Report the outcome of an attempt: at once, or when the thread ends that still runs its function."""
        if context.thread_ended is None or context.thread_ended.is_set():
            tell(ending)
            return
        waiting = asyncio.get_running_loop().create_task(_tell_after(context.thread_ended, ending, tell))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)

    def cancel(self) -> None:
        """Wait no longer: the worker leaves, which confirms everything."""
        for waiting in self._waiting:
            waiting.cancel()


async def _tell_after(ended: asyncio.Event, ending: Ending, tell: Callable[[Ending], None]) -> None:
    await ended.wait()
    tell(ending)

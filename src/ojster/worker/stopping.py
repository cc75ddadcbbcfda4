"""Attempts that the server has ended, or that a stopping worker gives up: they are confirmed when they have stopped.

A coroutine stops when it is cancelled, unless it ignores that, and a child process when it is killed. A thread cannot
be stopped. The confirmation waits until the handler has ended. If a thread succeeds after it was stopped, the report
says so: the job completes if it still can, and a saga undoes what the step has done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ojster.handlers.context import JobContext
from ojster.jobs.messages import Release, hand_back
from ojster.worker.attempts import Attempts
from ojster.worker.execution import Ending


class Stopping:
    """Stops attempts, and reports what became of them once they run no longer.

    Parameters
    ----------
    worker_id:
        The worker's id.
    attempts:
        Its attempts.
    """

    def __init__(self, worker_id: str, attempts: Attempts) -> None:
        self._worker_id = worker_id
        self._attempts = attempts
        self._waiting: set[asyncio.Task[None]] = set()
        self._stopped_at = float("-inf")
        """When an attempt was last stopped (``time.monotonic``)."""

    @property
    def is_waiting(self) -> bool:
        """Whether threads still run whose attempts are over, but not reported."""
        return bool(self._waiting)

    def left(self, seconds: float) -> list[JobContext]:
        """Return the attempts that may still end: not those that were stopped, if the last stop is so long ago."""
        is_over = time.monotonic() >= self._stopped_at + seconds
        return [context for context in self._attempts.contexts if not (is_over and context.is_given_up)]

    def stop(self, task: asyncio.Task[None], context: JobContext, tell: Callable[[Ending], None]) -> None:
        """Stop an attempt that the server has ended or the worker gives up, and tell the server when it has stopped."""
        context.give_up()
        self._stopped_at = time.monotonic()
        if not task.cancelling():  # at its timeout it stops already; a second cancellation would end its cleanup
            context.lift_timeout()
            task.cancel()
        confirmation = hand_back(context.job, self._worker_id)
        task.add_done_callback(lambda _: self.tell_when_stopped(context, confirmation, tell))

    def stop_all(self, tell: Callable[[Ending], None]) -> list[asyncio.Task[None]]:
        """Stop the attempts that have not been given up yet, as ``stop`` does; return their tasks."""
        left = [(task, context) for task, context in self._attempts.with_tasks if not context.is_given_up]
        for task, context in left:
            self.stop(task, context, tell)
        return [task for task, _ in left]

    def tell_when_stopped(self, context: JobContext, ending: Ending, tell: Callable[[Ending], None]) -> None:
        """Report the outcome of an attempt: at once, or when the thread ends that still runs its function."""
        if context.thread_ended is None or context.thread_ended.is_set():
            tell(ending)
            return
        waiting = asyncio.get_running_loop().create_task(_tell_after(context.thread_ended, context, ending, tell))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)

    def cancel(self) -> None:
        """Wait no longer: the worker leaves, which confirms everything."""
        for waiting in self._waiting:
            waiting.cancel()


async def _tell_after(
    ended: asyncio.Event, context: JobContext, ending: Ending, tell: Callable[[Ending], None]
) -> None:
    await ended.wait()
    has_no_outcome = isinstance(ending, Release) and context.is_given_up
    tell(context.late_success if has_no_outcome and context.late_success is not None else ending)

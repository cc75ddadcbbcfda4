"""What a flow runs in the loop of its worker, while its function waits in a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.handlers.flow_errors import run_again
from ojster.handlers.raised import Raised

T = TypeVar("T")


class OuterCalls:
    """Calls in the loop of the worker.

    Parameters
    ----------
    job:
        The job that runs the flow.
    finish:
        Ends the run with an outcome.
    pump:
        Lets the function go on.

    Attributes
    ----------
    running:
        The calls that the function waits for: it gets no other event meanwhile.
    """

    def __init__(self, job: Job, finish: Callable[[Any], None], pump: Callable[[], None]) -> None:
        self.running: set[asyncio.Task[Any]] = set()
        self._job = job
        self._finish = finish
        self._pump = pump
        self._loop = asyncio.get_running_loop()

    def begin(self, call: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something; what it fails with ends the run, so that nothing waits for ever."""

        def check(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._finish(Raised(error))

        task = self._loop.create_task(call)
        task.add_done_callback(check)
        return task

    async def result_of(self, call: Coroutine[Any, Any, T], future: asyncio.Future[T]) -> T:
        """Return the result of a call. The future is one of the function's loop, which waits for it."""

        def done(ended: asyncio.Task[T]) -> None:
            self.running.discard(ended)
            if future.done() or ended.cancelled():
                return
            error = ended.exception()
            if isinstance(error, OjsterError):  # the function must not see it: it may not come again
                self._finish(Raised(run_again(self._job, error)))
            elif error is not None:
                self._finish(Raised(error))
            else:
                future.set_result(ended.result())
                self._loop.call_soon(self._pump)

        calling = self._loop.create_task(call)
        self.running.add(calling)
        calling.add_done_callback(done)
        return await future

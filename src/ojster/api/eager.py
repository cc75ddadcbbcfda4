"""Eager mode: jobs run before the call that has enqueued them returns, in the thread of the caller.

The jobs are in a database in memory, and a worker runs them, so that retries, timeouts, results and errors are those of
any worker. Each call that can make jobs available is followed by a run of all that are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, ParamSpec, Self, TypeVar

from ojster.api.in_memory import InMemory, Keeper
from ojster.client.event_loop_thread import EventLoopThread
from ojster.core.errors import InvalidRequest
from ojster.core.states import FINISHED, JobState
from ojster.service import Service
from ojster.storage.open import MEMORY

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

EAGER_VARIABLE: Final = "OJSTER_EAGER"

MAX_JUMPS: Final = 1_000
"""Jumps of the clock after which a call waits in real time: a flow may sleep for ever."""

_MOVES: Final = (JobState.SCHEDULED, JobState.RETRYABLE)
"""States of jobs that do not wait for their time."""

_FOLLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": ("enqueue", "push", "cancel", "adjust", "retry", "retry_dead"),
    "bulk": ("perform", "push_once", "sweep"),
    "workflows": (
        "create",
        "create_many",
        "cancel",
        "terminate",
        "retry",
        "fork",
        "release",
        "resume",
        "review_step",
        "cancel_step",
        "add_dependencies",
        "retry_step",
        "activate",
    ),
    "workflow_bulk": ("cancel", "retry", "fork", "release"),
    "flows": ("send", "broadcast"),
    "schedules": ("trigger", "backfill"),
}
"""The calls that can make jobs available, by capability."""


def eager_in_environment() -> bool:
    """Return whether the environment asks for eager mode.

    Raises
    ------
    InvalidRequest
        The variable is neither true nor false.
    """
    text = os.environ.get(EAGER_VARIABLE, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise InvalidRequest(f"The environment variable {EAGER_VARIABLE} is 1 or 0, not {text!r:.40}.")


class _Turns:
    """Lets one after the other run, across threads and event loops, in the order in which they come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[Future[None]] = deque()

    async def __aenter__(self) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            place = Future[None]()
            self._waiting.append(place)
        try:
            await asyncio.wrap_future(place)
        except asyncio.CancelledError:
            if not place.cancel():  # the turn has come in the same moment
                self._pass_on()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._is_taken = False


class Eager(InMemory):
    """Eager mode of an application: for a block, or, if the application is always eager, until it is closed.

    Runs of different threads take turns, so that none runs the jobs of another, and the clock, which moves on to what
    is delayed, ends no lease of a job that runs.
    """

    is_of_test = False

    def __init__(self, app: Keeper) -> None:
        super().__init__(app)
        self._turns = _Turns()

    @property
    def loop(self) -> EventLoopThread:
        """The event loop of its blocking calls."""
        return self._loop

    def open(self) -> Service:
        """Open a database in memory, whose calls are followed by the jobs that they make available."""
        service = super().open()
        service.check_orchestrator = self.app.orchestrators.check
        self.follow(service)
        self.app.url, self._service = MEMORY, service
        return service

    def follow(self, service: Service) -> None:
        """Let the calls of a service be followed by the jobs that they make available."""
        for capability, names in _FOLLOWED.items():
            calls = getattr(service, capability)
            for name in names:
                setattr(calls, name, self._followed(getattr(calls, name)))
        self._let_waits_run(service)

    def _followed(self, call: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @wraps(call)
        async def followed(*args: P.args, **kwargs: P.kwargs) -> R:
            if _running.get(None) is self:  # the run around this call goes on with what it makes available
                return await call(*args, **kwargs)
            async with self._turn():  # around the call, too: the run of another thread would see its jobs
                result = await call(*args, **kwargs)
                await self._run_alone()
                return result

        return followed

    def _let_waits_run(self, service: Service) -> None:
        """Let calls that wait for an end run what it depends on: nobody else does."""
        jobs, workflows, flows = service.jobs, service.workflows, service.flows
        wait_for, show, update = jobs.wait_for, workflows.show, flows.update

        async def job_ended(id: str) -> bool:
            return (await jobs.find(id)).state in FINISHED

        async def workflow_ended(id: str) -> bool:
            return (await show(id, steps=False)).finished

        async def wait_for_job(job_id: str, wait: float) -> Any:
            if wait > 0:
                await self._run_until(lambda: job_ended(job_id))
            return await wait_for(job_id, wait)

        async def show_workflow(workflow_id: str, *, wait: float = 0.0, **more: Any) -> Any:
            if wait > 0 and more.get("version") is None:
                await self._run_until(lambda: workflow_ended(workflow_id))
            return await show(workflow_id, wait=wait, **more)

        send_update = self._followed(update)

        async def ask(workflow_id: str, *args: Any, wait_ms: int = 0, **more: Any) -> Any:
            asked = await send_update(workflow_id, *args, **more)
            return await flows.find_update(workflow_id, str(asked.id), wait_ms)

        jobs.wait_for = wait_for_job  # type: ignore[method-assign]
        workflows.show = show_workflow  # type: ignore[method-assign]
        flows.update = ask  # type: ignore[method-assign]

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._turns:
            token = _running.set(self)
            try:
                yield
            finally:
                _running.reset(token)

    async def _run_alone(self) -> None:
        if self.app.handlers:
            await self._run_jobs(_MOVES)

    async def _run_until(self, is_over: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Run what somebody waits for; the clock jumps to what is due next, as long as nothing else is to do."""
        if _running.get(None) is self:  # a handler waits: what runs beside it must not lose its lease in a jump
            if not await is_over():
                await self._run_jobs(())
            return
        async with self._turn():
            for _ in range(MAX_JUMPS):
                if await is_over():
                    return
                await self._run_alone()
                if await is_over() or (due := await self._run_due()) is None:
                    return
                self._clock.move_to(due)
                await self._run_due()


_running: ContextVar[Eager] = ContextVar("ojster_eager_run")
"""The mode whose run is around the code that runs here."""


class EagerMode(Keeper):
    """The part of ``App`` that runs jobs as soon as they are enqueued."""

    _eager: Eager | None

    @property
    def is_eager(self) -> bool:
        """Whether jobs run in the thread of the caller, before ``enqueue`` returns, and are not kept."""
        return self.root._eager is not None

    def include(self, other: Self) -> None:
        """Take over what another application declares. See ``HandlerRegister.include``."""
        super().include(other)
        if (mode := self.root._eager) is not None:
            for handler in other.handlers.values():
                handler.app._event_loop_thread = mode.loop
            other._event_loop_thread = mode.loop

    def eager(self) -> EagerBlock:
        """Run jobs in the thread of the caller, before ``enqueue`` returns, within a block; nothing is kept.

        For tests and development: no worker, database or server is needed. ``App(eager=True)`` and the environment
        variable ``OJSTER_EAGER=1`` do the same for good.

        * What jobs enqueue runs after them. Delayed jobs and retries do not wait: the clock of the database in memory
          jumps to their time. Workflows and flows run until they wait for somebody or for a time; who waits for their
          result lets the clock jump, too.
        * ``enqueue`` does not raise what a handler raises; ``result`` does, as everywhere.
        * Threads take turns: none runs the jobs of another.
        * Cron jobs do not run. ``enqueue_in`` enqueues at once, whatever becomes of the transaction.

        Returns
        -------
        EagerBlock
            A context manager, for ``with`` and ``async with``. Within a ``JobTester`` it cannot be entered; use
            ``JobTester.eager``.

        Examples
        --------
        >>> from ojster import App
        >>> app = App("postgresql://jobs@db/jobs")
        >>> @app.job
        ... def double(number: int) -> int:
        ...     return 2 * number
        >>> with app.eager():
        ...     print(double.enqueue(21).result())
        42
        """
        return EagerBlock(self.root)


class EagerBlock:
    """A block in which an application is eager. In one that is, it changes nothing.

    Parameters
    ----------
    app:
        The application.
    """

    def __init__(self, app: EagerMode) -> None:
        self._app = app
        self._mode: Eager | None = None

    def __enter__(self) -> None:
        """Let the application run jobs as soon as they are enqueued.

        Raises
        ------
        RuntimeError
            A ``JobTester`` has the jobs of the application.
        """
        if self._app.under_test:
            raise RuntimeError("A JobTester has the jobs of this application. Use its eager() instead.")
        if self._app._eager is None:
            self._mode = Eager(self._app)
            self._mode.__enter__()

    def __exit__(self, *error: object) -> None:
        """Let workers run the jobs again."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(*error)

    async def __aenter__(self) -> None:
        """Let the application run jobs as soon as they are enqueued."""
        self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        """Let workers run the jobs again."""
        mode, self._mode = self._mode, None
        if mode is not None:
            await mode.__aexit__(*error)

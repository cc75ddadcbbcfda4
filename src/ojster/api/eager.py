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

import msgspec

from ojster.api.in_memory import InMemory, Keeper
from ojster.client.event_loop_thread import EventLoopThread
from ojster.core.errors import InvalidRequest
from ojster.core.public_settings import Retention, Settings
from ojster.core.states import FINISHED, JobState
from ojster.service import Service
from ojster.storage.open import MEMORY
from ojster.workflows.flow_service import FlowService
from ojster.workflows.stream import StreamAddress

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

EAGER_VARIABLE: Final = "OJSTER_EAGER"

MAX_JUMPS: Final = 1_000
"""Jumps of the clock after which a call waits in real time: a flow may sleep for ever."""

MAX_ROUNDS: Final = 10
"""Times that a run looks again for jobs that tasks beside it have enqueued: the start of a worker may enqueue some."""

LONG_WAIT_SECONDS: Final = 10.0
"""Time after which a call that waits for the run of another thread says so, in seconds."""

_LONG_WAIT: Final = (
    "A call in eager mode waits for the jobs of another thread. If one of their handlers waits for this thread, "
    "neither goes on: start it with asyncio.to_thread, or with contextvars.copy_context().run as the target."
)

_MOVES: Final = (JobState.SCHEDULED, JobState.RETRYABLE)
"""States of jobs that do not wait for their time."""

_FOLLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": ("enqueue", "push", "cancel", "adjust", "retry", "retry_dead"),
    "bulk": ("perform", "push_once", "sweep", "sweep_part"),
    "queues": ("resume", "configure", "limit", "delete"),
    "rate_limits": ("override", "restore"),
    "pools": ("put", "replace", "delete"),
    "tenants": ("put", "replace", "limit", "delete"),
    "fleet": ("deregister", "change_rule", "forget_rule"),
    "maintenance": ("switch_mode",),
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
    "workflow_bulk": ("cancel", "retry", "fork", "release", "pin"),
    "flows": ("send", "broadcast"),
    "schedules": ("trigger", "backfill"),
}
"""The calls that can make jobs available, by capability; ``update`` of flows, too."""

_REPORTS: Final[Mapping[str, tuple[str, ...]]] = {"jobs": ("acknowledge", "fail", "release"), "fleet": ("leave",)}
"""Further such calls, which the worker of a run makes all the time, and then looks for jobs itself."""

_KEEPS_ALL: Final = Retention(
    completed=None,
    cancelled=None,
    discarded=None,
    dead_letter=None,
    most_dead_letters=None,
    audit=None,
    logs=None,
)
"""A jump of the clock must not delete results that callers still hold."""


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
        warning = asyncio.get_running_loop().call_later(LONG_WAIT_SECONDS, log.warning, _LONG_WAIT)
        try:
            await asyncio.wrap_future(place)
        except asyncio.CancelledError:
            if not place.cancel():  # the turn has come in the same moment
                self._pass_on()
            raise
        finally:
            warning.cancel()

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


class _Run:
    """A run of the jobs that a call has made available.

    Tasks that a handler starts inherit it. They may live on when it is over, and then nobody runs what they enqueue.

    Parameters
    ----------
    mode:
        The mode that runs them.
    """

    def __init__(self, mode: Eager) -> None:
        self._mode = mode
        self._lock = threading.Lock()
        self._made = 0
        """The number of calls in the run that can have made jobs available."""
        self._seen = 0
        """How many of them were made before the run has looked for jobs."""
        self.is_over = False

    def goes_on(self, mode: Eager) -> bool:
        """Return whether it is a run of this mode, and not over."""
        return self._mode is mode and not self.is_over

    def look(self) -> None:
        """Look for jobs now."""
        with self._lock:
            self._seen = self._made

    def note(self) -> bool:
        """Note that jobs may have become available; return whether the run will look for them."""
        with self._lock:
            self._made += 1
            return not self.is_over

    def end(self) -> bool:
        """End, unless jobs may have become available since it has looked for some; return whether it is over."""
        with self._lock:
            self.is_over = self._seen == self._made
            return self.is_over


class Eager(InMemory):
    """Eager mode of an application: for a block, or, if the application is always eager, until it is closed.

    Runs of different threads take turns, so that none runs the jobs of another, and the clock, which moves on to what
    is delayed, ends no lease of a job that runs.
    """

    is_of_test = False

    def __init__(self, app: Keeper) -> None:
        super().__init__(app)
        self._turns = _Turns()
        self.blocks = 0
        """The number of blocks that need it; 0: the application is eager for good."""

    @property
    def _settings(self) -> Settings:
        return msgspec.structs.replace(super()._settings, retention=_KEEPS_ALL)

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
        for table in (_FOLLOWED, _REPORTS):
            for capability, names in table.items():
                calls = getattr(service, capability)
                for name in names:
                    setattr(calls, name, self._followed(getattr(calls, name), is_report=table is _REPORTS))
        self._let_waits_run(service)

    def _followed(
        self, call: Callable[P, Coroutine[Any, Any, R]], *, is_report: bool = False
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        @wraps(call)
        async def followed(*args: P.args, **kwargs: P.kwargs) -> R:
            run = _running.get(None)
            if run is not None and run.goes_on(self):
                result = await call(*args, **kwargs)
                if not is_report and not run.note():  # it has ended meanwhile: a handler has started this task
                    async with self._turn():
                        await self._run_alone()
                return result
            async with self._turn():  # around the call, too: the run of another thread would see its jobs
                result = await call(*args, **kwargs)
                await self._run_alone()
                return result

        return followed

    def _let_waits_run(self, service: Service) -> None:
        """Let calls that wait for an end run what it depends on: nobody else does."""
        jobs, workflows = service.jobs, service.workflows
        wait_for, show = jobs.wait_for, workflows.show

        async def job_ended(id: str) -> bool:
            return (await jobs.find(id)).state in FINISHED

        async def workflow_changed(id: str, version: int | None) -> bool:
            head = await show(id, steps=False)
            return head.finished or version not in (None, head.version)

        async def wait_for_job(job_id: str, wait: float) -> Any:
            if wait > 0:
                await self._run_until(lambda: job_ended(job_id))
            return await wait_for(job_id, wait)

        async def show_workflow(workflow_id: str, *, wait: float = 0.0, version: int | None = None, **more: Any) -> Any:
            if wait > 0:
                await self._run_until(lambda: workflow_changed(workflow_id, version))
            return await show(workflow_id, wait=wait, version=version, **more)

        jobs.wait_for = wait_for_job  # type: ignore[method-assign]
        workflows.show = show_workflow  # type: ignore[method-assign]
        self._let_flows_run(service.flows)

    def _let_flows_run(self, flows: FlowService) -> None:
        """Let calls that wait for what flows say run them."""
        send_update, find_update, read_stream = self._followed(flows.update), flows.find_update, flows.read_stream

        async def was_answered(id: str, number: str) -> bool:
            return (await find_update(id, number)).state != "waiting"

        async def has_more(address: StreamAddress) -> bool:
            page = await read_stream(address)
            return bool(page.chunks) or page.has_ended

        async def ask(workflow_id: str, *message: Any, wait_ms: int = 0, **more: Any) -> Any:
            asked = await send_update(workflow_id, *message, **more)  # without a wait: nothing runs yet
            return await answer_of(workflow_id, str(asked.id), wait_ms)

        async def answer_of(workflow_id: str, number: str, wait_ms: int = 0) -> Any:
            if wait_ms > 0:
                await self._run_until(lambda: was_answered(workflow_id, number))
            return await find_update(workflow_id, number, wait_ms)

        async def follow_stream(address: StreamAddress, wait_ms: int = 0) -> Any:
            if wait_ms > 0:
                await self._run_until(lambda: has_more(address))
            return await read_stream(address, wait_ms)

        flows.update = ask  # type: ignore[method-assign]
        flows.find_update = answer_of  # type: ignore[method-assign]
        flows.read_stream = follow_stream  # type: ignore[method-assign]

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._turns:
            run = _Run(self)
            token = _running.set(run)
            try:
                yield
                for _ in range(MAX_ROUNDS):
                    if run.end():
                        break
                    await self._run_alone()
            finally:
                run.is_over = True
                _running.reset(token)

    async def _queues_with_jobs(self) -> list[str]:
        if (run := _running.get(None)) is not None:
            run.look()
        return await super()._queues_with_jobs()

    async def _run_alone(self) -> None:
        _running.get().look()
        if self.app.handlers:
            await self._run_jobs(_MOVES)

    async def _run_until(self, is_over: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Run what somebody waits for; the clock jumps to what is due next, as long as nothing else is to do."""
        run = _running.get(None)
        if run is not None and run.goes_on(
            self
        ):  # a handler waits: what runs beside it must not lose its lease in a jump
            if not await is_over():
                await self._run_jobs(())
            return
        async with self._turn():
            for _ in range(MAX_JUMPS):
                if await is_over():
                    return
                await self._run_alone()
                if await is_over() or not await self._let_time_pass():
                    return


_running: ContextVar[_Run] = ContextVar("ojster_eager_run")
"""The run around the code that runs here."""

_entering = threading.Lock()
"""Held while an application becomes eager for a block, or is no longer."""


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

        The application is eager in the whole process: jobs that other threads and tasks enqueue meanwhile run, and are
        forgotten, too. If blocks overlap, it is until the last one ends.

        * What jobs enqueue runs after them. Delayed jobs and retries do not wait: the clock of the database in memory
          jumps to their time. Workflows and flows run until they wait for somebody or for a time; who waits for their
          result lets the clock jump, too.
        * ``enqueue`` does not raise what a handler raises; ``result`` does, as everywhere.
        * Threads take turns: none runs the jobs of another. A thread that a handler starts, and waits for, belongs to
          the run of the handler only with its context: start it with ``asyncio.to_thread``, or with
          ``contextvars.copy_context().run``.
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
    """A block in which an application is eager, in all threads. In one that is always eager, it changes nothing.

    Parameters
    ----------
    app:
        The application.
    """

    def __init__(self, app: EagerMode) -> None:
        self._app = app
        self._entered: list[Eager] = []

    def __enter__(self) -> None:
        """Let the application run jobs as soon as they are enqueued.

        Raises
        ------
        RuntimeError
            A ``JobTester`` has the jobs of the application.
        """
        if self._app.under_test:
            raise RuntimeError("A JobTester has the jobs of this application. Use its eager() instead.")
        with _entering:
            mode = self._app._eager
            if mode is None:
                mode = Eager(self._app)
                mode.__enter__()
            elif not mode.blocks:
                return
            mode.blocks += 1
        self._entered.append(mode)

    def __exit__(self, *error: object) -> None:
        """Let workers run the jobs again, if no other block needs the mode."""
        if (mode := self._left()) is not None:
            mode.__exit__(*error)

    async def __aenter__(self) -> None:
        """Let the application run jobs as soon as they are enqueued."""
        self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        """Let workers run the jobs again, if no other block needs the mode."""
        if (mode := self._left()) is not None:
            await mode.__aexit__(*error)

    def _left(self) -> Eager | None:
        """Return the mode if its last block has ended: the application does not use it any more."""
        if not self._entered:
            return None
        mode = self._entered.pop()
        with _entering:
            mode.blocks -= 1
            if mode.blocks:
                return None
            mode._leave()  # here, so that a block that begins now enters another one
            return mode

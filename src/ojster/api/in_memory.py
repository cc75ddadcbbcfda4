"""The jobs of an application in a database in memory, which the thread of each caller runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, ClassVar, Final, Self, TypeVar

import msgspec

from ojster.api.calling_thread import CallersLoop, in_thread, waiting_thread
from ojster.client.event_loop_thread import EventLoopThread
from ojster.core.job import Job
from ojster.core.public_settings import Settings, in_microseconds
from ojster.core.states import JobState
from ojster.files.store import MemoryStore
from ojster.fleet.requirements import ALL
from ojster.handlers.register import HandlerRegister
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.schedules.due_work import run_due
from ojster.service import Service
from ojster.storage.open import MEMORY, open_database

R = TypeVar("R")

MAX_ATTEMPTS: Final = 10_000
"""Attempts after which running gives up: jobs that enqueue themselves would never end."""


class Keeper(HandlerRegister):
    """An application whose jobs may be kept in memory for a while."""

    settings: Settings
    under_test: bool
    """Whether a ``JobTester`` has its jobs."""
    _service: Service | None
    _eager: Any
    """What runs its jobs as soon as they are enqueued; ``None``: workers do."""


class Clock:
    """A clock that runs, and can be moved forward.

    Parameters
    ----------
    at:
        The time at which it begins; ``None``: now.
    """

    def __init__(self, at: datetime | None = None) -> None:
        now = time.time_ns() // 1_000
        self._offset = 0 if at is None else round(at.timestamp() * 1e6) - now

    def __call__(self) -> int:
        """Return the time, in microseconds since the epoch."""
        return time.time_ns() // 1_000 + self._offset

    def move_to(self, moment: int) -> None:
        """Move forward to a moment, if it has not passed."""
        self._offset += max(0, moment - self())


class _Before(msgspec.Struct):
    """What an application had before, to which it returns."""

    url: str
    service: Service | None
    under_test: bool
    eager: Any
    loops: dict[Keeper, EventLoopThread]


class InMemory:
    """The jobs of an application in a database in memory, for as long as it is entered.

    Plain handlers run in the thread that waits for them, with its connections and transactions.

    Parameters
    ----------
    app:
        The application, or one that it includes.
    at:
        The time at which its clock begins; now by default.
    """

    is_of_test: ClassVar[bool]
    """Whether the application is under test."""

    def __init__(self, app: Keeper, at: datetime | None = None) -> None:
        self.app = app.root
        self._clock = Clock(at)
        self._service: Service | None = None
        self._before: _Before | None = None
        self._loop = CallersLoop()
        self._depth = 0
        """Number of runs around each other: a handler may wait for jobs that run meanwhile."""

    @property
    def _settings(self) -> Settings:
        """The settings of the database."""
        return self.app.settings

    def open(self) -> Service:
        """Open a database in memory, with the middleware of the application."""
        database = open_database(MEMORY, in_microseconds(self._settings), self._clock)
        service = Service(database, store=MemoryStore())
        service.middleware = self.app.enqueue_middleware
        return service

    def __enter__(self) -> Self:
        """Let the application use a new database in memory."""
        app = self.app
        apps = [app, *{handler.app for handler in app.handlers.values() if isinstance(handler.app, Keeper)} - {app}]
        loops = {user: user._event_loop_thread for user in apps}
        self._before = _Before(app.url, app._service, app.under_test, app._eager, loops)
        app.under_test, app._eager = self.is_of_test, None if self.is_of_test else self
        self._service = self.open()
        app.work_on(self._service, MEMORY)
        for user in apps:  # an application that is included enqueues by itself
            user._event_loop_thread = self._loop
        return self

    def __exit__(self, *error: object) -> None:
        """Let the application use its own database again, and forget the jobs."""
        self._leave()
        self._loop.call(self.service.close())
        self._loop.close()

    async def __aenter__(self) -> Self:
        """Let the application use a new database in memory."""
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        """Let the application use its own database again, and forget the jobs."""
        self._leave()
        await self.service.close()
        self._loop.close()

    def _leave(self) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        app = self.app
        app.url, app._service, app.under_test, app._eager = before.url, before.service, before.under_test, before.eager
        for user, loop in before.loops.items():
            user._event_loop_thread = loop

    @property
    def service(self) -> Service:
        """The service of the database in memory."""
        if self._service is None:
            raise RuntimeError("Enter the tester first: with JobTester(app) as jobs.")
        return self._service

    @property
    def _scoped(self) -> Service:
        """The service as the application uses it: for its tenant, if it has one."""
        client = self.app.client()
        assert isinstance(client, Service)
        return client

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R:
        return self._loop.call(call)

    # Running

    async def _run_jobs(
        self, moves: Iterable[JobState], concurrency: int = 1, ended: Callable[[list[str]], Any] | None = None
    ) -> int:
        """Run all available jobs, with those that they enqueue; return the number of attempts.

        Parameters
        ----------
        moves:
            States whose jobs need not wait: the clock moves to the time of the first, until none is left.
        concurrency:
            Maximum number of jobs that run at once.
        ended:
            Called with the ids of the jobs that were tried, before the clock moves on: they may be deleted then.
        """
        attempts: list[str] = []
        states = list(moves)
        while True:
            before = len(attempts)
            with in_thread(waiting_thread()):
                await self._run_available(attempts, concurrency)
            if ended is not None:
                await ended(attempts[before:])
            if (due := await self._first_due(states)) is None:
                return len(attempts)
            self._clock.move_to(due)
            await self._run_due()

    async def _run_available(self, attempts: list[str], concurrency: int) -> None:
        from ojster.worker.worker import Worker  # imported here, because the import is slow

        def ended(job: Job, *_: object) -> None:
            attempts.append(job.id)
            if len(attempts) == MAX_ATTEMPTS:
                worker.stop(grace=0)

        while queues := await self._queues_with_jobs():
            before = len(attempts)
            worker = Worker(self.app, queues=queues, concurrency=concurrency, children=None, prefetch=0)
            worker.on_end, worker.provided = ended, ALL
            self._depth += 1
            try:
                await worker.run(until_empty=True)
            finally:
                self._depth -= 1
            if self._depth == 0:  # the worker around this one still needs it
                await self._scoped.maintenance.stop()
            if len(attempts) >= MAX_ATTEMPTS:
                raise RuntimeError(
                    f"{MAX_ATTEMPTS:,} attempts were made, and jobs still wait: do they enqueue themselves?"
                )
            if len(attempts) == before:  # what is left has no handler here, or waits for something else
                return

    async def _queues_with_jobs(self) -> list[str]:
        counts = await self.service.jobs.count()
        return sorted(queue for queue, states in counts.items() if states.get(JobState.AVAILABLE))

    async def _first_due(self, states: Iterable[JobState]) -> int | None:
        """Return the earliest time at which a job in one of these states is due."""
        first = Page(limit=1, sort="scheduled_at", ascending=True)
        pages = [await self.service.jobs.select(JobFilter(states=(state,)), first) for state in states]
        return min((job.due_at for page in pages for job in page.jobs if job.due_at is not None), default=None)

    async def _let_time_pass(self) -> bool:
        """Do what is due; if that moves no job, move the clock to what is due next. Return whether anything was due.

        What moves a job may let it run before its next deadline, so the clock stays until it has.
        """
        before = await self.service.jobs.count()
        due = await self._run_due()
        if await self.service.jobs.count() != before:
            return True
        if due is None:
            return False
        self._clock.move_to(due)
        await self._run_due()
        return True

    async def _run_due(self) -> int | None:
        """Do what is due, and return the time of what is due next."""
        while (due := await self.service.database.run(run_due, None)) is not None and due <= self._clock():
            continue
        return due

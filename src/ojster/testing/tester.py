"""``JobTester``: the jobs of an application under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from traceback import walk_tb
from typing import Any, Final, Self, TypeVar

import msgspec

from ojster.api.app import App
from ojster.api.in_memory import InMemory
from ojster.api.workflow_handle import Run
from ojster.client.plain_methods import plain
from ojster.core.declared_options import checks_options
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.core.values import Seconds, to_seconds
from ojster.handlers.context import JobContext
from ojster.handlers.outcomes import JobFailed
from ojster.handlers.provision import calling_thread
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.testing.expected_call import CONDITIONS, Call, Callee, shown_call
from ojster.worker.registration import register
from ojster.workflows.flow import FlowUpdate
from ojster.workflows.flow_service import FlowService

MAX_JUMPS: Final = 10_000
"""Jumps of the clock after which ``finish`` gives up: a flow that polls may never end."""

_PAGE: Final = 1_000

R = TypeVar("R")


class Drained(msgspec.Struct, frozen=True):
    """What ``drain`` has run.

    Parameters
    ----------
    completed, failed, cancelled:
        The jobs that have ended, in the order in which they ended; failed ones have no attempt left.
    attempts:
        The number of attempts, with those that failed and were repeated.
    """

    completed: list[Job]
    failed: list[Job]
    cancelled: list[Job]
    attempts: int


def _is_of_tester(error: Exception) -> bool:
    """Whether an error says something about jobs, and does not come from a handler or a script."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_code.co_filename == __file__


class JobTester(InMemory):
    """The jobs of an application under test, in a database in memory.

    While it is entered, the application uses this database instead of its own. Nothing runs until ``drain`` runs it,
    or until a blocking ``run.update`` waits for the answer of a flow: it drains, too.
    Plain handlers, also those with ``process=True``, run in the thread of the test, with its connections and
    transactions; in asynchronous tests they run in threads, or in Django's thread of the test.
    The asynchronous methods begin with ``a``; the others block. ``enqueue_in`` and ``start_in`` enqueue at once,
    whatever becomes of the caller's transaction.

    Parameters
    ----------
    app:
        The application.
    at:
        The time at which the test begins, with a time zone; now by default. The clock runs on from there, and
        ``advance`` moves it.

    Raises
    ------
    ValueError
        ``at`` has no time zone.

    Examples
    --------
    >>> from ojster import App
    >>> from ojster.testing import JobTester
    >>> app = App("postgresql://jobs@db/jobs")
    >>> @app.job("email.send", retry=5)
    ... def send(to: str) -> None:
    ...     if current_job().attempt < 3:
    ...         raise ConnectionError("try again")
    >>> from ojster import current_job
    >>> with JobTester(app) as jobs:
    ...     handle = send.enqueue("ada@example.com")
    ...     job = jobs.assert_enqueued(send, "ada@example.com")
    ...     print(jobs.drain().attempts, handle.refresh().state)
    3 completed
    """

    is_of_test = True

    def __init__(self, app: App, *, at: datetime | None = None) -> None:
        if at is not None and at.tzinfo is None:
            raise ValueError(f"The time {at} needs a time zone, such as tzinfo=UTC.")
        super().__init__(app, at)
        self.app: App = app.root
        self._draining = False
        self._errors: list[BaseException | None] = []

    def __enter__(self) -> Self:
        """Let the application use a new database in memory."""
        super().__enter__()
        self._let_updates_run(self._scoped.flows)
        return self

    def _let_updates_run(self, flows: FlowService) -> None:
        """Let a blocking call that waits for the answer to an update run the flow: its thread cannot drain."""
        send, find = flows.update, flows.find_update

        async def ask(workflow_id: str, name: str, *message: Any, wait_ms: int = 0, **more: Any) -> FlowUpdate:
            if self._draining or not wait_ms or calling_thread.get(None) is None:
                return await send(workflow_id, name, *message, wait_ms=wait_ms, **more)
            asked = await send(workflow_id, name, *message, **more)
            if asked.state == "waiting":  # a key that was sent before has its answer
                await self.adrain(check=False)
                asked = await find(workflow_id, str(asked.id))
            if asked.state == "waiting":
                raise AssertionError(
                    f"The flow of the workflow {workflow_id} does not answer the update {name!r}: nothing is left to "
                    "run. If its handler waits for a time or a message, await run.aupdate(…) in a task, and advance "
                    "the time or send the message meanwhile."
                )
            return asked

        flows.update = ask  # type: ignore[method-assign]

    def _leave(self) -> None:
        if self._fail in self.app.execution_middleware:
            self.app.execution_middleware.remove(self._fail)
        super()._leave()

    def _wait(self, call: Coroutine[Any, Any, R], /) -> R:
        __tracebackhide__ = True
        try:
            return super()._wait(call)
        except (AssertionError, JobFailed) as error:
            if _is_of_tester(error):  # pytest would show the threads between this one and the error
                error.with_traceback(None)
            raise

    # Time

    @property
    def now(self) -> datetime:
        """The time in the database."""
        return datetime.fromtimestamp(self._clock() / 1e6, UTC)

    async def aadvance(self, by: Seconds) -> None:
        """Move the clock forward: scheduled jobs become available, cron jobs fire, workflows time out. Nothing runs.

        Parameters
        ----------
        by:
            The time, in seconds or as a ``timedelta``.

        Raises
        ------
        ValueError
            The time is negative.
        """
        if (microseconds := round(to_seconds(by) * 1e6)) < 0:
            raise ValueError("Time does not run backwards.")
        await register(self._scoped, self.app)
        end = self._clock() + microseconds
        while (due := await self._run_due()) is not None and due <= end:
            self._clock.move_to(due)
        self._clock.move_to(end)

    advance = plain(aadvance)

    # What was enqueued

    @checks_options
    async def aall(self, type: Any = None, *, queue: str | None = None) -> list[Job]:
        """Return the jobs, the first that was enqueued first.

        Parameters
        ----------
        type:
            Their type, its handler, or a task of Django; all by default.
        queue:
            Their queue; all by default.
        """
        return await self._select(None if type is None else Callee.of(self.app, type).type, queue)

    all = plain(aall)

    async def _select(self, type: str | None, queue: str | None = None) -> list[Job]:
        chosen = JobFilter(type=type, queue=queue)
        selected: list[Job] = []
        before: int | None = None
        while True:
            page = await self.service.jobs.select(chosen, Page(limit=_PAGE, before=before))
            selected += page.jobs
            if (before := page.next_before) is None:
                return selected[::-1]

    async def aassert_enqueued(self, type: Any, *args: Any, **named: Any) -> Job:
        """Assert that a job was enqueued, whether it has run or not, and return the first.

        Parameters
        ----------
        type:
            Its type, its handler, or a task of Django.
        args:
            Its arguments; without any, also by name: any arguments.
        named:
            Its arguments by name; and ``queue``, ``priority``, ``state``, ``tenant`` and ``meta`` that it must have, or
            ``count``, how many such jobs there must be.

        Raises
        ------
        AssertionError
            There is no such job. The message lists those of the type.
        TypeError
            The handler does not take these arguments, or ``type`` is no job type.
        """
        __tracebackhide__ = True
        callee = Callee.of(self.app, type)
        conditions, call = _divided(args, named)
        count = conditions.pop("count", None)
        matching = await self._matching(callee, call, conditions)
        if not matching or count not in (None, len(matching)):
            wanted = shown_call(callee.type, call) + "".join(f" {name}={it!r}" for name, it in conditions.items())
            many = "Not enqueued" if count is None else f"Enqueued {len(matching)} times, not {count}"
            raise AssertionError(f"{many}: {wanted}. {await self._said(callee)}")
        return matching[0]

    assert_enqueued = plain(aassert_enqueued)

    async def arefute_enqueued(self, type: Any, *args: Any, **named: Any) -> None:
        """Assert that no such job was enqueued. See ``aassert_enqueued``."""
        __tracebackhide__ = True
        callee = Callee.of(self.app, type)
        conditions, call = _divided(args, named)
        if matching := await self._matching(callee, call, conditions):
            raise AssertionError(
                f"Enqueued {len(matching)} times: {shown_call(callee.type, call)}. {await self._said(callee)}"
            )

    refute_enqueued = plain(arefute_enqueued)

    async def _matching(self, callee: Callee, call: Call, conditions: Mapping[str, Any]) -> list[Job]:
        expected = callee.expect(call) if any(call) else None
        return [
            job
            for job in await self._select(callee.type)
            if (expected is None or callee.actual(self._args_of(job)) == expected)
            and all(getattr(job, name) == value for name, value in conditions.items())
        ]

    def _args_of(self, job: Job) -> list[Any]:
        """Return the arguments of a job as they were before codecs encoded them."""
        return self.app.codecs.decode(job.args, job.meta) if self.app.codecs else job.args

    async def _said(self, callee: Callee) -> str:
        jobs = await self._select(callee.type)
        if not jobs:
            others = await self._select(None)
            types = ", ".join(sorted({job.type for job in others})) or "none"
            return f"Nothing of this type was enqueued; other types: {types}." + await self._said_of_commit(others)
        calls = [shown_call(job.type, callee.call_of(self._args_of(job))) for job in jobs]
        shown = [f"{call} in {job.queue}, {job.state}" for call, job in zip(calls, jobs, strict=True)]
        return f"Enqueued: {'; '.join(shown)}."

    async def _said_of_commit(self, jobs: Iterable[Job]) -> str:
        """Return a sentence about jobs that are enqueued after a commit, if there are some."""
        if self.app.waiting_for_commit is None:
            return ""
        waiting = {*await self.app.waiting_for_commit()} - {job.id for job in jobs}
        what = f" {len(waiting)} will be enqueued after the commit of an open transaction. "
        return what + "In a TestCase, run it with captureOnCommitCallbacks(execute=True)." if waiting else ""

    # Running

    @checks_options
    async def adrain(self, *, scheduled: bool = False, check: bool = True, concurrency: int = 1) -> Drained:
        """Run all available jobs, with those that they enqueue, and repeat failed attempts at once.

        The clock is moved to the time of each retry, so that what is scheduled for an earlier time runs, too. Cron jobs
        do not fire meanwhile; ``aadvance`` lets them.

        Parameters
        ----------
        scheduled:
            Whether to run scheduled jobs, too, each at its time; false by default. ``aadvance`` does so for some.
        check:
            Whether to raise the error of a job that has failed for good. The default is true.
        concurrency:
            Maximum number of jobs that run at once; 1 by default.

        Returns
        -------
        Drained
            What has run.

        Raises
        ------
        JobFailed
            A job has failed for good; ``error`` is the error of its last attempt.
        RuntimeError
            Ten thousand attempts were made, and there is no end.
        """
        jobs: dict[str, Job] = {}
        moves = {JobState.RETRYABLE, *((JobState.SCHEDULED,) if scheduled else ())}

        async def keep(ids: list[str]) -> None:
            for id in [*dict.fromkeys(reversed(ids))][::-1]:
                jobs.pop(id, None)  # its place is that of its last attempt
                jobs[id] = await self.service.jobs.find(id)

        self._draining = True
        try:
            attempts = await self._run_jobs((), concurrency, keep)
            if await self._first_due(moves) is not None:
                async with self._without_crons():
                    attempts += await self._run_jobs(moves, concurrency, keep)
        finally:
            self._draining = False
        ended = list(jobs.values())
        done = Drained(_of(ended, "completed"), _of(ended, "discarded"), _of(ended, "cancelled"), attempts)
        if check and done.failed:
            first = done.failed[0]
            error = first.error or {"type": "discarded", "message": "No error was recorded."}
            call = shown_call(first.type, (self._args_of(first), {}))
            message = f"The job {call} failed: {error['type']}: {error['message']}"
            lines = "".join(f"\n{line}" for line in error.get("backtrace", ()))
            raise JobFailed(message + lines, error)
        return done

    drain = plain(adrain)

    async def afinish(self, run: Run) -> None:
        """Run a workflow or a flow to its end. When no job is left to run, the clock jumps to what is due next.

        Cron jobs do not fire meanwhile; ``aadvance`` lets them.

        Parameters
        ----------
        run:
            The workflow, as ``start`` returns it. It is refreshed.

        Raises
        ------
        AssertionError
            It does not end: it waits for something that does not come, such as a message or an approval.
        """
        __tracebackhide__ = True
        async with self._without_crons():
            for _ in range(MAX_JUMPS):
                await self.adrain(check=False)
                if (await run.arefresh()).finished:
                    return
                if not await self._let_time_pass():
                    break
            else:
                raise AssertionError(f"The workflow {run.id} is {run.state} after {MAX_JUMPS:,} jumps of the clock.")
        raise AssertionError(
            f"The workflow {run.id} is {run.state} and does not end: nothing is left to run, and nothing that it waits "
            "for is due. Send the message, or answer the gate, that it waits for. If a cron job does so, advance the "
            "time and drain before."
        )

    finish = plain(afinish)

    @asynccontextmanager
    async def _without_crons(self) -> AsyncIterator[None]:
        """Let no cron job fire within the block: the clock would stop at each of its occurrences, without an end."""
        await register(self._scoped, self.app)  # otherwise the first worker would do so
        schedules = self.service.schedules
        enabled = {cron.name for cron in await schedules.all() if cron.enabled}
        for name in enabled:
            await schedules.switch(name, enabled=False)
        try:
            yield
        finally:
            for name in enabled & {cron.name for cron in await schedules.all()}:
                await schedules.switch(name, enabled=True)

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Run jobs as soon as they are enqueued, before ``enqueue`` returns, within the block; workflows do not."""
        service = self._scoped.jobs
        enqueue = service.enqueue

        async def enqueue_and_run(requests: Any) -> Any:
            pushed = await enqueue(requests)
            if not self._draining:
                await self.adrain()
            return pushed

        service.enqueue = enqueue_and_run  # type: ignore[method-assign]
        try:
            yield
        finally:
            service.enqueue = enqueue  # type: ignore[method-assign]

    def fail_next(self, *errors: BaseException | None) -> None:
        """Let attempts fail after their handlers have succeeded, as if the worker had died before it could report.

        Handlers must bear it, because a job runs at least once.

        Parameters
        ----------
        errors:
            The error of each of the next attempts whose handlers succeed; ``None``: it goes well.
        """
        if self._fail not in self.app.execution_middleware:
            self.app.execution_middleware.append(self._fail)
        self._errors += errors

    async def _fail(self, context: JobContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        result = await call_next()
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return result


def _of(jobs: Iterable[Job], state: str) -> list[Job]:
    return [job for job in jobs if job.state == state]


def _divided(args: Sequence[Any], named: Mapping[str, Any]) -> tuple[dict[str, Any], Call]:
    """Return the conditions, and the arguments of a call."""
    conditions = {name: value for name, value in named.items() if name in CONDITIONS}
    return conditions, (args, {name: value for name, value in named.items() if name not in CONDITIONS})

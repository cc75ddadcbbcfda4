"""Execution of one job: find its handler, run it as declared, and turn the result into an outcome."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import msgspec

from ojster.core.job import Job
from ojster.core.plain_end import plain_seq
from ojster.core.property_values import Changes
from ojster.core.values import result_to_json
from ojster.files.file import may_refer
from ojster.handlers import middleware, tracing
from ojster.handlers.context import JobContext, enter_job
from ojster.handlers.flow_keeping import KeptFlows
from ojster.handlers.job_type import JobType
from ojster.handlers.kept_logs import LogReports
from ojster.handlers.outcomes import MAX_RESULT_BYTES, Released, Reported
from ojster.handlers.provision import Provision, Threads, provided, use_threads
from ojster.handlers.raised import Raised, value_of
from ojster.handlers.register import HandlerRegister
from ojster.jobs.code import CODE_TYPE
from ojster.jobs.failure import Failure
from ojster.jobs.leases import grace_period
from ojster.jobs.messages import Acknowledgement, FailureReport, Release, hand_back
from ojster.worker.children import ChildPool
from ojster.worker.code import CodeRunner
from ojster.worker.crash_isolation import CrashIsolation
from ojster.worker.failures import failure_of
from ojster.worker.job_threads import JobThreads, ThreadCall
from ojster.worker.loop_watch import LoopWatch

log = logging.getLogger(__name__)

Ending = Acknowledgement | FailureReport | Release
"""The outcome of an attempt, ready to be sent."""

OVERLAP_DELAY_SECONDS: Final = 5.0
"""Delay of an attempt while the handler of an earlier one still runs in this process, in seconds."""


_TURNS_TO_LEAVE: Final = 10
"""Turns of the event loop within which a handler ends whose outcome the server knows."""


class Executor:
    """Runs jobs for one worker: async handlers on the event loop, plain ones in threads or in child processes.

    Parameters
    ----------
    app:
        The application with the handlers.
    threads:
        Maximum number of plain functions that run at once.
    children:
        The child processes for handlers that ask for a process of their own; ``None``: they run in threads.
    on_thread_freed:
        Called when an abandoned thread ends.
    code:
        The runner of jobs that carry their code; ``None`` if this worker runs none.

    Attributes
    ----------
    abandoned:
        The number of threads that still run although their jobs have ended.
    runs:
        Ids of the jobs whose handlers run here, also after their attempts have ended.
    watch:
        The watch over the event loop.
    """

    def __init__(
        self,
        app: HandlerRegister,
        threads: int,
        children: ChildPool | None,
        on_thread_freed: Callable[[], None],
        code: CodeRunner | None = None,
    ) -> None:
        self.abandoned = 0
        self._abandoned_at = float("-inf")
        """When a thread was last left to run on (``time.monotonic``)."""
        self._on_room = on_thread_freed
        self._isolation = CrashIsolation(on_thread_freed)
        self.runs: set[str] = set()
        self._is_careful = False
        """Whether to fetch one job at a time, because the last ones were to begin alone."""
        self._is_recorded = False
        """Whether spans of the jobs that were fetched last lead somewhere."""
        self._has_layers = bool(app.codecs or app.execution_middleware)
        """Whether each call passes through codecs or middleware, which do not change while this runs."""
        self.watch = LoopWatch()
        self._kept_flows = KeptFlows()
        self._app = app
        self._code = code
        self._threads = JobThreads(threads)
        self._openers = Threads(threads)
        self._later: set[asyncio.Task[None]] = set()
        """Tasks that clean up after threads that still run although their jobs have ended."""
        self._children = children

    @property
    def busy_threads(self) -> int:
        """The number of threads that still run after all jobs have ended: nobody can stop them."""
        return self.abandoned + self._openers.busy

    def has_waited(self, seconds: float) -> bool:
        """Return whether the threads that still run although their jobs have ended had so much time to end."""
        return time.monotonic() >= self._abandoned_at + seconds

    def room(self, free: int) -> int:
        """Return how many jobs the worker should fetch, if ``free`` more may run."""
        if self._isolation.is_closed:
            return 0
        return min(free - self.abandoned, 1 if self._is_careful else free)

    @property
    def may_hold(self) -> bool:
        """Whether jobs may wait in this process for their turn: not if one could take them along when it dies."""
        return not (self._isolation.is_closed or self._is_careful or self.abandoned)

    def accept(self, jobs: Sequence[Job], worker_id: str, give_back: Callable[[Release], None]) -> Sequence[Job]:
        """Return the fetched jobs to run; hand back all but the first of those that begin alone.

        A job that waited here for its turn would be lost with the worker if the one before it kills the worker again.
        """
        self._is_recorded = tracing.records()
        suspects = [job for job in jobs if job.losses and self._begins_alone(job)]
        self._is_careful = bool(suspects) or (self._is_careful and not jobs)
        if not suspects:
            return jobs
        for job in suspects[1:]:
            give_back(hand_back(job, worker_id))
        handed_back = {job.id for job in suspects[1:]}
        return [job for job in jobs if job.id not in handed_back]

    async def run(self, context: JobContext) -> Ending | None:
        """Run a job to its end, alone at first if its worker has died before; ``None``: its outcome is reported.

        If the handler of an earlier attempt still runs here, such as a thread beyond its timeout, hand the job back.

        Raises
        ------
        asyncio.CancelledError
            The worker has given up the attempt, and decides what happens to the job.
        """
        job = context.job
        if job.id in self.runs and not await self._has_left(job):
            log.info("job %s waits: an earlier attempt of it still runs here", job.id)
            return hand_back(job, context.worker_id, delay=round(OVERLAP_DELAY_SECONDS * 1e6))
        self.runs.add(job.id)
        try:
            return await self._run_isolated(context)
        finally:
            if context.thread_ended is None or context.thread_ended.is_set():
                self.runs.discard(job.id)
            elif context.threads_left:
                waiting = asyncio.create_task(self._wait_for_threads(context.thread_ended, context))
                self._later.add(waiting)
                waiting.add_done_callback(self._later.discard)

    async def _has_left(self, job: Job) -> bool:
        """Wait a moment for an earlier attempt to end: a flow may be fetched again before its handler has ended."""
        for _ in range(_TURNS_TO_LEAVE):
            await asyncio.sleep(0)
            if job.id not in self.runs:
                return True
        return False

    async def _wait_for_threads(self, ended: asyncio.Event, context: JobContext) -> None:
        """Count the threads that a flow has left behind until they have ended."""
        self.abandoned += context.threads_left
        self._abandoned_at = time.monotonic()
        try:
            await ended.wait()
        finally:
            self.abandoned -= context.threads_left
            self.runs.discard(context.job.id)
            self._on_room()

    async def _run_isolated(self, context: JobContext) -> Ending | None:
        """Wait until the job may begin, and run it; its timeout has begun with its lease."""
        job = context.job
        ends = asyncio.get_running_loop().time() + job.timeout / 1e6 if job.timeout else None
        if job.losses or self._isolation.is_closed:
            try:
                async with nullcontext() if ends is None else asyncio.timeout_at(ends):
                    place = await self._isolation.join(suspect=self._begins_alone(job))
            except TimeoutError:
                return hand_back(job, context.worker_id)
        else:
            place = self._isolation.join_at_once()
        try:
            if not tracing.is_traced(job, recorded=self._is_recorded):
                return await self._run(context, ends)
            with tracing.running(job, context.worker_id) as run:
                ending = await self._run(context, ends)
                if ending is not None:
                    run.end(ending)
                return ending
        finally:
            self._isolation.leave(place)

    def _begins_alone(self, job: Job) -> bool:
        """Return whether a worker has died while a job ran, and it could take this one along, too."""
        handler = self._app.handlers.get(job.type)
        has_own_process = handler is None or (handler.process and not handler.is_async)
        return job.losses > 0 and not has_own_process

    async def _run(self, context: JobContext, ends: float | None) -> Ending | None:
        """Run a job until a time of the event loop at most."""
        job = context.job
        worker_id = context.worker_id
        limit: asyncio.Timeout | None = None
        try:
            if ends is not None:
                async with asyncio.timeout_at(ends) as limit:
                    context.time_limit = limit
                    result = await self._call(context)
            else:
                result = await self._call(context)
            appended = tuple(context.appended)
            encoded, file = self._encoded(job.type, result), None
            if encoded is not None and len(encoded) > MAX_RESULT_BYTES:
                file = await context.keep_result(encoded)
                encoded = encoded if file is None else None
            return Acknowledgement(
                *(job.id, encoded, worker_id, job.attempt, appended, context.changes, file, job.started_at),
                plain_seq(job),
                job.node,
            )
        except Reported:
            return None
        except Released as released:
            release = released.release(job.id, worker_id, job.attempt)
            return msgspec.structs.replace(release, changes=context.changes, started_at=job.started_at)
        except TimeoutError as error:
            if job.timeout and limit is not None and limit.expired():
                message = f"The job ran longer than {job.timeout / 1e6:g} seconds."
                failure = Failure("timeout", message, code="timeout")
            else:
                failure = failure_of(error, context.job)
            return report_failure(context, failure)
        except BaseException as error:  # every other way in which a handler can end
            if isinstance(error, asyncio.CancelledError) and context.is_given_up:
                raise
            return report_failure(context, failure_of(error, context.job), context.changes)
        finally:
            context.time_limit = None
            if context.must_finish:
                with contextlib.suppress(asyncio.CancelledError):  # the attempt has ended: its outcome is not lost
                    await context.finish()

    def _encoded(self, type: str, result: Any) -> bytes | None:
        """Return the result of a handler as JSON, checked; ``None``: it has none."""
        if result is None:
            return None
        encoded = result_to_json(type, result)
        if (handler := self._app.handlers.get(type)) is not None:
            handler.types.check_result(result, encoded)
        return encoded

    def _call(self, context: JobContext) -> Awaitable[Any]:
        """Call the handler of a job, and return what to await for its result: just that, if nothing is around it.

        The short way for these is ``_call_with_all`` without what they have not.
        """
        job = context.job
        context.kept_flows = self._kept_flows
        enter_job(context)
        handler = self._app.handlers.get(job.type)
        is_direct = handler is not None and handler.is_direct and job.parent_results is None and not self._has_layers
        if handler is None or not is_direct or may_refer(job.envelope):
            return self._call_with_all(handler, context)
        values = handler.types.read(job.envelope)
        if values is None:
            return self._call_with_all(handler, context)
        if handler.takes_context:
            values = (context, *values)
        if not handler.is_async:
            return self._call_in_thread(context, partial(handler.function, *values))
        result: Awaitable[Any] = handler.function(*values)
        return result

    async def _call_with_all(self, handler: JobType[Any, Any] | None, context: JobContext) -> Any:
        carries_code = handler is None and self._code is not None and context.job.type == CODE_TYPE
        if handler is None and not carries_code:
            known = ", ".join(sorted(self._app.handlers)) or "none"
            raise UnknownJobType(f"This worker has no handler for {context.job.type!r}; it has {known}.")
        if handler is not None and handler.keep_logs is not None:
            keep, loop = context.client.jobs.add_to_log, asyncio.get_running_loop()
            context.must_finish = True
            context.kept_log = LogReports(handler.keep_logs, context.holder, keep, loop)
        if context.job.parent_results is not None:
            await context.restore_parent_results()
        args = await _args_of(context)
        if codecs := self._app.codecs:
            context.codecs = codecs
            args = codecs.decode(args, context.meta)

        if handler is not None and not self._app.execution_middleware:
            return await self._invoke(handler, args, context)

        async def innermost() -> Any:
            if handler is not None:
                return await self._invoke(handler, args, context)
            assert self._code is not None
            return await self._code.run(context, args)

        call = innermost
        for layer in reversed(self._app.execution_middleware):
            call = _wrap(layer, context, call)
        return await call()

    async def _invoke(self, handler: JobType[Any, Any], args: list[Any], context: JobContext) -> Any:
        if handler.process and self._children is not None:
            wants_job = handler.needs is not None or bool(self._app.thread_middleware)
            return await self._children.run(handler, args, context.job if wants_job else None, context.kept_log)
        if handler.process:
            enter_job(None)  # a child process, which it would have, has no context
            try:
                return await self._invoke_here(handler, args, context)
            finally:
                enter_job(context)
        return await self._invoke_here(handler, args, context)

    async def _invoke_here(self, handler: JobType[Any, Any], args: list[Any], context: JobContext) -> Any:
        values, named = handler.types.convert(args)
        if handler.takes_context:
            values = (context, *values)
        if handler.needs is None:
            if handler.is_async:
                return await handler.function(*values, **named)
            return await self._call_in_thread(context, partial(handler.function, *values, **named))
        use_threads(self._openers)
        if handler.is_async:
            async with provided(handler.needs, context.job) as needed:
                return await handler.function(*values, **named, **needed)
        provision = Provision(handler.needs, context.job)
        call = partial(handler.function, *values, **named, **await provision.open())
        try:
            result = await self._call_in_thread(context, call)
        except BaseException as error:
            if context.thread_ended is not None and not context.thread_ended.is_set():
                closing = asyncio.create_task(provision.close_after(context.thread_ended, error))
                self._later.add(closing)
                closing.add_done_callback(self._later.discard)
            else:
                await provision.close(error)
            del provision  # it keeps the error, whose traceback has this frame
            raise
        await provision.close()
        return result

    async def _call_in_thread(self, context: JobContext, function: Callable[[], Any]) -> Any:
        if layers := self._app.thread_middleware:
            function = partial(middleware.through_thread_middleware, layers, context.job, function)
        call = self._threads.submit(function)
        try:
            outcome = await call.ended
        except asyncio.CancelledError:  # of this attempt: one that the handler raises comes as a value
            context.stop()
            if self._threads.cancel(call) or not await self._ends_in_time(call, context):
                raise
            outcome = call.ended.result()
        try:
            return value_of(outcome)
        finally:
            del call, outcome  # the traceback has this frame: an exception would keep itself and all its frames alive

    async def _ends_in_time(self, call: ThreadCall, context: JobContext) -> bool:
        """Give a thread that was stopped at its timeout the time to clean up; return whether it ends with an outcome.

        Spec: ojs-timeouts 7.2
        """
        limit = context.time_limit
        is_late = limit is not None and limit.expired() and not context.is_given_up
        grace = grace_period(context.job) if is_late else 0
        ended = call.wait_again()
        try:
            if grace:
                await asyncio.wait((ended,), timeout=grace)
            return grace > 0 and ended.done()
        finally:
            if not ended.done():
                self._abandon(ended, context)

    def _abandon(self, ended: asyncio.Future[Any], context: JobContext) -> None:
        """Count a thread that still runs although its job has ended. It occupies a slot until it ends."""
        self.abandoned += 1
        self._abandoned_at = time.monotonic()
        thread_ended = context.thread_ended = asyncio.Event()

        def end(_: object) -> None:
            self.abandoned -= 1
            context.late_success = self._late_success(context, ended.result())
            self.runs.discard(context.job.id)
            thread_ended.set()
            self._on_room()

        ended.add_done_callback(end)

    def _late_success(self, context: JobContext, outcome: Any | Raised) -> Acknowledgement | None:
        """Return the report that a stopped thread has succeeded; ``None``: it has not, or nobody can tell.

        A handler that has seen that it should stop may have returned early. Middleware and dependencies around it have
        seen the attempt fail, and may have undone it.
        """
        job = context.job
        handler = self._app.handlers[job.type]
        is_unclear = context.has_seen_stop or handler.needs is not None or bool(self._app.execution_middleware)
        if isinstance(outcome, Raised) or is_unclear:
            return None
        try:
            encoded = self._encoded(job.type, outcome)
        except Exception:
            return None
        if encoded is not None and len(encoded) > MAX_RESULT_BYTES:
            return None
        appended = tuple(context.appended)
        return Acknowledgement(
            job.id, encoded, context.worker_id, job.attempt, appended, context.changes, started_at=job.started_at
        )

    def close(self) -> None:
        """Shut down the threads without waiting for those that still run."""
        self.watch.stop()
        self._kept_flows.close()
        self._threads.close()
        self._openers.shut_down()


class UnknownJobType(Exception):
    """A worker fetched a job that it has no handler for."""


def report_failure(context: JobContext, failure: Failure, changes: Changes | None = None) -> FailureReport:
    """Return the report that an attempt has failed."""
    job = context.job
    return FailureReport(job.id, failure, context.worker_id, job.attempt, changes, job.started_at)


async def _args_of(context: JobContext) -> list[Any]:
    try:
        return await context.restored_args()
    except msgspec.ValidationError:
        # A number outside the range of a double: JSON allows it, and Python reads it as infinity.
        args: list[Any] = json.loads(context.job.envelope)["args"]
        return args


def _wrap(layer: Any, context: JobContext, inner: Any) -> Any:
    async def wrapped() -> Any:
        return await layer(context, inner)

    return wrapped

"""Opening and closing what handlers need, for a job or as long as the worker lives."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from typing import Any, TypeVar

import uncalled_for

from ojster.core.job import Job
from ojster.handlers.context import JobContext, current_job
from ojster.handlers.held_context import HeldContext
from ojster.handlers.raised import Raised, caught, value_of

log = logging.getLogger(__name__)

T = TypeVar("T")

Needs = Callable[[], None]
"""What a handler needs, as ``injection.needs_of`` returns it."""

calling_thread: ContextVar[Executor] = ContextVar("ojster_calling_thread")
"""The thread that waits for the jobs of a test, and runs their plain functions; not set in workers."""


def threads_for(most: int, prefix: str) -> Executor:
    """Return what runs plain functions: the thread of the test that waits for them, or at most so many threads."""
    return calling_thread.get(None) or ThreadPoolExecutor(most, thread_name_prefix=prefix)


class Threads:
    """The threads in which plain factories run: some to open, others to close, so that closing never has to wait.

    Parameters
    ----------
    most:
        Maximum number of each.

    """

    def __init__(self, most: int) -> None:
        self._running: set[concurrent.futures.Future[Any]] = set()
        self._opening = threads_for(most, "ojster-open")
        self._closing = threads_for(most, "ojster-close")

    @property
    def busy(self) -> int:
        """The number of calls that run, also of those that nobody waits for any more."""
        return len(self._running)

    def open(self, function: Callable[[], T]) -> asyncio.Future[T | Raised]:
        """Call a function that opens something."""
        return self._call(self._opening, function)

    def close(self, function: Callable[[], T]) -> asyncio.Future[T | Raised]:
        """Call a function that closes something."""
        return self._call(self._closing, function)

    def _call(self, executor: Executor, function: Callable[[], T]) -> asyncio.Future[T | Raised]:
        future = executor.submit(caught, function)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return asyncio.wrap_future(future)

    def shut_down(self) -> None:
        """Let the threads end when they are idle."""
        self._opening.shutdown(wait=False, cancel_futures=True)
        self._closing.shutdown(wait=False)


@asynccontextmanager
async def provided(needs: Needs, job: Job) -> AsyncIterator[Mapping[str, Any]]:
    """Provide what a handler needs, by parameter; clean up at the end of the block.

    Raises
    ------
    Exception
        What a factory raised.
    RuntimeError
        A factory caught the exception of the handler and did not raise it again.
    """
    token = _job.set(job)
    error: BaseException | None = None
    try:
        async with uncalled_for.resolved_dependencies(needs) as values:
            try:
                for value in values.values():
                    if isinstance(value, uncalled_for.FailedDependency):
                        raise value.error
                yield values
            except BaseException as raised:
                error = raised
                raise
        if error is not None:
            raise RuntimeError(f"A dependency hid an exception of the handler: {error!r}. Raise it again.") from error
    finally:
        _job.reset(token)


class Provision:
    """What a plain handler needs, open in a task of its own: it can outlive the attempt, if its thread does.

    Parameters
    ----------
    needs, job:
        As for ``provided``.
    """

    def __init__(self, needs: Needs, job: Job) -> None:
        self._held = HeldContext(asyncio.get_running_loop(), provided(needs, job))

    async def open(self) -> Mapping[str, Any]:
        """Return what the handler needs, by parameter."""
        opened, task = self._held.entered, self._held.task
        try:
            await asyncio.wait((opened, task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        if not opened.done() and (raised := task.result()) is not None:
            raise raised
        return opened.result()

    async def close(self, error: BaseException | None = None) -> None:
        """Clean up; factories see the error, which is not raised again."""
        raised = await self._close(error)
        if raised is not None:
            raise raised

    async def _close(self, error: BaseException | None) -> BaseException | None:
        """Clean up; return what a factory has raised, if that is another error."""
        self._held.leave(error)
        await asyncio.wait((self._held.task,))
        raised = self._held.task.result()
        return None if raised is error else raised

    async def close_after(self, ended: asyncio.Event, error: BaseException) -> None:
        """Clean up when a thread has ended that goes on although its attempt is over."""
        await ended.wait()
        if (raised := await self._close(error)) is not None:
            log.error(
                "cannot clean up what a handler needed that went on after its attempt",
                exc_info=(type(raised), raised, raised.__traceback__),
            )


class _Owner:
    """Opens and closes what lives as long as the worker, in a task of its own, which knows no job."""

    def __init__(self) -> None:
        self._wanted: asyncio.Queue[tuple[AbstractAsyncContextManager[Any], asyncio.Future[Any]] | None] = (
            asyncio.Queue()
        )
        self._task = asyncio.create_task(self._run(), name="ojster-worker-scope")

    async def _run(self) -> BaseException | None:
        """Open what is wanted, and close it at the end; return what was raised then, if anything."""
        try:
            async with AsyncExitStack() as stack:
                while (wanted := await self._wanted.get()) is not None:
                    manager, opened = wanted
                    outcome = await _entered(stack, manager)
                    if not opened.done():
                        opened.set_result(outcome)
        except BaseException as raised:
            return raised
        return None

    async def open(self, manager: AbstractAsyncContextManager[Any]) -> Any:
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._wanted.put_nowait((manager, opened))
        await asyncio.wait((opened, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            raise RuntimeError("What the dependencies of the worker have started has ended; restart the worker.")
        return value_of(opened.result())

    async def close(self) -> None:
        self._wanted.put_nowait(None)
        if (raised := await self._task) is not None:
            raise raised


async def _entered(stack: AsyncExitStack, manager: AbstractAsyncContextManager[T]) -> T | Raised:
    """Enter a context manager; return its value, or what it has raised."""
    try:
        return await stack.enter_async_context(manager)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the event loop ends
        return Raised(error)


@asynccontextmanager
async def worker_scope() -> AsyncIterator[None]:
    """Keep what factories with ``scope="worker"`` return until the end of the block."""
    owner = _Owner()
    token = _owner.set(owner)
    try:
        async with uncalled_for.SharedContext():
            yield
    finally:
        _owner.reset(token)
        await owner.close()


def use_threads(threads: Threads) -> None:
    """Let the factories of this context run in these threads. The worker calls it."""
    _threads.set(threads)


_owner: ContextVar[_Owner] = ContextVar("ojster_worker_scope")
_threads: ContextVar[Threads] = ContextVar("ojster_threads")
_job: ContextVar[Job] = ContextVar("ojster_injected_job")


@asynccontextmanager
async def by_owner(manager: Callable[..., AbstractAsyncContextManager[Any]], **needs: Any) -> AsyncIterator[Any]:
    """Yield what the owner of the worker's scope has opened, and closes at its end."""
    yield await _owner.get().open(manager(**needs))


def manager_of(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns an asynchronous context manager for what a factory returns."""
    if inspect.isasyncgenfunction(factory):
        return asynccontextmanager(factory)
    if inspect.isasyncgenfunction(inspect.unwrap(factory)):  # it is decorated with asynccontextmanager
        return factory
    if inspect.isgeneratorfunction(factory):
        return functools.partial(_in_threads, contextmanager(factory))
    if inspect.isgeneratorfunction(inspect.unwrap(factory)):
        return functools.partial(_in_threads, factory)
    return functools.partial(_as_it_is, factory)


@asynccontextmanager
async def _as_it_is(factory: Callable[..., Any], **needs: Any) -> AsyncIterator[Any]:
    """Yield what a factory returns, also if that is a context manager, such as a connection."""
    if inspect.iscoroutinefunction(factory):
        yield await factory(**needs)
        return
    value = value_of(await _open(functools.partial(factory, **needs)))
    yield await value if inspect.isawaitable(value) else value


def _open(function: Callable[[], T]) -> asyncio.Future[T | Raised]:
    """Call a function that opens something, in a thread."""
    call = functools.partial(contextvars.copy_context().run, function)
    threads = _threads.get(None)
    return _in_default_thread(call) if threads is None else threads.open(call)


def _close(function: Callable[[], T]) -> asyncio.Future[T | Raised]:
    """Call a function that closes something, in a thread."""
    threads = _threads.get(None)
    return _in_default_thread(function) if threads is None else threads.close(function)


def _in_default_thread(function: Callable[[], T]) -> asyncio.Future[T | Raised]:
    return asyncio.get_running_loop().run_in_executor(None, caught, function)


@asynccontextmanager
async def _in_threads(manage: Callable[..., AbstractContextManager[Any]], **needs: Any) -> AsyncIterator[Any]:
    """Enter and leave a plain context manager in threads, both with the same context variables."""
    manager = manage(**needs)
    run = contextvars.copy_context().run
    entering = _open(functools.partial(run, manager.__enter__))
    try:
        value = value_of(await asyncio.shield(entering))
    except asyncio.CancelledError:
        entering.add_done_callback(functools.partial(_leave_again, manager, run))
        raise
    try:
        yield value
    except BaseException as error:
        if not value_of(
            await _close(functools.partial(run, manager.__exit__, type(error), error, error.__traceback__))
        ):
            raise
    else:
        value_of(await _close(functools.partial(run, manager.__exit__, None, None, None)))


def _leave_again(manager: AbstractContextManager[Any], run: Callable[..., Any], entering: asyncio.Future[Any]) -> None:
    """Leave what was entered after nobody waited for it any more."""
    if not entering.cancelled() and not isinstance(entering.result(), Raised):
        _close(functools.partial(run, manager.__exit__, None, None, None))


def running_job() -> Job:
    """Return the job that something is opened for."""
    return _job.get()


def running_context() -> JobContext:
    """Return the context of the job that something is opened for.

    Raises
    ------
    LookupError
        It runs in a child process.
    """
    try:
        return current_job()
    except LookupError:
        raise LookupError("A child process has no JobContext; use Job, which has the data of the job.") from None

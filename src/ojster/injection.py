"""What a handler needs beside the arguments of its job, such as a connection: ``Depends``.

Declared as in FastAPI, and resolved by ``uncalled_for``. What is added here: one function for both scopes, generators,
plain functions in threads, and the job itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
import logging
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, overload

import uncalled_for
from uncalled_for import Provided

from ojster.context import JobContext, current_job
from ojster.core.job import Job

if TYPE_CHECKING:
    from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager

__all__ = ["Depends", "Needs", "Provided", "needs_of"]

log = logging.getLogger(__name__)

T = TypeVar("T")

Scope = Literal["job", "worker"]

Needs = Callable[[], None]
"""What a handler needs, as ``needs_of`` returns it."""


@overload
def Depends(
    factory: Callable[..., AsyncGenerator[T, Any] | _AsyncGeneratorContextManager[T, Any]], /, *, scope: Scope = "job"
) -> T: ...


@overload
def Depends(
    factory: Callable[..., Generator[T, Any, Any] | _GeneratorContextManager[T, Any, Any]], /, *, scope: Scope = "job"
) -> T: ...


@overload
def Depends(factory: Callable[..., AsyncIterator[Any] | Iterator[Any]], /, *, scope: Scope = "job") -> Any: ...


@overload
def Depends(factory: Callable[..., Awaitable[T]], /, *, scope: Scope = "job") -> T: ...


@overload
def Depends(factory: Callable[..., T], /, *, scope: Scope = "job") -> T: ...


def Depends(factory: Callable[..., Any], /, *, scope: Scope = "job") -> Any:  # noqa: N802  (as in FastAPI)
    """Declare that a parameter of a handler, or of another factory, is what ``factory`` returns.

    As a default (``pool: Pool = Depends(open_pool)``) or as an annotation (``pool: Annotated[Pool, Depends(open_pool)]
    = Provided``, where the default lets type checkers accept an ``enqueue`` without it). Such parameters follow the
    arguments of the job, and are not among them.

    Parameters
    ----------
    factory:
        A function or class, asynchronous or plain; plain ones run in a thread. A generator function yields the value
        once and cleans up afterwards; an exception of the handler is raised at its ``yield``. Its parameters are filled
        in the same way; one that is annotated with ``Job`` or ``JobContext`` gets the job. Context variables that a
        plain factory sets are its own; those of an asynchronous one are seen by asynchronous handlers.
    scope:
        ``"job"``, the default: it is called once for each job that needs it. ``"worker"``: once in each worker and
        child process, when a job needs it first; it cleans up when the process stops, and cannot know the job.

    Returns
    -------
    Any
        A stand-in. The handler gets the value.

    Raises
    ------
    TypeError
        A parameter of ``factory`` is neither declared in this way nor has a default.
    ValueError
        The scope is neither ``"job"`` nor ``"worker"``.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Depends, Job, Worker
    >>> app = App("sqlite:///:memory:")
    >>> async def open_pool():
    ...     yield ["connection"]
    >>> def tenant(job: Job) -> str:
    ...     return job.meta.get("tenant", "nobody")
    >>> @app.job("report.build")
    ... async def build(month: str, pool=Depends(open_pool, scope="worker"), who: str = Depends(tenant)):
    ...     return f"{month} for {who} with {len(pool)} connection"
    >>> async def main() -> None:
    ...     handle = await build.aenqueue("January")
    ...     await Worker(app).run(until_empty=True)
    ...     print(await handle.aresult())
    ...     await app.aclose()
    >>> asyncio.run(main())
    January for nobody with 1 connection
    """
    if scope not in ("job", "worker"):
        raise ValueError(f"The scope of a dependency is 'job' or 'worker', not {scope!r}.")
    declare = uncalled_for.Depends if scope == "job" else uncalled_for.Shared
    return declare(_opener(factory, scope))


def needs_of(function: Callable[..., Any], signature: inspect.Signature) -> tuple[inspect.Signature, Needs | None]:
    """Return the signature without the parameters that ``Depends`` declares, and what these need.

    Raises
    ------
    TypeError
        A parameter that is to be filled in comes before an argument of the job.
    """
    found = {name: value for name, one in signature.parameters.items() if (value := _declared(function, one))}
    left = [one for name, one in signature.parameters.items() if name not in found]
    if not found:
        return signature, None
    names = list(signature.parameters)
    for name in found:
        if any(names.index(one.name) > names.index(name) and one.kind in _POSITIONAL for one in left):
            raise TypeError(
                f"{function.__qualname__}: the parameter {name!r} has Depends(…), so it must follow those that are "
                "arguments of the job."
            )
    return signature.replace(parameters=left), _with_parameters(lambda: None, found)


class Threads:
    """The threads in which plain factories run: some to open, others to close, so that closing never has to wait.

    Parameters
    ----------
    most:
        Maximum number of each.

    """

    def __init__(self, most: int) -> None:
        self._running: set[concurrent.futures.Future[Any]] = set()
        self._opening = ThreadPoolExecutor(most, thread_name_prefix="ojster-open")
        self._closing = ThreadPoolExecutor(most, thread_name_prefix="ojster-close")

    @property
    def busy(self) -> int:
        """The number of calls that run, also of those that nobody waits for any more."""
        return len(self._running)

    def open(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call a function that opens something."""
        return self._call(self._opening, function)

    def close(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call a function that closes something."""
        return self._call(self._closing, function)

    def _call(self, executor: ThreadPoolExecutor, function: Callable[[], T]) -> asyncio.Future[T]:
        future = executor.submit(function)
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
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        self._left: asyncio.Future[BaseException | None] = loop.create_future()
        self._task = loop.create_task(self._hold(needs, job))

    async def _hold(self, needs: Needs, job: Job) -> None:
        async with provided(needs, job) as found:
            self._opened.set_result(found)
            error = await self._left
            if error is not None:
                raise error

    async def open(self) -> Mapping[str, Any]:
        """Return what the handler needs, by parameter."""
        try:
            await asyncio.wait((self._opened, self._task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait((self._task,))
            raise
        if not self._opened.done():
            await self._task  # raises what a factory has raised
        return self._opened.result()

    async def close(self, error: BaseException | None = None) -> None:
        """Clean up; factories see the error, which is not raised again."""
        self._left.set_result(error)
        await asyncio.wait((self._task,))
        if self._task.cancelled():
            return
        raised = self._task.exception()
        if raised is not None and raised is not error:
            raise raised

    async def close_after(self, ended: asyncio.Event, error: BaseException) -> None:
        """Clean up when a thread has ended that goes on although its attempt is over."""
        await ended.wait()
        try:
            await self.close(error)
        except Exception:
            log.exception("cannot clean up what a handler needed that went on after its attempt")


class _Owner:
    """Opens and closes what lives as long as the worker, in a task of its own, which knows no job."""

    def __init__(self) -> None:
        self._wanted: asyncio.Queue[tuple[AbstractAsyncContextManager[Any], asyncio.Future[Any]] | None] = (
            asyncio.Queue()
        )
        self._task = asyncio.create_task(self._run(), name="ojster-worker-scope")

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            while (wanted := await self._wanted.get()) is not None:
                manager, opened = wanted
                try:
                    value = await stack.enter_async_context(manager)
                except Exception as error:
                    if not opened.done():
                        opened.set_exception(error)
                else:
                    if not opened.done():
                        opened.set_result(value)

    async def open(self, manager: AbstractAsyncContextManager[Any]) -> Any:
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._wanted.put_nowait((manager, opened))
        await asyncio.wait((opened, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            raise RuntimeError("What the dependencies of the worker have started has ended; restart the worker.")
        return opened.result()

    async def close(self) -> None:
        self._wanted.put_nowait(None)
        await self._task


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

_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


@functools.cache
def _opener(factory: Callable[..., Any], scope: Scope) -> Callable[..., Any]:
    """Return the function that opens what a factory returns, with parameters that all have a default."""
    given: dict[str, Any] = {}
    where = getattr(factory, "__qualname__", repr(factory))
    for name, parameter in inspect.signature(factory).parameters.items():
        found = _declared(factory, parameter) or _the_job(factory, parameter)
        if found is None:
            if parameter.default is parameter.empty and parameter.kind not in _VARIABLE:
                raise TypeError(
                    f"{where}: the parameter {name!r} needs a default, Depends(…), or Job as its annotation."
                )
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"{where}: the parameter {name!r} must not be positional-only.")
        if scope == "worker" and not isinstance(found, _WORKER_SCOPE):
            raise TypeError(f"{where} lives as long as the worker, so its parameter {name!r} cannot belong to one job.")
        given[name] = found
    manager = _manager(factory)
    return _with_parameters(manager if scope == "job" else functools.partial(_by_owner, manager), given)


@asynccontextmanager
async def _by_owner(manager: Callable[..., AbstractAsyncContextManager[Any]], **given: Any) -> AsyncIterator[Any]:
    yield await _owner.get().open(manager(**given))


_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

_WORKER_SCOPE: Final = type(uncalled_for.Shared(lambda: None))


def _manager(factory: Callable[..., Any]) -> Callable[..., Any]:
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
async def _as_it_is(factory: Callable[..., Any], **given: Any) -> AsyncIterator[Any]:
    """Yield what a factory returns, also if that is a context manager, such as a connection."""
    if inspect.iscoroutinefunction(factory):
        yield await factory(**given)
        return
    value = await _open(functools.partial(factory, **given))
    yield await value if inspect.isawaitable(value) else value


def _open(function: Callable[[], T]) -> asyncio.Future[T]:
    """Call a function that opens something, in a thread."""
    call = functools.partial(contextvars.copy_context().run, function)
    threads = _threads.get(None)
    return asyncio.get_running_loop().run_in_executor(None, call) if threads is None else threads.open(call)


def _close(function: Callable[[], T]) -> asyncio.Future[T]:
    """Call a function that closes something, in a thread."""
    threads = _threads.get(None)
    return asyncio.get_running_loop().run_in_executor(None, function) if threads is None else threads.close(function)


@asynccontextmanager
async def _in_threads(manage: Callable[..., AbstractContextManager[Any]], **given: Any) -> AsyncIterator[Any]:
    """Enter and leave a plain context manager in threads, both with the same context variables."""
    manager = manage(**given)
    run = contextvars.copy_context().run
    entering = _open(functools.partial(run, manager.__enter__))
    try:
        value = await asyncio.shield(entering)
    except asyncio.CancelledError:
        entering.add_done_callback(functools.partial(_leave_again, manager, run))
        raise
    try:
        yield value
    except BaseException as error:
        if not await _close(functools.partial(run, manager.__exit__, type(error), error, error.__traceback__)):
            raise
    else:
        await _close(functools.partial(run, manager.__exit__, None, None, None))


def _leave_again(manager: AbstractContextManager[Any], run: Callable[..., Any], entering: asyncio.Future[Any]) -> None:
    """Leave what was entered after nobody waited for it any more."""
    if not entering.cancelled() and entering.exception() is None:
        _close(functools.partial(run, manager.__exit__, None, None, None))


def _with_parameters(function: Callable[..., Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function with a signature that has these parameters, with their defaults, and no others."""

    def call(**values: Any) -> Any:
        return function(**values)

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one) for name, one in given.items()]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _declared(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return what ``Depends`` has declared for a parameter; ``None`` if it has not."""
    if isinstance(parameter.default, uncalled_for.Provider):
        return parameter.default
    annotation = _resolved(function, parameter.annotation)
    found = declared_in(annotation)
    if found is None and parameter.default is Provided:
        raise TypeError(
            f"{function.__qualname__}: the parameter {parameter.name!r} is Provided, but by nothing: annotate it with "
            "Annotated[…, Depends(…)], of classes that are already defined."
        )
    return found


def declared_in(annotation: Any) -> Any:
    """Return what ``Depends`` has declared in an annotation; ``None`` if it has not."""
    if typing.get_origin(annotation) is not Annotated:
        return None
    return next((one for one in typing.get_args(annotation)[1:] if isinstance(one, uncalled_for.Provider)), None)


def _the_job(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return what provides the job, if the annotation asks for it."""
    annotation = _resolved(function, parameter.annotation)
    if annotation is Job:
        return uncalled_for.Depends(_current_data)
    return uncalled_for.Depends(_current_context) if annotation is JobContext else None


def _current_data() -> Job:
    return _job.get()


def _current_context() -> JobContext:
    try:
        return current_job()
    except LookupError:
        raise LookupError("A child process has no JobContext; use Job, which has the data of the job.") from None


def _resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """Return an annotation that may be text; the text if it names what does not exist yet."""
    if not isinstance(annotation, str):
        return annotation
    holder = type("holder", (), {"__annotations__": {"it": annotation}})
    with suppress(NameError, AttributeError, SyntaxError, TypeError):
        return typing.get_type_hints(holder, getattr(inspect.unwrap(function), "__globals__", {}), include_extras=True)[
            "it"
        ]
    return annotation

"""What an application does in each worker process before it takes jobs, and after it has stopped."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from ojster.handlers.provision import worker_scope

A = TypeVar("A")
L = TypeVar("L", bound=Callable[..., AsyncIterator[Any] | AbstractAsyncContextManager[Any]])
F = TypeVar("F", bound=Callable[[], object])


class Lifespan(Generic[A]):
    """The start and the end of worker processes, and of their child processes.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Worker
    >>> app = App("sqlite:///:memory:")
    >>> @app.lifespan
    ... async def with_pool(app):
    ...     print("opens the pool")
    ...     yield
    ...     print("closes the pool")
    >>> @app.job("report.build")
    ... async def build() -> None: ...
    >>> async def main() -> None:
    ...     await Worker(app).run(until_empty=True)
    ...     await app.aclose()
    >>> asyncio.run(main())
    opens the pool
    closes the pool
    """

    def __init__(self) -> None:
        self._parts: list[Callable[[A], AbstractAsyncContextManager[Any]]] = []

    def __call__(self, function: L) -> L:
        """Declare what surrounds the life of a worker process: ``@app.lifespan``, as in Starlette.

        Parameters
        ----------
        function:
            An asynchronous generator function that gets the application and yields once, or a function that returns an
            asynchronous context manager. Several are entered in their order, and left in the opposite order.

        Returns
        -------
        Callable
            The function.
        """
        enter: Callable[..., Any] = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function
        self._parts.append(enter)
        return function

    def on_startup(self, function: F) -> F:
        """Declare a function, asynchronous or plain, that runs before the first job: ``@app.on_startup``.

        If it raises, the worker does not start; in a child process, the job fails.

        Returns
        -------
        Callable
            The function.
        """

        @asynccontextmanager
        async def part(_: A) -> AsyncIterator[None]:
            await _call(function)
            yield

        self._parts.append(part)
        return function

    def on_shutdown(self, function: F) -> F:
        """Declare a function, asynchronous or plain, that runs after the last job: ``@app.on_shutdown``.

        Not after a process was killed. The function that was declared last runs first.

        Returns
        -------
        Callable
            The function.
        """

        @asynccontextmanager
        async def part(_: A) -> AsyncIterator[None]:
            try:
                yield
            finally:
                await _call(function)

        self._parts.append(part)
        return function

    def include(self, other: Lifespan[A], app: A) -> None:
        """Add what another application declares, which gets that application."""
        self._parts += [partial(_with, part, app) for part in other._parts]

    @asynccontextmanager
    async def running(self, app: A) -> AsyncIterator[None]:
        """Surround a block with what was declared. A worker calls it."""
        async with AsyncExitStack() as stack:
            for part in self._parts:
                await stack.enter_async_context(part(app))
            await stack.enter_async_context(worker_scope())
            yield


def _with(part: Callable[[A], AbstractAsyncContextManager[Any]], app: A, _: A) -> AbstractAsyncContextManager[Any]:
    return part(app)


async def _call(function: Callable[[], object]) -> None:
    result = function()
    if isinstance(result, Awaitable):
        await result

"""Compensation in flows: blocks that undo what they have done if they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from ojster.handlers.job_type import JobType

P = ParamSpec("P")
R = TypeVar("R")


class RunsJobs(Protocol):
    """A flow, as far as a compensation needs it."""

    def run(self, what: JobType[..., R], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]:
        """Run a job."""


class Compensation:
    """What a block of a flow has to undo; see ``Flow.compensation``.

    Parameters
    ----------
    flow:
        The flow.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Flow, Worker
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("card.charge")
    ... def charge(order: int) -> None: ...
    >>> @app.job("card.refund")
    ... def refund(order: int) -> None:
    ...     print("refunded", order)
    >>> @app.flow("order")
    ... async def order(flow: Flow, number: int) -> None:
    ...     async with flow.compensation() as undo:
    ...         await undo.run(charge, number, undo=refund)
    ...         raise ValueError("out of stock")
    >>> async def main() -> None:
    ...     run = await order.astart(42)
    ...     await Worker(app).run(until_empty=True)
    ...     print((await run.arefresh()).state)
    ...     await app.aclose()
    >>> asyncio.run(main())
    refunded 42
    failed
    """

    def __init__(self, flow: RunsJobs) -> None:
        self._flow = flow
        self._undo: list[Callable[[], Awaitable[Any]]] = []

    async def __aenter__(self) -> Self:
        """Begin the block."""
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Undo everything if the block has failed or was cancelled."""
        if isinstance(error, Exception | asyncio.CancelledError):
            await self.undo_all()

    def add(self, undo: JobType[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Undo something with a job if the block does not succeed.

        Parameters
        ----------
        undo:
            The job.
        args, kwargs:
            Its arguments.
        """
        self._undo.append(partial(self._flow.run, undo, *args, **kwargs))

    async def run(self, what: JobType[..., R], /, *args: Any, undo: JobType[..., Any], **kwargs: Any) -> R:
        """Run a job that another one undoes, with the same arguments, if the block does not succeed.

        The undoing is planned before the job starts, so that what was half done is undone, too.

        Parameters
        ----------
        what:
            The job.
        undo:
            The job that undoes it.
        args, kwargs:
            The arguments of both.

        Returns
        -------
        Any
            The result of the job.

        Raises
        ------
        JobFailed, JobCancelled
            The job has failed, or was cancelled.
        """
        self.add(undo, *args, **kwargs)
        return await self._flow.run(what, *args, **kwargs)

    async def undo_all(self) -> None:
        """Undo everything, the last first. Each is tried, and the first failure is raised at the end.

        A cancellation meanwhile ends none of it: it is raised at the end.
        """
        failures: list[Exception] = []
        cancelled: asyncio.CancelledError | None = None
        while self._undo:
            undoing = asyncio.ensure_future(self._undo.pop()())
            while not undoing.done():
                try:
                    await asyncio.wait([undoing])
                except asyncio.CancelledError as error:
                    cancelled = error
            try:
                undoing.result()
            except Exception as failure:
                failures.append(failure)
        if cancelled is not None:
            raise cancelled
        if failures:
            raise failures[0]

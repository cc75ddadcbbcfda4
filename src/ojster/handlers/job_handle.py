"""Handles of jobs that were enqueued: their state, and their result."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from ojster.client.event_loop_thread import EventLoopThread
from ojster.client.file_transfer import restore
from ojster.client.interface import Client
from ojster.client.plain_methods import plain
from ojster.core.declared_options import NonNegativeSpan, checks_options
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.core.states import FINISHED, JobState
from ojster.core.values import to_seconds
from ojster.handlers.arguments import HandlerTypes
from ojster.handlers.codec import Codecs
from ojster.handlers.job_info import JobInfo, info_of
from ojster.handlers.outcomes import JobCancelled, JobFailed
from ojster.jobs.job_logs import LogLine

log = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

T_co = TypeVar("T_co", covariant=True)

MAX_POLL_SECONDS: Final = 30.0
"""Maximum long-poll wait for a job's result, in seconds."""


TAKEN_WITHIN_SECONDS: Final = 10.0
"""A wait for a result is logged if no worker has taken the job within this time, in seconds: perhaps none runs."""

_NOT_TAKEN: Final = (
    "no worker has taken the job %s (%s) within %g s. Start one that has a handler for %r; in a test, call drain(). "
    "`ojster jobs explain %s` says what it waits for."
)


def log_if_not_taken(job: Job) -> None:
    """Log that no worker has taken a job for which somebody has waited for ``TAKEN_WITHIN_SECONDS``."""
    if job.state == JobState.AVAILABLE:
        log.warning(_NOT_TAKEN, job.id, job.type, TAKEN_WITHIN_SECONDS, job.type, job.id)


class HandleOwner(Protocol):
    """An application, as far as job types and handles need it: ``ojster.App``."""

    @property
    def codecs(self) -> Codecs:
        """The codecs of job arguments."""

    _event_loop_thread: EventLoopThread

    def client(self) -> Client:
        """Return the client for the running event loop."""

    def _enqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[Job]: ...

    async def _aenqueue_in(self, connection: Any, requests: Sequence[Members]) -> list[Job]: ...


class JobHandle(Generic[R]):
    """An enqueued job: its id, state and result.

    The methods that enqueue jobs and ``App.find`` create handles. The asynchronous methods begin with ``a``; the
    others block.

    Parameters
    ----------
    app:
        The application that the job belongs to.
    job:
        The job.
    types:
        The types of its handler, to which the result is converted; by default the result stays as it is in JSON.

    Examples
    --------
    >>> from ojster import App
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("report.build")
    ... def build() -> None: ...
    >>> handle = build.enqueue()
    >>> handle.cancel()
    >>> handle.refresh().state
    'cancelled'
    >>> app.close()
    """

    def __init__(self, app: HandleOwner, job: Job, types: HandlerTypes | None = None) -> None:
        self._app = app
        self._job = job
        self._types = types

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self._job.type} {self.state}>"

    def _wait(self, call: Coroutine[Any, Any, T], /) -> T:
        return self._app._event_loop_thread.call(call)

    @property
    def id(self) -> str:
        """The job's id."""
        return self._job.id

    @property
    def state(self) -> str:
        """The job's state when it was last fetched; ``refresh`` fetches it again."""
        return self._job.state

    @property
    def job(self) -> Job:
        """The job as it was last fetched."""
        return self._job

    @property
    def info(self) -> JobInfo:
        """The job as it was last fetched, with values instead of JSON, and times instead of numbers."""
        return info_of(self._job)

    def _repr_html_(self) -> str:
        return self.info._repr_html_()

    async def arefresh(self) -> JobHandle[R]:
        """Fetch the job again.

        Returns
        -------
        JobHandle
            This handle.

        Raises
        ------
        NotFound
            The job does not exist any more.
        """
        self._job = await self._app.client().jobs.find(self.id)
        return self

    refresh = plain(arefresh)

    async def acancel(self) -> None:
        """Cancel the job.

        Raises
        ------
        Conflict
            The job is finished.
        """
        self._job = (await self._app.client().jobs.cancel(self.id)).job

    cancel = plain(acancel)

    async def alogs(self, after: int = 0) -> list[LogLine]:
        """Return what the handler has logged while it ran, if its type has ``keep_logs``.

        Parameters
        ----------
        after:
            Number of the last line that is known already; 0 by default, for all that are kept: the newest 1,000 lines
            and 256 KiB of all attempts, for 7 days after the job has finished, or as ``Retention.logs`` says.

        Returns
        -------
        list of LogLine
            The lines, oldest first.

        Raises
        ------
        NotFound
            The job does not exist any more.

        Examples
        --------
        >>> import asyncio, logging
        >>> from ojster import App, Worker
        >>> app = App("sqlite:///:memory:")
        >>> @app.job("report.build", keep_logs="warning")
        ... def build() -> None:
        ...     logging.getLogger("shop").warning("no prices for %s", "May")
        >>> async def main() -> None:
        ...     handle = await build.aenqueue()
        ...     await Worker(app).run(until_empty=True)
        ...     print([(line.level, line.message) for line in await handle.alogs()])
        ...     await app.aclose()
        >>> asyncio.run(main())
        [('warning', 'no prices for May')]
        """
        return (await self._app.client().jobs.log(self.id, after)).lines

    logs = plain(alogs)

    @checks_options
    async def aresult(self, timeout: NonNegativeSpan | None = None) -> R:
        """Wait until the job is finished, and return its handler's result.

        Parameters
        ----------
        timeout:
            Maximum wait, in seconds or as a ``timedelta``; ``None``, the default, waits without limit.

        Returns
        -------
        Any
            The result of the handler, converted from JSON as its return annotation says.

        Raises
        ------
        TypeError
            The result is not what the return annotation says.
        TimeoutError
            The job is not finished within ``timeout``.
        JobFailed
            The job was discarded; ``error`` is the error of its last attempt.
        JobCancelled
            The job was cancelled.
        NotFound
            The job does not exist any more.
        """
        client = self._app.client()
        seconds = None if timeout is None else to_seconds(timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        longest = TAKEN_WITHIN_SECONDS
        while True:
            left = MAX_POLL_SECONDS if deadline is None else max(0.0, deadline - time.monotonic())
            job = self._job = await client.jobs.wait_for(self.id, min(left, longest))
            if job.state in FINISHED:
                restored: Any = await restore(client, _result_of(job), self.id)
                result: R = restored if self._types is None else self._types.convert_result(restored)
                return result
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"The job {self.id} is still {job.state} after {seconds:g} s. Raise timeout; `ojster jobs explain` "
                    "says what it waits for."
                )
            if longest == TAKEN_WITHIN_SECONDS:
                log_if_not_taken(job)
            longest = MAX_POLL_SECONDS

    result = plain(aresult)


def _result_of(job: Job) -> Any:
    match job.state:
        case JobState.COMPLETED:
            return None if job.result is None else msgspec.json.decode(job.result)
        case JobState.CANCELLED:
            raise JobCancelled(f"The job {job.id} was cancelled.")
        case _:
            error = job.error or {"type": "discarded", "message": "no error was recorded."}
            raise JobFailed(f"The job {job.id} was discarded: {error['type']}: {error['message']}", error)

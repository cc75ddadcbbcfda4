"""Single enqueues of a client, sent together: those that are made while others are on their way are one request."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final, NamedTuple

import msgspec

from ojster.client.connection import Connection, job_of, log_warnings, read_answer
from ojster.core.errors import BackendError, BackendUnavailable
from ojster.core.json_objects import Members
from ojster.core.refusals import JobDropped
from ojster.jobs.push import Pushed

log = logging.getLogger(__name__)

MAX_MERGED: Final = 100
"""Maximum number of jobs in one request."""

MAX_MERGED_BYTES: Final = 262_144
"""Size of the jobs in one request, in bytes, from which on no more are added to it."""

MAX_SENDERS: Final = 4
"""Maximum number of requests on their way at the same time. The more, the fewer jobs share one."""

_OUTCOMES_OF_REFUSED: Final = 422
"""The status of a request whose jobs were all refused."""


class _Waiting(NamedTuple):
    """A job whose caller waits."""

    members: Members
    size: int
    """Size of its members, in bytes."""
    future: asyncio.Future[Pushed]
    until: float
    """Time of the event loop until which it may be tried."""

    @property
    def is_open(self) -> bool:
        """Whether the caller still waits."""
        return not self.future.done()

    def answer(self, outcome: Pushed | Exception) -> None:
        """Give the caller the outcome, if it still waits."""
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class MergedPushes:
    """The enqueues of one client that are waiting or on their way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[_Waiting] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def push(self, members: Members) -> Pushed:
        """Push a job with an id, perhaps together with others; each succeeds or fails on its own.

        A unique job is pushed alone, because it may have to wait for another transaction. A caller that is cancelled
        while its job is waiting takes it back; a job that is on its way is made all the same.
        """
        if "unique" in members or b'"unique"' in bytes(members.get("options", b"")):
            return await push_alone(self._connection, members)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the one before was closed, or is that of the process that was forked
            self._loop, self._waiting, self._senders = loop, deque(), set()
        future: asyncio.Future[Pushed] = loop.create_future()
        size = sum(map(len, members.values()))
        self._waiting.append(_Waiting(members, size, future, loop.time() + self._connection.patience))
        if len(self._senders) < MAX_SENDERS:
            self._senders.add(loop.create_task(self._send_all()))
        return await future

    async def _send_all(self) -> None:
        """Send what waits. A sender that ends is removed in the same step, so that the next caller starts another."""
        some: list[_Waiting] = []
        try:
            while some := self._take():
                if len(some) == 1 or await self._send_together(some):
                    await asyncio.gather(*(self._send_alone(waiting) for waiting in some if waiting.is_open))
        except BaseException as error:
            for waiting in some:
                waiting.answer(BackendError(f"The job was not sent: {error or type(error).__name__}."))
            raise
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._senders.discard(task)

    def _take(self) -> list[_Waiting]:
        """Take the next jobs whose callers still wait for them."""
        some: list[_Waiting] = []
        size = 0
        while self._waiting and len(some) < MAX_MERGED and size < MAX_MERGED_BYTES:
            waiting = self._waiting.popleft()
            if waiting.is_open:
                some.append(waiting)
                size += waiting.size
        return some

    async def _send_together(self, some: list[_Waiting]) -> bool:
        """Send jobs in one request; return whether some are to be sent alone.

        These are those that were refused, so that their callers get the refusal of a single job.
        """
        body: dict[str, Any] = {"mode": "partial", "jobs": [waiting.members for waiting in some]}
        patience = _left(min(waiting.until for waiting in some))
        try:
            raw = await self._connection.request(
                "POST", "/jobs/batch", body, also=_OUTCOMES_OF_REFUSED, patience=patience
            )
            answer = read_answer(_Answer, raw)
            if len(answer.results) != len(some) or sum(it.error is None for it in answer.results) != len(answer.jobs):
                raise BackendError("The server's answer does not fit the jobs that were sent.")
        except BackendUnavailable as error:
            for waiting in some:
                waiting.answer(error)
            return False
        except Exception as error:  # whatever it is: alone, each job gets its own outcome
            log.debug("a request for %d jobs failed, and they are sent alone: %s", len(some), error)
            return True
        for warning in answer.warnings:
            log.warning("%s", warning)
        jobs = iter(answer.jobs)
        for waiting, outcome in zip(some, answer.results, strict=True):
            if outcome.error is None:
                waiting.answer(Pushed(job_of(next(jobs)), existing=outcome.deduplicated))
        return any(waiting.is_open for waiting in some)

    async def _send_alone(self, waiting: _Waiting) -> None:
        try:
            waiting.answer(await push_alone(self._connection, waiting.members, _left(waiting.until)))
        except Exception as error:
            waiting.answer(error)


def _left(until: float) -> float:
    """Return the time that is left until a time of the event loop, in seconds."""
    return max(0.0, until - asyncio.get_running_loop().time())


class _Outcome(msgspec.Struct):
    error: dict[str, Any] | None = None
    deduplicated: bool = False


class _Answer(msgspec.Struct):
    results: list[_Outcome]
    jobs: list[msgspec.Raw] = []
    warnings: list[str] = []


async def push_alone(connection: Connection, members: Members, patience: float | None = None) -> Pushed:
    """Push a job in a request of its own. ``patience``: see ``Connection.request``."""
    answer = await connection.call("POST", "/jobs", members, patience=patience)
    if "dropped" in answer:
        raise JobDropped("Middleware of the server has dropped the job; it was not enqueued.")
    log_warnings(answer)
    return Pushed(job_of(answer["job"]), existing="deduplicated" in answer)

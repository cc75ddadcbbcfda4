"""Single enqueues of a client, sent together: those that are made while others are on their way are one request."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, Final

import msgspec

from ojster.client.connection import Connection, job_of, read_answer
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


Waiting = tuple[Members, asyncio.Future[Pushed], float]
"""A job, the future of its caller, and the time of the event loop until which it may be tried."""


class MergedPushes:
    """The enqueues of one client that are waiting or on their way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[Waiting] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def push(self, members: Members) -> Pushed:
        """Push a job with an id, perhaps together with others; each succeeds or fails on its own.

        A unique job is pushed alone, because it may have to wait for another transaction. A caller that is cancelled
        while its job is waiting takes it back; a job that is on its way is made all the same.
        """
        if any(b'"unique"' in bytes(value) for value in members.values()) or "unique" in members:
            return await push_alone(self._connection, members)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the one before was closed, or is that of the process that was forked
            self._loop, self._waiting, self._senders = loop, deque(), set()
        future: asyncio.Future[Pushed] = loop.create_future()
        self._waiting.append((members, future, loop.time() + self._connection.patience))
        if len(self._senders) < MAX_SENDERS:
            self._senders.add(loop.create_task(self._send_all()))
        return await future

    async def _send_all(self) -> None:
        """Send what waits. A sender that ends is removed in the same step, so that the next caller starts another."""
        some: list[Waiting] = []
        try:
            while some := self._take():
                if len(some) == 1 or await self._send_together(some):
                    await asyncio.gather(*(self._send_alone(*one) for one in some if not one[1].done()))
        except BaseException as error:
            for _, future, _ in some:
                if not future.done():
                    future.set_exception(BackendError(f"The job was not sent: {error or type(error).__name__}."))
            raise
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._senders.discard(task)

    def _take(self) -> list[Waiting]:
        """Take the next jobs whose callers still wait for them."""
        some: list[Waiting] = []
        size = 0
        while self._waiting and len(some) < MAX_MERGED and size < MAX_MERGED_BYTES:
            one = self._waiting.popleft()
            if not one[1].done():
                some.append(one)
                size += sum(len(bytes(value)) for value in one[0].values())
        return some

    async def _send_together(self, some: list[Waiting]) -> bool:
        """Send jobs in one request; return whether some are to be sent alone.

        These are those that were refused, so that their callers get the refusal of a single job.
        """
        body: dict[str, Any] = {"mode": "partial", "jobs": [members for members, _, _ in some]}
        patience = max(0.0, min(until for _, _, until in some) - asyncio.get_running_loop().time())
        try:
            raw = await self._connection.request(
                "POST", "/jobs/batch", body, also=_OUTCOMES_OF_REFUSED, patience=patience
            )
            answer = read_answer(_Answer, raw)
            if len(answer.results) != len(some) or sum(one.error is None for one in answer.results) != len(answer.jobs):
                raise BackendError("The server's answer does not fit the jobs that were sent.")
        except BackendUnavailable as error:
            for _, future, _ in some:
                if not future.done():
                    future.set_exception(error)
            return False
        except Exception as error:  # whatever it is: alone, each job gets its own outcome
            log.debug("a request for %d jobs failed, and they are sent alone: %s", len(some), error)
            return True
        jobs = iter(answer.jobs)
        for (_, future, _), outcome in zip(some, answer.results, strict=True):
            if outcome.error is None:
                pushed = Pushed(job_of(next(jobs)), existing=outcome.deduplicated)
                if not future.done():
                    future.set_result(pushed)
        return any(not future.done() for _, future, _ in some)

    async def _send_alone(self, members: Members, future: asyncio.Future[Pushed], until: float) -> None:
        patience = max(0.0, until - asyncio.get_running_loop().time())
        try:
            pushed = await push_alone(self._connection, members, patience)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(pushed)


class _Outcome(msgspec.Struct):
    error: dict[str, Any] | None = None
    deduplicated: bool = False


class _Answer(msgspec.Struct):
    results: list[_Outcome]
    jobs: list[msgspec.Raw] = []


async def push_alone(connection: Connection, members: Members, patience: float | None = None) -> Pushed:
    """Push a job in a request of its own. ``patience``: see ``Connection.request``."""
    answer = await connection.call("POST", "/jobs", members, patience=patience)
    if "dropped" in answer:
        raise JobDropped("Middleware of the server has dropped the job; it was not enqueued.")
    return Pushed(job_of(answer["job"]), existing="deduplicated" in answer)

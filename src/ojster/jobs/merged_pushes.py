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


class MergedPushes:
    """The enqueues of one client that are waiting or on their way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: deque[tuple[Members, asyncio.Future[Pushed]]] = deque()
        self._senders: set[asyncio.Task[None]] = set()

    async def push(self, members: Members) -> Pushed:
        """Push a job with an id, perhaps together with others; each succeeds or fails on its own.

        A caller that is cancelled while its job is waiting takes it back.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Pushed] = loop.create_future()
        self._waiting.append((members, future))
        if len(self._senders) < MAX_SENDERS:
            sender = loop.create_task(self._send_all())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        return await future

    async def _send_all(self) -> None:
        while some := self._take():
            if len(some) > 1 and not await self._send_together(some):
                continue
            for members, future in some:
                if not future.done():
                    await self._send_alone(members, future)

    def _take(self) -> list[tuple[Members, asyncio.Future[Pushed]]]:
        """Take the next jobs whose callers still wait for them."""
        some: list[tuple[Members, asyncio.Future[Pushed]]] = []
        size = 0
        while self._waiting and len(some) < MAX_MERGED and size < MAX_MERGED_BYTES:
            members, future = self._waiting.popleft()
            if not future.done():
                some.append((members, future))
                size += sum(map(len, members.values()))
        return some

    async def _send_together(self, some: list[tuple[Members, asyncio.Future[Pushed]]]) -> bool:
        """Send jobs in one request; return whether some are to be sent alone.

        These are those that were refused, so that their callers get the refusal of a single job.
        """
        body: dict[str, Any] = {"mode": "partial", "jobs": [members for members, _ in some]}
        try:
            raw = await self._connection.request("POST", "/jobs/batch", body, also=_OUTCOMES_OF_REFUSED)
            answer = read_answer(_Answer, raw)
            if len(answer.results) != len(some) or sum(one.error is None for one in answer.results) != len(answer.jobs):
                raise BackendError("The server's answer does not fit the jobs that were sent.")
        except BackendUnavailable as error:
            for _, future in some:
                if not future.done():
                    future.set_exception(error)
            return False
        except Exception as error:  # whatever it is: alone, each job gets its own outcome
            log.debug("a request for %d jobs failed, and they are sent alone: %s", len(some), error)
            return True
        jobs = iter(answer.jobs)
        for (_, future), outcome in zip(some, answer.results, strict=True):
            if outcome.error is None:
                pushed = Pushed(job_of(next(jobs)), existing=outcome.deduplicated)
                if not future.done():
                    future.set_result(pushed)
        return any(not future.done() for _, future in some)

    async def _send_alone(self, members: Members, future: asyncio.Future[Pushed]) -> None:
        try:
            pushed = await push_alone(self._connection, members)
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


async def push_alone(connection: Connection, members: Members) -> Pushed:
    """Push a job in a request of its own."""
    answer = await connection.call("POST", "/jobs", members)
    if "dropped" in answer:
        raise JobDropped("Middleware of the server has dropped the job; it was not enqueued.")
    return Pushed(job_of(answer["job"]), existing="deduplicated" in answer)

"""Pushes of single jobs: once for an idempotency key, and into queues that are full."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from ojster.core.errors import InvalidRequest, OjsterError, QueueFull
from ojster.jobs.bulk import KeyedPush
from ojster.jobs.idempotency import Key, StoredReply
from ojster.jobs.job_json import to_json
from ojster.jobs.new_job import NewJob
from ojster.jobs.push import Pushed
from ojster.queues import limit_views
from ojster.queues.backpressure import pressures
from ojster.queues.rules import may_be_bounded
from ojster.server.answer import Answer, encode
from ojster.server.request import HttpRequest
from ojster.server.route import location

T = TypeVar("T")

DROPPED: Final = b'{"dropped":true}'
"""The answer to a push that middleware of the server has dropped."""

MAX_BLOCK_SECONDS: Final = 60.0
"""Maximum wait of a push for room in a full queue, in seconds."""

PUSH_RETRY_SECONDS: Final = 0.1
"""Interval between attempts to push into a full queue, in seconds."""


class _Identified(msgspec.Struct):
    id: str


class _Created(msgspec.Struct):
    """What an answer says of the job that was pushed."""

    job: msgspec.Raw


def reply_of(job: NewJob, pushed: Pushed) -> StoredReply:
    """Return the answer to the push of a job."""
    if pushed.existing:
        return StoredReply(200, b'{"job":%b,"deduplicated":true}' % to_json(pushed.job))
    warnings = b',"warnings":' + encode(job.warnings) if job.warnings else b""
    return StoredReply(201, b'{"job":%b%b}' % (to_json(pushed.job), warnings))


def pushed_id(reply: StoredReply) -> str:
    """Return the id of the job in the answer to a push."""
    return msgspec.json.decode(pushed_job(reply), type=_Identified).id


def pushed_job(reply: StoredReply) -> msgspec.Raw:
    """Return the job in the answer to a push."""
    return msgspec.json.decode(reply.body, type=_Created).job


async def push_once(request: HttpRequest, job: NewJob, key: Key) -> StoredReply:
    """Push a job, or return the answer to the push with the same key."""
    keyed = KeyedPush(job, key, lambda pushed: reply_of(job, pushed))
    return await push_or_block(request, job, lambda: request.service.bulk.push_once(keyed))


async def answer_once(request: HttpRequest, job: NewJob, key: Key) -> Answer:
    """Push a job, or find the answer to the push with the same key; return the whole answer."""
    reply = await push_once(request, job, key)
    headers = await headers_of(request, job, pushed_id(reply)) if reply.status == 201 else ()
    return Answer(reply.body, reply.status, headers)


async def headers_of(request: HttpRequest, job: NewJob, id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers of the answer for a new job: its place, and what limits it and its queue.

    Spec: ojs-backpressure 7.3, ojs-rate-limiting 10.4
    """
    service = request.service
    told: dict[str, str] = {}
    if job.limit is not None:
        with contextlib.suppress(OjsterError):  # the job is pushed; headers are optional
            told |= await service.scope.look(limit_views.limit_headers, job.limit.key)
    if may_be_bounded(service.database.memory, job.queue):
        with contextlib.suppress(OjsterError):
            pressure = await service.scope.look(pressures, job.queue)
            told |= pressure.headers() if pressure is not None else {}
    headers = [(name.lower().encode(), value.encode()) for name, value in told.items()]
    headers.append(location("jobs", id))
    return headers


async def push_or_block(request: HttpRequest, job: NewJob, push: Callable[[], Awaitable[T]]) -> T:
    """Push a job with ``push``. If its queue is full with strategy ``block``, retry for ``OJS-Block-Timeout``.

    Spec: ojs-backpressure 5.2
    """
    wait = 0.0
    if (text := request.header(b"ojs-block-timeout")) is not None:
        try:
            wait = min(MAX_BLOCK_SECONDS, max(0.0, float(text)))
        except ValueError:
            raise InvalidRequest(f"OJS-Block-Timeout must be a number of seconds, not {text[:40]!r}.") from None
    if not wait:
        return await push()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        left = deadline - loop.time()
        job.waits = left > 0 and not request.service.database.draining
        try:
            return await push()
        except QueueFull as full:
            if full.details["strategy"] != "block" or not job.waits:
                raise
        await asyncio.sleep(min(left, PUSH_RETRY_SECONDS))

"""Pushes of single jobs: once for an idempotency key, and into queues that are full."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from ojster.core.errors import InvalidRequest, QueueFull
from ojster.jobs.bulk import KeyedPush
from ojster.jobs.idempotency import Key, StoredReply
from ojster.jobs.job_json import to_json
from ojster.jobs.new_job import NewJob
from ojster.jobs.push import Pushed
from ojster.server.answer import encode
from ojster.server.request import HttpRequest

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

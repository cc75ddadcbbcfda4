"""Large results in the answers to SDKs: the value itself, streamed, in place of the reference to its file.

No official SDK can follow a reference. Who sends no ``OJS-Version`` gets the reference, as from ``/jobs/{id}/result``.

Spec: ojs-workflows 7.5
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Final
from uuid import uuid4

import msgspec

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.files.file import JSON, FileRef, may_refer, referred_file
from ojster.files.service import FileService
from ojster.jobs.job_json import to_json
from ojster.server.answer import Answer
from ojster.server.request import HttpRequest
from ojster.server.sdk_answers import unwrapped

log = logging.getLogger(__name__)

MAX_RETURNED_RESULT_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a result that an SDK gets with its job, in bytes. Of a larger one it gets the reference."""

_MAX_REFERENCE_BYTES: Final = 1_000


async def answer_with_value(request: HttpRequest, job: Job) -> Answer:
    """Return the answer that shows a job to an SDK, with the value of its result."""
    plain = Answer(b'{"job":%b}' % to_json(job))
    files = request.service.files
    try:
        if (file := await _file_of(files, job)) is None:
            return plain
        content = await files.read(file.id)
    except OjsterError as error:  # the job can be read all the same
        log.warning("the result of job %s stays a reference, its file cannot be read: %s", job.id, error)
        return plain
    parts = _around(job, file.size)
    length = sum(map(len, parts)) + (len(parts) - 1) * file.size
    return Answer(headers=[(b"content-length", b"%d" % length)], stream=_joined(parts, content, files, file))


async def _file_of(files: FileService, job: Job) -> FileRef | None:
    """Return the file with the result of a job; ``None`` if the result is no file, or is too large to be returned."""
    raw = job.result
    if raw is None or len(raw) > _MAX_REFERENCE_BYTES or not may_refer(raw) or not files.has_store:
        return None
    if (id := referred_file(msgspec.json.decode(raw))) is None:
        return None
    file = (await files.find(id)).ref
    return file if file.content_type == JSON and file.size <= MAX_RETURNED_RESULT_BYTES else None


def _around(job: Job, size: int) -> Sequence[bytes]:
    """Return the parts of the answer around the places of the value, which are in the wrapper and beside it."""
    mark = b'"%b"' % uuid4().hex.encode()  # no value of a user contains it
    shown = b'{"job":%b}' % to_json(msgspec.structs.replace(job, result=mark))
    stored = re.compile(re.escape(mark) + rb'(,"result_stored_at":"[^"]*","result_size_bytes":)\d+')
    return unwrapped(stored.sub(rb"%b\g<1>%d" % (mark, size), shown)).split(mark)


async def _joined(
    parts: Sequence[bytes], content: AsyncIterator[bytes], files: FileService, file: FileRef
) -> AsyncGenerator[bytes, None]:
    yield parts[0]
    for number, part in enumerate(parts[1:]):
        async for piece in content if not number else await files.read(file.id):
            yield piece
        yield part

"""Endpoints for files, with resumable uploads and downloads.

``PATCH`` with ``Upload-Offset`` resumes an upload. ``GET …/content`` supports ``Range``.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final
from urllib.parse import quote

from ojster.core.access import MAKE
from ojster.core.errors import InvalidRequest
from ojster.files.calls import FileCalls
from ojster.files.file import OCTET_STREAM, File, NewFile
from ojster.files.service import UploadInterruptedError, range_of
from ojster.files.wire import FileAnswer
from ojster.server.answer import Answer, Header, encode
from ojster.server.declared import arguments_of, endpoints_of
from ojster.server.pages import whole
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route, location


class RangeNotSatisfiable(InvalidRequest):
    """The requested range is outside the file."""

    status = 416

    @property
    def headers(self) -> dict[str, str]:
        """The ``Content-Range`` header with the file's size, in bytes."""
        return {"Content-Range": f"bytes */{self.details['size']}"}


async def _create(request: HttpRequest) -> Answer:
    file = await request.service.files.create(**await arguments_of(request, FileCalls.create))
    return _answer(file, 200 if file.complete else 201)


async def put_file(request: HttpRequest) -> Answer:
    """Upload a file in one request: the body is its content, and ``Content-Type`` is stored."""
    query = request.query
    content_type = request.content_type.decode("latin-1") or OCTET_STREAM
    attempt = whole(query, "attempt", 0, 0) if "attempt" in query else None
    job_id, worker_id = query.get("job_id"), query.get("worker_id")
    new = NewFile(None, query.get("sha256"), content_type, query.get("filename"), job_id, worker_id, attempt)
    file = await request.service.files.create(new)
    if not file.complete:
        file = await request.service.files.write(file.id, 0, _pieces(request))
        return _answer(file, 201)
    return _answer(file)


async def write_file(request: HttpRequest) -> Answer:
    """Resume an upload: the body is the content from byte ``Upload-Offset`` on.

    If the offset does not match, the answer is 409 with the right one in ``details.offset``.
    """
    await request.service.files.find(request.path["id"])
    offset = request.header(b"upload-offset") or ""
    if not (offset.isascii() and offset.isdigit() and len(offset) < 16):
        raise InvalidRequest("The header Upload-Offset is no number. Send the current offset.", field="Upload-Offset")
    file = await request.service.files.write(request.path["id"], int(offset), _pieces(request))
    return _answer(file)


async def _find(request: HttpRequest) -> Answer:
    return _answer(await request.service.files.find(**await arguments_of(request, FileCalls.find)))


async def read_file(request: HttpRequest) -> Answer:
    """Return the content of a file, or the part in ``Range``. The content is verified while it is read."""
    file = (await request.service.files.find(request.path["id"])).ref
    tag = f'"{file.sha256}"'
    headers: list[Header] = [
        (b"etag", tag.encode()),
        (b"accept-ranges", b"bytes"),
        (b"repr-digest", b"sha-256=:%b:" % base64.b64encode(bytes.fromhex(file.sha256))),
        (b"content-disposition", f"attachment; filename*=UTF-8''{quote(file.filename or file.id)}".encode()),
    ]
    known = (request.header(b"if-none-match") or "").replace("W/", "").split(",")
    if tag in map(str.strip, known):
        return Answer(b"", 304, headers)
    wanted = None
    if request.header(b"if-range") in (None, tag):
        try:
            wanted = range_of(request.header(b"range"), file.size)
        except InvalidRequest as refusal:
            raise RangeNotSatisfiable(refusal.message, **refusal.details) from None
    start, end = wanted or (0, file.size)
    headers.append((b"content-length", b"%d" % (end - start)))
    if wanted is not None:
        headers.append((b"content-range", f"bytes {start}-{end - 1}/{file.size}".encode()))
    content = await request.service.files.read(file.id, start, end)
    return Answer(b"", 200 if wanted is None else 206, headers, file.content_type.encode(), _closing(content))


async def _pieces(request: HttpRequest) -> AsyncIterator[bytes]:
    async for some in request.pieces():
        if some is None:
            raise UploadInterruptedError
        yield some


async def _closing(content: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(content, AsyncGenerator):
            stack.push_async_callback(content.aclose)
        async for some in content:
            yield some


def _answer(file: File, status: int = 200) -> Answer:
    headers = [(b"upload-offset", b"%d" % file.offset)]
    if status == 201:
        headers.append(location("files", file.id))
    if file.size is not None:
        headers.append((b"upload-length", b"%d" % file.size))
    return Answer(encode(FileAnswer(file)), status, headers)


_TAG: Final = "Files"

ROUTES: Final = (
    *endpoints_of(FileCalls, lambda service: service.files, {FileCalls.create: _create, FileCalls.find: _find}),
    Route(
        "PUT",
        f"{BASE}/files",
        put_file,
        _TAG,
        answer=FileAnswer,
        status=201,
        more=(200,),
        query=("filename", "sha256", "job_id", "worker_id", "attempt"),
        needs=MAKE,
    ),
    Route("PATCH", f"{BASE}/files/{{id}}", write_file, _TAG, answer=FileAnswer, needs=MAKE),
    Route("GET", f"{BASE}/files/{{id}}/content", read_file, _TAG, more=(206,)),
)

"""How do files come in and go out over HTTP? As streams that go on where they were cut. (seed 003: artifacts)

``PATCH`` with ``Upload-Offset`` goes on with an upload; ``GET …/content`` understands ``Range``.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final
from urllib.parse import quote

from ojster.core.errors import InvalidRequest
from ojster.files.file import OCTETS, File, NewFile
from ojster.files.streams import CutOffError, range_of
from ojster.server import wire
from ojster.server.request import Answer, Exchange, Header, encode, whole
from ojster.server.route import BASE, Route


class RangeNotSatisfiable(InvalidRequest):
    """The file has no such bytes."""

    status = 416

    @property
    def headers(self) -> dict[str, str]:
        """How many bytes it has."""
        return {"Content-Range": f"bytes */{self.details['size']}"}


async def create_file(exchange: Exchange) -> Answer:
    """Begin to upload a file. If the workspace has one with that ``sha256``, it is returned, complete, with 200."""
    body = await exchange.read(wire.FILE)
    file = await exchange.engine.create_file(
        NewFile(body.size, body.sha256, body.content_type, body.filename, body.job_id)
    )
    return _answer(file, 200 if file.complete else 201)


async def put_file(exchange: Exchange) -> Answer:
    """Upload a file in one go: its bytes are the body, ``Content-Type`` is kept."""
    query = exchange.query
    content_type = exchange.content_type.decode("latin-1") or OCTETS
    new = NewFile(None, query.get("sha256"), content_type, query.get("filename"), query.get("job_id"))
    file = await exchange.engine.create_file(new)
    if not file.complete:
        file = await exchange.engine.write_file(file.id, 0, _pieces(exchange))
        return _answer(file, 201)
    return _answer(file)


async def write_file(exchange: Exchange) -> Answer:
    """Go on with an upload: the body is what comes behind the ``Upload-Offset`` bytes that have come.

    If another offset is the right one, the answer is 409, and ``details.offset`` says it.
    """
    await exchange.engine.find_file(exchange.path["id"])
    offset = exchange.header(b"upload-offset") or ""
    if not (offset.isascii() and offset.isdigit() and len(offset) < 16):
        raise InvalidRequest("The header Upload-Offset must say how many bytes have come.", field="Upload-Offset")
    file = await exchange.engine.write_file(exchange.path["id"], int(offset), _pieces(exchange))
    return _answer(file)


async def show_file(exchange: Exchange) -> Answer:
    """Show a file, or how much of it has come; with ``job_id``, only one of the workspace of that job."""
    return _answer(await exchange.engine.find_file(exchange.path["id"], exchange.query.get("job_id")))


async def list_files(exchange: Exchange) -> Answer:
    """List files, the latest first, at most 200; ``before``: only those that were begun before this one."""
    query = exchange.query
    found = await exchange.engine.list_files(whole(query, "limit", 50, 1), query.get("before"))
    return Answer(encode({"files": found}))


async def read_file(exchange: Exchange) -> Answer:
    """Return the bytes of a file, or (``Range``) some of them. They are verified while they are read."""
    file = (await exchange.engine.find_file(exchange.path["id"])).ref
    tag = f'"{file.sha256}"'
    headers: list[Header] = [
        (b"etag", tag.encode()),
        (b"accept-ranges", b"bytes"),
        (b"repr-digest", b"sha-256=:%b:" % base64.b64encode(bytes.fromhex(file.sha256))),
        (b"x-content-type-options", b"nosniff"),
        (b"content-disposition", f"attachment; filename*=UTF-8''{quote(file.filename or file.id)}".encode()),
    ]
    known = (exchange.header(b"if-none-match") or "").replace("W/", "").split(",")
    if tag in map(str.strip, known):
        return Answer(b"", 304, headers)
    wanted = None
    if exchange.header(b"if-range") in (None, tag):
        try:
            wanted = range_of(exchange.header(b"range"), file.size)
        except InvalidRequest as refusal:
            raise RangeNotSatisfiable(refusal.message, **refusal.details) from None
    start, end = wanted or (0, file.size)
    headers.append((b"content-length", b"%d" % (end - start)))
    if wanted is not None:
        headers.append((b"content-range", f"bytes {start}-{end - 1}/{file.size}".encode()))
    content = await exchange.engine.files.read(file.id, start, end)
    return Answer(b"", 200 if wanted is None else 206, headers, file.content_type.encode(), _closing(content))


async def delete_file(exchange: Exchange) -> Answer:
    """Delete a file to which nobody refers."""
    await exchange.engine.delete_file(exchange.path["id"])
    return Answer(encode({"deleted": True, "id": exchange.path["id"]}))


async def _pieces(exchange: Exchange) -> AsyncIterator[bytes]:
    async for some in exchange.pieces():
        if some is None:
            raise CutOffError
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
        headers.append((b"location", f"{BASE}/files/{file.id}".encode()))
    if file.size is not None:
        headers.append((b"upload-length", b"%d" % file.size))
    return Answer(encode({"file": file}), status, headers)


_TAG: Final = "Files"

ROUTES: Final = (
    Route("POST", f"{BASE}/files", create_file, _TAG, wire.FileBody, status=201),
    Route("PUT", f"{BASE}/files", put_file, _TAG, status=201, query=("filename", "sha256", "job_id")),
    Route("GET", f"{BASE}/files", list_files, _TAG, query=("limit", "before")),
    Route("GET", f"{BASE}/files/{{id}}", show_file, _TAG, query=("job_id",)),
    Route("PATCH", f"{BASE}/files/{{id}}", write_file, _TAG),
    Route("GET", f"{BASE}/files/{{id}}/content", read_file, _TAG),
    Route("DELETE", f"{BASE}/files/{{id}}", delete_file, _TAG),
)

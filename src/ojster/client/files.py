"""Calls about files, made to a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

from ojster.client.connection import RemoteCapability, content_of, read_answer
from ojster.client.transport import NETWORK_ERRORS, Response
from ojster.files.calls import FileCalls
from ojster.files.file import OCTET_STREAM, File
from ojster.files.wire import FileAnswer

_TRANSFER_SECONDS: Final = 600.0
"""Maximum wait for the next bytes of a file, in seconds. The server may read the whole file before it answers."""


class RemoteFiles(RemoteCapability, FileCalls):
    """Calls about files."""

    async def write(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Continue an upload at ``offset``. Not retried, because ``source`` can be read only once."""
        headers = {"Content-Type": OCTET_STREAM, "Upload-Offset": str(offset)}
        path = f"/ojs/v1/files/{quote(file_id, safe='')}"
        try:
            response = await self._connection.transport.send(
                "PATCH", path, source, headers=headers, patience=_TRANSFER_SECONDS
            )
        except NETWORK_ERRORS as error:
            raise self._connection.unreachable(error) from None
        return read_answer(FileAnswer, content_of(response, path)).file

    async def read(self, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a file, from ``start``, as a stream. Not retried."""
        return self._read_file(file_id, start)

    async def _read_file(self, file_id: str, start: int) -> AsyncIterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        path = f"/ojs/v1/files/{quote(file_id, safe='')}/content"
        try:
            async with self._connection.transport.open(
                "GET", path, headers=headers, patience=_TRANSFER_SECONDS
            ) as response:
                if not response.ok:
                    content_of(Response(response.status, await response.read()), path)
                async for some in response.content.iter_any():
                    yield some
        except NETWORK_ERRORS as error:
            raise self._connection.unreachable(error) from None

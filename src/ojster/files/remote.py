"""Calls about files, made to a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote, urlencode

import httpx

from ojster.client.connection import (
    NETWORK_ERRORS,
    RemoteCapability,
    content_of,
    read_answer,
)
from ojster.files.file import OCTET_STREAM, File, NewFile
from ojster.files.wire import FileAnswer, FilesAnswer

_TRANSFER_TIMEOUT: Final = httpx.Timeout(60.0, connect=5.0, read=600.0)
"""Timeouts of file transfers, in seconds. The server may read the whole file before it answers."""


class RemoteFiles(RemoteCapability):
    """Calls about files."""

    async def create(self, new: NewFile) -> File:
        """Start the upload of a file; a file that is already stored is returned complete."""
        return (await self._connection.ask(FileAnswer, "POST", "/files", new)).file

    async def find(self, file_id: str, job_id: str | None = None) -> File:
        """Return a file, or the state of its upload; with ``job_id``, only a file of the job's workspace."""
        query = "" if job_id is None else f"?{urlencode({'job_id': job_id})}"
        path = f"/files/{quote(file_id, safe='')}{query}"
        return (await self._connection.ask(FileAnswer, "GET", path)).file

    async def select(self, limit: int = 50, before: str | None = None) -> list[File]:
        """Return files, newest first."""
        query = {"limit": limit} | ({} if before is None else {"before": before})
        return (await self._connection.ask(FilesAnswer, "GET", f"/files?{urlencode(query)}")).files

    async def delete(self, file_id: str) -> None:
        """Delete a file without references."""
        await self._connection.call("DELETE", f"/files/{quote(file_id, safe='')}")

    async def write(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Continue an upload at ``offset``. Not retried, because ``source`` can be read only once."""
        headers = {"Content-Type": OCTET_STREAM, "Upload-Offset": str(offset)}
        path = f"/ojs/v1/files/{quote(file_id, safe='')}"
        try:
            response = await self._connection.http.patch(
                path, content=source, headers=headers, timeout=_TRANSFER_TIMEOUT
            )
        except NETWORK_ERRORS as error:
            raise self._connection.unreachable(error) from None
        return read_answer(FileAnswer, content_of(response)).file

    async def read(self, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a file, from ``start``, as a stream. Not retried."""
        return self._read_file(file_id, start)

    async def _read_file(self, file_id: str, start: int) -> AsyncIterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        path = f"/ojs/v1/files/{quote(file_id, safe='')}/content"
        try:
            async with self._connection.http.stream(
                "GET", path, headers=headers, timeout=_TRANSFER_TIMEOUT
            ) as response:
                if not response.is_success:
                    await response.aread()
                    content_of(response)
                async for some in response.aiter_raw():
                    yield some
        except NETWORK_ERRORS as error:
            raise self._connection.unreachable(error) from None

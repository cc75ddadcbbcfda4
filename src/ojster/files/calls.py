"""Calls about files, as a service, a server and its client have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

from msgspec import Meta

from ojster.core.access import MAKE, Operation
from ojster.core.calls import Call, Calls, Deletion, Handled
from ojster.core.ids import UUID
from ojster.core.parsing import PageLimit
from ojster.files.file import File, NewFile
from ojster.files.wire import DeletedFileAnswer, FileAnswer, FileBody, FilesAnswer

_TAG: Final = "Files"

FileId = Annotated[str, Meta(pattern=f"^{UUID}$", description="Id of a file.")]
"""The id of a file, as ids are compared: any other text would be before all of them, or after."""


class FileCalls(Calls):
    """Calls about files. The endpoints for their content, which is no JSON, are written by hand."""

    @Handled("POST", "/files", "create_file", _TAG, FileAnswer, body=FileBody, status=201, more=(200,), needs=MAKE)
    async def create(self, new: NewFile) -> File:
        """Start an upload. If the workspace already has a file with that ``sha256`` and size, return it with 200."""

    @Handled("GET", "/files/{id}", "show_file", _TAG, FileAnswer, needs=(*MAKE, Operation.INSPECT))
    async def find(self, file_id: str, job_id: str | None = None) -> File:
        """Show a file or the progress of its upload; with ``job_id``, only if it belongs to that job's workspace."""

    @Call("GET", "/files", "list_files", _TAG, FilesAnswer)
    async def select(self, limit: PageLimit = 50, before: FileId | None = None) -> list[File]:
        """List files, newest first, at most 200; with ``before``, only files created before that one."""

    @Deletion("DELETE", "/files/{id}", "delete_file", _TAG, DeletedFileAnswer)
    async def delete(self, file_id: str) -> None:
        """Delete a file that no collection item refers to."""

    async def write(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Upload the bytes of a file from ``offset`` on."""
        raise NotImplementedError

    async def read(self, file_id: str, start: int = 0) -> AsyncIterator[bytes]:
        """Return the bytes of a file from ``start`` on."""
        raise NotImplementedError

"""How do files come in and go out? As streams, piece by piece, each of which is safe before the next one is taken.

A piece is put into the file store, and then noted in the database. A machine that dies between the two leaves a piece
of which nobody knows, and which goes with its file; whoever uploads goes on where the database says. Each piece has a
hash, so that a file is verified while it is read, wherever one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from ojster.core.errors import BackendError, BackendUnavailable, Conflict, InvalidRequest, OjsterError
from ojster.core.ids import new_id
from ojster.files import records
from ojster.files.file import CHUNK, LARGEST_FILE, File, HashMismatch, NewFile
from ojster.files.store import FileStore
from ojster.jobs.queries import find_owners

if TYPE_CHECKING:
    from ojster.scope import View

log = logging.getLogger("ojster")

LONGEST_PAGE: Final = 200
"""How many files are listed at once."""


_NO_CONTENT: Final[tuple[bytes, ...]] = ()


MOST_HASHES: Final = 1_000
"""Of how many uploads a process remembers the hash."""


class CutOffError(Exception):
    """Who sends a file has gone before the end of it."""


class Archive:
    """The files of one view of an engine.

    Parameters
    ----------
    engine:
        Whose workspace it is, and who uses it.
    store:
        Where the bytes are.
    """

    def __init__(self, engine: View, store: FileStore) -> None:
        self._engine = engine
        self._store = store

    async def create(self, new: NewFile) -> File:
        """Begin an upload; a file with that hash and size that the workspace has already is returned, complete.

        Raises
        ------
        InvalidRequest
            Something of it is malformed.
        NotFound
            There is no such job.
        """
        creation = records.Creation(new.check(), self._engine.tenant, self._engine.who)
        return await self._engine.do(records.create_files, creation)

    async def find(self, file_id: str, job_id: str | None = None) -> File:
        """Return a file, or as much of it as has come.

        Parameters
        ----------
        job_id:
            A job: the file must be of its workspace.

        Raises
        ------
        NotFound
            There is none.
        """
        known = await self._engine.look(records.find_files, file_id)
        if not self._engine.sees(known.tenant):
            raise records.no_file(file_id)
        if job_id is not None:
            owners = await self._engine.database.read(find_owners, (job_id,))
            if owners.get(job_id) != known.tenant:
                raise records.no_file(file_id)
        return known.file

    async def list(self, limit: int = 50, before: str | None = None) -> list[File]:
        """Return the files of the workspace, the latest first, those that were begun before another one."""
        page = records.FilePage(self._engine.tenant, min(limit, LONGEST_PAGE), before)
        return await self._engine.look(records.list_files, page)

    async def write(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Go on with an upload; return the file, which is complete if that was all of it.

        Parameters
        ----------
        offset:
            Where the bytes belong: as many must have come before.
        source:
            The bytes. If it raises ``CutOffError``, what has come is kept.

        Raises
        ------
        NotFound
            There is no such file.
        Conflict
            The file is complete, or ``offset`` is not where to go on: ``offset`` in the details is.
        InvalidRequest
            There are more bytes than the file has; what came before is kept.
        HashMismatch
            The file has not the hash that it was said to have; all of it was thrown away.
        BackendUnavailable
            The file store cannot be used now; what came before is kept.
        """
        file = await self.find(file_id)
        if file.complete:
            raise Conflict(f"The file {file_id} is complete.", offset=file.offset)
        if offset != file.offset:
            message = f"Of the file {file_id} {file.offset} bytes have come; go on there, not at {offset}."
            raise Conflict(message, offset=file.offset)
        whole = self._engine.hashes.take(file_id, offset)
        most = LARGEST_FILE if file.size is None else file.size
        buffer = bytearray()
        is_cut = False
        try:
            async for some in source:
                buffer += some
                if file.offset + len(buffer) > most:
                    raise records.too_long(file, most)
                while len(buffer) >= CHUNK:
                    file = await self._append(file, bytes(buffer[:CHUNK]), whole)
                    del buffer[:CHUNK]
        except CutOffError:
            is_cut = True
        if buffer:
            file = await self._append(file, bytes(buffer), whole)
        is_all = not is_cut if file.size is None else file.offset == file.size
        if is_all:
            return await self._finish(file, whole)
        self._engine.hashes.keep(file_id, file.offset, whole)
        return file

    async def keep(self, content: bytes, new: NewFile) -> File:
        """Keep something that is in memory already; raises as ``create`` and ``write`` do."""
        sha256 = hashlib.sha256(content).hexdigest()
        given = NewFile(len(content), sha256, new.content_type, new.filename, new.job_id)
        file = await self.create(given)
        return file if file.complete else await self.write(file.id, 0, _once(content))

    async def read(self, file_id: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Return the bytes of a complete file from ``start`` up to ``end``, which is excluded, as they are read.

        The first of them is read and verified before this returns.

        Raises
        ------
        NotFound
            There is no such file.
        Conflict
            It is not complete.
        BackendError, BackendUnavailable
            It is damaged, or the file store cannot be used now; also from the iterator.
        """
        file = await self.find(file_id)
        _ = file.ref
        content = self._read(file, start, file.offset if end is None else min(end, file.offset))
        try:
            first = await anext(content)
        except StopAsyncIteration:
            return _nothing()
        return _chained(first, content)

    async def delete(self, file_id: str) -> None:
        """Delete a file to which nobody refers.

        Raises
        ------
        NotFound
            There is none.
        Conflict
            An item of a collection refers to it.
        """
        await self._engine.do(records.delete_files, records.Deletion(file_id, self._engine.tenant))
        await self._erase(file_id)

    async def prune(self) -> int:
        """Delete files to which nobody has referred for a while; return how many.

        Raises
        ------
        BackendUnavailable
            The file store cannot be used now.
        """
        deleted = 0
        while doomed := await self._engine.do(records.forget_files, None):
            erased = 0
            for file_id in doomed:
                try:
                    await self._erase(file_id)
                    erased += 1
                except BackendUnavailable as error:
                    log.warning("the file %s cannot be deleted now: %s", file_id, error)
            if not erased:
                raise BackendUnavailable("The file store lets nothing be deleted.")
            deleted += erased
        return deleted

    async def _erase(self, file_id: str) -> None:
        await self._store.delete_file(file_id)
        await self._engine.do(records.erase_files, file_id)

    async def _append(self, file: File, content: bytes, whole: Any) -> File:
        """Store a piece, and note that it is there."""
        name = new_id()
        digest, _ = await asyncio.gather(
            asyncio.to_thread(_digest, content, whole), self._store.put(f"{file.id}/{name}", content)
        )
        piece = records.Piece(file.id, file.offset, len(content), digest, name)
        try:
            return await self._engine.do(records.add_pieces, piece)
        except OjsterError as refusal:
            if not refusal.retryable:  # it is certainly not noted
                await self._store.delete(f"{file.id}/{piece.name}")
            raise

    async def _finish(self, file: File, whole: Any) -> File:
        """Complete a file if its hash is right; of one that came in several calls, all of it is read for that."""
        if whole is None:
            whole = hashlib.sha256()
            async for content in self._read(file, 0, file.offset):
                await asyncio.to_thread(whole.update, content)
        sha256: str = whole.hexdigest()
        finish = records.Finish(file.id, file.offset, sha256)
        if file.sha256 not in (None, sha256):
            for piece in await self._engine.do(records.start_over, finish):
                await self._store.delete(f"{file.id}/{piece}")
            message = f"The file {file.id} should have the SHA-256 {file.sha256}, and has {sha256}; send it again."
            raise HashMismatch(message, expected=file.sha256, found=sha256)
        finished = await self._engine.do(records.finish_files, finish)
        if finished.id != file.id:
            with contextlib.suppress(BackendUnavailable):  # it is doomed, and goes sooner or later
                await self._erase(file.id)
        return finished

    async def _read(self, file: File, start: int, end: int) -> AsyncIterator[bytes]:
        for piece in await self._engine.look(records.list_pieces, file.id):
            if piece.start + piece.size <= start:
                continue
            if piece.start >= end:
                return
            content = await self._piece(file, piece)
            yield content[max(0, start - piece.start) : end - piece.start]

    async def _piece(self, file: File, piece: records.Piece) -> bytes:
        """Return a piece of a file, verified."""
        try:
            content = await self._store.get(f"{file.id}/{piece.name}")
            if await asyncio.to_thread(_digest, content) == piece.sha256:
                return content
            damage = BackendError(f"The file {file.id} is damaged in the file store.", file_id=file.id)
        except BackendUnavailable:
            raise
        except BackendError as missing:
            damage = missing
        log.error("the piece %s of the file %s: %s", piece.name, file.id, damage)
        await self._engine.do(records.distrust, file.id)
        raise damage


class Hashes:
    """How far the hashes of uploads under way have come in this process, so that it need not begin anew each time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Any]] = {}

    def take(self, file_id: str, offset: int) -> Any:
        """Return the hash of the first ``offset`` bytes of a file, if it is known here, and forget it."""
        known = self._known.pop(file_id, None)
        if offset == 0:
            return hashlib.sha256()
        return known[1] if known is not None and known[0] == offset else None

    def keep(self, file_id: str, offset: int, whole: Any) -> None:
        """Remember the hash of the first ``offset`` bytes of a file."""
        if whole is not None:
            self._known[file_id] = (offset, whole)
            while len(self._known) > MOST_HASHES:
                del self._known[next(iter(self._known))]


def _digest(content: bytes, whole: Any = None) -> bytes:
    if whole is not None:
        whole.update(content)
    return hashlib.sha256(content).digest()


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _nothing() -> AsyncIterator[bytes]:
    for content in _NO_CONTENT:
        yield content


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for content in rest:
        yield content


def range_of(text: str | None, size: int) -> tuple[int, int] | None:
    """Return what a ``Range`` header asks for, the end excluded; ``None``: everything.

    Raises
    ------
    InvalidRequest
        Nothing is there that it asks for.
    """
    unit, _, wanted = (text or "").partition("=")
    begin, dash, end = wanted.strip().partition("-")
    if unit.strip() != "bytes" or not dash or "," in wanted or not (begin + end).isascii():
        return None
    if not (begin.isdigit() or not begin) or not (end.isdigit() or not end) or not begin + end:
        return None
    if len(begin) > 18 or len(end) > 18:
        return None
    if begin and end and int(begin) > int(end):
        return None
    if not begin:
        first, last = max(0, size - int(end)), size
    else:
        first, last = int(begin), size if not end else min(int(end) + 1, size)
    if first >= size or first >= last:
        raise InvalidRequest(f"There are no such bytes; the file has {size}.", size=size)
    return first, last

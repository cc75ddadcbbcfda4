"""Upload, download and deletion of files, as streams of pieces.

Each piece is written to the file store first, and then recorded in the database. A crash between the two leaves an
orphaned piece, which is deleted with its file; the client continues the upload at the recorded offset. Each piece has
its own hash, so any range of a file can be verified while it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from ojster.core.errors import BackendError, BackendUnavailable, Conflict, InvalidRequest, OjsterError, Unsupported
from ojster.core.ids import new_id
from ojster.core.tenant import NOBODY
from ojster.files import records
from ojster.files.calls import FileCalls
from ojster.files.file import CHUNK_BYTES, LARGEST_FILE, File, HashMismatch, NewFile
from ojster.files.store import FileStore
from ojster.jobs.queries import find_owners
from ojster.jobs.scope import CapabilityService, Scope
from ojster.storage.memory import Local

log = logging.getLogger("ojster")

MAX_FILES_PER_PAGE: Final = 200
"""Maximum number of files in one page."""

_NO_CONTENT: Final[tuple[bytes, ...]] = ()

MAX_REMEMBERED_HASHES: Final = 1_000
"""Maximum number of uploads for which a process remembers the running hash."""


class UploadInterruptedError(Exception):
    """The sender disconnected before the end of the file."""


class FileService(CapabilityService, FileCalls):
    """The files in the tenant scope of a caller.

    Parameters
    ----------
    store:
        File store that holds the bytes; ``None``: every call raises ``Unsupported``.
    """

    def __init__(self, scope: Scope, store: FileStore | None) -> None:
        super().__init__(scope)
        self._known_store = store

    @property
    def has_store(self) -> bool:
        """Whether a file store is configured."""
        return self._known_store is not None

    @property
    def _store(self) -> FileStore:
        self._need_store()
        assert self._known_store is not None
        return self._known_store

    def _need_store(self) -> None:
        if not self.has_store:
            raise Unsupported(
                "No file store is configured. Start the server with --files DIRECTORY or --files s3://BUCKET."
            )

    async def create(self, new: NewFile) -> File:
        """Begin an upload, or return the tenant's complete file with the same hash and size.

        Raises
        ------
        InvalidRequest
            A member of the request is malformed.
        NotFound
            The job does not exist.
        """
        self._need_store()
        if new.job_id is not None:
            await self.scope.check_job(new.job_id)
        creation = records.Creation(self.scope.with_worker(new.check()), self.scope.tenant, self.scope.who)
        return await self.scope.do(records.create_files, creation)

    async def find(self, file_id: str, job_id: str | None = None) -> File:
        """Return a file, complete or partly uploaded.

        Parameters
        ----------
        job_id:
            Job that must belong to the tenant of the file, or to a workspace with which that shares it.

        Raises
        ------
        NotFound
            The file does not exist in this tenant, or the job is not of the file's tenant.
        """
        self._need_store()
        known = await self.scope.look(records.find_files, file_id)
        if not self.scope.sees(known.tenant):
            await self._check_shared(file_id, known.tenant, self.scope.tenant or NOBODY)
        if job_id is not None:
            owners = await self.database.read(find_owners, (job_id,))
            if job_id not in owners:
                raise records.no_file(file_id)
            if owners[job_id][0] != known.tenant:
                await self._check_shared(file_id, known.tenant, owners[job_id][0])
        return known.file

    async def _check_shared(self, file_id: str, owner: str, tenant: str) -> None:
        """Raise ``NotFound`` unless the owner of a file shares it with a workspace inside its own."""
        if not await self.database.read(records.is_file_shared, (file_id, owner, tenant)):
            raise records.no_file(file_id)

    async def select(self, limit: int = 50, before: str | None = None) -> list[File]:
        """Return a page of the tenant's files, newest first.

        Parameters
        ----------
        limit:
            Maximum number of files, at most ``MAX_FILES_PER_PAGE``.
        before:
            Id of a file; only files begun before it are returned.

        Raises
        ------
        InvalidRequest, Unsupported
            The limit is no positive number, or no file store is configured.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("A list of files")
        page = records.FilePage(self.scope.tenant, min(limit, MAX_FILES_PER_PAGE), before)
        self._need_store()
        return await self.scope.look(records.list_files, page)

    async def write(self, file_id: str, offset: int, source: AsyncIterator[bytes]) -> File:
        """Append bytes to an upload, and complete the file if they are its last.

        Parameters
        ----------
        offset:
            Position of the first byte: the number of bytes stored so far.
        source:
            The bytes. If it raises ``UploadInterruptedError``, the bytes received so far are kept.

        Raises
        ------
        NotFound
            The file does not exist.
        Conflict
            The file is complete, or ``offset`` is wrong; the details hold the right ``offset``.
        InvalidRequest
            The file would exceed its size; the pieces stored before are kept.
        HashMismatch
            The content does not match the declared SHA-256; all of it is deleted.
        BackendUnavailable
            The file store is unavailable; the pieces stored before are kept.
        """
        self._need_store()
        file = await self.find(file_id)
        if file.complete:
            raise Conflict(f"File {file_id} is already complete. Upload new content as a new file.", offset=file.offset)
        if offset != file.offset:
            message = f"Offset {offset} is wrong for file {file_id}. Continue at offset {file.offset}."
            raise Conflict(message, offset=file.offset)
        whole = _hashes.of(self.database.memory).take(file_id, offset)
        most = LARGEST_FILE if file.size is None else file.size
        buffer = bytearray()
        is_cut = False
        try:
            async for some in source:
                buffer += some
                if file.offset + len(buffer) > most:
                    raise records.too_long(file, most)
                while len(buffer) >= CHUNK_BYTES:
                    file = await self._append(file, bytes(buffer[:CHUNK_BYTES]), whole)
                    del buffer[:CHUNK_BYTES]
        except UploadInterruptedError:
            is_cut = True
        if buffer:
            file = await self._append(file, bytes(buffer), whole)
        is_all = not is_cut if file.size is None else file.offset == file.size
        if is_all:
            return await self._finish(file, whole)
        _hashes.of(self.database.memory).keep(file_id, file.offset, whole)
        return file

    async def keep(self, content: bytes, new: NewFile) -> File:
        """Store content that is in memory as a file; raises as ``create`` and ``write`` do."""
        sha256 = hashlib.sha256(content).hexdigest()
        declared = NewFile(len(content), sha256, new.content_type, new.filename, new.job_id)
        file = await self.create(declared)
        return file if file.complete else await self.write(file.id, 0, _once(content))

    async def read(self, file_id: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Return the bytes of a complete file from ``start`` to ``end`` (excluded; ``None``: to the end), as a stream.

        The first piece is read and verified before this returns.

        Raises
        ------
        NotFound
            The file does not exist.
        Conflict
            The file is incomplete.
        BackendError, BackendUnavailable
            The file is damaged, or the file store is unavailable; the iterator can raise them too.
        """
        self._need_store()
        file = await self.find(file_id)
        _ = file.ref
        content = self._read(file, start, file.offset if end is None else min(end, file.offset))
        try:
            first = await anext(content)
        except StopAsyncIteration:
            return _nothing()
        return _chained(first, content)

    async def delete(self, file_id: str) -> None:
        """Delete a file that no collection item refers to.

        Raises
        ------
        NotFound
            The file does not exist.
        Conflict
            A collection item refers to it.
        Forbidden
            The caller is limited to certain queues.
        """
        self.scope.need_all_queues("Deleting a file")
        self._need_store()
        await self.scope.do(records.delete_files, records.FileDeletion(file_id, self.scope.tenant))
        await self._erase(file_id)

    async def prune(self) -> int:
        """Delete unreferenced files and idle uploads after ``files.GRACE``; return their number.

        Raises
        ------
        BackendUnavailable
            The file store is unavailable.
        """
        deleted = 0
        while doomed := await self.scope.do(records.forget_files, None):
            erased = 0
            for file_id in doomed:
                try:
                    await self._erase(file_id)
                    erased += 1
                except BackendUnavailable as error:
                    log.warning("file %s could not be deleted and is retried later: %s", file_id, error)
            if not erased:
                raise BackendUnavailable(
                    "The file store refuses all deletions. Check that it is reachable and permits deletion."
                )
            deleted += erased
        return deleted

    async def _erase(self, file_id: str) -> None:
        await self._store.delete_file(file_id)
        await self.scope.do(records.erase_files, file_id)

    async def _append(self, file: File, content: bytes, whole: Any) -> File:
        """Write a piece to the file store, then record it in the database."""
        name = new_id()
        digest, _ = await asyncio.gather(
            asyncio.to_thread(_digest, content, whole), self._store.put(f"{file.id}/{name}", content)
        )
        piece = records.Piece(file.id, file.offset, len(content), digest, name)
        try:
            return await self.scope.do(records.add_pieces, piece)
        except OjsterError as refusal:
            if not refusal.retryable:  # the piece is certainly not recorded
                await self._store.delete(f"{file.id}/{piece.name}")
            raise

    async def _finish(self, file: File, whole: Any) -> File:
        """Complete a file if its hash is right; read the whole file back if this process lost the running hash."""
        if whole is None:
            whole = hashlib.sha256()
            async for content in self._read(file, 0, file.offset):
                await asyncio.to_thread(whole.update, content)
        sha256: str = whole.hexdigest()
        finish = records.Finish(file.id, file.offset, sha256)
        if file.sha256 not in (None, sha256):
            for piece in await self.scope.do(records.reset_uploads, finish):
                await self._store.delete(f"{file.id}/{piece}")
            message = f"File {file.id} has the SHA-256 {sha256}, not the declared {file.sha256}. Upload it again."
            raise HashMismatch(message, expected=file.sha256, found=sha256)
        finished = await self.scope.do(records.finish_files, finish)
        if finished.id != file.id:
            with contextlib.suppress(BackendUnavailable):  # it is marked as doomed, so `prune` deletes it later
                await self._erase(file.id)
        return finished

    async def _read(self, file: File, start: int, end: int) -> AsyncIterator[bytes]:
        for piece in await self.scope.look(records.list_pieces, file.id):
            if piece.start + piece.size <= start:
                continue
            if piece.start >= end:
                return
            content = await self._piece(file, piece)
            yield content[max(0, start - piece.start) : end - piece.start]

    async def _piece(self, file: File, piece: records.Piece) -> bytes:
        """Return a piece of a file after verifying its hash."""
        try:
            content = await self._store.get(f"{file.id}/{piece.name}")
            if await asyncio.to_thread(_digest, content) == piece.sha256:
                return content
            damage = BackendError(
                f"File {file.id} is damaged in the file store. Restore it from a backup, or upload it again.",
                file_id=file.id,
            )
        except BackendUnavailable:
            raise
        except BackendError as missing:
            damage = missing
        log.error("piece %s of file %s cannot be read: %s", piece.name, file.id, damage)
        await self.scope.do(records.distrust, file.id)
        raise damage


class Hashes:
    """Running hashes of this process's uploads, so that a next call need not read the file back."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, Any]] = {}

    def take(self, file_id: str, offset: int) -> Any:
        """Return and forget the running hash of the first ``offset`` bytes of a file; ``None``: not known here."""
        known = self._known.pop(file_id, None)
        if offset == 0:
            return hashlib.sha256()
        return known[1] if known is not None and known[0] == offset else None

    def keep(self, file_id: str, offset: int, whole: Any) -> None:
        """Remember the running hash of the first ``offset`` bytes of a file."""
        if whole is not None:
            self._known[file_id] = (offset, whole)
            while len(self._known) > MAX_REMEMBERED_HASHES:
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
    """Return the start and the end (excluded) that a ``Range`` header asks for; ``None``: the whole file.

    Raises
    ------
    InvalidRequest
        The range is outside the file.
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
        raise InvalidRequest(
            f"The range {text!r:.80} is outside the file, which has {size} bytes. Request a range within it.", size=size
        )
    return first, last


_hashes: Final = Local[Hashes](Hashes)
"""Running hashes of uploads in this process."""

"""Resumable transfer of files to and from the file store.

Files are sent in pieces, and a transfer continues where a cut connection left off. A download is verified against its
SHA-256 before it is returned.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mimetypes
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from ojster.client.interface import Client
from ojster.core.errors import BackendUnavailable, Conflict, NotFound
from ojster.files.file import (
    CHUNK_BYTES,
    JSON,
    MAX_LOADED_RESULT_BYTES,
    OCTET_STREAM,
    File,
    FileRef,
    HashMismatch,
    NewFile,
    may_refer,
    referred_file,
)
from ojster.jobs.messages import Holder

PATIENCE: Final = 8
"""Maximum number of consecutive retries without progress."""

LONGEST_PAUSE: Final = 5.0
"""Maximum delay before a retry, in seconds."""

READ_CHUNK_BYTES: Final = 1 << 20

MAX_UPLOAD_REQUEST_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of one upload request, in bytes."""


async def upload(
    client: Client,
    source: Path | bytes,
    *,
    filename: str | None = None,
    content_type: str | None = None,
    holder: Holder | None = None,
) -> File:
    """Upload a file, unless the workspace has it already; return the complete file.

    Parameters
    ----------
    source:
        The path of the file, or its content.
    filename, content_type:
        Name and media type. By default both are derived from the path; the last resort for the type is
        ``application/octet-stream``.
    holder:
        The job that the file belongs to, and the attempt in which its worker uploads it.

    Raises
    ------
    OSError
        The file cannot be read.
    BackendUnavailable
        The server or its file store is still unreachable after ``PATIENCE`` retries.
    HashMismatch
        The file changed during the upload.
    """
    size, sha256 = await asyncio.to_thread(_measure, source)
    filename = filename or (source.name if isinstance(source, Path) else None)
    kind = content_type or mimetypes.guess_type(filename or "")[0] or OCTET_STREAM
    new = NewFile(size, sha256, kind, filename)
    if holder is not None:
        new = msgspec.structs.replace(new, job_id=holder.job_id, worker_id=holder.worker_id, attempt=holder.attempt)
    file = await client.files.create(new)
    failures = 0
    while not file.complete:
        try:
            before = file.offset
            file = await client.files.write(file.id, before, _pieces_of(source, before, MAX_UPLOAD_REQUEST_BYTES))
            if not file.complete and file.offset == before:
                raise HashMismatch("The file became shorter during the upload. Upload it again.", expected=sha256)
        except (BackendUnavailable, Conflict):
            failures += 1
            if failures > PATIENCE:
                raise
            await _pause(failures)
            file = await _state_of(client, file, new)
            failures = 0 if file.offset > before else failures
    return file


async def _state_of(client: Client, file: File, new: NewFile) -> File:
    """Return the state of an upload, as last known if the server is unreachable; begin again if the file is gone."""
    try:
        return await client.files.find(file.id)
    except BackendUnavailable:
        return file
    except NotFound:  # another client has uploaded the same content meanwhile
        return await client.files.create(new)


async def download(client: Client, file: FileRef, target: Path) -> Path:
    """Download a file to a path, replacing an existing file when the download is complete; return the path.

    If ``target`` is a directory, the file is stored in it under its own name, or its id if it has none.

    Until then, the content is in a hidden file beside the target, from which another call continues.

    Raises
    ------
    OSError
        The target cannot be written.
    NotFound
        The file no longer exists.
    HashMismatch
        The content does not match the SHA-256; it was deleted.
    BackendUnavailable
        The server or its file store is still unreachable after ``PATIENCE`` retries.
    """
    target = _in(target, file)
    part = target.with_name(f".{target.name}.{file.sha256[:16]}.part")
    failures = 0
    with part.open("ab+") as sink:
        size, whole = await asyncio.to_thread(_hash_of, sink)
        while size < file.size:
            before = size
            try:
                async for some in _gathered(await client.files.read(file.id, size)):
                    await asyncio.to_thread(_append, sink, whole, some)
                    size += len(some)
                break
            except BackendUnavailable:
                failures = 1 if size > before else failures + 1
                if failures > PATIENCE:
                    raise
                await _pause(failures)
    sha256 = whole.hexdigest()
    if (size, sha256) != (file.size, file.sha256):
        part.unlink()
        raise HashMismatch(
            f"The file {file.id} has the SHA-256 {file.sha256}, but its download has {sha256}. Try again.",
            expected=file.sha256,
            found=sha256,
        )
    return part.replace(target)


def _in(target: Path, file: FileRef) -> Path:
    return target / (file.filename or file.id) if target.is_dir() else target


async def content_of(client: Client, file: FileRef) -> bytes:
    """Return the content of a file, given its reference. Raises as ``download`` does."""
    content, failures = bytearray(), 0
    while True:
        before = len(content)
        try:
            async for some in await client.files.read(file.id, before):
                content += some
            break
        except BackendUnavailable:
            failures = 1 if len(content) > before else failures + 1
            if failures > PATIENCE:
                raise
            await _pause(failures)
    digest = hashlib.sha256(content).hexdigest()
    if digest != file.sha256:
        message = f"The file {file.id} has the SHA-256 {file.sha256}, but its download has {digest}. Try again."
        raise HashMismatch(message, expected=file.sha256, found=digest)
    return bytes(content)


async def restore(client: Client, value: Any, job_id: str | None = None) -> Any:
    """Return a JSON value with each reference to a result kept as a file replaced by that result.

    A reference stays if its file is incomplete, is not JSON, or is larger than ``MAX_LOADED_RESULT_BYTES`` bytes.

    Parameters
    ----------
    job_id:
        The job that the value belongs to. References to files of other workspaces stay references.
    """
    file_id = referred_file(value)
    if file_id is not None:
        return await _restored(client, file_id, job_id, value)
    if isinstance(value, dict):
        return {name: await restore(client, inner, job_id) for name, inner in value.items()}
    if isinstance(value, list):
        return [await restore(client, inner, job_id) for inner in value]
    return value


async def _restored(client: Client, file_id: str, job_id: str | None, reference: Any) -> Any:
    try:
        file = await client.files.find(file_id, job_id)
    except NotFound:
        return reference
    if not file.complete or file.content_type != JSON or file.offset > MAX_LOADED_RESULT_BYTES:
        return reference
    return _decoded(await content_of(client, file.ref))


async def restore_json(client: Client, raw: bytes, job_id: str) -> bytes:
    """Return JSON text with each reference to a result kept as a file replaced by that result."""
    return msgspec.json.encode(await restore(client, _decoded(raw), job_id)) if may_refer(raw) else raw


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return json.loads(raw)  # a number outside the range of a double


async def _pause(failures: int) -> None:
    await asyncio.sleep(min(0.05 * 2**failures, LONGEST_PAUSE))


async def _gathered(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join small chunks into larger ones, without losing any if the content breaks off."""
    buffer = bytearray()
    try:
        async for some in content:
            buffer += some
            if len(buffer) >= READ_CHUNK_BYTES:
                yield bytes(buffer)
                buffer.clear()
    except BackendUnavailable:
        if buffer:
            yield bytes(buffer)
        raise
    if buffer:
        yield bytes(buffer)


async def _pieces_of(source: Path | bytes, offset: int, most: int) -> AsyncIterator[bytes]:
    """Yield at most ``most`` bytes of a file: a rejection arrives only after they are sent."""
    end = offset + most
    if isinstance(source, bytes):
        for start in range(offset, min(end, len(source)), READ_CHUNK_BYTES):
            yield source[start : min(end, start + READ_CHUNK_BYTES)]
        return
    with source.open("rb") as file:
        file.seek(offset)
        while left := end - file.tell():
            some = await asyncio.to_thread(file.read, min(left, READ_CHUNK_BYTES))
            if not some:
                return
            yield some


def _measure(source: Path | bytes) -> tuple[int, str]:
    """Return the size of a file in bytes, and its SHA-256."""
    if isinstance(source, bytes):
        return len(source), hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        size, whole = _hash_of(file)
    return size, str(whole.hexdigest())


def _hash_of(file: BinaryIO) -> tuple[int, Any]:
    """Return the size of a whole file in bytes, and the hash object of its content."""
    size, whole = 0, hashlib.sha256()
    file.seek(0)
    while some := file.read(CHUNK_BYTES):
        size += len(some)
        whole.update(some)
    return size, whole


def _append(sink: BinaryIO, whole: Any, some: bytes) -> None:
    sink.write(some)
    whole.update(some)

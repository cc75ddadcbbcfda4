"""How do files get from here to the file store, and back? In pieces, going on where a cut connection left off.

What comes back is verified against its SHA-256 before anybody sees it.
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
    CHUNK,
    JSON,
    LARGEST_RESTORED,
    OCTETS,
    File,
    FileRef,
    HashMismatch,
    NewFile,
    may_refer,
    referred_file,
)

PATIENCE: Final = 8
"""How often in a row a transfer is tried again that gets no further."""

LONGEST_PAUSE: Final = 5.0
"""How long to wait at most before that, in seconds."""

READ_AT_ONCE: Final = 1 << 20

SENT_AT_ONCE: Final = 64 * 1024 * 1024
"""How many bytes are sent before the server answers."""


async def upload(
    client: Client,
    source: Path | bytes,
    *,
    filename: str | None = None,
    content_type: str | None = None,
    job_id: str | None = None,
) -> File:
    """Upload a file, unless the workspace has it already; return it, complete.

    Parameters
    ----------
    source:
        Where it is, or what is in it.
    filename, content_type:
        How it is called, and what it is; by default as the path says.
    job_id:
        The job whose it is.

    Raises
    ------
    OSError
        It cannot be read.
    BackendUnavailable
        The server or its file store cannot be reached for a long time.
    HashMismatch
        It changed meanwhile.
    """
    size, sha256 = await asyncio.to_thread(_measure, source)
    filename = filename or (source.name if isinstance(source, Path) else None)
    kind = content_type or mimetypes.guess_type(filename or "")[0] or OCTETS
    new = NewFile(size, sha256, kind, filename, job_id)
    file = await client.create_file(new)
    failures = 0
    while not file.complete:
        try:
            before = file.offset
            file = await client.write_file(file.id, before, _pieces_of(source, before, SENT_AT_ONCE))
            if not file.complete and file.offset == before:
                raise HashMismatch("The file has become shorter while it was uploaded.", expected=sha256)
        except (BackendUnavailable, Conflict):
            failures += 1
            if failures > PATIENCE:
                raise
            await _pause(failures)
            file = await _found(client, file, new)
            failures = 0 if file.offset > before else failures
    return file


async def _found(client: Client, file: File, new: NewFile) -> File:
    """Return how far an upload has come, if that can be known now; where it has vanished, it begins again."""
    try:
        return await client.find_file(file.id)
    except BackendUnavailable:
        return file
    except NotFound:  # somebody has uploaded the same meanwhile
        return await client.create_file(new)


async def download(client: Client, file: FileRef, target: Path) -> Path:
    """Download a file to a path, in the place of what is there once all of it has come; return the path.

    In a directory, it is called as it was.

    What has come is in a hidden file beside it until then, from where another call goes on.

    Raises
    ------
    OSError
        It cannot be written.
    NotFound
        There is no such file any more.
    HashMismatch
        What has come is not what was uploaded; it was thrown away.
    BackendUnavailable
        The server or its file store cannot be reached for a long time.
    """
    target = _in(target, file)
    part = target.with_name(f".{target.name}.{file.sha256[:16]}.part")
    failures = 0
    with part.open("ab+") as sink:
        size, whole = await asyncio.to_thread(_hash_of, sink)
        while size < file.size:
            before = size
            try:
                async for some in _gathered(await client.read_file(file.id, size)):
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
            f"The file {file.id} should have the SHA-256 {file.sha256}, and what has come has {sha256}; try again.",
            expected=file.sha256,
            found=sha256,
        )
    return part.replace(target)


def _in(target: Path, file: FileRef) -> Path:
    return target / (file.filename or file.id) if target.is_dir() else target


async def fetch(client: Client, file_id: str) -> bytes:
    """Return what is in a file; raises as ``download`` does."""
    return await content_of(client, (await client.find_file(file_id)).ref)


async def content_of(client: Client, file: FileRef) -> bytes:
    """Return what is in a file that is known already; raises as ``download`` does."""
    content, failures = bytearray(), 0
    while True:
        before = len(content)
        try:
            async for some in await client.read_file(file.id, before):
                content += some
            break
        except BackendUnavailable:
            failures = 1 if len(content) > before else failures + 1
            if failures > PATIENCE:
                raise
            await _pause(failures)
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        message = f"The file {file.id} should have the SHA-256 {file.sha256}, and what has come has {found}."
        raise HashMismatch(message, expected=file.sha256, found=found)
    return bytes(content)


async def restore(client: Client, value: Any, job_id: str | None = None) -> Any:
    """Return what JSON says, with the results in it that are files in the place of what refers to them.

    Parameters
    ----------
    job_id:
        Whose JSON it is: files of other workspaces than that of this job stay what they are, references.
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
        file = await client.find_file(file_id, job_id)
    except NotFound:
        return reference
    if not file.complete or file.content_type != JSON or file.offset > LARGEST_RESTORED:
        return reference
    return _decoded(await content_of(client, file.ref))


async def restore_json(client: Client, raw: bytes, job_id: str) -> bytes:
    """Return JSON, with the results in it that are files in the place of what refers to them."""
    return msgspec.json.encode(await restore(client, _decoded(raw), job_id)) if may_refer(raw) else raw


def _decoded(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return json.loads(raw)  # a number beyond what a double holds


async def _pause(failures: int) -> None:
    await asyncio.sleep(min(0.05 * 2**failures, LONGEST_PAUSE))


async def _gathered(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Put small pieces together, and lose none if the content breaks off."""
    buffer = bytearray()
    try:
        async for some in content:
            buffer += some
            if len(buffer) >= READ_AT_ONCE:
                yield bytes(buffer)
                buffer.clear()
    except BackendUnavailable:
        if buffer:
            yield bytes(buffer)
        raise
    if buffer:
        yield bytes(buffer)


async def _pieces_of(source: Path | bytes, offset: int, most: int) -> AsyncIterator[bytes]:
    """The next bytes of a file, so many at most: a refusal is heard of only when they are sent."""
    end = offset + most
    if isinstance(source, bytes):
        for start in range(offset, min(end, len(source)), READ_AT_ONCE):
            yield source[start : min(end, start + READ_AT_ONCE)]
        return
    with source.open("rb") as file:
        file.seek(offset)
        while left := end - file.tell():
            some = await asyncio.to_thread(file.read, min(left, READ_AT_ONCE))
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
    """Return the size of a file, from its beginning to its end, and the hash of what is in it."""
    size, whole = 0, hashlib.sha256()
    file.seek(0)
    while some := file.read(CHUNK):
        size += len(some)
        whole.update(some)
    return size, whole


def _append(sink: BinaryIO, whole: Any, some: bytes) -> None:
    sink.write(some)
    whole.update(some)

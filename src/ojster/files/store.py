"""The file store interface, and its implementations in a directory and in memory.

Files are stored in pieces of some megabytes. Each piece has its own name, is written once as a whole, and is read as a
whole. The database holds the metadata of files and pieces, including their hashes: see ``ojster.files.service``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ojster.core.errors import BackendError, BackendUnavailable


class FileStore(Protocol):
    """A store for pieces of files. The name of a piece is ``FILE/PIECE``; Ojster generates both parts."""

    async def put(self, name: str, piece: bytes) -> None:
        """Store a piece durably: when this returns, it survives a crash.

        Raises
        ------
        BackendUnavailable
            The piece cannot be stored.
        """

    async def get(self, name: str) -> bytes:
        """Return a piece.

        Raises
        ------
        BackendError
            The piece is missing.
        BackendUnavailable
            The piece cannot be read now.
        """

    async def delete(self, name: str) -> None:
        """Delete a piece, if it exists; raises as ``put`` does."""

    async def delete_file(self, file_id: str) -> None:
        """Delete all pieces of a file, including those missing from the database; raises as ``put`` does."""


def missing(name: str) -> BackendError:
    """Return the error for a missing piece."""
    return BackendError(f"The piece {name} of a file is missing in the file store. Restore the file store.")


class DirectoryStore:
    """A file store in a directory, created with the first file. All servers must share the directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def put(self, name: str, piece: bytes) -> None:
        """Store a piece."""
        await self._try(self._put, self.root / name, piece)

    async def get(self, name: str) -> bytes:
        """Return a piece."""
        try:
            return await asyncio.to_thread((self.root / name).read_bytes)
        except FileNotFoundError:
            raise missing(name) from None
        except OSError as error:
            raise _unavailable(error) from None

    async def delete(self, name: str) -> None:
        """Delete a piece."""
        await self._try(lambda: (self.root / name).unlink(missing_ok=True))

    async def delete_file(self, file_id: str) -> None:
        """Delete all pieces of a file."""
        directory = self.root / file_id
        await self._try(partial(shutil.rmtree, directory, onerror=_ignore_missing))

    async def _try(self, action: Callable[..., object], *args: object) -> None:
        try:
            await asyncio.to_thread(action, *args)
        except OSError as error:
            raise _unavailable(error) from None

    @staticmethod
    def _put(path: Path, piece: bytes) -> None:
        """Write a file atomically and durably; only its owner can read it."""
        if not path.parent.exists():
            path.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.mkdir(exist_ok=True, mode=0o700)
            _sync(path.parent.parent)
        unfinished = path.with_suffix(".part")
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:  # such as a full disk: what was written takes room that is needed
            unfinished.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def _ignore_missing(function: object, path: str, error: Any) -> None:
    """Ignore files that are already deleted: another server may delete the same directory."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _sync(directory: Path) -> None:
    """Flush the entries of a directory to disk, so that new files in it survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unavailable(error: OSError) -> BackendUnavailable:
    return BackendUnavailable(f"The file store failed: {error.strerror or error}.")


class MemoryStore:
    """A file store in the memory of this process, for in-memory databases."""

    def __init__(self) -> None:
        self._pieces: dict[str, bytes] = {}

    async def put(self, name: str, piece: bytes) -> None:
        """Store a piece."""
        self._pieces[name] = piece

    async def get(self, name: str) -> bytes:
        """Return a piece."""
        if name not in self._pieces:
            raise missing(name)
        return self._pieces[name]

    async def delete(self, name: str) -> None:
        """Delete a piece."""
        self._pieces.pop(name, None)

    async def delete_file(self, file_id: str) -> None:
        """Delete all pieces of a file."""
        for name in [name for name in self._pieces if name.startswith(f"{file_id}/")]:
            del self._pieces[name]

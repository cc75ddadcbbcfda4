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
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from ojster.core.errors import BackendError, BackendUnavailable, InvalidRequest

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""URL schemes of object stores."""


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


def open_store(where: str) -> FileStore:
    """Return the store at a path or URL: ``file:///srv/files``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``.

    Credentials and endpoints come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, …).

    Raises
    ------
    InvalidRequest
        The URL is unsupported or invalid, or the extra ``files`` is not installed.
    """
    scheme, separator, _ = where.partition("://")
    if not separator:
        return DirectoryStore(Path(where))
    if scheme == "file":
        return DirectoryStore(Path(unquote(urlsplit(where).path)))
    if scheme == "memory":
        return MemoryStore()
    if scheme not in SCHEMES:
        raise InvalidRequest(f"Unknown file store scheme {scheme!r}. Use a directory or one of {', '.join(SCHEMES)}.")
    try:
        from ojster.files.object_store import ObjectStore
    except ModuleNotFoundError:
        raise InvalidRequest(f"File stores at {scheme}:// need an extra. Run: pip install 'ojster[files]'.") from None
    return ObjectStore(where)


class DirectoryStore:
    """A file store in a directory, created with the first file. All servers must share the directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, name: str, piece: bytes) -> None:
        """Store a piece."""
        await self._try(self._put, self._root / name, piece)

    async def get(self, name: str) -> bytes:
        """Return a piece."""
        try:
            return await asyncio.to_thread((self._root / name).read_bytes)
        except FileNotFoundError:
            raise missing(name) from None
        except OSError as error:
            raise _unavailable(error) from None

    async def delete(self, name: str) -> None:
        """Delete a piece."""
        await self._try(lambda: (self._root / name).unlink(missing_ok=True))

    async def delete_file(self, file_id: str) -> None:
        """Delete all pieces of a file."""
        directory = self._root / file_id
        await self._try(partial(shutil.rmtree, directory, onerror=_ignore_missing))

    async def _try(self, action: Callable[..., object], *args: object) -> None:
        try:
            await asyncio.to_thread(action, *args)
        except OSError as error:
            raise _unavailable(error) from None

    @staticmethod
    def _put(path: Path, piece: bytes) -> None:
        """Write a file atomically and durably."""
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _sync(path.parent.parent)
        unfinished = path.with_suffix(".part")
        with unfinished.open("wb") as file:
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync(path.parent)


def _ignore_missing(function: object, path: str, found: Any) -> None:
    """Ignore files that are already deleted: another server may delete the same directory."""
    if not isinstance(found[1], FileNotFoundError):
        raise found[1]


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


FILES_VARIABLE: Final = "OJSTER_FILES"
"""Environment variable with the default path or URL of the file store."""

_SQLITE: Final = "sqlite:///"


def store_for(database_url: str, where: str | None = None) -> FileStore | None:
    """Return the file store of a database, or ``None`` if it has none.

    Parameters
    ----------
    where:
        Path or URL of the store. The default is ``OJSTER_FILES``; without that, a SQLite database uses a directory
        beside its file, or memory if it is in memory, and other databases have no store.

    Raises
    ------
    InvalidRequest
        ``where`` is not the path or URL of a store.
    """
    where = where or os.environ.get(FILES_VARIABLE)
    if where:
        return open_store(where)
    if not database_url.startswith(_SQLITE):
        return None
    path = unquote(database_url.removeprefix(_SQLITE))
    return MemoryStore() if path == ":memory:" else DirectoryStore(Path(f"{path}-files"))

"""What must a place be able to do in which the bytes of files are kept? Little, so that many places will do.

Files are stored in pieces of some megabytes, each of which is written once, as a whole, under a name of its own, and
read as a whole. What is known of files and pieces, their hashes too, is in the database: see
``ojster.files.streams``.
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
"""How the URLs of object stores begin."""


class FileStore(Protocol):
    """A place for pieces of files. Names of pieces are ``FILE/PIECE``, both made by this program."""

    async def put(self, name: str, piece: bytes) -> None:
        """Keep a piece; when this returns it survives a crash.

        Raises
        ------
        BackendUnavailable
            That failed.
        """

    async def get(self, name: str) -> bytes:
        """Return a piece.

        Raises
        ------
        BackendError
            It is not there.
        BackendUnavailable
            It cannot be read now.
        """

    async def delete(self, name: str) -> None:
        """Delete a piece, if it is there; raises as ``put`` does."""

    async def delete_file(self, file_id: str) -> None:
        """Delete all pieces of a file, those of which the database knows nothing too; raises as ``put`` does."""


def missing(name: str) -> BackendError:
    """Return the error for a piece that should be there, and is not."""
    return BackendError(f"The piece {name} of a file is missing in the file store.")


def open_store(where: str) -> FileStore:
    """Return the store at a path, or of a URL: ``file:///srv/files``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``.

    Credentials and the like come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, …).

    Raises
    ------
    InvalidRequest
        It is no such URL, or the extra ``files`` is not installed.
    """
    scheme, separator, _ = where.partition("://")
    if not separator:
        return DirectoryStore(Path(where))
    if scheme == "file":
        return DirectoryStore(Path(unquote(urlsplit(where).path)))
    if scheme == "memory":
        return MemoryStore()
    if scheme not in SCHEMES:
        raise InvalidRequest(f"Files can be kept in a directory, or at {', '.join(SCHEMES)}, not at {scheme!r}.")
    try:
        from ojster.files.object_store import ObjectStore
    except ModuleNotFoundError:
        raise InvalidRequest(f"For files at {scheme}:// install the extra: pip install 'ojster[files]'.") from None
    return ObjectStore(where)


class DirectoryStore:
    """A directory of this machine, which is made when the first file comes. All servers must see the same."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, name: str, piece: bytes) -> None:
        """Keep a piece."""
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
        await self._try(partial(shutil.rmtree, directory, onerror=_unless_gone))

    async def _try(self, action: Callable[..., object], *args: object) -> None:
        try:
            await asyncio.to_thread(action, *args)
        except OSError as error:
            raise _unavailable(error) from None

    @staticmethod
    def _put(path: Path, piece: bytes) -> None:
        """Write a file so that it is there as a whole or not at all, also after a crash."""
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


def _unless_gone(function: object, path: str, found: Any) -> None:
    """Go on with deleting if what is to be deleted is gone already: another server may be at it."""
    if not isinstance(found[1], FileNotFoundError):
        raise found[1]


def _sync(directory: Path) -> None:
    """Let what was made in a directory survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unavailable(error: OSError) -> BackendUnavailable:
    return BackendUnavailable(f"The file store failed: {error.strerror or error}.")


class MemoryStore:
    """The memory of this process, for databases that are in it too."""

    def __init__(self) -> None:
        self._pieces: dict[str, bytes] = {}

    async def put(self, name: str, piece: bytes) -> None:
        """Keep a piece."""
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


VARIABLE: Final = "OJSTER_FILES"
"""Says where files are kept, if nothing else does."""

_SQLITE: Final = "sqlite:///"


def store_for(database_url: str, where: str | None = None) -> FileStore | None:
    """Return where the files of a database are kept: where somebody says, or beside it; ``None``: nowhere.

    Raises
    ------
    InvalidRequest
        What is said is no such place.
    """
    where = where or os.environ.get(VARIABLE)
    if where:
        return open_store(where)
    if not database_url.startswith(_SQLITE):
        return None
    path = unquote(database_url.removeprefix(_SQLITE))
    return MemoryStore() if path == ":memory:" else DirectoryStore(Path(f"{path}-files"))

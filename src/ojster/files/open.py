"""Opening the file store that a path or a URL names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from ojster.core.errors import InvalidRequest
from ojster.files.store import DirectoryStore, FileStore, MemoryStore
from ojster.storage.database import SQLITE, sqlite_path

SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""URL schemes of object stores."""


def open_store(where: str) -> FileStore:
    """Return the store at a path or URL: ``file:///srv/files``, ``s3://bucket/prefix``, ``gs://…``, ``az://…``.

    Credentials and endpoints come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, …).

    Raises
    ------
    InvalidRequest
        The URL is unsupported or invalid, the path is no directory, or the extra ``files`` is not installed.
    """
    scheme, separator, _ = where.partition("://")
    if not separator:
        return _directory(Path(where))
    if scheme == "file":
        return _directory(Path(unquote(urlsplit(where).path)))
    if scheme == "memory":
        return MemoryStore()
    if scheme not in SCHEMES:
        raise InvalidRequest(f"Unknown file store scheme {scheme!r}. Use a directory or one of {', '.join(SCHEMES)}.")
    try:
        from ojster.files.object_store import ObjectStore
    except ModuleNotFoundError:
        raise InvalidRequest(f"File stores at {scheme}:// need an extra. Run: pip install 'ojster[files]'.") from None
    return ObjectStore(where)


def _directory(path: Path) -> DirectoryStore:
    if path.exists() and not path.is_dir():
        raise InvalidRequest(f"The file store {path} is no directory. Name one, or one that does not exist yet.")
    return DirectoryStore(path)


FILES_VARIABLE: Final = "OJSTER_FILES"
"""Environment variable with the default path or URL of the file store."""


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
    if not database_url.startswith(SQLITE):
        return None
    path = sqlite_path(database_url)
    return MemoryStore() if path == ":memory:" else DirectoryStore(Path(f"{path}-files"))

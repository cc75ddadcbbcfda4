"""The files of a SQLite database, which must stay those that its connections have open.

SQLite finds the write-ahead log, and the shared memory with the locks, by the name of the database file. Processes that
have different ones do not see each other's commits, and overwrite them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import apsw

from ojster.core.errors import BackendUnavailable

BESIDE: Final = ("-wal", "-shm")
"""Endings of the files that SQLite keeps beside the database file while it is open."""

_Identity = tuple[int, int] | None
"""Device and number of a file; ``None`` if there is none."""


class OpenFiles:
    """The database file and those beside it, as they were when a connection was opened.

    Parameters
    ----------
    path:
        The database file, without symbolic links.

    Raises
    ------
    BackendUnavailable
        The file has two names (hard links), so that other processes may use other files beside it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = _identity(path)
        self._beside: dict[str, _Identity] = {}
        refuse_second_name(Path(path))

    def note_beside(self, connection: apsw.Connection) -> None:
        """Note the files beside the database file, which the connection opens when it first reads."""
        connection.execute("PRAGMA user_version").fetchall()
        self._beside = {self._path + ending: _identity(self._path + ending) for ending in BESIDE}

    def check(self) -> None:
        """Raise ``BackendUnavailable`` if one of the names leads to another file, or to none.

        SQLite itself looks at the database file only if it does not use a write-ahead log, and never at the others.
        """
        if _identity(self._path) != self._file:
            raise BackendUnavailable(
                f"The database file {self._path} was moved, removed or replaced after this process had opened it. "
                "Put it back, or restart the process to use what is there now."
            )
        for path, identity in self._beside.items():
            if _identity(path) != identity:
                raise BackendUnavailable(
                    f"The file {path} was removed or replaced while this process used it. Stop all processes on the "
                    f"database with SIGTERM before you start any: the last one saves the newest jobs in {self._path}."
                )


def refuse_second_name(path: Path) -> None:
    """Raise ``BackendUnavailable`` if a database file has several names (hard links)."""
    if path.is_file() and path.stat().st_nlink > 1:
        raise BackendUnavailable(
            f"The database file {path} has several names (hard links). SQLite keeps a log for each, which loses jobs. "
            f"Remove the others ('find DIRECTORY -samefile {path}' shows them), or use a copy."
        )


def _identity(path: str) -> _Identity:
    try:
        # A link that was put in the place of the file leads to other files beside it.
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino

"""Worker identity that survives restarts: a locked file, so that no two workers share it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

from ojster.core.ids import new_id

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error

else:
    import fcntl

    def _lock(file: int) -> None:
        # The lock ends with the process, however that ends, so that a worker can start again with its identity at once.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_ID: Final = re.compile(r"[A-Za-z0-9_.\-]{1,200}")


class IdentityTaken(Exception):
    """Another running worker uses the file, or the file does not contain an identity."""


class Identity:
    """A worker identity stored in a file, which is locked until this object is closed.

    Parameters
    ----------
    path:
        The file. If it is missing or empty, it gets a new identity.

    Raises
    ------
    IdentityTaken
        Another running worker uses the file, or it contains something else.
    OSError
        The file cannot be read or created.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # no child process inherits it
        try:
            _lock(self._file)
            stored = os.read(self._file, 1_000).decode(errors="replace").strip()
            if stored and not _ID.fullmatch(stored):
                raise IdentityTaken(f"{path} contains {stored[:40]!r}, not a worker id. Use another file.")
            self.id = stored or f"worker_{new_id()}"
            if not stored:
                os.write(self._file, f"{self.id}\n".encode())
                os.fsync(self._file)
        except BlockingIOError:
            os.close(self._file)
            raise IdentityTaken(f"Another worker runs with the identity in {path}. Use another file.") from None
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Release the identity, so that another worker can use it."""
        os.close(self._file)

"""Worker identity that survives restarts: a locked file, so that no two workers share it."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import Final

from ojster.core.ids import new_id

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
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.read(self._file, 1_000).decode(errors="replace").strip()
            if found and not _ID.fullmatch(found):
                raise IdentityTaken(f"{path} contains {found[:40]!r}, not a worker id. Use another file.")
            self.id = found or f"worker_{new_id()}"
            if not found:
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

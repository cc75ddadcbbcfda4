"""Who is this worker, after it was restarted? A file says so, and is locked, so that no two are the same. (seed 002)"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import Final

from ojster.core.ids import new_id

_ID: Final = re.compile(r"[A-Za-z0-9_.\-]{1,200}")


class IdentityTaken(Exception):
    """Another worker, which runs, has the file; or it holds something that is no identity."""


class Identity:
    """An identity that is kept in a file, for as long as this object is open.

    Parameters
    ----------
    path:
        The file. If there is none, it is made, with a new identity.

    Raises
    ------
    IdentityTaken
        Another worker runs with it, or the file holds something else.
    OSError
        The file cannot be read or made.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.read(self._file, 1_000).decode(errors="replace").strip()
            if found and not _ID.fullmatch(found):
                raise IdentityTaken(f"{path} holds no identity of a worker, but {found[:40]!r}.")
            self.id = found or f"worker_{new_id()}"
            if not found:
                os.write(self._file, f"{self.id}\n".encode())
                os.fsync(self._file)
        except BlockingIOError:
            os.close(self._file)
            raise IdentityTaken(f"Another worker runs with the identity in {path}.") from None
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        """Let others have the identity."""
        os.close(self._file)

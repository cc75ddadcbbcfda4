"""Waiting for the lock of a SQLite file that another process holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import apsw

from ojster.storage.sqlite.lane import forks

log = logging.getLogger(__name__)

BUSY_TIMEOUT: Final = 30_000
"""Maximum wait for another process that writes to the same file, in milliseconds."""

OUTAGE_SECONDS: Final = 0.1
"""Wait for the lock, in seconds, from which on it counts as an outage: others may have waited for longer."""

MAX_PAUSE_SECONDS: Final = 0.05
"""Maximum pause before the lock is tried again, in seconds; the first is 1 ms."""

LOG_SECONDS: Final = 5.0
"""Time between two lines of the log about one wait, in seconds."""

FIRST_PROBE_SECONDS: Final = 0.2
"""First pause between two tries of ``wait_until_unlocked``, in seconds; each further one is twice as long."""

MAX_PROBE_SECONDS: Final = 2.0
"""Maximum pause between two tries of ``wait_until_unlocked``, in seconds."""


class LockWait:
    """The busy handler of one connection: it waits for the lock, says so in the log, and notes an outage.

    Parameters
    ----------
    path:
        The database file.
    on_outage:
        Called, possibly several times, if a wait is so long that leases may have ended meanwhile.
    """

    def __init__(self, path: str, on_outage: Callable[[], None]) -> None:
        self._path = path
        self._on_outage = on_outage
        self._began = self._logged = 0.0

    def __call__(self, tries: int) -> bool:
        """Pause, and return whether to try again. ``tries``: the number of tries since the wait began."""
        now = time.monotonic()
        if tries == 0:
            self._began = self._logged = now
        waited = now - self._began
        if waited >= OUTAGE_SECONDS:
            self._on_outage()
        if waited * 1000 >= BUSY_TIMEOUT or forks.is_wanted:
            return False
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.warning(
                "waiting for the database file %s: another process has locked it for %.0f s", self._path, waited
            )
        time.sleep(min(MAX_PAUSE_SECONDS, 0.001 * 2 ** min(tries, 10)))
        return True


def wait_until_unlocked(path: Path, seconds: float) -> None:
    """Wait until a database file can be written, and log why it cannot yet.

    It returns at once if waiting would not help, such as for a file that does not exist.

    Parameters
    ----------
    seconds:
        How long to wait at most, in seconds. Then it returns, too; whoever writes next waits again or gets the error.
    """
    deadline = time.monotonic() + seconds
    pause = FIRST_PROBE_SECONDS
    while path.is_file():
        try:
            with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
                # SQLite has no question for this: take the lock for writing, and give it back.
                connection.execute("BEGIN IMMEDIATE; ROLLBACK")
            return
        except apsw.BusyError:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            log.warning(
                "waiting for the database file %s, for %.0f s at most: another process has locked it", path, left
            )
            time.sleep(min(pause, left))
            pause = min(pause * 2, MAX_PROBE_SECONDS)
        except apsw.Error:  # opening the database says what is wrong
            return

"""Room on the disk: new jobs are refused before it is full, so that work can end and finished jobs can be deleted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import apsw

from ojster.core.errors import BackendUnavailable

PAGE_BYTES: Final = 4096
"""Size of a page of the file, in bytes."""

RESERVE_BYTES: Final = 64 << 20
"""Free space that new jobs leave on the disk, in bytes: for acknowledgements, deletions and the write-ahead log."""

RESERVE_SHARE: Final = 0.05
"""The same as a share of the disk, which counts if it is less."""


class Room:
    """The room that a database file has to grow.

    Parameters
    ----------
    folder:
        The folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.log_pages = 0
        """Pages in the write-ahead log, each of which the file may still have to take up."""

    def refusal(self, connection: apsw.Connection) -> BackendUnavailable | None:
        """Return why the file must not grow, or ``None`` if it may. Pages that it does not use count as free."""
        disk = os.statvfs(self._folder)
        reserve = int(min(RESERVE_BYTES, RESERVE_SHARE * disk.f_blocks * disk.f_frsize))
        if not reserve:
            return None  # the file system does not say how large it is
        free = disk.f_bavail * disk.f_frsize - self.log_pages * PAGE_BYTES
        if free >= reserve:
            return None
        unused = connection.pragma("freelist_count")
        if free + int(unused) * PAGE_BYTES >= reserve:
            return None
        return BackendUnavailable(
            f"The disk of {self._folder} is almost full: {max(0, free) // 1024:,} KiB are free, and new jobs leave "
            f"{reserve // 1024:,} KiB. Delete finished jobs ('ojster jobs delete'), or make room on the disk."
        )

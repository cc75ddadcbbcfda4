"""A clock that does not jump, for the processes that share a SQLite file.

Leases and delays end too early or too late if somebody sets the machine's clock. ``SteadyClock`` counts the time since
the machine was started, which nobody can set, and follows the machine's clock slowly: by 100 ms a second at most. All
processes on a file follow it in the same way: what the first of them notices, the others read from a small file in the
temporary folder in which they meet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakSet

from ojster.core.timestamps import system_clock
from ojster.storage.sqlite.notifier import meeting_place

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

SLOWNESS: Final = 10
"""Microseconds that pass while the clock gains or loses one."""

JUMP_US: Final = 1_000_000
"""Smallest change of the machine's clock that counts as a jump, in microseconds."""

_CHECK_US: Final = 250_000
"""Minimum time between two looks at the machine's clock, in microseconds."""

_DRIFT_US: Final = 100_000
"""Drift of the machine's clock after which the shared course is written again, in microseconds."""

_FORMAT: Final = struct.Struct("<qqq")


def since_boot() -> int:
    """Return the time since the machine was started, in microseconds; on Linux with the time it slept."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
    return time.monotonic_ns() // 1_000


class _Course(NamedTuple):
    """How far the clock is ahead of the time since boot: ``offset`` at the time ``since``, on its way to ``goal``."""

    offset: int
    since: int
    goal: int

    def at(self, now: int) -> int:
        """Return the offset at a time since boot."""
        way = self.goal - self.offset
        if not way:
            return self.goal
        done = max(0, now - self.since) // SLOWNESS
        return self.goal if done >= abs(way) else self.offset + (done if way > 0 else -done)


def clock_file(path: Path) -> Path:
    """Return the file in which the processes on a database file share the course of their clock."""
    return meeting_place(path).with_suffix(".clock")


class SteadyClock:
    """The time in microseconds since the epoch. It never goes back, and a second of it takes 0.9 to 1.1 seconds.

    Parameters
    ----------
    path:
        File in which the processes of one database share the course of the clock; ``None``, the default: this process
        is alone. The first one to open the file starts with the machine's clock.
    machine, steady:
        The machine's clock and the time since it was started, in microseconds, for tests.
    """

    def __init__(
        self,
        path: Path | None = None,
        machine: Callable[[], int] = system_clock,
        steady: Callable[[], int] = since_boot,
    ) -> None:
        self._machine = machine
        self._steady = steady
        self._path = path
        self._checked = now = steady()
        ahead = machine() - now
        self._course = self._written = _Course(ahead, now, ahead)
        self._file: int | None = None
        if path is not None:
            self._file, is_first = _open_shared(path)
            _open_clocks.add(self)
            if not is_first and (theirs := self._read()) is not None:
                self._course = theirs
                self._follow(now)
            self._write()

    def __call__(self) -> int:
        now = self._steady()
        if now - self._checked >= _CHECK_US:
            self._checked = now
            self._follow(now)
        return now + self._course.at(now)

    @property
    def behind(self) -> float:
        """How far this clock still is behind the machine's, in seconds; negative if it is ahead."""
        return (self._machine() - self()) / 1e6

    def close(self) -> None:
        """Leave the file to the other processes; the last one removes it."""
        if self._file is None or self._path is None:
            return
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while others have it
            self._path.unlink()
        os.close(file)

    def leave_to_parent(self) -> None:
        """Close the file in a forked child, which would keep the lock after the end of its parent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _follow(self, now: int) -> None:
        """Make the machine's clock the goal."""
        ahead = self._machine() - now
        moved = ahead - self._course.goal
        if abs(moved) < JUMP_US:
            self._course = _Course(self._course.at(now), now, ahead)
            if abs(ahead - self._written.goal) >= _DRIFT_US:
                self._write()
            return
        theirs = self._read()
        if theirs is not None and abs(ahead - theirs.goal) < JUMP_US:  # another process has noticed it before
            self._course = self._written = theirs
            return
        self._course = _Course(self._course.at(now), now, ahead)
        self._write()
        log.warning(
            "the machine's clock was set %s by %.1f s; jobs follow it by 100 ms a second, so that leases last. "
            "Restart all processes on the database file to follow it at once",
            "forward" if moved > 0 else "back",
            abs(moved) / 1e6,
        )

    def _read(self) -> _Course | None:
        if (file := self._file) is None:
            return None
        stored = os.pread(file, _FORMAT.size, 0)
        return _Course(*_FORMAT.unpack(stored)) if len(stored) == _FORMAT.size else None

    def _write(self) -> None:
        self._written = self._course
        if (file := self._file) is not None:
            os.pwrite(file, _FORMAT.pack(*self._course), 0)


_open_clocks: Final = WeakSet[SteadyClock]()


def _leave_to_parent() -> None:
    for clock in list(_open_clocks):
        clock.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def _open_shared(path: Path) -> tuple[int, bool]:
    """Open the file, with a lock that lasts until it is closed; also return whether no other process has it open."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Only the first process gets it alone. The system releases the locks of a process that is killed, unlike a
            # mark in the file.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)  # of processes that have ended without closing it
            is_first = True
        except BlockingIOError:
            is_first = False
        # Shared by all that follow this clock, so that the last one knows that it is the last.
        fcntl.flock(file, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(file).st_ino:
                return file, is_first
        os.close(file)  # the last process has just removed it

"""Connections to a SQLite file that are closed while the process forks.

SQLite must not be carried across a fork: its library keeps locks of its own, and counts in memory which locks of a file
the process holds. A child that was forked during a transaction would wait for it for ever. So before a fork, each
thread ends its transaction and its connection is closed; in the parent, the next transaction opens it again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar
from weakref import WeakSet

import apsw

R = TypeVar("R")


class _Forks:
    """The forks of this process, one at a time, and the lanes that make way for them."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew in a forked child, which has no lanes and none of the threads that might hold a lock."""
        self.lock = threading.Lock()
        self.lanes: WeakSet[Lane] = WeakSet()
        self._paused: list[Lane] = []
        self.is_wanted = False
        self._none_is_wanted = threading.Event()
        self._none_is_wanted.set()

    def begin(self) -> None:
        """Wait until no transaction runs, and close all connections. Called before a fork, in the thread that forks."""
        self.lock.acquire()
        self._none_is_wanted.clear()
        self.is_wanted = True  # ends the waits for a locked file
        for lane in list(self.lanes):
            self._paused.append(lane)
            lane.pause()

    def end(self) -> None:
        """Let transactions begin. Called after a fork, in the parent."""
        while self._paused:
            self._paused.pop().go_on()
        self.is_wanted = False
        self._none_is_wanted.set()
        self.lock.release()

    def let_pass(self) -> None:
        """Wait for the end of a fork that is wanted, which would otherwise wait for one transaction after the other."""
        if self.is_wanted:
            self._none_is_wanted.wait()


forks: Final = _Forks()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forks.begin, after_in_parent=forks.end, after_in_child=forks.renew)


class Lane:
    """The connection of one thread, which is opened when it is first used, and again after a fork.

    Parameters
    ----------
    connect:
        Opens the connection.
    closes:
        Whether a fork closes it; not that of a database in memory, which would be lost.
    """

    def __init__(self, connect: Callable[[], apsw.Connection], *, closes: bool = True) -> None:
        self._connect = connect
        self._closes = closes
        self._connection: apsw.Connection | None = None
        # Held while SQLite's library runs: a fork waits for it, so that the child inherits no lock that is held.
        self._lock = threading.Lock()
        with forks.lock:
            forks.lanes.add(self)

    @contextmanager
    def begun(self, statement: str) -> Iterator[apsw.Connection]:
        """Return the connection, with a transaction that ``statement`` begins, while the block runs."""

        def begin(connection: apsw.Connection) -> apsw.Connection:
            connection.execute(statement)
            return connection

        connection = self._enter(begin)
        try:
            yield connection
        finally:
            self._lock.release()

    def run(self, use: Callable[[apsw.Connection], R]) -> R:
        """Call a function with the connection. If it waits for a lock of the file, a fork makes it run again."""
        result = self._enter(use)
        self._lock.release()
        return result

    def _enter(self, first: Callable[[apsw.Connection], R]) -> R:
        """Lock the lane and call a function with the connection; keep the lock unless that fails."""
        while True:
            forks.let_pass()
            self._lock.acquire()
            try:
                if self._connection is None:
                    self._connection = self._connect()
                return first(self._connection)
            except BaseException as error:
                is_busy = isinstance(error, apsw.BusyError) or isinstance(error.__cause__, apsw.BusyError)
                makes_way = is_busy and forks.is_wanted  # asked before the release, with which the fork may be over
                self._lock.release()
                if not makes_way:
                    raise

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def pause(self) -> None:
        """Wait for the end of the transaction, and close the connection; ``go_on`` must follow."""
        self._lock.acquire()
        if self._connection is not None and self._closes:
            # The last connection would otherwise copy the log into the file, which may take long.
            connection, self._connection = self._connection, None
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()

    def go_on(self) -> None:
        """Let transactions begin again."""
        self._lock.release()

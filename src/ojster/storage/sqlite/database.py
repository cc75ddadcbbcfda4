"""The SQLite database: one writer thread with group commit, one reader thread, and background checkpoints."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import apsw

from ojster.core.errors import BackendUnavailable
from ojster.core.settings import ServiceSettings
from ojster.core.timestamps import system_clock
from ojster.storage.database import Database, topics_of
from ojster.storage.dispatcher import Dispatcher
from ojster.storage.sqlite.clock import SteadyClock, clock_file
from ojster.storage.sqlite.disk_space import Room
from ojster.storage.sqlite.lane import Lane, forks
from ojster.storage.sqlite.lock import BUSY_TIMEOUT, LockWait
from ojster.storage.sqlite.notifier import SocketNotifier
from ojster.storage.sqlite.open_files import OpenFiles
from ojster.storage.sqlite.schema import create_in_memory, migrate
from ojster.storage.sqlite.settings_watch import SettingsWatch, mark_change
from ojster.storage.sqlite.statements import STATEMENTS, plan_once
from ojster.storage.sqlite.transaction import SqliteTransaction
from ojster.storage.transaction import Transaction

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")

_UNUSABLE: Final = (
    apsw.BusyError,
    apsw.LockedError,
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.NotADBError,
)
"""Errors of the file or the disk, not of a call."""

CHECKPOINT_PAGES: Final = 4_000
"""Size of the write-ahead log, in pages, from which on each commit starts a background checkpoint."""

MAX_LOG_PAGES: Final = 16_000
"""Size of the write-ahead log, in pages, above which the writer runs a checkpoint itself. This bounds the log under a
load that leaves background checkpoints no pause."""

CACHE_KIB: Final = 32 * 1024
"""Maximum page cache of each connection, in KiB."""


class SqliteDatabase(Database):
    """Jobs in a SQLite file, or in memory (``:memory:``).

    Several processes may share one file. They send each other wake-ups (``SocketNotifier``).
    """

    kind = "sqlite"

    def __init__(
        self, path: str, settings: ServiceSettings, clock: Callable[[], int] | None = None, synchronous: str = "FULL"
    ) -> None:
        super().__init__(settings, clock or system_clock)
        self._steadies_clock = clock is None
        self._steady_clock: SteadyClock | None = None
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self._in_memory = path == ":memory:"
        # Connections are also opened later, when the working directory, or a link in the path, may be another.
        self.path = path if self._in_memory else os.path.realpath(path)
        self._synchronous = synchronous
        self._room = None if self._in_memory else Room(Path(self.path).parent)
        self._lanes: list[Lane] = []
        self._files = WeakKeyDictionary[apsw.Connection, OpenFiles]()
        self._files_lock = threading.Lock()
        self._callers: Lane | None = None
        self._settings_watch = SettingsWatch(self.memory)
        self._checkpoint_wanted = threading.Event()
        self._checkpointing = threading.Lock()
        self._closing = False
        self._log_pages = 0

    def open(self) -> None:
        if not self._in_memory:
            _create(Path(self.path))
        writer = self._lane(self._connect_writer)
        writer.run(lambda connection: None)
        if self._steadies_clock:
            self.clock = self._steady_clock = SteadyClock(None if self._in_memory else clock_file(Path(self.path)))
        try:
            self.schema_version = writer.run(create_in_memory if self._in_memory else migrate)
        except apsw.Error as error:
            raise BackendUnavailable(f"Cannot use the database file {self.path}: {_why(error)}.") from error
        self._writer = Dispatcher([lambda: self._write(writer)], "ojster-writer")
        self._reader = self._writer
        self._notifier: SocketNotifier | None = None
        if not self._in_memory:
            reader = self._lane(self._connect)
            self._reader = Dispatcher([lambda: self._read(reader)], "ojster-reader")
            self._reader.start()
            self._checkpointer = threading.Thread(target=self._checkpoint, name="ojster-checkpoint", daemon=True)
            self._checkpointer.start()
            self._notifier = SocketNotifier(Path(self.path), self.heed)
        self._writer.start()

    def close(self) -> None:
        if self._writer.is_inherited:
            return
        self._closing = True
        self._writer.close()
        if not self._in_memory:
            self._reader.close()
            self._checkpoint_wanted.set()
            self._checkpointer.join()
        if self._notifier is not None:
            self._notifier.close()
        if self._steady_clock is not None:
            self._steady_clock.close()
        for lane in self._lanes:
            lane.close()

    @contextmanager
    def reading(self) -> Iterator[Lane]:
        """Return a connection that reads, for code of an application; that of a database in memory is the writer's."""
        lane = self._lanes[0] if self._in_memory else Lane(self._connect)
        try:
            yield lane
        finally:
            if not self._in_memory:
                lane.close()

    def transaction_of_caller(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that writes, in the thread of the caller: what fails in it fails no call of others."""
        if self._callers is None:
            self._callers = self._lanes[0] if self._in_memory else self._lane(self._connect_writer)
        self._callers.run(lambda connection: connection.execute("PRAGMA foreign_keys = ON"))
        return self._write(self._callers)

    def _lane(self, connect: Callable[[], apsw.Connection]) -> Lane:
        lane = Lane(connect, closes=not self._in_memory)
        self._lanes.append(lane)
        return lane

    def _connect_writer(self) -> apsw.Connection:
        connection = self._connect()
        if not self._in_memory:
            connection.wal_autocheckpoint(0)
            connection.set_wal_hook(self._on_commit)
        return connection

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if self._in_memory else 0)
        with self._files_lock:  # with another log, it would spoil what the connections of this process have written
            for others in self._files.values():
                others.check()
        try:
            files = None if self._in_memory else OpenFiles(self.path)
            connection = apsw.Connection(self.path, flags=flags, statementcachesize=STATEMENTS)
            plan_once(connection)
            connection.set_busy_handler(LockWait(self.path, self.outages.begin))
            _refuse_foreign(connection, self.path)
            _use_write_ahead_log(connection)
            for pragma in (f"synchronous = {self._synchronous}", f"cache_size = -{CACHE_KIB}"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            if files is not None:
                files.note_beside(connection)
                with self._files_lock:
                    self._files[connection] = files
        except (apsw.Error, OSError) as error:
            why = _why(error) if isinstance(error, apsw.Error) else error
            raise BackendUnavailable(f"Cannot open the database file {self.path}: {why}.") from error
        return connection

    @contextmanager
    def _write(self, lane: Lane) -> Iterator[Transaction]:
        try:
            # Lock before reading: SQLite refuses to write, without a wait, if what was read is out of date by then.
            with lane.begun("BEGIN IMMEDIATE") as connection:
                try:
                    with closing(self._transaction(connection)) as tx:
                        tx.outages = self.outages
                        self._settings_watch.look(connection, tx)
                        yield tx
                        tx.write_effects()
                        mark_change(tx)
                        connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
        except _UNUSABLE as error:
            self.outages.begin()
            raise BackendUnavailable(f"The database file {self.path} cannot be written: {_why(error)}.") from error
        self.outages.note_write(tx.now, self.clock)
        try:  # it is committed: an error from here on must not look like a failed commit
            self.publish(tx.effects)
            if self._notifier is not None and (topics := topics_of(tx)):
                self._notifier.ring(topics)
            if self._log_pages > MAX_LOG_PAGES:
                lane.run(self._copy_log)
                self._log_pages = 0
        except Exception:
            log.exception("cannot send the wake-ups of a committed transaction")

    @contextmanager
    def _read(self, lane: Lane) -> Iterator[Transaction]:
        try:
            with lane.begun("BEGIN") as connection:
                try:
                    with closing(self._transaction(connection)) as tx:
                        self._settings_watch.look(connection, tx)
                        yield tx
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except _UNUSABLE as error:
            raise BackendUnavailable(f"The database file {self.path} cannot be read: {_why(error)}.") from error

    def _transaction(self, connection: apsw.Connection) -> SqliteTransaction:
        if not self._in_memory:
            try:
                self._files[connection].check()
            except BackendUnavailable:
                self.outages.begin()
                raise
        return SqliteTransaction(
            connection,
            self.clock(),
            self.settings,
            self.memory,
            records_events=self.records_events,
            room=self._room,
        )

    def _on_commit(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        if self._room is not None:
            self._room.log_pages = pages
        if pages >= CHECKPOINT_PAGES:
            self._checkpoint_wanted.set()
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Run checkpoints of the write-ahead log on a connection of their own, so that no commit waits for them."""
        lane = self._lane(self._connect)
        while self._checkpoint_wanted.wait() and not self._closing:  # the last connection that is closed runs one, too
            self._checkpoint_wanted.clear()
            try:
                lane.run(self._copy_log)
            except BackendUnavailable as error:  # its connection cannot be opened at this moment
                log.error("checkpoint of the write-ahead log failed: %s", error)

    def _copy_log(self, connection: apsw.Connection) -> None:
        with self._checkpointing:
            try:
                pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                if self._room is not None and copied >= pages >= self._room.log_pages:
                    self._room.log_pages = 0  # the file has taken them up
            except apsw.BusyError:
                log.debug("checkpoint skipped: another process runs one")
            except apsw.Error as error:
                log.error("checkpoint of the write-ahead log failed: %s", error)


_ADVICE: Final[Mapping[type[apsw.Error], str]] = {
    apsw.CorruptError: "Stop all processes on it, and restore a backup",
    apsw.NotADBError: "Check the path, or restore a backup",
    apsw.CantOpenError: "Check the path, and the rights of the file and of its folder",
    apsw.IOError: "Check the disk. If a file beside it was removed, stop all processes on it before you start any",
}
"""What to do about errors of SQLite that name no cause."""


def _why(error: apsw.Error) -> str:
    """Return what to say of an error of the file or the disk."""
    if isinstance(error, apsw.BusyError):
        return (
            f"another process has kept it locked for {BUSY_TIMEOUT // 1000} s ({error}). "
            "Let that process end its transaction, and try again"
        )
    return f"{error}. {advice}" if (advice := _ADVICE.get(type(error))) else str(error)


def _create(path: Path) -> None:
    """Create a file that only its owner can read, unless it exists. A folder that does not exist is a typing error."""
    if not path.parent.is_dir():
        raise BackendUnavailable(f"There is no folder {path.parent} for the database. Create it, or check the path.")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise BackendUnavailable(f"Cannot open the database file {path}: {error}.") from error


def has_jobs(file: Path) -> bool:
    """Return whether a file is a database of Ojster. Nothing in it is changed."""
    if not file.is_file():  # a named pipe would keep its reader waiting
        return False
    with suppress(apsw.Error), closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return _tables(connection) >= _OWN_TABLES
    return False


_OWN_TABLES: Final = {"jobs", "payloads"}
"""Tables of each database of Ojster."""


def _tables(connection: apsw.Connection) -> set[str]:
    """Return the names of the tables, without those of SQLite itself and of Litestream."""
    rows = connection.execute(
        """
        SELECT name
        FROM sqlite_schema
        WHERE type = 'table'
            AND name NOT LIKE 'sqlite_%'
            AND name NOT LIKE '!_litestream!_%' ESCAPE '!'
        """
    )
    return {str(name) for (name,) in rows}


def _refuse_foreign(connection: apsw.Connection, path: str) -> None:
    """Refuse a database that another program has made, before anything in it is changed.

    Tables of Litestream are no such database: it may have been started first.
    """
    tables = _tables(connection)
    if tables and not tables >= _OWN_TABLES:
        raise BackendUnavailable(
            f"The file {path} is a database of another program, and was not changed. Choose another path."
        )


def _use_write_ahead_log(connection: apsw.Connection) -> None:
    """Switch to the write-ahead log. If two processes do this to a new file at once, SQLite does not wait."""
    deadline = time.monotonic() + BUSY_TIMEOUT / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if time.monotonic() > deadline or forks.is_wanted:
                raise
            time.sleep(0.01)

"""The SQLite database: one writer thread with group commit, one reader thread, and background checkpoints."""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from ojster.core.errors import BackendUnavailable
from ojster.core.job import Job
from ojster.core.job_table import STARTED
from ojster.core.settings import ServiceSettings
from ojster.core.timestamps import system_clock
from ojster.storage.database import Database, topics_of
from ojster.storage.dispatcher import Dispatcher
from ojster.storage.memory import Memory
from ojster.storage.sqlite.clock import SteadyClock, clock_file
from ojster.storage.sqlite.disk_space import Room
from ojster.storage.sqlite.lane import Lane, forks
from ojster.storage.sqlite.lock import BUSY_TIMEOUT, LockWait
from ojster.storage.sqlite.notifier import SocketNotifier
from ojster.storage.sqlite.schema import create_in_memory, migrate
from ojster.storage.sqlite.settings_watch import SettingsWatch, mark_change
from ojster.storage.sqlite.statements import (
    COMPLETE_JOBS,
    ENVELOPE,
    FIND_JOBS,
    INSERT_PARTS,
    INSERT_PAYLOADS,
    JOB_NAMES,
    LOCK_JOB,
    LOCK_JOBS,
    RECORD,
    SELECT_AVAILABLE,
    SHARED_NAMES,
    START_JOBS,
    STATEMENTS,
    change,
    insertion,
    insertion_of_alike,
    parts_of,
    plan_once,
)
from ojster.storage.transaction import ColumnType, Parameters, Row, Transaction

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

KEPT_EVENT_BYTES: Final = 64 * 1024 * 1024
"""Size of the recorded events to keep, in bytes."""

TRIM_EVENTS: Final = 4 * 1024 * 1024
"""Size of new events, in bytes, after which the oldest are deleted."""

_start_values: Final = attrgetter(*STARTED)
_other_values: Final = attrgetter(*JOB_NAMES[1:])
_shared_values: Final = attrgetter(*SHARED_NAMES)


class SqliteTransaction(Transaction):
    """A transaction on one SQLite connection. Only one writes at a time, so no locks on rows or keys are needed."""

    def __init__(
        self,
        connection: apsw.Connection,
        now: int,
        settings: ServiceSettings,
        memory: Memory,
        *,
        records_events: bool = False,
        room: Room | None = None,
    ) -> None:
        super().__init__(now, settings, memory, records_events=records_events)
        self._connection = connection
        self._room = room
        self._cursor = connection.cursor()
        self._last_numbers: dict[str, int] = {}
        """The last number that a row of a table has, or that was given out for one."""

    def refuse_growth(self) -> BackendUnavailable | None:
        return None if self._room is None else self._room.refusal(self._connection)

    def close(self) -> None:
        """Close the cursor while the lane is locked: the garbage collector may do so during a fork."""
        self._cursor.close()

    select_available = SELECT_AVAILABLE
    among = "IN carray(?)"
    envelope = ENVELOPE

    def integers(self, values: Collection[int]) -> Any:
        return apsw.carray(array("q", values or (-1,)))

    def insert_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        self._insert(table, tuple(columns), rows)

    def _insert(self, table: str, names: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> None:
        for part in parts_of(rows):
            self._cursor.execute(insertion(table, names, len(part)), list(chain.from_iterable(part)))

    def insert_new_rows(
        self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]], returning: str
    ) -> list[Row]:
        names, inserted = tuple(columns), []
        for part in parts_of(rows):
            statement = insertion(table, names, len(part), f" ON CONFLICT DO NOTHING RETURNING {returning}")
            inserted += self._cursor.execute(statement, list(chain.from_iterable(part))).fetchall()
        return inserted

    def update_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        names = tuple(columns)
        for part in parts_of(rows):
            self._cursor.execute(change(table, names, len(part)), list(chain.from_iterable(part)))

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return self._cursor.execute(sql, parameters).fetchall()

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._cursor.executemany(sql, rows)

    def insert_jobs(self, jobs: Sequence[Job]) -> None:
        (last,) = self.execute("SELECT max(seq) FROM jobs")[0]
        first = (last or 0) + 1
        alike = set(map(_shared_values, jobs))
        if len(alike) == 1:
            (values,) = alike
            own = [(seq, job.id, job.node) for seq, job in enumerate(jobs, first)]
            for part in parts_of(own):
                self._cursor.execute(insertion_of_alike(len(part)), [*values, *chain.from_iterable(part)])
        else:
            self._insert("jobs", JOB_NAMES, [(seq, *_other_values(job)) for seq, job in enumerate(jobs, first)])
        if any(job.shared for job in jobs):
            self.execute_many(INSERT_PARTS, [(seq, *part) for seq, part in enumerate(self.payloads_of(jobs), first)])
        else:
            self._cursor.execute(INSERT_PAYLOADS, (first, apsw.carray(tuple([job.envelope for job in jobs]))))

    def new_numbers(self, table: str, count: int) -> list[int]:
        if table not in self._last_numbers:
            ((last,),) = self.execute(f"SELECT max(seq) FROM {table}")
            self._last_numbers[table] = last or 0
        first = self._last_numbers[table] + 1
        self._last_numbers[table] += count
        return list(range(first, first + count))

    def start_jobs(self, jobs: Sequence[Job]) -> None:
        alike: dict[tuple[Any, ...], list[int]] = {}
        for job in jobs:
            alike.setdefault(_start_values(job), []).append(job.seq)
        for values, seqs in alike.items():
            self._cursor.execute(START_JOBS, (*values, apsw.carray(array("q", seqs))))

    def complete_jobs(self, jobs: Sequence[Job]) -> None:
        alike: dict[tuple[Any, ...], list[int]] = {}
        for job in jobs:
            alike.setdefault((job.finished_at, job.result), []).append(job.seq)
        if len(alike) > len(jobs) // 4:  # most results differ
            super().complete_jobs(jobs)
            return
        for values, seqs in alike.items():
            self._cursor.execute(COMPLETE_JOBS, (*values, apsw.carray(array("q", seqs))))

    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        return frozenset()  # no other transaction writes

    def lock_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = _without_nul(ids)
        if not ids:
            return {}
        if len(ids) == 1:
            return {row[1]: Job(*row) for row in self.execute(LOCK_JOB, ids)}
        return {row[1]: Job(*row) for row in self.execute(LOCK_JOBS, (apsw.carray(tuple(ids)),))}

    def find_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = _without_nul(ids)
        if not ids:
            return {}
        return {row[1]: Job(*row) for row in self.execute(FIND_JOBS, (apsw.carray(tuple(ids)),))}

    def record_events(self, events: bytes) -> None:
        ((total,),) = self.execute(RECORD, (self.now, len(events), events))
        if total // TRIM_EVENTS != (total - len(events)) // TRIM_EVENTS:
            self.execute("DELETE FROM event_batches WHERE total < ?", (total - KEPT_EVENT_BYTES,))

    def event_batches(self, position: int, limit: int) -> list[tuple[int, bytes]]:
        rows = self.execute(
            "SELECT seq, events FROM event_batches WHERE seq >= ? ORDER BY seq LIMIT ?", (position, limit)
        )
        return [(seq, events) for seq, events in rows]

    def last_position(self) -> int:
        return int(self.execute("SELECT coalesce(max(seq), 0) FROM event_batches")[0][0])

    def _read_envelopes(self, jobs: Sequence[Job]) -> None:
        query = f"SELECT p.seq, {ENVELOPE} FROM payloads AS p WHERE p.seq {self.among}"
        envelopes: dict[int, bytes] = dict(self.execute(query, (self.integers([job.seq for job in jobs]),)))
        for job in jobs:
            job.envelope = envelopes[job.seq]


def _without_nul(ids: Sequence[str]) -> Sequence[str]:
    """Return the ids without NUL characters, because SQLite's ``carray`` ends strings at NUL."""
    return [id for id in ids if "\0" not in id]


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
        self.path = path
        self._in_memory = path in ("", ":memory:")
        self._synchronous = synchronous
        self._room = None if self._in_memory else Room(Path(path).absolute().parent)
        self._lanes: list[Lane] = []
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
        try:
            connection = apsw.Connection(self.path, flags=flags, statementcachesize=STATEMENTS)
            plan_once(connection)
            connection.set_busy_handler(LockWait(self.path, self.outages.begin))
            _refuse_foreign(connection, self.path)
            _use_write_ahead_log(connection)
            for pragma in (f"synchronous = {self._synchronous}", f"cache_size = -{CACHE_KIB}"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
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
            if self._notifier is not None and (topics := topics_of(tx.effects)):
                self._notifier.ring(topics)
            if self._log_pages > MAX_LOG_PAGES:
                lane.run(self._copy_log)
                self._log_pages = 0
        except Exception:
            log.exception("cannot send the wake-ups of a committed transaction")

    @contextmanager
    def _read(self, lane: Lane) -> Iterator[Transaction]:
        with lane.begun("BEGIN") as connection:
            try:
                with closing(self._transaction(connection)) as tx:
                    self._settings_watch.look(connection, tx)
                    yield tx
            finally:
                connection.execute("ROLLBACK")

    def _transaction(self, connection: apsw.Connection) -> SqliteTransaction:
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
            lane.run(self._copy_log)

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


def _why(error: apsw.Error) -> str:
    """Return what to say of an error of the file or the disk."""
    if isinstance(error, apsw.BusyError):
        return (
            f"another process has kept it locked for {BUSY_TIMEOUT // 1000} s ({error}). "
            "Let that process end its transaction, and try again"
        )
    return str(error)


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

"""The PostgreSQL database: several concurrent transactions, each pipelined, and one connection for notifications."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from asyncio import Future
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final, TypeVar

import psycopg
from psycopg import sql

from ojster.core.durations import MINUTE
from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.core.job import Job
from ojster.core.settings import Settings
from ojster.storage.call import LongPoll, Operation
from ojster.storage.database import Database, topics_of
from ojster.storage.dispatcher import Dispatcher
from ojster.storage.memory import Memory
from ojster.storage.migrations import refuse_newer, scripts
from ojster.storage.postgres.notifier import PostgresNotifier, messages
from ojster.storage.postgres.pipeline import (
    Array,
    Connection,
    ConnectionLost,
    StatementFailed,
    blobs,
    ints,
    quoted,
    texts,
    unnest,
    uuids,
)
from ojster.storage.postgres.url import PostgresUrl, parse_postgres_url
from ojster.storage.transaction import (
    ADDED,
    JOB_COLUMNS,
    JOB_COLUMNS_OF_J,
    SUMS,
    ColumnType,
    Parameters,
    Row,
    Transaction,
    TryAgain,
)

log = logging.getLogger(__name__)

A = TypeVar("A")
R = TypeVar("R")

LISTEN_VARIABLE: Final = "OJSTER_LISTEN_URL"
"""Environment variable with the URL of a direct connection for LISTEN, for databases behind a pooler."""

PLANNER_SETTINGS: Final = {"enable_seqscan": "off", "enable_mergejoin": "off", "enable_hashjoin": "off", "jit": "off"}
"""Planner settings of our connections. PostgreSQL plans a prepared statement once, perhaps while the tables are empty
or their statistics are old. It would then scan whole tables, or a whole index for a join, instead of looking up each
wanted row."""

KEEP_EVENTS: Final = 10 * MINUTE
"""Minimum age of events before deletion, in microseconds."""

KEEP_EVENT_BATCHES: Final = 10_000
"""Number of the newest event batches (one per transaction) that are kept at any age."""

INSERTED_AT_ONCE: Final = 250
"""Maximum number of jobs in one INSERT."""

ROWS_AT_ONCE: Final = 1_000
"""Maximum number of rows of another table in one statement."""

ORDERING_TRIES: Final = 50
"""Maximum number of attempts to order events while another transaction does so."""

ORDERING_PAUSE: Final = 0.01
"""Pause between these attempts, in seconds."""

SLOTS: Final = 32
"""Number of rows that hold the counts of a queue and state, so that transactions do not wait for each other."""

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_NEW_JOB: Final[dict[str, ColumnType]] = {
    "id": "uuid",
    "type": "text",
    "queue": "text",
    "state": "text",
    "priority": "bigint",
    "max_attempts": "bigint",
    "created_at": "bigint",
    "enqueued_at": "bigint",
    "expires_at": "bigint",
    "due_at": "bigint",
    "timeout": "bigint",
    "lease": "bigint",
    "unique_key": "text",
    "cron_name": "text",
    "exclusive_key": "text",
    "node": "bigint",
    "limit_key": "text",
    "tenant": "text",
    "version": "bigint",
    "needs": "text",
    "agent": "bytea",
    "reacts": "bigint",
    "hold": "text",
}
"""Columns of a new job and their types, without the envelope."""

_NEW_COLUMNS: Final = ", ".join(_NEW_JOB)
_NEW_VALUES: Final = [(type, attrgetter(name)) for name, type in _NEW_JOB.items()]
_INSERT_JOBS: Final = (
    f"WITH given AS MATERIALIZED (SELECT nextval('{{schema}}.jobs_seq_seq') AS seq, job.* "
    f"FROM {unnest(*_NEW_JOB.values(), 'bytea')} AS job ({_NEW_COLUMNS}, envelope)), "
    f"inserted AS (INSERT INTO jobs (seq, {_NEW_COLUMNS}) SELECT seq, {_NEW_COLUMNS} FROM given) "
    "INSERT INTO payloads (seq, envelope) SELECT seq, envelope FROM given"
)
_START_JOBS: Final = (
    "UPDATE jobs SET state = 'active', attempt = attempt + 1, started_at = started.at, due_at = started.due_at, "
    f"worker_id = started.worker_id FROM {unnest('bigint', 'bigint', 'bigint', 'text')} "
    "AS started (seq, at, due_at, worker_id) WHERE jobs.seq = started.seq"
)
_COMPLETE_JOBS: Final = (
    "UPDATE jobs SET state = 'completed', finished_at = done.finished_at, due_at = NULL, result = done.result "
    f"FROM {unnest('bigint', 'bigint', 'bytea')} AS done (seq, finished_at, result) WHERE jobs.seq = done.seq"
)
_LOCK_JOBS: Final = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ANY(CAST(? AS uuid[])) ORDER BY id FOR UPDATE"
# The envelope is looked up for each row. A join could be planned in the other direction, through all payloads.
_WITH_ENVELOPE: Final = (
    f"SELECT {JOB_COLUMNS_OF_J}, (SELECT p.envelope FROM payloads AS p WHERE p.seq = j.seq) FROM jobs AS j "
)
_FIND_JOBS: Final = _WITH_ENVELOPE + "WHERE j.id = ANY(CAST(? AS uuid[]))"
_SELECT_AVAILABLE: Final = _WITH_ENVELOPE + (
    "WHERE j.queue = ? AND j.tenant = ? AND j.state = 'available' AND {kind} "
    "AND (j.due_at IS NULL OR j.due_at > ?) "
    "AND (j.exclusive_key IS NULL OR NOT EXISTS "
    "(SELECT 1 FROM jobs AS other WHERE other.exclusive_key = j.exclusive_key AND other.exclusive_key IS NOT NULL "
    "AND other.state = 'active')) "
    "ORDER BY j.priority DESC, j.seq LIMIT ? FOR UPDATE OF j SKIP LOCKED"
)
_ENVELOPES: Final = "SELECT seq, envelope FROM payloads WHERE seq = ANY(CAST(? AS bigint[]))"
_LOCK_KEYS: Final = (
    f"SELECT name FROM {unnest('text')} AS name WHERE NOT pg_try_advisory_xact_lock(hashtextextended(name, 0))"
)
_COUNT: Final = (
    "INSERT INTO job_count_slots (queue, state, slot, jobs) SELECT queue, state, CAST(? AS bigint), jobs "
    f"FROM {unnest('text', 'text', 'bigint')} AS change (queue, state, jobs) "
    "ON CONFLICT (queue, state, slot) DO UPDATE SET jobs = job_count_slots.jobs + excluded.jobs"
)
_TALLY: Final = (
    f"INSERT INTO queue_minutes (queue, minute, slot, {', '.join(SUMS)}) VALUES (?, ?, ?{', ?' * len(SUMS)}) "
    f"ON CONFLICT (queue, minute, slot) DO UPDATE SET {ADDED}"
)

_FOLD_COUNTS: Final = (
    "WITH folded AS (DELETE FROM job_count_slots WHERE (queue, state, slot) IN (SELECT queue, state, slot "
    "FROM job_count_slots WHERE slot >= ? LIMIT 1000 FOR UPDATE SKIP LOCKED) RETURNING queue, state, jobs) "
    "INSERT INTO job_count_slots (queue, state, slot, jobs) "
    "SELECT queue, state, CAST(? AS bigint), sum(jobs) FROM folded GROUP BY queue, state ORDER BY queue, state "
    "ON CONFLICT (queue, state, slot) DO UPDATE SET jobs = job_count_slots.jobs + excluded.jobs"
)
_FOLD_MINUTES: Final = (
    "WITH folded AS (DELETE FROM queue_minutes WHERE (queue, minute, slot) IN (SELECT queue, minute, slot "
    "FROM queue_minutes WHERE slot >= ? LIMIT 1000 FOR UPDATE SKIP LOCKED) RETURNING queue, minute, enqueued) "
    "INSERT INTO queue_minutes (queue, minute, slot, enqueued, completed, failed, waited, ran) "
    "SELECT queue, minute, CAST(? AS bigint), sum(enqueued), 0, 0, 0, 0 FROM folded GROUP BY queue, minute "
    "ORDER BY queue, minute ON CONFLICT (queue, minute, slot) "
    "DO UPDATE SET enqueued = queue_minutes.enqueued + excluded.enqueued"
)
_NEW_QUEUES: Final = (
    "INSERT INTO queues (name, created_at) SELECT DISTINCT queue, CAST(? AS bigint) FROM job_count_slots "
    "WHERE queue >= '0' AND NOT EXISTS (SELECT 1 FROM queues WHERE name = job_count_slots.queue) "
    "ON CONFLICT (name) DO NOTHING"
)
_RECORD: Final = "INSERT INTO event_batches (at, events) VALUES (?, ?)"
_EVENTS: Final = (
    "SELECT position, events FROM event_batches WHERE position >= ? AND position IS NOT NULL ORDER BY position LIMIT ?"
)
_LAST_POSITION: Final = "SELECT coalesce(max(position), 0) FROM event_batches WHERE position IS NOT NULL"
_ORDER_EVENTS: Final = (
    "WITH waiting AS MATERIALIZED (SELECT seq, row_number() OVER (ORDER BY seq) AS place FROM event_batches "
    "WHERE position IS NULL ORDER BY seq LIMIT 10000), "
    "given AS (INSERT INTO event_positions AS known (id, last) SELECT 1, count(*) FROM waiting HAVING count(*) > 0 "
    "ON CONFLICT (id) DO UPDATE SET last = known.last + excluded.last RETURNING last) "
    "UPDATE event_batches SET position = given.last - (SELECT count(*) FROM waiting) + waiting.place "
    "FROM waiting, given WHERE event_batches.seq = waiting.seq"
)
# Deleted events without a position leave a gap in the positions, so that a late reader detects the loss.
_FORGET_EVENTS: Final = (
    "WITH gone AS (DELETE FROM event_batches WHERE at < ? "
    "AND seq <= (SELECT max(seq) FROM event_batches) - CAST(? AS bigint) RETURNING position) "
    "INSERT INTO event_positions AS known (id, last) SELECT 1, count(*) FROM gone WHERE position IS NULL "
    "HAVING count(*) > 0 ON CONFLICT (id) DO UPDATE SET last = known.last + excluded.last"
)


class PostgresTransaction(Transaction):
    """A transaction on one PostgreSQL connection."""

    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    select_available = _SELECT_AVAILABLE
    among = "= ANY(CAST(? AS bigint[]))"

    def __init__(
        self,
        connection: Connection,
        now: int,
        settings: Settings,
        memory: Memory,
        schema: str,
        slot: int,
        *,
        records_events: bool,
    ) -> None:
        super().__init__(now, settings, memory, records_events=records_events)
        self._connection = connection
        self._insert_jobs = _INSERT_JOBS.format(schema=quoted(schema))
        self._slot = slot
        self._locks = f"{schema}/"

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return self._connection.execute(sql, parameters)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.execute_many(sql, rows)

    def integers(self, values: Collection[int]) -> Any:
        return ints(list(values) or [-1])

    def insert_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            names = ", ".join(columns)
            given = f"SELECT {names} FROM {unnest(*columns.values())} AS given ({names})"
            self._in_columns(f"INSERT INTO {table} ({names}) {given}", columns, rows)

    def update_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            key, *others = columns
            changes = ", ".join(f"{name} = given.{name}" for name in others)
            given = f"{unnest(*columns.values())} AS given ({', '.join(columns)})"
            sql = f"UPDATE {table} SET {changes} FROM {given} WHERE {table}.{key} = given.{key}"
            self._in_columns(sql, columns, rows)

    def _in_columns(self, sql: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        for first in range(0, len(rows), ROWS_AT_ONCE):
            values = zip(*rows[first : first + ROWS_AT_ONCE], strict=True)
            self.execute(sql, [Array(type, column) for type, column in zip(columns.values(), values, strict=True)])
            self._connection.flush()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with super().savepoint():
            yield
            self._connection.answer()  # raise pending errors here, so that the savepoint rolls them back

    def insert_jobs(self, jobs: Sequence[Job]) -> None:
        for first in range(0, len(jobs), INSERTED_AT_ONCE):  # the database inserts a part while the next is encoded
            some = jobs[first : first + INSERTED_AT_ONCE]
            columns = [Array(type, [value(job) for job in some]) for type, value in _NEW_VALUES]
            self.execute(self._insert_jobs, (*columns, blobs([job.envelope for job in some])))
            self._connection.flush()

    def start_jobs(self, jobs: Sequence[Job]) -> None:
        self.execute(
            _START_JOBS,
            (
                ints([job.seq for job in jobs]),
                ints([job.started_at for job in jobs]),
                ints([job.due_at for job in jobs]),
                texts([job.worker_id for job in jobs]),
            ),
        )

    def complete_jobs(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self.execute(
                _COMPLETE_JOBS,
                (
                    ints([job.seq for job in jobs]),
                    ints([job.finished_at for job in jobs]),
                    blobs([job.result for job in jobs]),
                ),
            )

    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        names = self.names_of_locks(keys)
        held = self.execute(_LOCK_KEYS, (texts(names),)) if names else ()
        return {name.removeprefix(self._locks) for (name,) in held}

    def names_of_locks(self, keys: Iterable[str]) -> list[str]:
        """Return the sorted names of the advisory locks for keys. They begin with the schema, to be unique."""
        return [self._locks + key for key in sorted(keys)]

    def lock_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = [id for id in ids if _ID.fullmatch(id)]
        jobs = {row[1]: Job(*row) for row in self.execute(_LOCK_JOBS, (uuids(ids),))} if ids else {}
        for job in jobs.values():
            if job.state == "available":  # fetches that skip the locked job look again afterwards
                self.effects.opened.add(job.queue)
        return jobs

    def find_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = [id for id in ids if _ID.fullmatch(id)]
        return {row[1]: Job(*row) for row in self.execute(_FIND_JOBS, (uuids(ids),))} if ids else {}

    def envelopes(self, jobs: Sequence[Job]) -> None:
        found: dict[int, bytes] = dict(self.execute(_ENVELOPES, (ints([job.seq for job in jobs]),)))
        for job in jobs:
            if job.seq not in found:
                raise TryAgain(f"The job {job.id} was deleted meanwhile.")
            job.envelope = found[job.seq]

    def tidy(self) -> None:
        """Fold the counts of callers' transactions from slots of their own, and insert the queues they used."""
        self.execute(_FOLD_COUNTS, (SLOTS, self._slot))
        self.execute(_FOLD_MINUTES, (SLOTS, self._slot))
        self.execute(_NEW_QUEUES, (self.now,))

    def forget_events(self) -> None:
        self.execute(_FORGET_EVENTS, (self.now - KEEP_EVENTS, KEEP_EVENT_BATCHES))

    def record_events(self, events: bytes) -> None:
        self.execute(_RECORD, (self.now, events))

    def order_events(self) -> bool:
        """Assign positions to visible events; return ``False`` if another transaction is doing so."""
        if self.lock_keys({"events"}):
            return False
        self.execute(_ORDER_EVENTS)
        return True

    def event_batches(self, position: int, limit: int) -> list[tuple[int, bytes]]:
        return [(here, events) for here, events in self.execute(_EVENTS, (position, limit))]

    def last_position(self) -> int:
        return int(self.execute(_LAST_POSITION)[0][0])

    def write_effects(self) -> None:
        counts = sorted((queue, state, change) for (queue, state), change in self.effects.counts.items() if change)
        if counts:
            queues, states, changes = zip(*counts, strict=True)
            self.execute(_COUNT, (self._slot, texts(queues), texts(states), ints(changes)))
        self.write_history()
        self.write_events()
        minute = self.now // 60_000_000
        for queue, tally in sorted(self.effects.tallies.items()):
            self.execute(_TALLY, (queue, minute, self._slot, *tally.sums()))


NOW: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"
"""SQL expression for the database's time, in microseconds since the epoch."""

MAX_ROUND_TRIP_US: Final = 100_000
"""Maximum round trip of a precise clock measurement, in microseconds."""


def _order_events(tx: Transaction, requests: Sequence[None]) -> list[bool]:
    assert isinstance(tx, PostgresTransaction)
    done = tx.order_events()
    return [done for _ in requests]


class ServerClock:
    """The database's clock, in microseconds since the epoch, so that servers with different clocks agree on the time.

    Its offset from this machine's monotonic clock is measured at the start and at each heartbeat. Reading the clock
    needs no query.
    """

    def __init__(self) -> None:
        self._offset = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self._measured = False

    def __call__(self) -> int:
        return time.monotonic_ns() // 1000 + self._offset

    def measure(self, connection: psycopg.Connection) -> None:
        """Measure the offset of the database's clock."""
        for _ in range(3):
            before = time.monotonic_ns() // 1000
            row = connection.execute(f"SELECT {NOW}").fetchone()
            after = time.monotonic_ns() // 1000
            assert row is not None
            if after - before < MAX_ROUND_TRIP_US or not self._measured:
                self._offset = int(row[0]) - (before + after) // 2
                self._measured = True
            if after - before < MAX_ROUND_TRIP_US:
                return


class PostgresDatabase(Database):
    """Jobs in a PostgreSQL database, shared by any number of processes on any number of machines.

    Parameters
    ----------
    clock:
        Function that returns the time in microseconds since the epoch; ``None``: the database's clock.
    migrate:
        Whether to migrate an older schema. Default: ``open`` refuses it.
    """

    kind = "postgres"

    def __init__(
        self,
        url: str,
        settings: Settings,
        clock: Callable[[], int] | None,
        synchronous: str = "FULL",
        *,
        migrate: bool = False,
    ) -> None:
        self._server_clock = ServerClock()
        super().__init__(settings, clock or self._server_clock)
        self.url = parse_postgres_url(url)
        self._session = PLANNER_SETTINGS | ({"synchronous_commit": "off"} if synchronous == "NORMAL" else {})
        self._migrates = migrate
        self._begin = f"BEGIN ISOLATION LEVEL {self.url.isolation.upper()}"
        self._closed = False

    def open(self) -> None:
        try:
            with self._connect() as connection:
                self.schema_version = check_schema(connection, self.url, migrate=self._migrates)
                self._server_clock.measure(connection)
        except psycopg.Error as error:
            raise self._unavailable(error) from error
        first_slot = secrets.randbelow(SLOTS)
        lanes = [_TransactionConnection(self, first_slot + number) for number in range(self.url.connections)]
        self._writer = Dispatcher([lane.write for lane in lanes], "ojster-writer")
        reader = _TransactionConnection(self, 0)
        self._reader = Dispatcher([reader.read], "ojster-reader")
        self._lanes = [*lanes, reader]
        listening = listen_conninfo(self.url)
        self._herald = PostgresNotifier(
            lambda: self._connect(listening),
            channel_of(self.url.schema),
            self.heed,
            self._look_around,
            self._writer.wake_all_parked,
            listens=listening is not None,
        )
        self._writer.start()
        self._reader.start()
        self._herald.start()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._writer.close()
        self._reader.close()
        self._herald.close()
        for lane in self._lanes:
            lane.disconnect()

    def run_many(self, operation: Operation[A, R], arguments: Sequence[A]) -> Future[Sequence[R]]:
        return self._writer.run(operation, arguments)

    def run_or_park(self, operation: Operation[A, R], argument: A, patience: LongPoll) -> Future[Sequence[R]]:
        return self._writer.run(operation, (argument,), patience)

    def read_many(self, operation: Operation[A, R], arguments: Sequence[A]) -> Future[Sequence[R]]:
        return self._reader.run(operation, arguments)

    def hurry(self, patience: LongPoll) -> None:
        self._writer.hurry(patience)

    def answer_parked(self) -> None:
        self._writer.ring(None)

    @property
    def is_at_rest(self) -> bool:
        """Whether at most one transaction is running."""
        return self._writer.busy <= 1

    async def order_events(self) -> None:
        for _ in range(ORDERING_TRIES):  # the other transaction may have begun before the last events
            if await self.run(_order_events, None):
                return
            await asyncio.sleep(ORDERING_PAUSE)

    def wake_parked_fetches(self, queues: Sequence[str]) -> None:
        self._writer.ring(queues)

    def _connect(self, conninfo: str | None = None) -> psycopg.Connection:
        return psycopg.connect(conninfo or self.url.conninfo, autocommit=True, prepare_threshold=None)

    def _look_around(self, connection: psycopg.Connection) -> None:
        """Refresh the clock, the settings and all waiters, in case notifications were missed."""
        self._server_clock.measure(connection)
        self.memory.forget()
        self._writer.wake_all_parked()
        self.wakeups.wake_all()

    def _unavailable(self, error: Exception) -> BackendUnavailable:
        return BackendUnavailable(f"The database {self.url.shown} cannot be used: {' '.join(str(error).split())}")


class _TransactionConnection:
    """One connection, opened on demand, and the transactions on it, one at a time."""

    def __init__(self, database: PostgresDatabase, slot: int) -> None:
        self._database = database
        self._slot = slot % SLOTS
        self._connection: Connection | None = None

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        database = self._database
        connection = self._connected()
        tx = self._transaction(connection)
        committing = False
        try:
            connection.execute(database._begin)
            connection.set_for_transaction()
            yield tx
            tx.write_effects()
            word = self._word_of(tx)
            if word is not None:
                connection.send("SELECT pg_notify(?, ?)", (database._herald.channel, word))
            connection.execute("COMMIT")
            committing = True
            connection.answer()
            if connection.last_command != b"COMMIT":
                raise TryAgain("The database has rolled the transaction back.")
        except ConnectionLost as error:
            self.disconnect()
            if committing and not error.undone:
                message = f"The connection was lost during a commit. Check whether the change was made: {error}"
                raise BackendUnavailable(message) from error
            raise TryAgain(str(error), lost=True) from error
        except StatementFailed as error:
            self._roll_back()
            if error.sqlstate == READ_ONLY:
                self.disconnect()  # after a failover, another server accepts writes
            if error.sqlstate == READ_ONLY or error.sqlstate[:2] in _UNUSABLE:
                raise database._unavailable(error) from error
            if error.sqlstate[:2] == _BAD_VALUE:
                raise InvalidRequest(f"The database refuses a value: {error}.") from error
            raise
        except BaseException:
            self._roll_back()
            raise
        try:  # it is committed: an error from here on must not look like a failed commit
            database.publish(tx.effects)
            if word is None:
                database._herald.ring(topics_of(tx.effects))
        except Exception:
            log.exception("cannot send the wake-ups of a committed transaction")

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        connection = self._connected()
        try:
            yield self._transaction(connection)
        except ConnectionLost as error:
            self.disconnect()
            raise TryAgain(str(error), lost=True) from error
        except BaseException:
            self._roll_back()
            raise

    def _word_of(self, tx: Transaction) -> str | None:
        """Return the notification to send inside the transaction; ``None``: send it after the commit.

        If no other transaction is running, sending it inside is faster and delays no other commit.
        """
        if not self._database.is_at_rest or not self._database._herald.has_peers:
            return None
        words = messages(self._database._herald.name, topics_of(tx.effects))
        return words[0] if len(words) == 1 and "\n" in words[0] else None

    def _transaction(self, connection: Connection) -> PostgresTransaction:
        database = self._database
        return PostgresTransaction(
            connection,
            database.clock(),
            database.settings,
            database.memory,
            database.url.schema,
            self._slot,
            records_events=database.records_events,
        )

    def disconnect(self) -> None:
        """Close the connection; the next transaction opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None:
            url = self._database.url
            try:
                self._connection = Connection(
                    url.conninfo, url.schema, self._database._session, prepares=not url.pooled
                )
            except psycopg.OperationalError as error:
                raise self._database._unavailable(error) from error
        return self._connection

    def _roll_back(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.answer()
        except (ConnectionLost, StatementFailed, TryAgain):
            log.debug("a statement sent before the rollback failed")
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
                connection.answer()
        except (ConnectionLost, StatementFailed, TryAgain):
            self.disconnect()


def listen_conninfo(url: PostgresUrl) -> str | None:
    """Return the conninfo for LISTEN; ``None`` if only a pooler in transaction mode is known, where LISTEN fails."""
    other = os.environ.get(LISTEN_VARIABLE)
    if other:
        try:
            return parse_postgres_url(other).conninfo
        except InvalidRequest as error:
            raise InvalidRequest(f"{LISTEN_VARIABLE}: {error.message}") from error
    return None if url.pooled else url.conninfo


def channel_of(schema: str) -> str:
    """Return the notification channel of a schema: a hash if the name exceeds PostgreSQL's limit of 63 bytes."""
    name = f"ojster_{schema}"
    return name if len(name.encode()) <= 63 else f"ojster_{sha256(schema.encode()).hexdigest()[:32]}"


READ_ONLY: Final = "25006"
"""SQLSTATE of a write in a read-only transaction, as on a standby server."""

_BAD_VALUE: Final = "22"
"""SQLSTATE class of invalid values."""

_UNUSABLE: Final = ("53", "58", "XX")
"""SQLSTATE classes of an unusable database: resources exhausted (disk full, too many connections), system errors,
corruption."""


def check_schema(connection: psycopg.Connection, url: PostgresUrl, *, migrate: bool) -> int:
    """Check that a schema has the current version, or migrate it; return that version.

    Several processes may do so at the same time. The migration is one transaction.

    Raises
    ------
    BackendUnavailable
        The schema is newer, or it is older and ``migrate`` is false.
    """
    wanted = scripts("postgres")
    version = schema_version(connection, url.schema)
    refuse_newer(version, len(wanted))
    if version < len(wanted) and not migrate:
        there = f"has schema version {version}, not {len(wanted)}" if version else "has no Ojster tables"
        raise BackendUnavailable(
            f"The database {url.shown} {there} (schema {url.schema!r}): run `ojster migrate --database URL` once, "
            "or start with --migrate."
        )
    if version < len(wanted):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"ojster:{url.schema}",))
            version = schema_version(connection, url.schema)
            refuse_newer(version, len(wanted))
            name = sql.Identifier(url.schema)
            known = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (url.schema,)).fetchone()
            if known is None:  # CREATE SCHEMA IF NOT EXISTS needs a right that we may lack
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
            connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
            for number, script in enumerate(wanted[version:], version + 1):
                connection.execute(script.encode())
                connection.execute("INSERT INTO migrations (version, applied_at) VALUES (%s, now())", (number,))
    return len(wanted)


def schema_version(connection: psycopg.Connection, schema: str) -> int:
    """Return the version of a schema; 0 if there is none."""
    # Read from the catalogue's tables, because to_regclass may answer from the session's cache.
    there = connection.execute(
        "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = 'migrations'",
        (schema,),
    ).fetchone()
    if there is None:
        return 0
    query = sql.SQL("SELECT coalesce(max(version), 0) FROM {}.migrations").format(sql.Identifier(schema))
    row = connection.execute(query).fetchone()
    return int(row[0]) if row is not None else 0

"""The PostgreSQL database: several concurrent transactions, each pipelined, and one connection for notifications."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Final, TypeVar

import psycopg

from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.core.settings import ServiceSettings
from ojster.storage.call import TransactionFunction
from ojster.storage.database import LISTEN_VARIABLE, Database, ReplicaState, topics_of, topics_of_ends
from ojster.storage.dispatcher import Dispatcher, StatementRefused, out_of_range
from ojster.storage.outages import OUTAGE_GRACE_SECONDS
from ojster.storage.postgres.clock import ServerClock
from ojster.storage.postgres.notifier import HEARTBEAT, ListeningConnection, PostgresNotifier, messages
from ojster.storage.postgres.pipeline import ANSWER_TIMEOUT_SECONDS, ConnectionLost, PipelineConnection, StatementFailed
from ojster.storage.postgres.replica import ANSWER_SECONDS, Replica
from ojster.storage.postgres.schema import check_schema, log_events
from ojster.storage.postgres.statistics import TableStatistics
from ojster.storage.postgres.transaction import SLOTS, PostgresTransaction
from ojster.storage.postgres.url import PostgresUrl, parse_postgres_url, with_lacks
from ojster.storage.transaction import Transaction, TryAgain
from ojster.storage.wakeups import JOB

log = logging.getLogger(__name__)

A = TypeVar("A")

R = TypeVar("R")

PLANNER_SETTINGS: Final = {"enable_seqscan": "off", "enable_mergejoin": "off", "enable_hashjoin": "off", "jit": "off"}
"""Planner settings of our connections. PostgreSQL plans a prepared statement once, perhaps while the tables are empty
or their statistics are old. It would then scan whole tables, or a whole index for a join, instead of looking up each
wanted row."""

WRITER_SETTINGS: Final = PLANNER_SETTINGS | {
    "plan_cache_mode": "force_generic_plan",
    "default_statistics_target": "10",
}
"""Settings of the connections that write. Their few statements are planned once and not again with the values of each
execution: tests check the plan that serves all values. When they analyze a table, they look at 3,000 rows at most."""

ORDERING_TRIES: Final = 50
"""Maximum number of attempts to order events while another transaction does so."""

ORDERING_PAUSE: Final = 0.01
"""Pause between these attempts, in seconds."""


def _order_events(tx: Transaction, requests: Sequence[None]) -> list[bool]:
    assert isinstance(tx, PostgresTransaction)
    done = tx.order_events()
    return [done for _ in requests]


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
        settings: ServiceSettings,
        clock: Callable[[], int] | None,
        synchronous: str = "FULL",
        *,
        migrate: bool = False,
    ) -> None:
        self._server_clock = ServerClock()
        super().__init__(settings, clock or self._server_clock)
        self.url = parse_postgres_url(url)
        self.conninfo = self.url.conninfo
        """The URL's, beginning with the host that was the primary the last time."""
        self._durability = {"synchronous_commit": "off"} if synchronous == "NORMAL" else {}
        self._migrates = migrate
        self._begin = f"BEGIN ISOLATION LEVEL {self.url.isolation.upper()}"
        self._closed = False
        self._statistics: TableStatistics | None = None
        """Set where plans are kept: not behind a pooler, nor where the database plans as it likes."""
        self._replica: Replica | None = None
        self._suspected_until = 0.0
        """Connections that were opened before are not used any more: since then, one of them was lost."""

    def open(self) -> None:
        try:
            with self._connect() as connection:
                self.url = with_lacks(self.url, version_of(connection))
                self.schema_version = check_schema(connection, self.url, migrate=self._migrates)
                self._server_clock.measure(connection)
        except psycopg.Error as error:
            raise self._unavailable(error) from error
        first_slot = secrets.randbelow(SLOTS)
        plans, writes = (PLANNER_SETTINGS, WRITER_SETTINGS) if "planner-settings" not in self.url.lacks else ({}, {})
        if writes and not self.url.pooled:
            self._statistics = TableStatistics(self.url.schema)
        session = writes | self._durability
        lanes = [_TransactionConnection(self, session, first_slot + number) for number in range(self.url.connections)]
        self._writer = Dispatcher([lane.write for lane in lanes], "ojster-writer")
        reader = _TransactionConnection(self, plans, 0)
        self._reader = Dispatcher([reader.read], "ojster-reader")
        self._lanes = [*lanes, reader]
        if self.url.replica is not None:
            self._replica = self._open_replica(self.url.replica, plans)
        listening = listen_conninfo(self.url)
        self._notifier = PostgresNotifier(
            lambda: self._connect(listening, ListeningConnection),
            channel_of(self.url.schema),
            self.heed,
            self._look_around,
            self._look_for_work,
            self._lose_notifications,
            lambda: self.wakeups.waits_for(JOB),
            listens=listening is not None,
        )
        self._writer.start()
        self._reader.start()
        self._notifier.start()

    def close(self) -> None:
        if self._closed or self._writer.is_inherited:
            return
        self._closed = True
        self._writer.close()
        self._reader.close()
        if self._replica is not None:
            self._replica.close()
        self._notifier.close()
        for lane in self._lanes:
            lane.disconnect()

    async def survey(self, operation: TransactionFunction[A, R], argument: A) -> R:
        if self._replica is not None and (answers := await self._replica.read(operation, (argument,))) is not None:
            return answers[0]
        return await self.read(operation, argument)

    @property
    def replica(self) -> ReplicaState | None:
        return None if self._replica is None else self._replica.state

    @property
    def is_at_rest(self) -> bool:
        """Whether at most one transaction is running."""
        return self._writer.busy <= 1

    async def order_events(self) -> None:
        for _ in range(ORDERING_TRIES):  # the other transaction may have begun before the last events
            if await self.run(_order_events, None):
                return
            await asyncio.sleep(ORDERING_PAUSE)

    def announce_wait(self) -> None:
        self._notifier.announce_wait()

    def log_events(self, *, ahead: bool) -> None:
        try:
            with self._connect() as connection:
                log_events(connection, self.url, ahead=ahead)
        except psycopg.Error as error:
            raise self._unavailable(error) from error

    def _connect(
        self, conninfo: str | None = None, kind: type[psycopg.Connection] = psycopg.Connection
    ) -> psycopg.Connection:
        return kind.connect(conninfo or self.url.conninfo, autocommit=True, prepare_threshold=None)

    def _open_replica(self, conninfo: str, session: Mapping[str, str]) -> Replica:
        lane = _TransactionConnection(self, session, 0, conninfo)
        self._lanes.append(lane)
        replica = Replica(
            lane.read,
            lambda: self._connect(kind=ListeningConnection),
            lambda: self._connect(conninfo, ListeningConnection),
            self.url.max_lag,
        )
        replica.start()
        return replica

    def _look_around(self, connection: psycopg.Connection) -> None:
        """Refresh the clock, the settings and all waiters, in case notifications were missed."""
        if self._server_clock.measure(connection):
            # No time has passed in which leases could run out. They are extended by this clock as soon as the processes
            # of those who hold them have measured it, too.
            self.outages.begin(HEARTBEAT + OUTAGE_GRACE_SECONDS)
        self.memory.forget()
        self._look_for_work()

    def _look_for_work(self) -> None:
        """Run parked calls again, and let all waiters look."""
        self._writer.wake_all_parked()
        self.wakeups.wake_all()

    def _lose_notifications(self) -> None:
        """Run parked calls again. The connection for notifications is lost, perhaps because the server is away."""
        self.outages.begin()
        self._writer.wake_all_parked()

    def suspect(self, moment: float) -> None:
        """A connection is lost that was in use since a moment: do not try the others, which are older, one by one."""
        self.outages.begin()
        self._suspected_until = max(self._suspected_until, moment)
        self._notifier.check()

    def _explain(self, error: StatementFailed) -> None:
        """Raise the error that says why a statement failed, unless it is a mistake of Ojster."""
        if error.sqlstate.startswith(_UNUSABLE):
            raise self._unavailable(error) from error
        if error.sqlstate in _REFUSED:
            raise StatementRefused(self._unavailable(error).message) from error
        if error.sqlstate == _OUT_OF_RANGE:
            raise out_of_range() from error
        if error.sqlstate.startswith(_BAD_VALUE):
            raise InvalidRequest(f"The database refuses a value: {error}.") from error

    def _unavailable(self, error: Exception) -> BackendUnavailable:
        return BackendUnavailable(f"The database {self.url.shown} cannot be used: {' '.join(str(error).split())}")


class _TransactionConnection:
    """One connection, opened on demand, and the transactions on it, one at a time.

    Parameters
    ----------
    session:
        Settings of the connection.
    slot:
        The slot of its counts.
    replica:
        Connection string of a replica; ``None``, the default: it leads to the primary, wherever that is.
    """

    def __init__(
        self, database: PostgresDatabase, session: Mapping[str, str], slot: int, replica: str | None = None
    ) -> None:
        self._database = database
        self._replica = replica
        self._session = session
        self._slot = slot % SLOTS
        self._connection: PipelineConnection | None = None
        self._opened_at = 0.0
        self._began_at = 0.0

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        database = self._database
        connection = self._connected()
        tx = self._transaction(connection)
        tx.outages, tx.began = database.outages, self._began_at
        committing = False
        try:
            if database._statistics is not None:
                database._statistics.note_transaction(connection, self._began_at)
            connection.execute(database._begin)
            connection.set_for_transaction()
            yield tx
            tx.write_effects()
            with_ends = database._notifier.tells_ends
            notification = self._notification_of(tx, with_ends=with_ends)
            if notification is not None:
                connection.send("SELECT pg_notify(?, ?)", (database._notifier.channel, notification))
            connection.execute("COMMIT")
            committing = True
            connection.answer()
            if connection.last_command != b"COMMIT":
                raise TryAgain("The database has rolled the transaction back.")
        except ConnectionLost as error:
            self._lose()
            if committing and not error.undone:
                message = f"The connection was lost during a commit. Check whether the change was made: {error}"
                raise BackendUnavailable(message) from error
            raise TryAgain(str(error), lost=True) from error
        except StatementFailed as error:
            self._roll_back()
            if error.sqlstate == READ_ONLY:
                self.disconnect()  # after a failover, another server accepts writes
            if error.sqlstate.startswith(_UNUSABLE):
                database.outages.begin()
            database._explain(error)
            raise
        except BaseException:
            self._roll_back()
            raise
        database.outages.note_write(tx.now, database.clock)
        try:  # it is committed: an error from here on must not look like a failed commit
            database.publish(tx.effects)
            self._notify(tx, has_notified=notification is not None, with_ends=with_ends)
        except Exception:
            log.exception("cannot send the wake-ups of a committed transaction")

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        connection = self._connected()
        try:
            yield self._transaction(connection)
        except ConnectionLost as error:
            self._lose()
            raise TryAgain(str(error), lost=True) from error
        except StatementFailed as error:
            self._roll_back()
            self._database._explain(error)
            raise
        except BaseException:
            self._roll_back()
            raise

    def _notification_of(self, tx: Transaction, *, with_ends: bool) -> str | None:
        """Return the notification to send inside the transaction; ``None``: send it after the commit.

        If no other transaction is running, sending it inside is faster and delays no other commit. What operators have
        changed is always sent inside, so that it is not lost if this process dies after the commit.
        """
        is_better = self._database.is_at_rest or tx.effects.configured
        if not is_better or not self._database._notifier.has_peers:
            return None
        words = messages(self._database._notifier.name, topics_of(tx, with_ends=with_ends))
        return words[0] if len(words) == 1 and "\n" in words[0] else None

    def _notify(self, tx: Transaction, *, has_notified: bool, with_ends: bool) -> None:
        """Notify other processes of a committed transaction, as far as it has not done so itself.

        Whether they wait for ends is asked after the commit: who is heard of later is told that there were some.
        """
        notifier = self._database._notifier
        if not has_notified:
            notifier.ring(topics_of(tx, with_ends=notifier.tells_ends))
        elif not with_ends and notifier.tells_ends:
            notifier.ring(topics_of_ends(tx))

    def _transaction(self, connection: PipelineConnection) -> PostgresTransaction:
        database = self._database
        return PostgresTransaction(
            connection,
            database.clock(),
            database.settings,
            # What operators have set must not be remembered as it was on a replica.
            database.memory if self._replica is None else database.memory.apart(),
            database.url,
            self._slot,
            records_events=database.records_events,
        )

    def _lose(self) -> None:
        if self._replica is not None:
            self.disconnect()
            return
        if self._connection is not None:
            self._database.conninfo = self._connection.conninfo
        self.disconnect()
        self._database.suspect(self._began_at)

    def disconnect(self) -> None:
        """Close the connection; the next transaction opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> PipelineConnection:
        self._began_at = time.monotonic()
        if self._replica is None and self._opened_at < self._database._suspected_until:
            self.disconnect()
        if self._connection is None:
            self._opened_at = self._began_at
            url = self._database.url
            try:
                self._connection = PipelineConnection(
                    self._replica or self._database.conninfo,
                    url.schema,
                    self._session,
                    url.lacks,
                    prepares=not url.pooled,
                    patience=ANSWER_TIMEOUT_SECONDS if self._replica is None else ANSWER_SECONDS,
                )
                if self._replica is None:
                    self._database.conninfo = self._connection.conninfo
            except psycopg.OperationalError as error:
                if self._replica is None:
                    self._database.outages.begin()
                raise self._database._unavailable(error) from error
        return self._connection

    def _roll_back(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.answer()
        except (StatementFailed, TryAgain):
            log.debug("a statement sent before the rollback failed")
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
                connection.answer()
        except (StatementFailed, TryAgain):
            self.disconnect()


def version_of(connection: psycopg.Connection) -> str:
    """Return what a database calls itself."""
    ((version,),) = connection.execute("SELECT version()").fetchall()
    return str(version)


def listen_conninfo(url: PostgresUrl) -> str | None:
    """Return the conninfo for LISTEN; ``None`` if it fails: the database lacks it, or only a pooler in transaction mode
    is known.
    """
    if "notifications" in url.lacks:
        return None
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

_OUT_OF_RANGE: Final = "22003"
"""SQLSTATE of a number that is too large."""

_UNUSABLE: Final = (READ_ONLY, "53", "58", "XX")
"""SQLSTATEs, or their classes, of an unusable database: read-only, resources exhausted (disk full, too many
connections), system errors, corruption."""

_REFUSED: Final = ("57014", "42501", "42P01", "42P10", "3F000")
"""SQLSTATEs of a statement that ran into a time limit or was cancelled, of a missing right, and of a table, unique
index or schema that does not exist, as while a dump is restored. Other statements may succeed."""

"""The version of a schema, and its migration."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import psycopg
from psycopg import sql

from ojster.core.errors import BackendUnavailable, InvalidRequest
from ojster.core.version import __version__
from ojster.storage.migrations import refuse_newer, refuse_unreleased, scripts
from ojster.storage.postgres.abilities import migration_without
from ojster.storage.postgres.url import PostgresUrl

log = logging.getLogger(__name__)

T = TypeVar("T")

LOCK_WAIT_MS: Final = 500
"""How long a migration waits for the lock of a table, in milliseconds: others wait behind it as long."""

MAX_MIGRATION_SECONDS: Final = 600.0
"""How long a migration tries again that gets no lock, in seconds."""

MIGRATION_PAUSES: Final = (0.2, 1.0)
"""Least and greatest pause before another try, in seconds, in which others go on."""

LARGE_TABLE_BYTES: Final = 16 * 1024 * 1024
"""Size from which on a table is not locked while one of its indexes is built."""

HAS_TRANSACTION_TIMEOUT: Final = 170_000
"""Version of PostgreSQL from which on transactions may have a time limit."""


class _BeingMigrated(psycopg.OperationalError):
    """Another process migrates the schema."""


_BUSY: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, _BeingMigrated)

_CONCURRENTLY: Final = " CONCURRENTLY"

INDEX: Final = re.compile(r"(CREATE(?: UNIQUE)?|DROP) INDEX CONCURRENTLY (\w+)(?: ON (\w+)([^;]*))?;")
"""A statement of a script that consists of such alone, which can be run while others work."""


def check_schema(connection: psycopg.Connection, url: PostgresUrl, *, migrate: bool) -> int:
    """Check that a schema has the current version, or migrate it; return that version.

    Several processes may do so at the same time, also while others work. Each script is a transaction, and gives up a
    lock that it does not get soon, so that nobody waits long behind it. Indexes of large tables are built outside of a
    transaction, with a lock that keeps nobody from reading and writing.

    Raises
    ------
    BackendUnavailable
        The schema is newer, or was made by a version that was never released; or it is older and ``migrate`` is false;
        or it is to be migrated on a standby.
    """
    if migrate and connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        raise BackendUnavailable(
            f"The database {url.shown} is a read-only standby, which cannot be migrated. Name its primary."
        )
    wanted = scripts("postgres")
    version = schema_version(connection, url.schema)
    refuse_newer(version, len(wanted))
    if version < len(wanted) and not migrate:
        there = f"has schema version {version}, not {len(wanted)}" if version else "has no Ojster tables"
        raise BackendUnavailable(
            f"The database {url.shown} {there} (schema {url.schema!r}): run `ojster migrate --database URL` once, "
            "or start with --migrate."
        )
    while version < len(wanted):
        try:
            version = _insisting(lambda: _migrate(connection, url, wanted))
        except _BUSY:
            raise
        except psycopg.DatabaseError:
            if connection.closed:
                raise
            reached = schema_version(connection, url.schema)
            if reached == version:
                raise
            version = reached  # without advisory locks, another process may be first
    refuse_newer(version, len(wanted))
    return version


def _insisting(change: Callable[[], T]) -> T:
    """Make a change that gives up a lock that it does not get soon; try again while others hold it."""
    deadline = time.monotonic() + MAX_MIGRATION_SECONDS
    while True:
        try:
            return change()
        except _BUSY as error:
            if time.monotonic() > deadline:
                raise
            log.warning("the migration waits for others, and tries again: %s", " ".join(str(error).split()))
            time.sleep(random.uniform(*MIGRATION_PAUSES))


def log_events(connection: psycopg.Connection, url: PostgresUrl, *, ahead: bool) -> None:
    """Have events written to the write-ahead log, so that followers miss none in a failover, or no longer.

    Others may work meanwhile; they wait while the events of the last minutes are copied.

    Raises
    ------
    InvalidRequest
        The database has no unlogged tables, so that events are always written ahead.
    """
    if "unlogged-tables" in url.lacks:
        if ahead:
            return
        raise InvalidRequest(f"The database {url.shown} has no unlogged tables: events are always written ahead.")

    def change() -> None:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}".encode())
            table = sql.Identifier(url.schema, "event_batches")
            how = sql.SQL("LOGGED" if ahead else "UNLOGGED")
            connection.execute(sql.SQL("ALTER TABLE {} SET {}").format(table, how))

    if are_events_logged(connection, url.schema) != ahead:
        _insisting(change)


def are_events_logged(connection: psycopg.Connection, schema: str) -> bool:
    """Return whether events are written to the write-ahead log, and survive a failover."""
    query = """
        SELECT c.relpersistence = 'p'
        FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = 'event_batches'
    """
    row = connection.execute(query, (schema,)).fetchone()
    return row is not None and bool(row[0])


def _migrate(connection: psycopg.Connection, url: PostgresUrl, wanted: Sequence[str]) -> int:
    """Run the next script that a schema lacks, and return its version."""
    version = schema_version(connection, url.schema)
    if version >= len(wanted) or not _must_run_beside_others(connection, url, wanted[version]):
        return _run_script(connection, url, wanted)
    with _alone(url):
        if schema_version(connection, url.schema) == version:  # else another process was first
            _build_indexes(connection, url, wanted[version], version + 1)
    return schema_version(connection, url.schema)


def _run_script(connection: psycopg.Connection, url: PostgresUrl, wanted: Sequence[str]) -> int:
    """Run the next script that a schema lacks, in a transaction of its own, and return its version."""
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}".encode())
        if "advisory-locks" not in url.lacks:
            # Processes that start together migrate one after the other; the later ones find it done. A table cannot
            # serve as the lock, because the first script creates them.
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (_lock_of(url),))
        version = schema_version(connection, url.schema)
        if version >= len(wanted):
            return version
        name = sql.Identifier(url.schema)
        known = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (url.schema,)).fetchone()
        if known is None:  # CREATE SCHEMA IF NOT EXISTS needs a right that we may lack
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
        script = migration_without(wanted[version], url.lacks).replace(_CONCURRENTLY, "")
        connection.execute(script.encode())
        connection.execute(
            "INSERT INTO migrations (version, applied_at, applied_by) VALUES (%s, now(), %s)",
            (version + 1, __version__),
        )
    return version + 1


def _lock_of(url: PostgresUrl) -> str:
    return f"ojster:{url.schema}"


def _must_run_beside_others(connection: psycopg.Connection, url: PostgresUrl, script: str) -> bool:
    """Return whether a script is about indexes of large tables, or was begun so, on a database that locks tables."""
    statements = INDEX.findall(script)
    if not statements or "advisory-locks" in url.lacks:
        return False
    for action, index, _, _ in statements:
        if (_validity(connection, url.schema, index) is None) == (action == "DROP"):
            return True  # this was done by a run that was interrupted
    tables = [table for _, _, table, _ in statements if table]
    query = """
        SELECT max(pg_relation_size(c.oid))
        FROM pg_class AS c
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = ANY(%s)
    """
    row = connection.execute(query, (url.schema, tables)).fetchone()
    return row is not None and (row[0] or 0) >= LARGE_TABLE_BYTES


def _build_indexes(connection: psycopg.Connection, url: PostgresUrl, script: str, version: int) -> None:
    """Build and drop the indexes of a script while others work. What a former run has left is taken into account."""
    if not url.pooled:  # for the connection, which serves nothing else; behind a pooler, it would serve others
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET lock_timeout = 0")  # nobody waits behind the locks that this waits for
    schema = sql.Identifier(url.schema)
    for action, index, table, rest in INDEX.findall(script):
        is_valid = _validity(connection, url.schema, index)  # a build that was interrupted is invalid
        if is_valid is not None and (action == "DROP" or not is_valid):
            place = sql.SQL("{}.{}").format(schema, sql.Identifier(index))
            connection.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(place))
        if action != "DROP" and not is_valid:
            log.info("building the index %s of %s while others work", index, table)
            place = sql.SQL("{} ON {}.{}").format(sql.Identifier(index), schema, sql.Identifier(table))
            create = sql.SQL("{} INDEX CONCURRENTLY {} {}").format(sql.SQL(action), place, sql.SQL(rest))
            connection.execute(create)
    insert = sql.SQL("INSERT INTO {}.migrations (version, applied_at, applied_by) VALUES (%s, now(), %s)")
    connection.execute(insert.format(schema), (version, __version__))


@contextmanager
def _alone(url: PostgresUrl) -> Iterator[None]:
    """Keep other processes from migrating a schema, in an idle transaction of another connection.

    An index is not finished before all statements that began earlier have ended, so nobody may wait for this lock. The
    holder must have no snapshot either, which a higher isolation or a statement with parameters would leave it.
    """
    query = sql.SQL("SELECT pg_try_advisory_xact_lock(hashtextextended({}, 0))").format(sql.Literal(_lock_of(url)))
    with psycopg.connect(url.conninfo, prepare_threshold=None) as holder:
        holder.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        holder.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        if holder.info.server_version >= HAS_TRANSACTION_TIMEOUT:
            holder.execute("SET LOCAL transaction_timeout = 0")
        # Tried, not awaited: a build of an index waits for all that wait here.
        if holder.execute(query).fetchone() != (True,):
            raise _BeingMigrated("another process is migrating the schema")
        yield


def _validity(connection: psycopg.Connection, schema: str, index: str) -> bool | None:
    """Return whether an index is valid; ``None`` if it does not exist."""
    query = """
        SELECT i.indisvalid
        FROM pg_index AS i
        JOIN pg_class AS c ON c.oid = i.indexrelid
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s
    """
    row = connection.execute(query, (schema, index)).fetchone()
    return None if row is None else bool(row[0])


def schema_version(connection: psycopg.Connection, schema: str) -> int:
    """Return the version of a schema; 0 if there is none.

    Raises
    ------
    BackendUnavailable
        An Ojster that was never released has made it.
    """
    # Read from the catalogue's tables, because to_regclass may answer from the session's cache.
    columns = connection.execute(
        """
        SELECT a.attname
        FROM pg_attribute AS a
        JOIN pg_class AS c ON c.oid = a.attrelid
        JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = 'migrations'
        """,
        (schema,),
    ).fetchall()
    if not columns:
        return 0
    query = sql.SQL("SELECT coalesce(max(version), 0) FROM {}.migrations").format(sql.Identifier(schema))
    row = connection.execute(query).fetchone()
    version = int(row[0]) if row is not None else 0
    if ("applied_by",) not in columns:  # the tables of unreleased versions do not say who made them
        refuse_unreleased(version, instead="another schema (?schema=NAME in its URL)")
    return version

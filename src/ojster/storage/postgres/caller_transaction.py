"""Transaction functions in a caller's transaction, on the caller's connection.

What is created in it exists if and only if that transaction commits. A NOTIFY in the same transaction wakes parked
fetches at the commit. Connections of psycopg 3, asyncpg, SQLAlchemy and Django are supported. An asynchronous driver is
awaited in its event loop while the engine's function runs in a thread.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence, Set
from typing import Any, Final, TypeVar
from uuid import UUID

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from ojster.core.errors import InvalidRequest, NotInTransaction
from ojster.core.settings import ServiceSettings
from ojster.storage.database import topics_of
from ojster.storage.memory import Memory
from ojster.storage.postgres.abilities import slots_of
from ojster.storage.postgres.clock import NOW
from ojster.storage.postgres.database import channel_of
from ojster.storage.postgres.notifier import messages
from ojster.storage.postgres.pipeline import Array, Value, texts, translate, unnest
from ojster.storage.postgres.transaction import SLOTS, PostgresTransaction
from ojster.storage.postgres.url import PostgresUrl, with_lacks
from ojster.storage.transaction import Parameters, Row, Transaction

R = TypeVar("R")

Execute = Callable[[str, Sequence[Value], bool], list[Row]]
"""Runs a statement with parameters ``$1``, ``$2``, … on a caller's connection, and returns its rows, if it has any."""

AsyncExecute = Callable[[str, Sequence[Value], bool], Coroutine[Any, Any, list[Row]]]

log = logging.getLogger(__name__)

_NO_TABLES: Final = ("3F000", "42P01")
_NO_PERMISSION: Final = "42501"
"""SQLSTATEs of a schema or table that does not exist, and of one that the role may not use."""

_told_of: Final[set[tuple[object, object]]] = set()
"""Pairs of databases about which a warning was logged; behind a pooler, the names may differ without harm."""

_NUMBERED: Final = re.compile(r"\$(\d+)")
# Sorted in a subquery, so that all callers take the locks in one order and do not wait in a circle; count() makes one
# row of any number of locks.
_LOCK_KEYS: Final = f"""
    SELECT count(pg_advisory_xact_lock(key))
    FROM (
        SELECT DISTINCT hashtextextended(name, 0) AS key
        FROM {unnest("text")} AS name
        ORDER BY key
    ) AS keys
"""


class CallerTransaction(PostgresTransaction):
    """A caller's transaction, which may stay open long. Others may have to wait for its locks on unique keys only."""

    isolation = "read committed"

    execute_together = Transaction.execute_together

    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        """Wait for locks on keys. Only the caller is blocked, because the connection is its own."""
        names = self.names_of_locks(keys)
        if names and self.isolation != "read committed":
            raise InvalidRequest(
                f"Unique jobs cannot be enqueued at the isolation level {self.isolation!r}: the transaction cannot see "
                "jobs that others have just enqueued. Use 'read committed'."
            )
        if names and "advisory-locks" in self._lacks:
            self.lock_slots(slots_of(names).values(), self.for_update)
        elif names:
            self.execute(_LOCK_KEYS, (texts(names),))
        return frozenset()


class _CallerConnection:
    """A caller's connection, with the methods that ``PostgresTransaction`` needs."""

    def __init__(self, execute: Execute, url: PostgresUrl) -> None:
        self._execute = execute
        self._url = url

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        statement = translate(sql, self._url.schema, self._url.lacks)
        if isinstance(parameters, dict):
            parameters = [parameters[name] for name in statement.names]
        return self._execute(statement.sql.decode(), list(parameters), statement.returns_rows)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        for values in rows:
            self.execute(sql, values)

    def flush(self) -> None:
        return

    def answer(self) -> list[Row]:
        return []


def run_in_caller_transaction(
    execute: Execute, function: Callable[[Transaction], R], settings: ServiceSettings, url: PostgresUrl
) -> R:
    """Run a transaction function in a caller's transaction, and notify other processes when it commits."""
    look = f"SELECT {NOW}, current_setting('transaction_isolation'), version(), current_database()"
    ((now, isolation, version, database),) = execute(look, (), True)
    url = with_lacks(url, version)
    own = conninfo_to_dict(url.conninfo).get("dbname")
    if own not in (None, database) and (own, database) not in _told_of:
        _told_of.add((own, database))
        log.warning("jobs are enqueued on a connection to the database %r; that of the App is %r", database, own)
    guest: Any = _CallerConnection(execute, url)
    slot = SLOTS + secrets.randbits(62)  # a slot of its own blocks no other transaction; due work folds it
    tx = CallerTransaction(guest, int(now), settings, Memory(is_callers=True), url, slot, records_events=True)
    tx.isolation = isolation
    try:
        result = function(tx)
        tx.write_effects()
    except Exception as error:
        raise _explained(error, url, database) from error
    topics = topics_of(tx)
    if topics and "notifications" not in url.lacks:
        for message in messages("guest", topics):
            guest.execute("SELECT pg_notify(?, ?)", (channel_of(url.schema), message))
    return result


def _explained(error: Exception, url: PostgresUrl, database: str) -> Exception:
    """Return an error that says what to do, if a caller's connection cannot use the tables; else the same."""
    causes = (error, error.__cause__, getattr(error, "orig", None))
    state = next((sqlstate for cause in causes if (sqlstate := getattr(cause, "sqlstate", None))), None)
    where = f"the schema {url.schema!r} of the database {database!r}"
    if state in _NO_TABLES:
        return InvalidRequest(
            f"There are no tables of Ojster in {where}, to which the connection leads. It must be the database of the "
            f"App ({url.shown}); `ojster migrate` makes the tables."
        )
    if state == _NO_PERMISSION:
        return InvalidRequest(
            f"The role of the connection may not use {where}: {error}. GRANT it USAGE on the schema, SELECT, INSERT, "
            "UPDATE and DELETE on its tables, and USAGE on its sequences."
        )
    return error


def executes(connection: Any) -> Execute:
    """Return a function that runs statements on a synchronous connection.

    Parameters
    ----------
    connection:
        A ``psycopg.Connection``, an SQLAlchemy ``Connection`` or ``Session``, or Django's ``connection``.

    Raises
    ------
    NotInTransaction
        The connection has no open transaction, and does not begin one by itself.
    TypeError
        The connection is of another type.
    """
    if hasattr(connection, "in_atomic_block"):
        if not connection.in_atomic_block:
            raise NotInTransaction("use `with transaction.atomic():`")
        return _django(connection)
    if isinstance(connection, psycopg.Connection):
        _check_psycopg(connection)
        return _psycopg(connection)
    if (
        _is_of(connection, "sqlalchemy")
        and hasattr(connection, "execute")
        and not asyncio.iscoroutinefunction(connection.execute)
    ):
        return _sqlalchemy(connection)
    raise TypeError(
        f"{type(connection)!r} is not a synchronous connection of psycopg, SQLAlchemy or Django. For an asynchronous "
        "connection, use aenqueue_in or astart_in."
    )


async def run_in_caller_transaction_async(
    connection: Any, function: Callable[[Transaction], R], settings: ServiceSettings, url: PostgresUrl
) -> R:
    """Run a transaction function in a caller's transaction, on an asynchronous or a synchronous connection.

    Parameters
    ----------
    connection:
        A ``psycopg.AsyncConnection``, an ``asyncpg`` connection, an SQLAlchemy ``AsyncConnection`` or
        ``AsyncSession``, or a connection that ``executes`` accepts, except Django's.

    Raises
    ------
    NotInTransaction, TypeError
        As in ``executes``; ``TypeError`` also for Django's connection, which belongs to its thread.
    """
    if _is_of(connection, "sqlalchemy") and hasattr(connection, "run_sync"):
        result: R = await connection.run_sync(
            lambda inner: run_in_caller_transaction(_sqlalchemy(inner), function, settings, url)
        )
        return result
    if isinstance(connection, psycopg.AsyncConnection):
        _check_psycopg(connection)
        later = _psycopg_later(connection)
    elif _is_of(connection, "asyncpg"):
        if not connection.is_in_transaction():
            raise NotInTransaction("use `async with connection.transaction():`")
        later = _asyncpg_later(connection)
    else:
        if hasattr(connection, "in_atomic_block"):  # another thread would get another connection
            raise TypeError("Django's connection belongs to its thread: use sync_to_async with enqueue_in or start_in.")
        execute = executes(connection)
        return await _to_the_end(asyncio.to_thread(run_in_caller_transaction, execute, function, settings, url))
    loop = asyncio.get_running_loop()

    def call(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        return asyncio.run_coroutine_threadsafe(later(sql, values, returns_rows), loop).result()

    return await _to_the_end(asyncio.to_thread(run_in_caller_transaction, call, function, settings, url))


async def _to_the_end(work: Awaitable[R]) -> R:
    """Await work to its end, even if the caller is cancelled meanwhile; then raise the cancellation."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.exception()  # it is known: the caller gets the cancellation instead
        raise


def _is_of(connection: Any, package: str) -> bool:
    """Return whether the connection's class or one of its bases is from a package, which may not be installed."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(connection).__mro__)


def _check_psycopg(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        raise NotInTransaction("use `with connection.transaction():`")


def _plain(value: Value) -> Any:
    """Return a parameter as drivers accept it: an array as a list."""
    return list(value.values) if isinstance(value, Array) else value


def _psycopg(connection: Any) -> Execute:
    def execute(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(*_formatted(sql, values))
            return _rows(cursor.fetchall()) if returns_rows else []

    return execute


def _django(connection: Any) -> Execute:
    def execute(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        with connection.cursor() as cursor:
            cursor.execute(*_formatted(sql, values))
            return _rows(cursor.fetchall()) if returns_rows else []

    return execute


def _sqlalchemy(connection: Any) -> Execute:
    import sqlalchemy
    from sqlalchemy.dialects.postgresql import ARRAY

    if hasattr(connection, "connection") and callable(connection.connection):  # a session
        connection = connection.connection()
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise NotInTransaction("use an isolation level other than AUTOCOMMIT")
    types: dict[str, Any] = {
        "bigint": sqlalchemy.BigInteger(),
        "text": sqlalchemy.Text(),
        "bytea": sqlalchemy.LargeBinary(),
        "uuid": sqlalchemy.Text(),
    }

    def type_of(value: Value) -> Any:
        if value is None:
            return sqlalchemy.types.NullType()
        if isinstance(value, Array):
            return ARRAY(types[value.type])
        return types["bytea" if isinstance(value, bytes) else "bigint" if isinstance(value, int) else "text"]

    def execute(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        statement = sqlalchemy.text(_NUMBERED.sub(r":p\1", sql)).bindparams(
            *(
                sqlalchemy.bindparam(f"p{number}", _plain(value), type_=type_of(value))
                for number, value in enumerate(values, 1)
            )
        )
        result = connection.execute(statement)
        return _rows(result) if returns_rows else []

    return execute


def _psycopg_later(connection: Any) -> AsyncExecute:
    async def execute(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(*_formatted(sql, values))
            return _rows(await cursor.fetchall()) if returns_rows else []

    return execute


def _asyncpg_later(connection: Any) -> AsyncExecute:
    async def execute(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        return _rows(await connection.fetch(sql, *map(_plain, values)))

    return execute


def _formatted(sql: str, values: Sequence[Value]) -> tuple[str, dict[str, Any]]:
    """Return a statement and its parameters in the format style ``%(name)s``."""
    named = {f"p{number}": _plain(value) for number, value in enumerate(values, 1)}
    return _NUMBERED.sub(r"%(p\1)s", sql.replace("%", "%%")), named


def _rows(rows: Iterable[Iterable[Any]]) -> list[Row]:
    """Return rows with UUIDs as strings and binary values as ``bytes``, whatever the driver."""
    return [
        tuple(
            str(value) if isinstance(value, UUID) else bytes(value) if isinstance(value, memoryview) else value
            for value in row
        )
        for row in rows
    ]

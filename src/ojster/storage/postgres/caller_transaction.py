"""How is a job pushed inside a caller's own transaction? On the caller's connection, with the engine's own functions.

The job exists if and only if that transaction commits, and workers wake when it does: the word to them is a NOTIFY of
the same transaction. Connections of psycopg 3, asyncpg, SQLAlchemy and Django are known, synchronous or not; a driver
that must be awaited is awaited in its event loop while the engine's function runs in a thread.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence, Set
from typing import Any, Final, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from ojster.core.errors import InvalidRequest, NotInTransaction
from ojster.core.settings import Settings
from ojster.storage.database import topics_of
from ojster.storage.memory import Memory
from ojster.storage.postgres.database import NOW, SLOTS, PostgresTransaction, channel_of
from ojster.storage.postgres.notifier import messages
from ojster.storage.postgres.pipeline import Array, Value, texts, translate, unnest
from ojster.storage.transaction import Parameters, Row, Transaction

R = TypeVar("R")

Execute = Callable[[str, Sequence[Value], bool], list[Row]]
"""Runs a statement with parameters ``$1``, ``$2``, … on a caller's connection, and returns its rows, if it has any."""

ExecuteLater = Callable[[str, Sequence[Value], bool], Coroutine[Any, Any, list[Row]]]

_NUMBERED: Final = re.compile(r"\$(\d+)")
_LOCK_KEYS: Final = (
    "SELECT count(pg_advisory_xact_lock(key)) FROM "
    f"(SELECT DISTINCT hashtextextended(name, 0) AS key FROM {unnest('text')} AS name ORDER BY key) AS keys"
)


class GuestTransaction(PostgresTransaction):
    """A transaction that its caller ends, perhaps much later. It holds no lock that others wait for but unique keys."""

    isolation = "read committed"

    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        """Wait for keys: on the caller's own connection, nobody else has to."""
        names = self.names_of_locks(keys)
        if names and self.isolation != "read committed":
            raise InvalidRequest(
                f"Unique jobs cannot be enqueued in a transaction with the isolation level {self.isolation}: it would "
                "not see jobs that others have just enqueued."
            )
        if names:
            self.execute(_LOCK_KEYS, (texts(names),))
        return frozenset()

    def know_queues(self, names: Iterable[str]) -> None:
        """Leave it to the chores: others would wait for the row of a new queue."""
        return


class _GuestConnection:
    """A caller's connection, as far as ``PostgresTransaction`` needs one."""

    def __init__(self, execute: Execute, schema: str) -> None:
        self._execute = execute
        self._schema = schema

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        statement = translate(sql, self._schema)
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


def run_as_guest(execute: Execute, function: Callable[[Transaction], R], settings: Settings, schema: str) -> R:
    """Run a transaction function in a caller's transaction, and tell others when that commits."""
    guest: Any = _GuestConnection(execute, schema)
    ((now, isolation),) = guest.execute(f"SELECT {NOW}, current_setting('transaction_isolation')")
    slot = SLOTS + secrets.randbits(62)  # nobody else's, so that nobody waits for it; the chores add it up
    tx = GuestTransaction(guest, int(now), settings, Memory(is_callers=True), schema, slot, records_events=True)
    tx.isolation = isolation
    result = function(tx)
    tx.write_effects()
    if topics := topics_of(tx.effects):
        for message in messages("guest", topics):
            guest.execute("SELECT pg_notify(?, ?)", (channel_of(schema), message))
    return result


def executes(connection: Any) -> Execute:
    """Return how statements are run on a synchronous connection.

    Parameters
    ----------
    connection:
        A ``psycopg.Connection``, an SQLAlchemy ``Connection`` or ``Session``, or Django's ``connection``.

    Raises
    ------
    NotInTransaction
        It has no transaction open, and begins none by itself.
    TypeError
        It is none of these.
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
        f"{type(connection)!r} is no synchronous connection of psycopg, SQLAlchemy or Django; for others, there is "
        "aenqueue_in."
    )


async def run_as_guest_of(connection: Any, function: Callable[[Transaction], R], settings: Settings, schema: str) -> R:
    """Run a transaction function in the transaction of a connection that is awaited, or of one that is not.

    Parameters
    ----------
    connection:
        A ``psycopg.AsyncConnection``, an ``asyncpg`` connection, an SQLAlchemy ``AsyncConnection`` or
        ``AsyncSession``, or whatever ``executes`` takes.

    Raises
    ------
    NotInTransaction, TypeError
        As ``executes`` does.
    """
    if _is_of(connection, "sqlalchemy") and hasattr(connection, "run_sync"):
        result: R = await connection.run_sync(
            lambda inner: run_as_guest(_sqlalchemy(inner), function, settings, schema)
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
        if hasattr(connection, "in_atomic_block"):  # it would be another one in another thread
            raise TypeError("Django's connection belongs to its thread: use sync_to_async(job.enqueue_in).")
        execute = executes(connection)
        return await _to_the_end(asyncio.to_thread(run_as_guest, execute, function, settings, schema))
    loop = asyncio.get_running_loop()

    def call(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        return asyncio.run_coroutine_threadsafe(later(sql, values, returns_rows), loop).result()

    return await _to_the_end(asyncio.to_thread(run_as_guest, call, function, settings, schema))


async def _to_the_end(work: Awaitable[R]) -> R:
    """Await work that must not go on behind its caller's back: it ends before a cancellation goes on."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _is_of(connection: Any, package: str) -> bool:
    """Whether this is a connection of a package that may not be installed, or of a class derived from one."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(connection).__mro__)


def _check_psycopg(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        raise NotInTransaction("use `with connection.transaction():`")


def _plain(value: Value) -> Any:
    """A parameter as drivers know it."""
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
        raise NotInTransaction("this one has the isolation level AUTOCOMMIT")
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


def _psycopg_later(connection: Any) -> ExecuteLater:
    async def execute(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(*_formatted(sql, values))
            return _rows(await cursor.fetchall()) if returns_rows else []

    return execute


def _asyncpg_later(connection: Any) -> ExecuteLater:
    async def execute(sql: str, values: Sequence[Value], returns_rows: bool) -> list[Row]:
        return _rows(await connection.fetch(sql, *map(_plain, values)))

    return execute


def _formatted(sql: str, values: Sequence[Value]) -> tuple[str, dict[str, Any]]:
    """A statement as drivers want it that format: ``%(name)s``."""
    named = {f"p{number}": _plain(value) for number, value in enumerate(values, 1)}
    return _NUMBERED.sub(r"%(p\1)s", sql.replace("%", "%%")), named


def _rows(rows: Iterable[Iterable[Any]]) -> list[Row]:
    """Rows as the engine knows them, whatever a driver makes of UUIDs and bytes."""
    return [
        tuple(
            str(value) if isinstance(value, UUID) else bytes(value) if isinstance(value, memoryview) else value
            for value in row
        )
        for row in rows
    ]

"""How is a job pushed inside a caller's own transaction? On the caller's connection, with the engine's own functions.

The job exists if and only if that transaction commits, and workers wake when it does: the word to them is a NOTIFY of
the same transaction. Connections of psycopg 3, asyncpg, SQLAlchemy and Django are known, synchronous or not; a driver
that must be awaited is awaited in its event loop while the engine's function runs in a thread.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

from ojster.database.database import topics_of
from ojster.database.herald import messages
from ojster.database.pipeline import Array, Value, translate
from ojster.database.postgres import SLOTS, PostgresTransaction, channel_of
from ojster.database.transaction import Parameters, Row
from ojster.engine.settings import Settings
from ojster.model.errors import NotInTransaction

R = TypeVar("R")

Execute = Callable[[str, Sequence[Value]], list[Row]]
"""Runs a statement with parameters ``$1``, ``$2``, … on a caller's connection, and returns its rows."""

ExecuteLater = Callable[[str, Sequence[Value]], Coroutine[Any, Any, list[Row]]]

_NUMBERED: Final = re.compile(r"\$(\d+)")
_NOW: Final = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


class _GuestConnection:
    """A caller's connection, as far as ``PostgresTransaction`` needs one."""

    def __init__(self, execute: Execute, schema: str) -> None:
        self._execute = execute
        self._schema = schema

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        statement = translate(sql, self._schema)
        if isinstance(parameters, dict):
            parameters = [parameters[name] for name in statement.names]
        rows = self._execute(statement.sql.decode(), list(parameters))
        return rows if statement.returns_rows else []

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        for values in rows:
            self.execute(sql, values)

    def answer(self) -> list[Row]:
        return []


def run_as_guest(execute: Execute, function: Callable[[PostgresTransaction], R], settings: Settings, schema: str) -> R:
    """Run a transaction function in a caller's transaction, and tell others when that commits."""
    guest: Any = _GuestConnection(execute, schema)
    ((now,),) = guest.execute(_NOW)
    tx = PostgresTransaction(guest, int(now), settings, schema, secrets.randbelow(SLOTS), records_events=True)
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
    module = type(connection).__module__.partition(".")[0]
    if module == "psycopg" and not asyncio.iscoroutinefunction(connection.execute):
        _check_psycopg(connection)
        return _psycopg(connection)
    if (
        module == "sqlalchemy"
        and hasattr(connection, "execute")
        and not asyncio.iscoroutinefunction(connection.execute)
    ):
        return _sqlalchemy(connection)
    raise TypeError(
        f"{type(connection)!r} is no synchronous connection of psycopg, SQLAlchemy or Django; for others, there is "
        "aenqueue_in."
    )


async def run_as_guest_of(
    connection: Any, function: Callable[[PostgresTransaction], R], settings: Settings, schema: str
) -> R:
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
    module = type(connection).__module__.partition(".")[0]
    if module == "sqlalchemy" and hasattr(connection, "run_sync"):
        result: R = await connection.run_sync(
            lambda inner: run_as_guest(_sqlalchemy(inner), function, settings, schema)
        )
        return result
    if module == "psycopg" and asyncio.iscoroutinefunction(connection.execute):
        _check_psycopg(connection)
        later = _psycopg_later(connection)
    elif module == "asyncpg":
        if not connection.is_in_transaction():
            raise NotInTransaction("use `async with connection.transaction():`")
        later = _asyncpg_later(connection)
    else:
        execute = executes(connection)
        return await _to_the_end(asyncio.to_thread(run_as_guest, execute, function, settings, schema))
    loop = asyncio.get_running_loop()

    def call(sql: str, values: Sequence[Value]) -> list[Row]:
        return asyncio.run_coroutine_threadsafe(later(sql, values), loop).result()

    return await _to_the_end(asyncio.to_thread(run_as_guest, call, function, settings, schema))


async def _to_the_end(work: Awaitable[R]) -> R:
    """Await work that must not go on behind its caller's back: it ends before a cancellation goes on."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _check_psycopg(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        raise NotInTransaction("use `with connection.transaction():`")


def _plain(value: Value) -> Any:
    """A parameter as drivers know it."""
    return list(value.values) if isinstance(value, Array) else value


def _psycopg(connection: Any) -> Execute:
    def execute(sql: str, values: Sequence[Value]) -> list[Row]:
        cursor = connection.execute(*_formatted(sql, values))
        return cursor.fetchall() if cursor.description else []

    return _with_tuples(execute)


def _django(connection: Any) -> Execute:
    def execute(sql: str, values: Sequence[Value]) -> list[Row]:
        with connection.cursor() as cursor:
            cursor.execute(*_formatted(sql, values))
            return list(cursor.fetchall()) if cursor.description else []

    return _with_tuples(execute)


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
        if isinstance(value, Array):
            return ARRAY(types[value.type])
        return types["bytea" if isinstance(value, bytes) else "bigint" if isinstance(value, int) else "text"]

    def execute(sql: str, values: Sequence[Value]) -> list[Row]:
        statement = sqlalchemy.text(_NUMBERED.sub(r":p\1", sql)).bindparams(
            *(
                sqlalchemy.bindparam(f"p{number}", _plain(value), type_=type_of(value))
                for number, value in enumerate(values, 1)
            )
        )
        result = connection.execute(statement)
        return [tuple(row) for row in result] if result.returns_rows else []

    return _with_tuples(execute)


def _psycopg_later(connection: Any) -> ExecuteLater:
    async def execute(sql: str, values: Sequence[Value]) -> list[Row]:
        cursor = await connection.execute(*_formatted(sql, values))
        return [_tuple(row) for row in await cursor.fetchall()] if cursor.description else []

    return execute


def _asyncpg_later(connection: Any) -> ExecuteLater:
    async def execute(sql: str, values: Sequence[Value]) -> list[Row]:
        return [_tuple(row) for row in await connection.fetch(sql, *map(_plain, values))]

    return execute


def _formatted(sql: str, values: Sequence[Value]) -> tuple[str, dict[str, Any]]:
    """A statement as drivers want it that format: ``%(name)s``."""
    named = {f"p{number}": _plain(value) for number, value in enumerate(values, 1)}
    return _NUMBERED.sub(r"%(p\1)s", sql.replace("%", "%%")), named


def _with_tuples(execute: Execute) -> Execute:
    return lambda sql, values: [_tuple(row) for row in execute(sql, values)]


def _tuple(row: Any) -> Row:
    """A row as the engine knows it, whatever the caller's connection makes of rows and UUIDs."""
    values = row.values() if hasattr(row, "values") and callable(row.values) else row
    return tuple(
        str(value) if type(value).__name__ == "UUID" else bytes(value) if isinstance(value, memoryview) else value
        for value in values
    )

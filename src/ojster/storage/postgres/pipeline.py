"""Pipelined connections to PostgreSQL: only statements that return rows wait for an answer.

A transaction function is written as if each statement were answered at once. Here, statements that return no rows are
only sent; their answers are read with those of the next statement that returns rows, or with the commit. A transaction
of eight statements then costs two or three round trips, which matters as soon as the database is on another machine.

The module uses libpq directly, as wrapped by psycopg (``psycopg.pq``).

Measurements are in docs/adr/0005-libpq-pipelines-for-postgresql.md.
"""

from __future__ import annotations

import re
import select
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.pq.abc import PGresult

from ojster.core.printable import unstorable
from ojster.storage.migrations import scripts
from ojster.storage.postgres.abilities import NOTHING, Lacks, without
from ojster.storage.postgres.reachable import birth_of, log_wait, successor, with_first
from ojster.storage.transaction import ColumnType, Parameters, Row, TryAgain

ANSWER_TIMEOUT_SECONDS: Final = 60.0
"""Maximum wait for an answer, in seconds, before the connection counts as lost."""

DOUBT_SECONDS: Final = 2.0
"""Time without an answer, in seconds, after which another server is looked for that has become the primary."""

_UUID_OID: Final = 2950
_UUID_SIZE: Final = "00000010"
"""The size of a UUID, 16 bytes, in hexadecimal."""

_INT8_OID: Final = 20
_TEXT_OID: Final = 25
_BYTEA_OID: Final = 17

_CREATED: Final = re.compile(r"(?m)^CREATE (?:UNLOGGED )?(?:TABLE|VIEW) (\w+)")
_TABLES: Final = "|".join(_CREATED.findall("\n".join(scripts("postgres"))))
_TABLE: Final = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE)\s+({_TABLES})\b")
_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z]\w*)|\?")
_TEXT_OR_COMMENT: Final = re.compile(r"'[^']*'|--[^\n]*")
_INNERMOST: Final = re.compile(r"\([^()]*\)")
_VERB: Final = re.compile(r"\b(?:SELECT|VALUES|INSERT|UPDATE|DELETE)\b")
_RETURNING: Final = re.compile(r"\bRETURNING\b")

_RETRYABLE_SQLSTATES: Final = frozenset({"40001", "40P01", "55P03", "23505", "23P01"})
"""SQLSTATEs after which the transaction is run again: serialization failures, deadlocks, unavailable locks, and unique
or exclusion violations. The next run sees the changes of the other transaction."""

_CONSEQUENCES: Final = frozenset({"25P02", "3B001"})
"""SQLSTATEs of statements after a failed one: in a transaction that waits for its rollback, and with a savepoint that
was sent after the failed statement and therefore was not made."""

_IDLE: Final = frozenset({"25P03", "57P05"})
"""SQLSTATEs of a session that was ended because it sent nothing: no commit of it has begun."""

_LOST: Final = _IDLE | {"57P01", "57P02", "57P03", "08000", "08003", "08006", "08P01", "26000"}
"""SQLSTATEs of a lost connection: the database shuts down, has crashed, is starting up or disconnects; or a pooler has
assigned a different server connection."""


class ConnectionLost(TryAgain):
    """The connection is lost. The transaction is rolled back, unless its commit was already sent.

    ``undone`` is true if it is certainly rolled back: the database refused a statement before the commit, or had ended
    the session before the commit came.
    """

    def __init__(self, why: str, *, undone: bool = False) -> None:
        super().__init__(why, lost=True)
        self.undone = undone


MAX_STATEMENTS: Final = 2_000
"""Maximum number of statements that are kept translated, and prepared in each connection.

The engine has some hundreds. Those of filters depend on what callers ask for, so that there is no end of them.
"""


class StatementFailed(Exception):
    """The database refused a statement."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f"{message} ({sqlstate})")
        self.sqlstate = sqlstate


class Statement(NamedTuple):
    """A statement in PostgreSQL's syntax. ``names`` are the named parameters in order, empty if they are positional."""

    sql: bytes
    names: tuple[str, ...]
    returns_rows: bool


@lru_cache(MAX_STATEMENTS)
def translate(sql: str, schema: str, lacks: Lacks = NOTHING) -> Statement:
    """Translate a statement of the engine's dialect (``:name`` or ``?``) to numbered parameters and qualified tables.

    Tables are qualified instead of setting a search path, because neither a pooler nor a caller's own connection would
    keep one. What the database lacks is left out.
    """
    sql = without(sql, lacks)
    names: list[str] = []
    positions = 0

    def number(match: re.Match[str]) -> str:
        nonlocal positions
        name = match[1]
        if name is None:
            positions += 1
            return f"${positions}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    numbered = _PARAMETER.sub(number, sql)
    qualified = _TABLE.sub(lambda match: f"{match[1]} {quoted(schema)}.{match[2]}", numbered)
    return Statement(qualified.encode(), tuple(names), _returns_rows(sql))


def _returns_rows(sql: str) -> bool:
    """Return whether a statement returns rows: what it does, and not what is in its parentheses, says so."""
    sql, inner = _TEXT_OR_COMMENT.sub("", sql), 1
    while inner:
        sql, inner = _INNERMOST.subn("", sql)
    verb = _VERB.search(sql)
    return verb is not None and (verb[0] in ("SELECT", "VALUES") or _RETURNING.search(sql) is not None)


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


class Array(NamedTuple):
    """Values as one array parameter, which ``unnest`` turns into rows."""

    type: ColumnType
    values: Sequence[Any]

    def encode(self) -> bytes | None:
        """Return the array in PostgreSQL's binary format; ``None`` if all values are NULL, which ``unnest`` pads."""
        values = self.values
        if values.count(None) == len(values):
            return None
        match self.type:
            case "bigint" if None not in values:
                count = len(values)
                flat = [8] * (2 * count)
                flat[1::2] = values
                return struct.pack(f">iiiii{'iq' * count}", 1, 0, _INT8_OID, count, 1, *flat)
            case "bigint":
                return _array(
                    _INT8_OID, [None if number is None else number.to_bytes(8, "big", signed=True) for number in values]
                )
            case "text" if values.count(values[0]) == len(values):  # as what a batch has in common
                text = _text(values[0])
                header = struct.pack(">iiiii", 1, 0, _TEXT_OID, len(values), 1)
                return header + (len(text).to_bytes(4, "big") + text) * len(values)
            case "text":
                return _array(_TEXT_OID, [None if text is None else _text(text) for text in values])
            case "bytea":
                return _array(_BYTEA_OID, values)
            case "uuid" if None not in values:
                # Hexadecimal, with the length before each: one conversion instead of one for each.
                digits = (_UUID_SIZE + _UUID_SIZE.join(values)).replace("-", "")
                return struct.pack(">iiiii", 1, 0, _UUID_OID, len(values), 1) + bytes.fromhex(digits)
            case "uuid":
                return _array(_UUID_OID, [None if id is None else bytes.fromhex(id.replace("-", "")) for id in values])


def ints(values: Sequence[int | None]) -> Array:
    """Return integers as a parameter of type ``bigint[]``."""
    return Array("bigint", values)


def texts(values: Sequence[str | None]) -> Array:
    """Return strings as a parameter of type ``text[]``."""
    return Array("text", values)


def blobs(values: Sequence[bytes | None]) -> Array:
    """Return byte strings as a parameter of type ``bytea[]``."""
    return Array("bytea", values)


def uuids(values: Sequence[str]) -> Array:
    """Return UUIDs as a parameter of type ``uuid[]``."""
    return Array("uuid", values)


def unnest(*types: ColumnType) -> str:
    """Return the SQL that turns arrays of these types, given as positional parameters, into rows."""
    return f"unnest({', '.join(f'CAST(? AS {type}[])' for type in types)})"


def _array(oid: int, values: Sequence[bytes | None]) -> bytes:
    parts = [struct.pack(">iiiii", 1, int(None in values), oid, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            parts.append(len(value).to_bytes(4, "big"))
            parts.append(value)
    return b"".join(parts)


def _text(value: str) -> bytes:
    if "\0" in value:
        raise unstorable(value, "\0")
    return value.encode()


class _UuidAsText(Loader):
    format = pq.Format.BINARY

    def load(self, data: pq.abc.Buffer) -> str:
        text = bytes(data).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class _Context:
    """psycopg's conversions of values, except that UUIDs are read as text."""

    connection = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap(psycopg.adapters)
        self.adapters.register_loader("uuid", _UuidAsText)


_CONTEXT: Final = _Context()

Value = str | bytes | int | Array | None
"""Types of a statement's parameter."""


class PipelineConnection:
    """One connection in pipeline mode. Used by one thread.

    Parameters
    ----------
    conninfo:
        Connection string for libpq.
    schema:
        Schema of the tables.
    settings:
        Server settings of this connection.
    lacks:
        What the database lacks.
    prepares:
        Whether to prepare statements, and to apply the settings, once per connection. Use false behind a pooler in
        transaction mode, where neither lasts.
    patience:
        Maximum wait for an answer, in seconds, before the connection counts as lost.

    Raises
    ------
    psycopg.OperationalError
        The database cannot be reached.
    """

    def __init__(
        self,
        conninfo: str,
        schema: str,
        settings: Mapping[str, str] | None = None,
        lacks: Lacks = NOTHING,
        *,
        prepares: bool = True,
        patience: float = ANSWER_TIMEOUT_SECONDS,
    ) -> None:
        self._owner = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
        self._conninfo = conninfo
        self._patience = patience
        try:
            self._birth = birth_of(self._owner, conninfo)
        except BaseException:
            self._owner.close()
            raise
        self._successor: str | None = None
        self._settings = dict(settings or {})
        if prepares and self._settings:
            calls = ", ".join(["set_config(%s, %s, false)"] * len(self._settings))
            values = [part for pair in self._settings.items() for part in pair]
            self._owner.execute(f"SELECT {calls}".encode(), values)
        self._libpq = self._owner.pgconn
        self._libpq.nonblocking = 1
        self._libpq.enter_pipeline_mode()
        self._libpq.notice_handler = None
        self._schema = schema
        self._lacks = lacks
        self._names: dict[bytes, bytes] | None = {} if prepares else None
        self._prepared = 0
        self._new_names: list[bytes] = []
        """Prepared statements without an answer to their preparation."""
        self._answers: list[bool] = []
        """For each outstanding answer, whether its rows are wanted."""
        socket = self._libpq.socket
        self._readable, self._usable = select.poll(), select.poll()
        self._readable.register(socket, select.POLLIN)
        self._usable.register(socket, select.POLLIN | select.POLLOUT)
        self._broken_by: PGresult | None = None
        """The failure that the transaction has not been rolled back from."""
        self._rows = Transformer(_CONTEXT)
        self.last_command: bytes | None = None
        """Command tag of the last successful statement."""

    @property
    def conninfo(self) -> str:
        """Connection string that begins with the primary: the host of this connection, or the one promoted since."""
        return self._successor or with_first(self._conninfo, self._owner)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, according to the answers read so far."""
        return self._libpq.transaction_status != pq.TransactionStatus.IDLE

    def close(self) -> None:
        """Disconnect."""
        self._owner.close()

    def set_for_transaction(self) -> None:
        """Apply the settings to the transaction that has begun, if they do not last for the connection."""
        if self._names is None and self._settings:
            calls = ", ".join(["set_config(?, ?, true)"] * len(self._settings))
            values = [part for pair in self._settings.items() for part in pair]
            self._send(self._translated(f"SELECT {calls}"), values)

    def _translated(self, sql: str) -> Statement:
        return translate(sql, self._schema, self._lacks)

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Send a statement; if it returns rows, wait for them.

        Raises
        ------
        StatementFailed, TryAgain
            The database refused this statement, or one that was sent before it.
        ConnectionLost
            The connection is lost.
        """
        statement = self._translated(sql)
        if isinstance(parameters, dict):
            self._send(statement, [parameters[name] for name in statement.names])
        else:
            self._send(statement, parameters)
        return self.answer() if statement.returns_rows else []

    def execute_together(self, queries: Sequence[tuple[str, Sequence[Value]]]) -> list[list[Row]]:
        """Send queries at once, and return the rows of each. See ``execute``."""
        if not queries:
            return []
        for sql, parameters in queries:
            self._send(self._translated(sql), parameters)
        return [self._loaded(result) for result in self._results()[-len(queries) :]]

    def send(self, sql: str, parameters: Sequence[Value]) -> None:
        """Send a statement, and discard its rows."""
        statement = self._translated(sql)
        self._send(statement._replace(returns_rows=False), parameters)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        """Send a statement once for each row of positional parameters."""
        statement = self._translated(sql)
        for values in rows:
            self._send(statement, values)

    def _send(self, statement: Statement, values: Iterable[Value]) -> None:
        encoded: list[bytes | None] = []
        formats: list[int] = []
        for value in values:
            if value is None or isinstance(value, bytes):
                encoded.append(value)
                formats.append(pq.Format.BINARY)
            elif isinstance(value, Array):
                encoded.append(value.encode())
                formats.append(pq.Format.BINARY)
            else:
                encoded.append(_text(value) if isinstance(value, str) else b"%d" % value)
                formats.append(pq.Format.TEXT)
        libpq = self._libpq
        try:
            name = None if self._names is None else self._names.get(statement.sql)
            if self._names is None or (name is None and len(self._names) >= MAX_STATEMENTS):
                libpq.send_query_params(statement.sql, encoded, None, formats, pq.Format.BINARY)
            else:
                if name is None:
                    self._prepared += 1
                    name = self._names[statement.sql] = b"ojster_%d" % self._prepared
                    self._new_names.append(statement.sql)
                    libpq.send_prepare(name, statement.sql)
                    self._answers.append(False)
                libpq.send_query_prepared(name, encoded, formats, pq.Format.BINARY)
        except psycopg.OperationalError as error:
            raise ConnectionLost(str(error)) from error
        self._answers.append(statement.returns_rows)

    def flush(self) -> None:
        """Flush the sent statements to the database; the answers are read later."""
        try:
            self._libpq.flush()
        except psycopg.OperationalError as error:
            raise ConnectionLost(str(error)) from error

    def answer(self) -> list[Row]:
        """Wait for the answers to all sent statements; return the rows of the last statement that returns rows."""
        wanted = self._results() if self._answers else []
        return self._loaded(wanted[-1]) if wanted else []

    def _loaded(self, rows: PGresult) -> list[Row]:
        self._rows.set_pgresult(rows)
        return self._rows.load_rows(0, rows.ntuples, tuple)

    def _results(self) -> list[PGresult]:
        """Wait for the answers to all sent statements; return those whose rows are wanted."""
        libpq = self._libpq
        failed: PGresult | None = None
        undone = False
        results: list[PGresult] = []
        try:
            libpq.pipeline_sync()
            while libpq.flush():
                self._wait(self._usable)
            for place, wanted in enumerate(self._answers, 1):
                result = self._result()
                if result is None:
                    raise ConnectionLost("The database closed the connection.")
                if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
                    undone = undone or place < len(self._answers)
                    failed = failed or result
                else:
                    self.last_command = result.command_status
                    if wanted:
                        results.append(result)
                self._result()  # the end marker of this statement's answers
            self._answers.clear()
            synced = self._result()
            if synced is None or synced.status != pq.ExecStatus.PIPELINE_SYNC:
                raise ConnectionLost("The database closed the connection.")
        except (psycopg.OperationalError, ConnectionLost) as error:
            # What the server has said before it closed the connection says more than that it is closed.
            reason = None if failed is None else _failure(failed, undone=undone)
            lost = reason if isinstance(reason, ConnectionLost) else ConnectionLost(str(error), undone=undone)
            raise lost from error
        if failed is not None:
            for sql in self._new_names:  # the preparation may have failed, or been skipped
                del self._names[sql]  # type: ignore[union-attr]  # it has prepared
        self._new_names.clear()
        if failed is not None and self._broken_by is not None and _sqlstate(failed) in _CONSEQUENCES:
            failed = self._broken_by
        self._broken_by = failed
        if failed is not None:
            raise _failure(failed, undone=undone)
        return results

    def _result(self) -> PGresult | None:
        libpq = self._libpq
        while libpq.is_busy():
            self._wait(self._readable)
        return libpq.get_result()

    def _wait(self, poll: select.poll) -> None:
        began, doubt = time.monotonic(), DOUBT_SECONDS
        while not poll.poll(min(doubt, self._patience) * 1000):
            doubt *= 2  # a primary that is only slow should not get many connections more
            waited = time.monotonic() - began
            if waited >= self._patience:
                raise ConnectionLost(f"The database has not answered for {self._patience:g} seconds.")
            log_wait(waited)
            self._successor = successor(self._birth, self._conninfo)
            if self._successor is not None:
                raise ConnectionLost("The database does not answer, and another server has become the primary.")
        self._libpq.consume_input()


def _failure(result: PGresult, *, undone: bool) -> Exception:
    sqlstate = _sqlstate(result)
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode()
    if sqlstate in _RETRYABLE_SQLSTATES:
        return TryAgain(f"{message} ({sqlstate})")
    if sqlstate in _LOST:
        return ConnectionLost(message, undone=undone or sqlstate in _IDLE)
    return StatementFailed(sqlstate, message)


def _sqlstate(result: PGresult) -> str:
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()

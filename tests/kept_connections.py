"""Connections to PostgreSQL that the tests of one process hand on to each other.

For a new connection, the server starts a process, which reads the catalogue and plans each statement: 20 ms of
processor time. Thousands of tests would need two or three connections each.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic, Protocol, TypeVar

import psycopg
import pytest
from psycopg import pq

from ojster.storage.postgres.abilities import Lacks
from ojster.storage.postgres.database import PostgresDatabase
from ojster.storage.postgres.notifier import ListeningConnection
from ojster.storage.postgres.pipeline import PipelineConnection
from ojster.storage.postgres.url import PostgresUrl

log = logging.getLogger(__name__)

MAX_IDLE: Final = 8
"""Maximum number of idle connections of a kind."""


class _Kept(Protocol):
    def is_usable(self) -> bool: ...

    def end(self) -> None: ...


K = TypeVar("K", bound=_Kept)


class _Idle(Generic[K]):
    """Idle connections of one process, by what they were opened with."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._connections: dict[object, list[K]] = {}

    def take(self, key: object) -> K | None:
        """Return an idle connection; ``None``: there is none."""
        if os.getpid() != self._process:
            return None  # a fork must not use the connections of its parent
        idle = self._connections.get(key, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.end()
        return None

    def keep(self, key: object, connection: K) -> bool:
        """Keep a connection; return whether there was room."""
        idle = self._connections.setdefault(key, [])
        if len(idle) >= MAX_IDLE or os.getpid() != self._process or not connection.is_usable():
            return False
        idle.append(connection)
        return True

    def close(self) -> None:
        for idle in self._connections.values():
            for connection in idle:
                connection.end()
        self._connections.clear()


class _KeptPipeline(PipelineConnection):
    """A connection that ``close`` keeps if it is healthy, runs no transaction, and has no answers to read."""

    idle: _Idle[_KeptPipeline]
    key: object

    def is_usable(self) -> bool:
        # Something to read: the server has ended it.
        return _is_idle(self._libpq) and not self._answers and not self._readable.poll(0)

    def close(self) -> None:
        if not self.idle.keep(self.key, self):
            self.end()

    def end(self) -> None:
        super().close()


class _KeptConnection(psycopg.Connection[Any]):
    """The same for the connections with which databases are opened."""

    idle: _Idle[_KeptConnection]

    def is_usable(self) -> bool:
        return _has_nothing_to_say(self)

    def close(self) -> None:
        if not self.idle.keep(None, self):
            self.end()

    def end(self) -> None:
        super().close()


class _KeptListener(ListeningConnection):
    """The same for the connections of notifiers, which listen no more when they are handed on."""

    idle: _Idle[_KeptListener]

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._handlers: list[Callable[[psycopg.Notify], None]] = []

    def add_notify_handler(self, callback: Callable[[psycopg.Notify], None]) -> None:
        self._handlers.append(callback)
        super().add_notify_handler(callback)

    def is_usable(self) -> bool:
        return _has_nothing_to_say(self)

    def close(self) -> None:
        while self._handlers:
            self.remove_notify_handler(self._handlers.pop())
        if _is_idle(self.pgconn):  # else a statement has been given up
            try:
                self.execute("UNLISTEN *")
                while self.pgconn.notifies():  # what has come before
                    pass
            except psycopg.Error:
                log.debug("a connection that listened has ended")
        if not self.idle.keep(None, self):
            self.end()

    def end(self) -> None:
        super().close()


def _has_nothing_to_say(connection: psycopg.Connection[Any]) -> bool:
    return (
        not connection.closed and _is_idle(connection.pgconn) and not select.select([connection.fileno()], [], [], 0)[0]
    )


def _is_idle(libpq: Any) -> bool:
    return bool(libpq.status == pq.ConnStatus.OK and libpq.transaction_status == pq.TransactionStatus.IDLE)


@contextmanager
def kept_connections(url: PostgresUrl) -> Iterator[None]:
    """Keep the connections to a URL's schema that databases in this process close, and use them again.

    Settings, prepared statements and plans last as long as a connection, and are the same for all that are opened with
    the same parameters.
    """
    pipelines, connections, listeners = _Idle[_KeptPipeline](), _Idle[_KeptConnection](), _Idle[_KeptListener]()
    connect = PostgresDatabase._connect

    def pipeline(
        conninfo: str, schema: str, settings: Mapping[str, str], lacks: Lacks, **more: Any
    ) -> PipelineConnection:
        if (conninfo, schema) != (url.conninfo, url.schema):
            return PipelineConnection(conninfo, schema, settings, lacks, **more)
        key = (*sorted(settings.items()), lacks, *sorted(more.items()))
        kept = pipelines.take(key)
        if kept is None:
            kept = _KeptPipeline(conninfo, schema, settings, lacks, **more)
            kept.idle, kept.key = pipelines, key
        return kept

    def connect_plainly(
        database: PostgresDatabase, conninfo: str | None = None, kind: type[psycopg.Connection] = psycopg.Connection
    ) -> psycopg.Connection:
        if (conninfo or database.url.conninfo) != url.conninfo:
            return connect(database, conninfo, kind)
        if kind is ListeningConnection:
            listener = listeners.take(None)
            if listener is None:
                listener = _KeptListener.connect(url.conninfo, autocommit=True, prepare_threshold=None)
                listener.idle = listeners
            return listener
        kept = connections.take(None)
        if kept is None:
            kept = _KeptConnection.connect(url.conninfo, autocommit=True, prepare_threshold=None)
            kept.idle = connections
        return kept

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ojster.storage.postgres.database.PipelineConnection", pipeline)
        patch.setattr(PostgresDatabase, "_connect", connect_plainly)
        yield
    pipelines.close()
    connections.close()
    listeners.close()

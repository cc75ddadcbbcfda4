"""Opening the database that a URL names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from ojster.core.errors import InvalidRequest
from ojster.core.settings import ServiceSettings
from ojster.storage.database import POSTGRES, SQLITE, Database, sqlite_path, without_password

MEMORY: Final = f"{SQLITE}:memory:"

EventLogging = Literal["logged", "unlogged"]


def open_database(
    url: str,
    settings: ServiceSettings = ServiceSettings(),  # noqa: B008  (it is frozen)
    clock: Callable[[], int] | None = None,
    synchronous: str = "FULL",
    *,
    migrate: bool = False,
) -> Database:
    """Open the database at ``url``.

    Parameters
    ----------
    url:
        ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:`` or
        ``postgresql://user@host/database``, as libpq understands it.
    clock:
        Function that returns the time in microseconds since the epoch. Default: with SQLite the
        machine's clock, but without its jumps; with PostgreSQL the server's clock.
    synchronous:
        ``FULL`` survives a power loss. ``NORMAL`` is faster, but survives only a crash of the process (SQLite), or may
        lose the last commits (PostgreSQL).
    migrate:
        Whether to migrate the schema of a PostgreSQL database; default false. A SQLite schema is always migrated.

    Raises
    ------
    InvalidRequest
        The URL is not of a supported database.
    BackendUnavailable
        The database cannot be opened.
    """
    if sys.platform == "win32" and url != MEMORY:
        raise InvalidRequest(
            f"{without_password(url)} cannot be opened on Windows, which lacks system calls that databases need here. "
            "Use the URL of a server (http://…), or run this in WSL."
        )
    database: Database
    if url.startswith(POSTGRES):
        try:
            from ojster.storage.postgres.database import PostgresDatabase
        except ImportError as error:
            raise InvalidRequest(
                f"PostgreSQL needs psycopg, which cannot be imported ({error}). Run: pip install 'ojster[postgres]'"
            ) from error
        database = PostgresDatabase(url, settings, clock, synchronous, migrate=migrate)
    elif url.startswith(SQLITE):
        from ojster.storage.sqlite.database import SqliteDatabase

        database = SqliteDatabase(sqlite_path(url), settings, clock, synchronous)
    else:
        raise InvalidRequest(
            f"The database URL {without_password(url)!r} must be like 'sqlite:///jobs.db' or "
            "'postgresql://user@host/database'."
        )
    database.open()
    return database


def wait_for_database(url: str, seconds: float) -> None:
    """Wait until the database at ``url`` can be used, and log why it cannot yet.

    PostgreSQL is waited for until it accepts connections, a SQLite file until no other process keeps it locked. It
    returns as well when the time is over, and at once if waiting would not help, such as for a wrong password or a file
    that does not exist: opening the database then raises the error.

    Parameters
    ----------
    seconds:
        How long to wait at most, in seconds.
    """
    if seconds > 0 and url.startswith(POSTGRES):
        try:
            from ojster.storage.postgres.reachable import wait_until_reachable
            from ojster.storage.postgres.url import parse_postgres_url
        except ImportError:  # ``open_database`` says what is missing
            return
        wait_until_reachable(parse_postgres_url(url), seconds)
    elif seconds > 0 and url.startswith(SQLITE) and url != MEMORY:
        from ojster.storage.sqlite.lock import wait_until_unlocked

        wait_until_unlocked(Path(sqlite_path(url)), seconds)


def migrate_database(url: str, *, events: EventLogging | None = None) -> int:
    """Migrate the schema of a database to the current version; return that version.

    Parameters
    ----------
    events:
        Whether PostgreSQL writes events to its write-ahead log, so that followers miss none in a failover or a crash.
        ``None``, the default: as before, and not at first.

    Raises
    ------
    InvalidRequest
        The URL is not of a supported database, or ``events`` is given for a SQLite file.
    BackendUnavailable
        The database cannot be reached, or its schema is newer than this version of Ojster.
    """
    database = open_database(url, migrate=True)
    try:
        if events is not None:
            database.log_events(ahead=events == "logged")
    finally:
        database.close()
    return database.schema_version

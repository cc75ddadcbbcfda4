"""The version of a schema, and its migration."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import Final

import psycopg
from psycopg import sql

from ojster.core.errors import BackendUnavailable
from ojster.storage.migrations import refuse_newer, scripts
from ojster.storage.postgres.abilities import migration_without
from ojster.storage.postgres.url import PostgresUrl

log = logging.getLogger(__name__)

LOCK_WAIT_MS: Final = 500
"""How long a migration waits for the lock of a table, in milliseconds: others queue behind it as long."""

MAX_MIGRATION_SECONDS: Final = 600.0
"""How long a migration tries again that gets no lock, in seconds."""

MIGRATION_PAUSES: Final = (0.2, 1.0)
"""Least and greatest pause before another try, in seconds, in which others go on."""

_BUSY: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


def check_schema(connection: psycopg.Connection, url: PostgresUrl, *, migrate: bool) -> int:
    """Check that a schema has the current version, or migrate it; return that version.

    Several processes may do so at the same time, also while others work. Each script is a transaction, and gives up a
    lock that it does not get soon, so that nobody waits long behind it.

    Raises
    ------
    BackendUnavailable
        The schema is newer, or it is older and ``migrate`` is false; or it is to be migrated on a standby.
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
    deadline = time.monotonic() + MAX_MIGRATION_SECONDS
    while version < len(wanted):
        try:
            version = _migrate(connection, url, wanted)
        except _BUSY as error:
            if time.monotonic() > deadline:
                raise
            log.warning("the migration waits for others, and tries again: %s", " ".join(str(error).split()))
            time.sleep(random.uniform(*MIGRATION_PAUSES))
        except psycopg.DatabaseError:
            reached = schema_version(connection, url.schema)
            if reached == version:
                raise
            version = reached  # without advisory locks, another process may be first
    refuse_newer(version, len(wanted))
    return version


def _migrate(connection: psycopg.Connection, url: PostgresUrl, wanted: Sequence[str]) -> int:
    """Run the next script that a schema lacks, in a transaction of its own, and return its version."""
    with connection.transaction():
        connection.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}".encode())
        if "advisory-locks" not in url.lacks:
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"ojster:{url.schema}",))
        version = schema_version(connection, url.schema)
        if version >= len(wanted):
            return version
        name = sql.Identifier(url.schema)
        known = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (url.schema,)).fetchone()
        if known is None:  # CREATE SCHEMA IF NOT EXISTS needs a right that we may lack
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
        connection.execute(migration_without(wanted[version], url.lacks).encode())
        connection.execute("INSERT INTO migrations (version, applied_at) VALUES (%s, now())", (version + 1,))
    return version + 1


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

"""The version of a schema, and its migration."""

from __future__ import annotations

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

MIGRATION_TRIES: Final = 20
"""Maximum number of tries to migrate where processes cannot lock each other out, and the first to commit wins."""


def check_schema(connection: psycopg.Connection, url: PostgresUrl, *, migrate: bool) -> int:
    """Check that a schema has the current version, or migrate it; return that version.

    Several processes may do so at the same time. The migration is one transaction.

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
    tries = 1 if "advisory-locks" not in url.lacks else MIGRATION_TRIES
    while version < len(wanted):
        tries -= 1
        try:
            version = _migrate(connection, url, wanted)
        except psycopg.DatabaseError:  # perhaps another process has migrated at the same time
            if not tries:
                raise
            time.sleep(random.uniform(0.1, 0.5))
            version = schema_version(connection, url.schema)
    refuse_newer(version, len(wanted))
    return version


def _migrate(connection: psycopg.Connection, url: PostgresUrl, wanted: Sequence[str]) -> int:
    """Run the scripts that a schema lacks, in one transaction, and return its version."""
    with connection.transaction():
        if "advisory-locks" not in url.lacks:
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"ojster:{url.schema}",))
        version = schema_version(connection, url.schema)
        refuse_newer(version, len(wanted))
        name = sql.Identifier(url.schema)
        known = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (url.schema,)).fetchone()
        if known is None:  # CREATE SCHEMA IF NOT EXISTS needs a right that we may lack
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
        for number, script in enumerate(wanted[version:], version + 1):
            connection.execute(migration_without(script, url.lacks).encode())
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

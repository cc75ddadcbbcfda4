"""Databases for the benchmarks: SQLite files, or a PostgreSQL server that is started for the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import psycopg
from psycopg import sql
from tests.postgres import PostgresServer

from ojster.storage.open import migrate_database
from ojster.storage.postgres.url import parse_postgres_url


class Store(ABC):
    """A kind of durable database: committed transactions survive a power loss."""

    name: str

    @abstractmethod
    def fresh(self) -> str:
        """Return the URL of an empty database."""

    def settle(self) -> None:
        """Finish background work of the database; does nothing by default."""

    def close(self) -> None:
        """Remove the databases; does nothing by default."""


class SqliteStore(Store):
    """Files with ``synchronous=FULL``."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def fresh(self) -> str:
        for file in self._folder.glob("store-*"):
            file.unlink()
        self._made += 1
        return f"sqlite:///{self._folder}/store-{self._made}.db"


class PostgresStore(Store):
    """Schemas on a PostgreSQL server that it starts, with default settings, including ``fsync``."""

    name = "PostgreSQL"

    def __init__(self) -> None:
        self.server = PostgresServer()
        self.server.start()
        self._made = 0

    def fresh(self) -> str:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            if self._made:
                connection.execute(f"DROP SCHEMA IF EXISTS bench_{self._made} CASCADE")
            connection.execute("CHECKPOINT")
        self._made += 1
        url = f"{self.server.url}&schema=bench_{self._made}"
        migrate_database(url)
        return url

    def settle(self) -> None:
        """Vacuum the tables, as autovacuum would within a minute, and force a checkpoint."""
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            for table in ("jobs", "payloads"):
                name = sql.Identifier(f"bench_{self._made}", table)
                connection.execute(sql.SQL("VACUUM ANALYZE {}").format(name))
            connection.execute("CHECKPOINT")

    def close(self) -> None:
        self.server.remove()


def schema_of(url: str) -> tuple[str, str]:
    """Return the libpq connection string and the schema of a PostgreSQL URL."""
    parsed = parse_postgres_url(url)
    return parsed.conninfo, parsed.schema

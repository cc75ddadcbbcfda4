"""Where are the jobs of a benchmark kept? In a SQLite file, or in a PostgreSQL server that is started for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import psycopg
from psycopg import sql
from tests.postgres import PostgresServer

from ojster.storage.open import migrate_database
from ojster.storage.postgres.url import parse_postgres_url


class Store(ABC):
    """A kind of database, durable: what it has acknowledged survives a power loss."""

    name: str

    @abstractmethod
    def fresh(self) -> str:
        """Return the URL of an empty database."""

    def settle(self) -> None:
        """Let it finish what it does in the background."""

    def close(self) -> None:
        """Remove what was made."""


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
    """Schemas of a server of its own with the settings that PostgreSQL comes with, ``fsync`` among them."""

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
        """Vacuum, as autovacuum would within a minute, and write what is due."""
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            for table in ("jobs", "payloads"):
                name = sql.Identifier(f"bench_{self._made}", table)
                connection.execute(sql.SQL("VACUUM ANALYZE {}").format(name))
            connection.execute("CHECKPOINT")

    def close(self) -> None:
        self.server.remove()


def schema_of(url: str) -> tuple[str, str]:
    """Return what libpq is to connect to, and the schema, of a PostgreSQL URL."""
    parsed = parse_postgres_url(url)
    return parsed.conninfo, parsed.schema

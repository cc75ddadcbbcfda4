"""Fixtures of several PostgreSQL servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import PostgresServer


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    server = PostgresServer(fsync="off", wal_level="replica")
    server.start()
    yield server
    server.remove()


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    server = PostgresServer(standby_of=primary)
    server.start()
    yield server
    server.remove()

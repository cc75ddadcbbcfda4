"""Migrations of a PostgreSQL schema: by many processes, beside others who work, and after an interruption."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from ojster.core.errors import BackendUnavailable
from ojster.service import Service
from ojster.storage.migrations import scripts
from ojster.storage.open import migrate_database, open_database
from ojster.storage.postgres import schema
from ojster.storage.postgres.url import PostgresUrl, parse_postgres_url
from tests.conftest import request, url_of_schema
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

builds_beside_others = pytest.mark.needs("advisory-locks")

MORE = "-- A comment.\nCREATE INDEX CONCURRENTLY jobs_more ON jobs (created_at) WHERE created_at > 0;\n"
OTHER = """DROP INDEX CONCURRENTLY jobs_more;
CREATE INDEX CONCURRENTLY jobs_other ON jobs (created_at) WHERE created_at > 1;
"""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    """A migrated schema; every table counts as large."""
    made = url_of_schema(f"migrated_{time.time_ns()}_{os.getpid()}")
    migrate_database(made)
    monkeypatch.setattr(schema, "LARGE_TABLE_BYTES", 0)
    monkeypatch.setattr(schema, "MIGRATION_PAUSES", (0.01, 0.05))
    return made


@pytest.fixture
def further(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts of a later version."""
    all_of_them = scripts("postgres")
    monkeypatch.setattr(schema, "scripts", lambda kind: all_of_them)
    return all_of_them


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection]:
    parsed = parse_postgres_url(url)
    with psycopg.connect(parsed.conninfo) as connection:
        connection.execute(f"SET search_path TO {parsed.schema}".encode())
        yield connection


def validity(url: str, index: str = "jobs_more") -> bool | None:
    """Return whether an index is valid; ``None`` if there is none."""
    with connected(url) as connection:
        return schema._validity(connection, parse_postgres_url(url).schema, index)


async def interrupt(url: str) -> None:
    """Begin a migration whose next step builds ``jobs_more``, and end it while it builds."""
    with ThreadPoolExecutor(1) as pool, connected(url) as writer, connected(url) as operator:
        writer.execute("LOCK TABLE jobs IN ROW EXCLUSIVE MODE")
        migrating = pool.submit(migrate_database, url)
        operator.execute("SELECT pg_terminate_backend(%s)", (await until_waiting(url),))
        with pytest.raises(BackendUnavailable, match="terminat"):
            await asyncio.to_thread(migrating.result, PATIENCE)
    assert validity(url) is False


async def until_waiting(url: str) -> int:
    """Wait until an index is being built; return the process of the database that builds it."""
    with connected(url) as connection:
        while True:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE '%% CONCURRENTLY %%jobs_more%%' "
                "AND wait_event_type = 'Lock' AND pid <> pg_backend_pid() AND query LIKE %s",
                (f'%"{parse_postgres_url(url).schema}"%',),
            ).fetchall()
            connection.rollback()  # its statistics are those of the transaction
            if rows:
                return int(rows[0][0])
            await asyncio.sleep(0.01)


def test_many_processes_may_create_a_schema_at_the_same_time() -> None:
    url = url_of_schema(f"migrated_by_many_{os.getpid()}")
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(migrate_database, [url] * 8))
    assert len(set(versions)) == 1
    with connected(url) as connection:
        rows = connection.execute("SELECT version FROM migrations").fetchall()
    assert rows == [(number,) for number in range(1, versions[0] + 1)]


async def test_a_migration_that_waits_for_a_report_stops_nobody_else(
    url: str, further: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock that it waits for would hold up everybody who comes after it."""
    service = Service(open_database(url))
    monkeypatch.setattr(schema, "LOCK_WAIT_MS", 50)
    further.append("ALTER TABLE jobs ADD COLUMN more BIGINT")
    with ThreadPoolExecutor(1) as pool, connected(url) as report:
        report.execute("SELECT count(*) FROM jobs")
        migrating = pool.submit(migrate_database, url)
        while "tries again" not in caplog.text:
            await asyncio.sleep(0.01)
        for number in range(20):
            await asyncio.wait_for(service.jobs.enqueue([request("t", number)]), PATIENCE)
        assert not migrating.done()
        report.rollback()
        assert await asyncio.to_thread(migrating.result, PATIENCE) == len(further)
    assert len((await service.jobs.select()).jobs) == 20
    await service.close()


@builds_beside_others
async def test_an_index_of_a_large_table_is_built_while_others_write(url: str, further: list[str]) -> None:
    service = Service(open_database(url))
    await service.jobs.enqueue([request("t")])
    further.append(MORE)
    with ThreadPoolExecutor(1) as pool, connected(url) as writer:
        writer.execute("UPDATE jobs SET priority = 1")
        migrating = pool.submit(migrate_database, url)
        await until_waiting(url)
        for number in range(20):
            await asyncio.wait_for(service.jobs.enqueue([request("t", number)]), PATIENCE)
        assert not migrating.done()
        writer.commit()
        assert await asyncio.to_thread(migrating.result, PATIENCE) == len(further)
    assert validity(url) is True
    await service.close()


@builds_beside_others
def test_an_index_of_a_large_table_is_replaced_by_another(
    url: str, further: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    further += [MORE, OTHER]
    with caplog.at_level("INFO"):
        assert migrate_database(url) == len(further)
    assert "building the index jobs_other of jobs while others work" in caplog.text
    assert (validity(url), validity(url, "jobs_other")) == (None, True)


@builds_beside_others
@pytest.mark.parametrize(
    "setting", ["default_transaction_isolation=serializable", "idle_in_transaction_session_timeout=100"]
)
async def test_settings_of_a_role_neither_stop_a_build_nor_hang_it(url: str, further: list[str], setting: str) -> None:
    """The connection that keeps others from migrating must have no snapshot, and stay."""
    further.append(MORE)
    with ThreadPoolExecutor(1) as pool, connected(url) as writer, connected(url) as operator:
        writer.execute("LOCK TABLE jobs IN ROW EXCLUSIVE MODE")
        migrating = pool.submit(migrate_database, f"{url}&options=-c%20{setting.replace('=', '%3D')}")
        await until_waiting(url)
        operator.execute("SELECT pg_sleep(0.3)")
        writer.commit()
        assert await asyncio.to_thread(migrating.result, PATIENCE) == len(further)
    assert validity(url) is True


@builds_beside_others
async def test_what_an_interrupted_build_has_left_is_built_again(url: str, further: list[str]) -> None:
    further.append(MORE)
    await interrupt(url)
    assert migrate_database(url) == len(further)
    assert validity(url) is True


@builds_beside_others
async def test_what_an_interrupted_build_has_left_is_built_again_when_the_table_has_become_small(
    url: str, further: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    further.append(MORE)
    await interrupt(url)
    monkeypatch.setattr(schema, "LARGE_TABLE_BYTES", 16 * 1024 * 1024)
    assert migrate_database(url) == len(further)
    assert validity(url) is True


@builds_beside_others
def test_a_migration_that_was_interrupted_after_an_index_was_dropped_goes_on(url: str, further: list[str]) -> None:
    further.append(MORE)
    migrate_database(url)
    further.append(OTHER)
    with connected(url) as connection:
        connection.execute("DROP INDEX jobs_more")
    assert migrate_database(url) == len(further)
    assert validity(url, "jobs_other") is True


@builds_beside_others
def test_a_process_that_comes_late_does_not_build_what_others_have_dropped(
    url: str, further: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    further += [MORE, OTHER]
    alone = schema._alone

    @contextmanager
    def after_others(parsed: PostgresUrl) -> Iterator[None]:
        monkeypatch.setattr(schema, "_alone", alone)
        migrate_database(url)
        with alone(parsed):
            yield

    monkeypatch.setattr(schema, "_alone", after_others)
    assert migrate_database(url) == len(further)
    assert validity(url) is None


@builds_beside_others
def test_many_processes_may_build_an_index_at_the_same_time(url: str, further: list[str]) -> None:
    further.append(MORE)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(migrate_database, [url] * 4)) == {len(further)}
    assert validity(url) is True
    with connected(url) as connection:
        assert connection.execute("SELECT count(*) FROM migrations").fetchone() == (len(further),)


def test_an_index_of_a_small_table_is_built_in_a_transaction(
    url: str, further: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is quicker, and leaves nothing when it fails."""
    monkeypatch.setattr(schema, "LARGE_TABLE_BYTES", 16 * 1024 * 1024)
    further.append(MORE + "SELECT 1 / 0;")
    with pytest.raises(Exception, match="division by zero"):
        migrate_database(url)
    assert validity(url) is None
    further[-1] = MORE
    migrate_database(url)
    assert validity(url) is True


@pytest.mark.parametrize(
    "script", [*(script for script in scripts("postgres") if "CONCURRENTLY" in script), MORE, OTHER]
)
def test_scripts_that_build_indexes_beside_others_do_nothing_else(script: str) -> None:
    """What else they did would be done again after an interruption."""
    lines = [line for line in script.splitlines() if not line.startswith("--")]
    assert schema.INDEX.sub("", "\n".join(lines)).strip() == ""


@builds_beside_others
def test_a_migration_that_waits_too_long_for_another_says_so(
    url: str, further: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    further.append(MORE)
    monkeypatch.setattr(schema, "MAX_MIGRATION_SECONDS", 0.1)
    with (
        schema._alone(parse_postgres_url(url)),
        pytest.raises(BackendUnavailable, match="another process is migrating"),
    ):
        migrate_database(url)
    assert validity(url) is None

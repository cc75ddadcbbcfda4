"""The schemas of both databases: they are alike, and later scripts change them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import psycopg
import pytest

from ojster.cli import archive
from ojster.core.errors import BackendUnavailable
from ojster.service import Service
from ojster.storage.migrations import scripts
from ojster.storage.open import migrate_database, open_database
from ojster.storage.postgres import schema as postgres_schema
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.sqlite import schema as sqlite_schema
from ojster.storage.sqlite.schema import create_in_memory, migrate
from tests.conftest import request, url_of_schema

pytestmark = pytest.mark.anyio

Facts = dict[str, tuple[object, ...]]
"""What a database has, by what it is: the type of a column, whether it can be NULL, and its default, for one."""

DIFFERENCES = {
    "column migrations.*": "SQLite has the version of its schema in the header of the file",
    "column key_locks.*": "SQLite has one writer, and needs no locks of keys",
    "column job_count_slots.*": "SQLite has one writer, whose counts are one row",
    "column job_counts.*": "a view of job_count_slots on PostgreSQL",
    "column queue_minutes.slot": "SQLite has one writer, whose minutes are one row",
    "column event_batches.position": "batches become visible in another order than their numbers on PostgreSQL",
    "column event_batches.total": "events are deleted by their size on SQLite, by their age on PostgreSQL",
    "column event_positions.*": "the event log of SQLite survives a crash, and knows its last position itself",
    "key migrations": "as the columns",
    "key key_locks": "as the columns",
    "key job_count_slots": "as the columns",
    "key job_counts": "as the columns",
    "key queue_minutes": "as its column slot",
    "key event_positions": "as the columns",
    "index event_batches_position": "as the column position",
    "index event_batches_new": "as the column position",
    "index event_batches_total": "as the column total",
    "index jobs_exclusive": "unique on PostgreSQL, where two claims at the same time do not see each other's jobs",
    "index jobs_cron": "each planner must take this one, not jobs_of_cron: see the comments there",
    "index workflows_cron": "each planner must take this one, not workflows_of_cron: see the comments there",
}
"""What is not the same in both databases, and why. A name that ends with ``*`` stands for all that begin so."""

TYPES = {"bigint": "INTEGER", "text C": "TEXT", "uuid": "TEXT", "bytea": "BLOB"}
"""The type that SQLite has for one of PostgreSQL. Both have one size of integers, and compare texts byte by byte."""


@pytest.fixture
def fresh_postgres() -> str:
    """The URL of a schema of PostgreSQL that does not exist yet."""
    return url_of_schema(f"fresh_{os.urandom(6).hex()}")


def of_sqlite() -> Facts:
    """Return what the scripts make on SQLite."""
    connection = apsw.Connection(":memory:")
    migrate(connection)
    facts: Facts = {}
    tables = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    for table, sql in tables.fetchall():
        assert re.search(r"\) STRICT(, WITHOUT ROWID)?$", str(sql)), f"{table} takes values of any type"
        keys = {}
        for column, type, is_required, default, place in connection.execute(
            'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (table,)
        ):
            facts[f"column {table}.{column}"] = (type, bool(is_required or place), default)
            if place:
                keys[place] = column
        facts[f"key {table}"] = tuple(keys[place] for place in sorted(keys))
    for name, sql in connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"):
        facts[f"index {name}"] = index_of(str(sql))
    return facts


def of_postgres(url: str) -> Facts:
    """Return what the scripts make on PostgreSQL."""
    migrate_database(url)
    parsed = parse_postgres_url(url)
    facts: Facts = {}
    with psycopg.connect(parsed.conninfo) as connection:
        for table, column, type, nullable, default in connection.execute(
            "SELECT table_name, column_name, concat_ws(' ', data_type, collation_name), is_nullable, column_default "
            "FROM information_schema.columns WHERE table_schema = %s",
            (parsed.schema,),
        ):
            plain = None if default is None or "nextval" in default else re.sub(r"::\w+", "", default)
            facts[f"column {table}.{column}"] = (TYPES.get(type, type), nullable == "NO", plain)
        for table, columns in connection.execute(
            "SELECT CAST(t.relname AS text), array_agg(CAST(a.attname AS text) ORDER BY k.place) "
            "FROM pg_constraint AS c JOIN pg_class AS t ON t.oid = c.conrelid "
            "CROSS JOIN unnest(c.conkey) WITH ORDINALITY AS k (attnum, place) "
            "JOIN pg_attribute AS a ON a.attrelid = t.oid AND a.attnum = k.attnum "
            "WHERE t.relnamespace = to_regnamespace(%s) AND c.contype = 'p' GROUP BY t.relname",
            (parsed.schema,),
        ):
            facts[f"key {table}"] = tuple(columns)
        for name, definition in connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = %s", (parsed.schema,)
        ):
            if not name.endswith("_pkey"):
                facts[f"index {name}"] = index_of(definition)
    return facts


def index_of(definition: str) -> tuple[object, ...]:
    """Return the table of an index, whether it is unique, its columns and its condition, as either database says it."""
    words = re.sub(r"::\w+|\bUSING btree |\"", "", " ".join(definition.split()))
    words = re.sub(r" WITH \(fillfactor=.*?\)", "", words)  # SQLite has no such thing
    match = re.fullmatch(r"CREATE (UNIQUE )?INDEX \w+ ON (?:\w+\.)?(\w+) \((.*?)\)(?: WHERE (.*))?", words)
    assert match is not None, definition
    unique, table, columns, condition = match.groups()
    return table, bool(unique), columns, re.sub("[()]", "", condition or "")


def named(fact: str) -> str:
    """Return the name under which a difference is in ``DIFFERENCES``."""
    return fact if fact in DIFFERENCES else re.sub(r"\.\w+$", ".*", fact)


def test_both_databases_have_the_same_tables_columns_and_indexes(fresh_postgres: str) -> None:
    sqlite, postgres = of_sqlite(), of_postgres(fresh_postgres)
    assert len(sqlite) > 400, "there is something to compare"
    different = {fact for fact in sqlite.keys() | postgres.keys() if sqlite.get(fact) != postgres.get(fact)}
    unexplained = {fact: (sqlite.get(fact), postgres.get(fact)) for fact in different if named(fact) not in DIFFERENCES}
    assert not unexplained, "they differ without a reason: on SQLite, on PostgreSQL"
    assert {named(fact) for fact in different} == set(DIFFERENCES), "a reason without a difference"


def test_a_database_in_memory_is_a_copy_of_what_the_scripts_make() -> None:
    queries = (
        "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name",
        *(f"PRAGMA {name}" for name in ("user_version", "application_id", "page_size", "auto_vacuum", "encoding")),
    )
    with closing(apsw.Connection(":memory:")) as copied, closing(apsw.Connection(":memory:")) as made:
        assert create_in_memory(copied) == migrate(made)
        for query in queries:
            assert copied.execute(query).fetchall() == made.execute(query).fetchall()
        copied.execute("DROP TABLE jobs")
    with closing(apsw.Connection(":memory:")) as another:
        create_in_memory(another)
        assert another.execute("SELECT * FROM jobs").fetchall() == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_table_and_every_index_has_a_comment(kind: str) -> None:
    for script in scripts(kind):
        lines = script.splitlines()
        made = [
            number
            for number, line in enumerate(lines)
            if re.match(r"CREATE (UNLOGGED )?(UNIQUE )?(TABLE|INDEX|VIEW)", line)
        ]
        bare = [lines[number] for number in made if not lines[number - 1].startswith("-- ")]
        assert made
        assert not [line for line in bare if "event_batches" not in line]  # its comment is above its sequence


LATER = """
ALTER TABLE jobs ADD COLUMN more TEXT;
UPDATE jobs SET priority = priority + 1;
"""


@pytest.fixture(params=["sqlite", "postgres"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that does not exist yet."""
    return f"sqlite:///{tmp_path}/jobs.db" if request.param == "sqlite" else request.getfixturevalue("fresh_postgres")


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """A function that makes a later version, with one more script, and returns the number of its scripts."""
    first = {kind: scripts(kind) for kind in ("sqlite", "postgres")}

    def release(script: str) -> int:
        for module in (sqlite_schema, postgres_schema):
            monkeypatch.setattr(module, "scripts", lambda kind: [*first[kind], script])
        return len(first["sqlite"]) + 1

    return release


async def test_a_later_script_changes_a_database_with_jobs_once(fresh: str, released: Callable[[str], int]) -> None:
    first = Service(open_database(fresh, migrate=True))
    await first.jobs.enqueue([request("before")])
    await first.close()
    version = released(LATER)
    assert [migrate_database(fresh) for _ in range(2)] == [version, version]
    later = Service(open_database(fresh))
    await later.jobs.enqueue([request("after")])
    assert {job.type: job.priority for job in (await later.jobs.select()).jobs} == {"before": 1, "after": 0}
    assert later.database.schema_version == version
    await later.close()


def test_a_later_script_that_fails_changes_nothing(fresh: str, released: Callable[[str], int]) -> None:
    migrate_database(fresh)
    released(LATER + "SELECT 1 FROM nowhere;")
    with pytest.raises(Exception, match="nowhere"):
        migrate_database(fresh)
    version = released(LATER)
    assert migrate_database(fresh) == version, "it does not find the column of the one that failed"


def make_unreleased(url: str, version: int) -> None:
    """Change a database into what the scripts of an unreleased version have made, as far as it matters here."""
    if url.startswith("sqlite"):
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(f"PRAGMA application_id = 0; PRAGMA user_version = {version}")
        return
    parsed = parse_postgres_url(url)
    with psycopg.connect(parsed.conninfo) as database:
        database.execute(f"SET search_path TO {parsed.schema}".encode())
        database.execute("ALTER TABLE migrations DROP COLUMN applied_by")
        database.execute("UPDATE migrations SET version = %s", (version,))


@pytest.mark.parametrize("version", [1, 2, 43])
def test_a_database_of_an_unreleased_version_is_refused_and_says_what_to_do(
    fresh: str, released: Callable[[str], int], version: int
) -> None:
    """Also when a later version has as many scripts as that one had."""
    migrate_database(fresh)
    make_unreleased(fresh, version)
    released(LATER)
    place = "a new file" if fresh.startswith("sqlite") else r"another schema \(\?schema=NAME in its URL\)"
    for attempt in (open_database, migrate_database):
        with pytest.raises(BackendUnavailable, match=f"version {version} of an Ojster .* never released.* {place}"):
            attempt(fresh)


def test_a_database_of_an_unreleased_version_is_not_saved_and_a_restored_one_is_known(tmp_path: Path) -> None:
    migrate_database(f"sqlite:///{tmp_path}/jobs.db")
    archive.back_up(tmp_path / "jobs.db", tmp_path / "archive.tar", None)
    make_unreleased(f"sqlite:///{tmp_path}/jobs.db", 39)
    with pytest.raises(BackendUnavailable, match="never released"):
        archive.back_up(tmp_path / "jobs.db", tmp_path / "other.tar", None)
    assert archive.restore(tmp_path / "archive.tar", tmp_path / "again.db", None).jobs == 0
    migrate_database(f"sqlite:///{tmp_path}/again.db")


def test_a_database_of_a_newer_version_is_neither_saved_nor_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, saved = tmp_path / "jobs.db", tmp_path / "archive.tar"
    migrate_database(f"sqlite:///{database}")
    with closing(apsw.Connection(str(database))) as connection:
        connection.execute(f"PRAGMA user_version = {len(scripts('sqlite')) + 1}")
    with monkeypatch.context() as newer:
        newer.setattr(archive, "refuse_newer", lambda version, known: None)
        archive.back_up(database, saved, None)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"supports at most \d+: upgrade Ojster"):
        archive.back_up(database, tmp_path / "other.tar", None)
    with pytest.raises(BackendUnavailable, match=r"supports at most \d+: upgrade Ojster"):
        archive.restore(saved, tmp_path / "again.db", None)
    assert sorted(os.listdir(tmp_path)) == before

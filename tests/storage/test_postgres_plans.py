"""Each hot query of PostgreSQL uses its index, whatever statistics the planner has."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from ojster.fleet import matching
from ojster.storage.postgres import transaction
from ojster.storage.postgres.database import PLANNER_SETTINGS
from ojster.storage.postgres.pipeline import translate
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.transaction import PLAIN, WITH_LIMIT, WITH_NEEDS

SELECT = transaction.PostgresTransaction.select_available
AVAILABLE_JOBS, NEEDING_JOBS, LIMITED_JOBS = (
    SELECT.format(kind=kind, abilities="") for kind in (PLAIN, WITH_NEEDS, WITH_LIMIT)
)

HOT = [
    (AVAILABLE_JOBS, "jobs_available"),
    (NEEDING_JOBS, "jobs_needing"),
    (matching._ACTIVE, "jobs_needing_active"),
    (LIMITED_JOBS, "jobs_limited"),
    (transaction._LOCK_JOBS, "jobs_id"),
    (transaction._FIND_JOBS, "jobs_id"),
    (transaction._START_JOBS, "jobs_pkey"),
    (transaction._COMPLETE_JOBS, "jobs_pkey"),
    ("SELECT seq FROM jobs WHERE state = ? AND due_at <= ? ORDER BY due_at LIMIT ? FOR UPDATE SKIP LOCKED", "jobs_due"),
    ("SELECT seq FROM jobs WHERE state = ? AND due_at <= ? AND node IS NULL ORDER BY due_at LIMIT ?", "jobs_due"),
    ("SELECT min(due_at) FROM jobs WHERE state = ? AND due_at IS NOT NULL", "jobs_due"),
    ("SELECT seq FROM jobs WHERE unique_key = ? ORDER BY seq DESC", "jobs_unique"),
    ("SELECT seq FROM jobs WHERE cron_name = ? AND finished_at IS NULL ORDER BY seq", "jobs_cron"),
    (
        (
            "SELECT seq FROM jobs WHERE state = ? AND dead = ? AND finished_at < ? "
            "AND node IS NULL AND due_at IS NULL ORDER BY finished_at LIMIT ?"
        ),
        "jobs_finished",
    ),
]

FILL = (
    "INSERT INTO jobs (id, type, queue, state, priority, max_attempts, created_at, due_at, finished_at) "
    "SELECT gen_random_uuid(), 't', 'q', '{state}', 0, 3, n, {due}, {finished} FROM generate_series(1, {count}) AS n"
)
FINISHED = FILL.format(state="completed", due="NULL", finished="n", count=5000)
AVAILABLE = FILL.format(state="available", due="NULL", finished="NULL", count=5000)
ACTIVE = FILL.format(state="active", due="n", finished="NULL", count=5000)

SITUATIONS = {  # to the planner, an empty table is a new table of unknown size
    "empty": "TRUNCATE jobs",
    "many finished": f"{FINISHED}; ANALYZE jobs",
    "many waiting, unknown to the planner": f"{FINISHED}; ANALYZE jobs; {AVAILABLE}",
    "many active, unknown to the planner": f"{FINISHED}; ANALYZE jobs; {ACTIVE}",
    "many of all": f"{FINISHED}; {AVAILABLE}; {ACTIVE}; ANALYZE jobs",
}


@pytest.fixture(params=SITUATIONS)
def connection(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[psycopg.Connection]:
    parsed = parse_postgres_url(postgres_url)
    with psycopg.connect(parsed.conninfo, options=f"-c search_path={parsed.schema}") as opened:
        for name, value in PLANNER_SETTINGS.items():
            opened.execute("SELECT set_config(%s, %s, true)", (name, value))
        for statement in SITUATIONS[request.param].split("; "):
            opened.execute(statement.encode())
        yield opened
        opened.rollback()


def plan_of(connection: psycopg.Connection, sql: str) -> str:
    """Return the generic plan of a prepared statement."""
    schema = (connection.execute("SELECT current_schema()").fetchone() or ("",))[0]
    statement = translate(sql, schema).sql
    explained = psycopg.RawCursor(connection).execute(b"EXPLAIN (GENERIC_PLAN) " + statement).fetchall()
    return "\n".join(str(line) for (line,) in explained)


@pytest.mark.parametrize(("sql", "index"), HOT)
def test_a_hot_query_uses_its_index(connection: psycopg.Connection, sql: str, index: str) -> None:
    plan = plan_of(connection, sql)
    assert index in plan
    assert "Seq Scan on jobs" not in plan


def test_handing_out_needs_no_sorting(connection: psycopg.Connection) -> None:
    assert "Sort" not in plan_of(connection, AVAILABLE_JOBS)

"""Each hot query of PostgreSQL uses its index, whatever statistics the planner has.

The statements are those that the service executed, not copies: see ``statements``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from ojster.core.job_table import PLAIN, WITH_LIMIT, WITH_NEEDS
from ojster.fleet import matching
from ojster.queues import gates, limits
from ojster.storage.postgres import statements
from ojster.storage.postgres.database import WRITER_SETTINGS
from ojster.storage.postgres.pipeline import translate
from ojster.storage.postgres.url import parse_postgres_url
from tests.conftest import empty
from tests.storage.statements import Recorded, having, live, skip_without_generic_plans

pytestmark = pytest.mark.needs("planner-settings")

CLAIM = "ORDER BY j.priority DESC"


class Hot(NamedTuple):
    """Recorded statements with these words, the index with which each reads jobs, and the columns it looks up there.

    Without columns, it reads the whole index, which has only the rows that it is about.
    """

    uses: str
    condition: str
    words: tuple[str, ...]
    without: tuple[str, ...] = ()


HOT = {
    "claim plain jobs": Hot("jobs_available", "queue tenant", (PLAIN, CLAIM)),
    "claim jobs with requirements": Hot("jobs_needing", "queue tenant needs", (WITH_NEEDS, CLAIM)),
    "claim limited jobs": Hot("jobs_limited", "queue tenant limit_key", (WITH_LIMIT, CLAIM)),
    "claim nothing that an active job excludes": Hot("jobs_exclusive", "", (CLAIM,)),
    "queues with plain jobs": Hot("jobs_available", "queue", (statements.WITH_JOBS,)),
    "queues with limited jobs": Hot("jobs_limited", "queue", (statements.WITH_JOBS,)),
    "queues with jobs that need something": Hot("jobs_needing", "queue", (statements.WITH_JOBS,)),
    "kinds of requirements": Hot("jobs_needing", "queue tenant needs", (matching._KINDS,)),
    "keys of limits": Hot("jobs_limited", "queue tenant limit_key", (gates._HEADS,)),
    "active jobs of a limit": Hot("jobs_limit", "limit_key", (limits.ACTIVE_WITH_KEY, "SELECT count(*)")),
    "active jobs with requirements": Hot("jobs_needing_active", "queue", (matching._ACTIVE,)),
    "start jobs": Hot("jobs_pkey", "seq", (statements.START_JOBS,)),
    "start a job": Hot("jobs_pkey", "seq", (statements.START_JOB,)),
    "complete a job": Hot("jobs_pkey", "seq", ("UPDATE jobs SET state = 'completed', finished_at = ?",)),
    "complete jobs": Hot("jobs_pkey", "seq", (statements.COMPLETE_JOBS,)),
    "complete plain jobs": Hot("jobs_pkey", "seq", (statements.COMPLETE_PLAIN_JOBS,)),
    "lock jobs": Hot("jobs_id", "id", (statements.LOCK_JOBS,)),
    "find jobs": Hot("jobs_id", "id", (statements.FIND_JOBS,)),
    "due jobs": Hot("jobs_due", "state due_at", ("FROM jobs", "due_at <= :until", "LIMIT"), ("node IS NULL",)),
    "expired jobs": Hot("jobs_due", "state due_at", ("FROM jobs", "due_at <= :now", "node IS NULL")),
    "next due job": Hot("jobs_due", "state", ("SELECT min(due_at) FROM jobs",)),
    "duplicates": Hot("jobs_unique", "unique_key", ("FROM jobs", "unique_key = :key")),
    "jobs of a cron job": Hot("jobs_cron", "cron_name", ("FROM jobs", "cron_name = :name")),
    "last jobs of a cron job": Hot("jobs_of_cron", "cron_name", ("FROM jobs", "cron_name = :cron_name")),
    "workflows of a cron job": Hot("workflows_cron", "cron_name", ("FROM workflows", "cron_name = :name")),
    "finished jobs": Hot("jobs_finished", "state dead finished_at", ("FROM jobs", "finished_at < :before", "dead =")),
    "dead letters": Hot("jobs_dead", "", ("FROM jobs", "dead = 1"), ("seq > :after",)),
}

NOT_SORTED = ("claim plain jobs", "claim limited jobs", "claim jobs with requirements", "due jobs", "finished jobs")

FILL = (
    "INSERT INTO jobs (id, type, queue, state, priority, max_attempts, created_at, due_at, finished_at) "
    "SELECT gen_random_uuid(), 't', 'q', '{state}', 0, 3, n, {due}, {finished} FROM generate_series(1, {count}) AS n"
)
FINISHED = FILL.format(state="completed", due="NULL", finished="n", count=5000)
AVAILABLE = FILL.format(state="available", due="NULL", finished="NULL", count=5000)
ACTIVE = FILL.format(state="active", due="n", finished="NULL", count=5000)

# To the planner, an empty table without statistics is a new table of unknown size.
UNKNOWN = "DELETE FROM pg_statistic WHERE starelid = '{table}'::regclass; TRUNCATE {table}"
SITUATIONS = {
    "empty": UNKNOWN.format(table="jobs"),
    "many finished": f"{FINISHED}; ANALYZE jobs",
    "many waiting, unknown to the planner": f"{FINISHED}; ANALYZE jobs; {AVAILABLE}",
    "many active, unknown to the planner": f"{FINISHED}; ANALYZE jobs; {ACTIVE}",
    "many of all": f"{FINISHED}; {AVAILABLE}; {ACTIVE}; ANALYZE jobs",
}


@pytest.fixture(scope="module")
def seen(postgres_tables: str) -> Recorded:
    """The statements that the service executes."""
    empty(postgres_tables)
    return asyncio.run(live(postgres_tables, on_sqlite=False))


@pytest.fixture(scope="module", params=SITUATIONS)
def connection(request: pytest.FixtureRequest, seen: Recorded, postgres_tables: str) -> Iterator[psycopg.Connection]:
    """A transaction in which the tables are in a situation, for all tests: they change no rows."""
    empty(postgres_tables)
    parsed = parse_postgres_url(postgres_tables)
    with psycopg.connect(parsed.conninfo, options=f"-c search_path={parsed.schema}") as opened:
        skip_without_generic_plans(opened)
        for name, value in WRITER_SETTINGS.items():
            opened.execute("SELECT set_config(%s, %s, true)", (name, value))
        situation = f"{UNKNOWN.format(table='workflows')}; {SITUATIONS[request.param]}"  # others may have analyzed them
        for statement in situation.split("; "):
            opened.execute(statement.encode())
        yield opened
        opened.rollback()


def plan_of(connection: psycopg.Connection, sql: str) -> list[dict[str, Any]]:
    """Return the nodes of the generic plan of a prepared statement."""
    schema = (connection.execute("SELECT current_schema()").fetchone() or ("",))[0]
    explain = b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + translate(sql, schema).sql
    ((explained,),) = psycopg.RawCursor(connection).execute(explain).fetchall()
    return nodes_of(explained[0]["Plan"])


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for inner in plan.get("Plans", ()) for node in nodes_of(inner))]


@pytest.mark.parametrize("what", HOT)
def test_a_hot_query_uses_its_index(connection: psycopg.Connection, seen: Recorded, what: str) -> None:
    hot = HOT[what]
    for sql in having(seen, *hot.words, without=hot.without):
        plan = plan_of(connection, sql)
        conditions = [node.get("Index Cond", "") for node in plan if node.get("Index Name") == hot.uses]
        assert conditions, (sql, plan)
        for condition in conditions:
            assert all(f"{column} " in condition for column in hot.condition.split()), (sql, condition)
        scans = [node for node in plan if node.get("Relation Name") == "jobs" and node["Node Type"] == "Seq Scan"]
        assert not scans, (sql, scans)


@pytest.mark.parametrize("what", NOT_SORTED)
def test_a_hot_query_with_an_order_needs_no_sorting(
    connection: psycopg.Connection, seen: Recorded, what: str, request: pytest.FixtureRequest
) -> None:
    hot = HOT[what]
    is_empty = request.node.callspec.params["connection"] == "empty"
    with connection.transaction(force_rollback=True):  # the next test shares it
        if what == "finished jobs" or is_empty:  # a few are cheaper to sort; what is sorted all the same has no index
            connection.execute("SET LOCAL enable_sort = off")
        for sql in having(seen, *hot.words, "ORDER BY", without=hot.without):
            assert not [node for node in plan_of(connection, sql) if "Sort" in node["Node Type"]], sql

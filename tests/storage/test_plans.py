"""Each hot query of SQLite uses its index, so its cost does not depend on the number of finished jobs.

The statements are those that the service executed, not copies: see ``statements``.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from ojster.core.job_table import PLAIN, WITH_LIMIT, WITH_NEEDS
from ojster.fleet import matching
from ojster.queues import gates, limits
from ojster.storage.sqlite import statements as known
from ojster.storage.sqlite.schema import migrate
from ojster.storage.sqlite.statements import plan_once
from tests.storage.statements import Recorded, having, live

LARGE = {"jobs", "payloads", "workflows", "nodes", "collection_items", "job_history", "event_batches", "checkpoints"}
"""Tables whose size depends on the number of jobs."""

CLAIM = "ORDER BY j.priority DESC"


class Hot(NamedTuple):
    """Recorded statements with these words, and what must be in the plan of each."""

    uses: str
    words: tuple[str, ...]
    without: tuple[str, ...] = ()


HOT = {
    "claim plain jobs": Hot("jobs_available (queue=? AND tenant=?)", (PLAIN, CLAIM)),
    "claim jobs with requirements": Hot("jobs_needing (queue=? AND tenant=? AND needs=?)", (WITH_NEEDS, CLAIM)),
    "claim limited jobs": Hot("jobs_limited (queue=? AND tenant=? AND limit_key=?)", (WITH_LIMIT, CLAIM)),
    "claim nothing that an active job excludes": Hot("jobs_exclusive (exclusive_key=?)", (CLAIM,)),
    "kinds of requirements": Hot(
        "SEARCH jobs USING COVERING INDEX jobs_needing (queue=? AND tenant=? AND needs>?)", (matching._KINDS,)
    ),
    "keys of limits": Hot("INDEX jobs_limited (queue=? AND tenant=? AND limit_key>?)", (gates._HEADS,)),
    "active jobs of a limit": Hot("INDEX jobs_limit (limit_key=?", (limits.ACTIVE_WITH_KEY, "SELECT count(*)")),
    "active jobs with requirements": Hot("COVERING INDEX jobs_needing_active (queue=?", (matching._ACTIVE,)),
    "start jobs": Hot("SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)", (known.START_JOBS,)),
    "complete jobs": Hot("SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)", (known.COMPLETE_JOBS,)),
    "lock jobs": Hot("jobs_id (id=?)", (known.LOCK_JOBS,)),
    "lock one job": Hot("jobs_id (id=?)", (known.LOCK_JOB,)),
    "find jobs": Hot("jobs_id (id=?)", (known.FIND_JOBS,)),
    "due jobs": Hot("jobs_due (state=? AND due_at<?)", ("FROM jobs", "due_at <= :until", "LIMIT"), ("node IS NULL",)),
    "expired jobs": Hot("jobs_due (state=? AND due_at<?)", ("FROM jobs", "due_at <= :now", "node IS NULL")),
    "next due job": Hot("jobs_due (state=?", ("SELECT min(due_at) FROM jobs",)),
    "duplicates": Hot("jobs_unique (unique_key=?)", ("FROM jobs", "unique_key = :key")),
    "jobs of a cron job": Hot("jobs_cron (cron_name=?)", ("FROM jobs", "cron_name = :name")),
    "last jobs of a cron job": Hot("jobs_of_cron (cron_name=?)", ("FROM jobs", "cron_name = :cron_name")),
    "workflows of a cron job": Hot("workflows_cron (cron_name=?)", ("FROM workflows", "cron_name = :name")),
    "turns of a cron job": Hot("workflows_cron (cron_name=?", ("SELECT 1 FROM workflows", "cron_name = :cron_name")),
    "next turn of a cron job": Hot("workflows_cron (cron_name=?)", ("FROM workflows", "turn_line = :line")),
    "last workflows of a cron job": Hot(
        "workflows_of_cron (cron_name=?)", ("FROM workflows", "state <> 'hidden'", "cron_name = :cron_name")
    ),
    "finished jobs": Hot(
        "jobs_finished (state=? AND dead=? AND finished_at<?)",
        ("FROM jobs", "dead = :dead", "finished_at < :before"),
        (":since",),
    ),
    "finished jobs around those of others": Hot(
        "jobs_finished (state=? AND dead=? AND finished_at>? AND finished_at<?)", ("FROM jobs", "finished_at >= :since")
    ),
    "items that keep a finished job": Hot("collection_items_job (job_id=?)", ("FROM jobs", "collection_items", "room")),
    "dead letters": Hot("jobs_dead (dead=?)", ("FROM jobs", "dead = 1"), ("seq > :after",)),
    "due cron jobs": Hot("crons_next (next_run_at<?)", ("FROM crons", "next_run_at <= :now")),
}

NOT_SORTED = (
    "claim plain jobs",
    "claim limited jobs",
    "claim jobs with requirements",
    "due jobs",
    "finished jobs",
    "last jobs of a cron job",
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The statements that the service executes."""
    return asyncio.run(live(f"sqlite:///{tmp_path_factory.mktemp('plans')}/jobs.db", on_sqlite=True))


@pytest.fixture(params=["new", "analyzed"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> apsw.Connection:
    opened = apsw.Connection(str(tmp_path / "jobs.db"))
    plan_once(opened)
    migrate(opened)
    if request.param == "analyzed":
        opened.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5000) "
            "INSERT INTO jobs (seq, id, type, queue, state, priority, max_attempts, created_at, finished_at) "
            "SELECT x, 'id' || x, 't', 'q', 'completed', 0, 3, 0, x FROM n; ANALYZE"
        )
    return opened


def test_a_claim_is_planned_once_whatever_its_values(tmp_path: Path) -> None:
    """Otherwise SQLite, which could use an index of some values alone, plans it again for each claim."""
    connection = apsw.Connection(str(tmp_path / "jobs.db"))
    plan_once(connection)
    migrate(connection)
    planned: list[int] = []

    def authorize(action: int, *about: str | None) -> int:
        planned.append(action)  # SQLite asks while it plans
        return apsw.SQLITE_OK

    connection.authorizer = authorize
    claim = known.SELECT_AVAILABLE.format(kind=PLAIN, abilities="")
    connection.execute(claim, ("mail", "", 1, 10)).fetchall()
    first = len(planned)
    connection.execute(claim, ("reports", "acme", 2, 20)).fetchall()
    assert len(planned) == first > 0


def plan_of(connection: apsw.Connection, seen: Recorded, sql: str) -> list[str]:
    return [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, seen[sql])]


def whole_scans(sql: str, plan: list[str]) -> list[str]:
    """Return the lines of a plan that read a whole large table."""
    names = dict(re.findall(r"\b(?:FROM|JOIN) (\w+) AS (\w+)", sql))
    tables = {alias: table for table, alias in names.items()}
    found = []
    for line in plan:
        if line.startswith("SCAN ") and " EXISTS " not in line:  # EXISTS stops at the first row
            name = line.split()[1]
            if tables.get(name, name) in LARGE:
                found.append(line)
    return found


@pytest.mark.parametrize("what", HOT)
def test_a_hot_query_uses_its_index(connection: apsw.Connection, seen: Recorded, what: str) -> None:
    hot = HOT[what]
    for sql in having(seen, *hot.words, without=hot.without):
        plan = plan_of(connection, seen, sql)
        assert hot.uses in " | ".join(plan), sql
        assert not whole_scans(sql, plan), sql


ELSEWHERE = {"jobs_discarded", "jobs_suspended", "jobs_tenant", "jobs_node"}
"""Indexes of jobs whose statements are in ``test_survey_plans.py``; the last one in ``test_workflow_plans.py``."""


def test_each_index_of_jobs_serves_a_statement(connection: apsw.Connection, seen: Recorded) -> None:
    """Docs: adr/0023-each-index-has-its-query.md."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE tbl_name = 'jobs'")} - {
        "jobs"
    }
    plans = [plan_of(connection, seen, sql) for sql in seen if sql.startswith(("SELECT", "WITH", "UPDATE", "DELETE"))]
    used = {name for plan in plans for line in plan for name in re.findall(r"INDEX (jobs_\w+)", line)}
    assert names - used <= ELSEWHERE
    record = (Path(__file__).parents[2] / "docs/adr/0023-each-index-has-its-query.md").read_text()
    assert names == set(re.findall(r"(?m)^\| `(jobs_\w+)`", record)), "the decision names each index"


@pytest.mark.parametrize("what", NOT_SORTED)
def test_a_hot_query_with_an_order_needs_no_sorting(connection: apsw.Connection, seen: Recorded, what: str) -> None:
    hot = HOT[what]
    for sql in having(seen, *hot.words, "ORDER BY", without=hot.without):
        assert "TEMP B-TREE" not in " | ".join(plan_of(connection, seen, sql)), sql


def test_changes_of_many_rows_find_each_by_its_key(connection: apsw.Connection) -> None:
    changes = known.change("nodes", ("id", "state"), 3)
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + changes, (1, "a", 2, "b", 3, "c"))]
    assert plan[-1] == "SEARCH nodes USING INTEGER PRIMARY KEY (rowid=?)"


DELETES_ITEMS = "DELETE FROM collection_items WHERE collection IN"

OF_REMOVED_ITEMS = "collection_items_removed_at"
"""An index of removed items alone, which a preview of the retention counts."""


def test_no_statement_reads_a_whole_large_table(connection: apsw.Connection, seen: Recorded) -> None:
    explained = [sql for sql in seen if sql.startswith(("SELECT", "WITH", "UPDATE", "DELETE"))]
    assert len(explained) > 80, "there is something to look at"
    wrong = [
        f"{scan}: {sql}"
        for sql in explained
        if not sql.startswith(DELETES_ITEMS)
        for scan in whole_scans(sql, plan_of(connection, seen, sql))
        if not scan.endswith(OF_REMOVED_ITEMS)
    ]
    assert not wrong, "\n".join(wrong)


def test_jobs_are_deleted_without_a_look_at_all_items(connection: apsw.Connection, seen: Recorded) -> None:
    for sql in having(seen, DELETES_ITEMS):
        assert not whole_scans(sql, plan_of(connection, seen, sql)), sql


def test_a_step_of_a_walk_reads_only_its_window(connection: apsw.Connection, seen: Recorded) -> None:
    for sql in having(seen, "FROM jobs", "seq > :after", "seq <= :last"):
        plan = " | ".join(plan_of(connection, seen, sql))
        assert re.search(r"PRIMARY KEY \(rowid>\? AND rowid<\?\)|seq>\? AND seq<\?\)", plan), (plan, sql)

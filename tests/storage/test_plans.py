"""Each hot query of SQLite uses its index, so its cost does not depend on the number of finished jobs."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from ojster.fleet import matching
from ojster.storage.sqlite import database
from ojster.storage.sqlite.database import migrate
from ojster.storage.transaction import PLAIN, WITH_LIMIT, WITH_NEEDS

SELECT = database.SqliteTransaction.select_available
AVAILABLE_JOBS, NEEDING_JOBS, LIMITED_JOBS = (
    SELECT.format(kind=kind, abilities="") for kind in (PLAIN, WITH_NEEDS, WITH_LIMIT)
)

HOT = [
    (AVAILABLE_JOBS, ("q", "", 0, 10), "jobs_available (queue=? AND tenant=?)"),
    (NEEDING_JOBS, ("q", "", "k", 0, 10), "jobs_needing (queue=? AND tenant=? AND needs=?)"),
    (
        matching._KINDS,
        {"queue": "q", "tenant": "", "after": "", "most": 9},
        "SEARCH jobs USING COVERING INDEX jobs_needing (queue=? AND tenant=? AND needs>?)",
    ),
    (matching._ACTIVE, {"queue": "q"}, "COVERING INDEX jobs_needing_active (queue=?"),
    (LIMITED_JOBS, ("q", "", "k", 0, 10), "jobs_limited (queue=? AND tenant=? AND limit_key=?)"),
    (database._LOCK_JOBS, (apsw.carray(("x",)),), "jobs_id (id=?)"),
    (database._LOCK_JOB, ("x",), "jobs_id (id=?)"),
    (database._FIND_JOBS, (apsw.carray(("x",)),), "jobs_id (id=?)"),
    (
        "SELECT seq FROM jobs WHERE state = 'active' AND due_at <= 5 ORDER BY due_at LIMIT 9",
        (),
        "jobs_due (state=? AND due_at<?)",
    ),
    (
        "SELECT seq FROM jobs WHERE state = 'completed' AND due_at <= 5 AND node IS NULL ORDER BY due_at LIMIT 9",
        (),
        "jobs_due (state=? AND due_at<?)",
    ),
    ("SELECT min(due_at) FROM jobs WHERE state = 'active' AND due_at IS NOT NULL", (), "jobs_due (state=?"),
    ("SELECT * FROM jobs WHERE unique_key = 'x' ORDER BY seq DESC", (), "jobs_unique (unique_key=?)"),
    ("SELECT * FROM jobs WHERE cron_name = 'x' AND finished_at IS NULL ORDER BY seq", (), "jobs_cron (cron_name=?)"),
    (
        (
            "SELECT seq FROM jobs WHERE state = 'completed' AND dead = 0 AND finished_at < 5 "
            "AND node IS NULL AND due_at IS NULL ORDER BY finished_at LIMIT 9"
        ),
        (),
        "jobs_finished (state=? AND dead=? AND finished_at<?)",
    ),
    (
        "SELECT count(*) FROM jobs WHERE dead = 1",
        (),
        "jobs_dead (dead=?)",
    ),
    ("SELECT * FROM crons WHERE next_run_at <= 5 ORDER BY next_run_at LIMIT 9", (), "crons_next (next_run_at<?)"),
]


@pytest.fixture
def connection(tmp_path: Path) -> apsw.Connection:
    opened = apsw.Connection(str(tmp_path / "jobs.db"))
    migrate(opened)
    return opened


@pytest.mark.parametrize(("sql", "parameters", "index"), HOT)
@pytest.mark.parametrize("analyzed", [False, True])
def test_a_hot_query_uses_its_index(
    connection: apsw.Connection, sql: str, parameters: tuple[object, ...], index: str, analyzed: bool
) -> None:
    if analyzed:
        connection.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5000) "
            "INSERT INTO jobs (seq, id, type, queue, state, priority, max_attempts, created_at, finished_at) "
            "SELECT x, 'id' || x, 't', 'q', 'completed', 0, 3, 0, x FROM n; ANALYZE"
        )
    plan = " | ".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, parameters))
    assert index in plan
    assert "SCAN jobs" not in plan
    assert "SCAN j " not in plan


def test_handing_out_needs_no_sorting(connection: apsw.Connection) -> None:
    plan = " | ".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + AVAILABLE_JOBS, ("q", "", 0, 9)))
    assert "TEMP B-TREE" not in plan

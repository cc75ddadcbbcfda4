"""No statement that runs a workflow scans a whole table, however many other workflows exist."""

from __future__ import annotations

import json
import re
from typing import Any

import apsw
import msgspec
import psycopg
import pytest

from ojster.core.json_objects import read_members
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport
from ojster.schedules.due_work import run_due
from ojster.schedules.retention import forget
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.storage.postgres.database import WRITER_SETTINGS
from ojster.storage.postgres.pipeline import translate
from ojster.storage.postgres.url import parse_postgres_url
from ojster.storage.sqlite.statements import plan_once
from ojster.workflows.node import Inputs
from ojster.workflows.read.selection import WorkflowConditions
from ojster.workflows.run.results import _COLUMNS, _STEPS_BEFORE
from tests.conftest import Clock
from tests.storage.statements import Recorded, having, recorded_on_postgres, skip_without_generic_plans

pytestmark = pytest.mark.anyio

LARGE = {"nodes", "jobs", "payloads", "node_edges", "node_specs", "node_reviews", "workflows"}

EXPLAINABLE = re.compile(r"SELECT|WITH|UPDATE|DELETE|INSERT INTO \w+ .*\bSELECT\b", re.DOTALL)

BY_ROW = (
    ("UPDATE jobs SET", "WHERE seq = ?"),
    ("DELETE FROM nodes",),
    ("WITH given", "INSERT INTO jobs"),
    ("INSERT INTO nodes", "SELECT"),
)
"""Statements that are sent once for each row, that delete, or that insert what they read: all of them are recorded."""

OTHERS = (
    "INSERT INTO nodes (id, parent, position, kind, rule, tolerated, manual, followed, state, approved, waiting, "
    "failed_before, cancelled_before, unmet, total, unfinished, completed, failed, cancelled, broken, lost) "
    "SELECT CAST(1000000 + n / 50 AS BIGINT) * 1048576 + n % 50, CAST(1000000 + n / 50 AS BIGINT) * 1048576, n % 50, "
    "'job', 'succeeded', 0, 0, 0, "
    "'started', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM generate_series(1, 20000) AS n; "
    "INSERT INTO node_specs SELECT id, '{}' FROM nodes ON CONFLICT DO NOTHING; "
    "INSERT INTO node_edges SELECT id, id + 1 FROM nodes ON CONFLICT DO NOTHING; "
    "INSERT INTO jobs (id, type, queue, state, priority, max_attempts, created_at, finished_at, node) "
    "SELECT gen_random_uuid(), 't', 'q', 'completed', 0, 3, n, n, CAST(1000000 + n / 50 AS BIGINT) * 1048576 + n % 50 "
    "FROM generate_series(1, 20000) AS n; "
    "INSERT INTO workflows (seq, id, type, state, created_at, finished_at, nodes, jobs, params, metadata) "
    "SELECT 1000000 + n, gen_random_uuid(), 'chain', 'completed', n, n, 50, 50, '{}', '{}' "
    "FROM generate_series(0, 5000) AS n; "
    "INSERT INTO node_reviews (node, at) SELECT id, 0 FROM nodes"
)

WIRE = {
    "type": "chain",
    "params": {"x": [1, 2]},
    "steps": [
        {"type": "a", "args": []},
        {"type": "graph", "steps": [
            {"type": "b", "args": [{"$ref": "params.x"}], "id": "b"},
            {"type": "c", "args": [{"$ref": "steps.b.result"}], "id": "c", "depends_on": ["b"]},
        ]},
        {"type": "batch", "jobs": [{"type": "d", "args": []}], "callbacks": {"on_complete": {"type": "e", "args": []}}},
        {"type": "map", "over": {"$ref": "params.x"}, "do": {"type": "f", "args": []}},
        {"type": "gate", "id": "g"},
        {"type": "h", "args": []},
    ],
}  # fmt: skip


Scans = dict[str, list[str]]
"""Statements on large tables, each with its scans of whole tables."""


@pytest.fixture(scope="module")
def scans() -> dict[str, Scans]:
    """The scans that were looked at, by what the planner knew: to fill the tables takes a second each time."""
    return {}


async def live(service: Service, clock: Clock) -> None:
    """Run workflows through append, suspension, resumption, failure, cancellation, retry, timeout and retention."""

    async def work(*failing: str) -> None:
        while jobs := await service.jobs.fetch(Claim(("default",), 10, "w")):
            for job in jobs:
                if job.type in failing:
                    report = FailureReport(job.id, Failure("X", "no", retryable=False))
                    await service.jobs.fail([report])
                else:
                    await service.jobs.acknowledge([Acknowledgement(job.id, b"[1]")])

    ids = []
    for _ in range(3):
        info = await service.workflows.create(read_members(msgspec.json.encode(WIRE | {"timeout": 100})))
        ids.append(info.id)
    (job, *_) = await service.jobs.fetch(Claim(("default",), 1, "w"))
    step = (msgspec.json.encode({"type": "new", "args": []}),)
    await service.jobs.acknowledge([Acknowledgement(job.id, b"[1]", append=step)])
    await service.workflows.hold(ids[0])
    await service.workflows.release(ids[0])
    await work("d")
    await service.workflows.cancel(ids[1])
    await service.workflows.retry(ids[1])
    everything = WorkflowConditions(created_after=1)
    for dry_run in (True, False):
        await service.workflow_bulk.hold(everything, dry_run=dry_run)
        await service.workflow_bulk.release(everything, dry_run=dry_run)
    clock.advance(200)
    await service.database.run(run_due, None)
    await work()
    clock.advance(30 * 86_400)
    while (await service.database.run(forget, None))["rows"]:
        pass


KNOWN = ["all of them", "some of them while they were small", "none of them"]
"""The tables of which the planner has statistics."""

EMPTIED = "that they were empty"
"""What the planner knows of all tables if autovacuum comes while nothing runs."""

FORGETS = "NOT EXISTS (SELECT 1 FROM workflows AS n WHERE n.id = workflows.next_attempt"
"""In the statements that find workflows past their retention."""


@pytest.mark.needs("planner-settings")
async def test_containers_are_found_by_their_ids_although_the_planner_believes_that_there_are_no_nodes(
    postgres_url: str, clock: Clock, scans: dict[str, Scans]
) -> None:
    """It would compare each node with each: 700 acknowledgements in one transaction would take most of a minute."""
    looked = await scans_of(postgres_url, clock, scans, EMPTIED)
    found = [scan for sql, each in looked.items() if "SELECT parent FROM nodes" in sql for scan in each]
    assert any("SELECT parent FROM nodes" in sql for sql in looked)
    assert not found, "\n".join(found)


@pytest.mark.needs("planner-settings")
@pytest.mark.parametrize("known", KNOWN)
async def test_no_statement_reads_a_whole_table_whatever_the_planner_knows(
    postgres_url: str, clock: Clock, scans: dict[str, Scans], known: str
) -> None:
    looked = await scans_of(postgres_url, clock, scans, known)
    assert len(looked) > 50, "there is something to look at"
    for words in BY_ROW:
        having(looked, *words)
    known_bounds = (FORGETS, "coalesce(max(seq), 0)")  # the latter reads the end of the index
    wrong = [
        f"{scan}: {sql}"
        for sql, found in looked.items()
        if not any(words in sql for words in known_bounds)
        for scan in found
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.needs("planner-settings")
@pytest.mark.parametrize("known", KNOWN)
async def test_a_step_of_a_walk_over_workflows_reads_only_its_window(
    postgres_url: str, clock: Clock, scans: dict[str, Scans], known: str
) -> None:
    """Neither does it read all workflows in a state, or of a tenant, for each window."""
    looked = await scans_of(postgres_url, clock, scans, known)
    steps = [
        sql
        for sql in looked
        if "SELECT id, nodes, params, metadata FROM (SELECT * FROM workflows WHERE seq > :after" in sql
    ]
    assert steps
    assert not [scan for sql in steps for scan in looked[sql]]


@pytest.mark.needs("planner-settings")
@pytest.mark.parametrize("known", KNOWN)
async def test_workflows_past_their_retention_are_found_without_a_look_at_all(
    postgres_url: str, clock: Clock, scans: dict[str, Scans], known: str
) -> None:
    looked = await scans_of(postgres_url, clock, scans, known)
    assert not [scan for sql in having(looked, FORGETS) for scan in looked[sql]]


async def scans_of(postgres_url: str, clock: Clock, scans: dict[str, Scans], known: str) -> Scans:
    """Run workflows, and return the scans of their statements, one by one or once for each row."""
    if known not in scans:
        service = Service(open_database(postgres_url, clock=clock))
        with recorded_on_postgres() as said:
            await live(service, clock)
        await service.close()
        scans[known] = _explained(postgres_url, said, known)
    return scans[known]


def _explained(postgres_url: str, said: Recorded, known: str) -> Scans:
    """Fill the tables with other workflows, and explain the statements."""
    parsed = parse_postgres_url(postgres_url)
    with psycopg.connect(parsed.conninfo, options=f"-c search_path={parsed.schema}") as connection:
        skip_without_generic_plans(connection)
        for name, value in WRITER_SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, true)", (name, value))
        tables = ", ".join(sorted(LARGE)).encode()
        # Statistics that autovacuum happened to collect survive TRUNCATE.
        connection.execute("DELETE FROM pg_statistic WHERE starelid = ANY(%s::regclass[])", (sorted(LARGE),))
        if known == "some of them while they were small":
            connection.execute("ANALYZE nodes")
        connection.execute(b"TRUNCATE " + tables)
        connection.execute(OTHERS)
        if known == EMPTIED:
            for table in sorted(LARGE):
                connection.execute(f"DELETE FROM {table}")
            connection.execute(b"ANALYZE " + tables)
            connection.execute(OTHERS)
        if known == "all of them":
            connection.execute(b"ANALYZE " + tables)
        explained = [sql for sql in sorted(said) if EXPLAINABLE.match(sql) and any(table in sql for table in LARGE)]
        scans = {}
        for sql in explained:
            explain = b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + translate(sql, parsed.schema).sql
            ((plan,),) = psycopg.RawCursor(connection).execute(explain).fetchall()
            scans[sql] = whole_scans(plan[0]["Plan"])
        connection.rollback()
    return scans


def whole_scans(plan: dict[str, Any]) -> list[str]:
    """Return the scans of a plan that read a whole table or a whole index."""
    found = []
    if plan.get("Relation Name") in LARGE and "Scan" in plan["Node Type"]:
        limited = any(key in plan for key in ("Index Cond", "Recheck Cond", "TID Cond"))
        partial = plan.get("Index Name") in (
            "workflows_due",
            "jobs_dead",
            "jobs_exclusive",
            "jobs_limited",
            "jobs_needing",
            "jobs_tenants",
        )  # few rows, or the statement reads only the first
        if not limited and not partial:
            found.append(json.dumps({key: plan.get(key) for key in ("Node Type", "Relation Name", "Index Name")}))
    for inner in plan.get("Plans", ()):
        found += whole_scans(inner)
    return found


def test_the_inputs_of_a_step_of_a_graph_are_found_by_its_edges_not_among_all_its_siblings(file_url: str) -> None:
    """Otherwise each step of a graph would cost as much as the graph has steps."""
    connection = apsw.Connection(file_url.removeprefix("sqlite:///"))
    plan_once(connection)
    query = f"SELECT s.id, {_COLUMNS} FROM nodes AS s {_STEPS_BEFORE[Inputs.NEEDED]} WHERE s.id IN (1, 2)"
    plan = "\n".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query} ORDER BY s.id, n.position"))
    assert "node_edges_target" in plan
    assert "nodes_parent" not in plan
    connection.close()

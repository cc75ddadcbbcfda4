"""What the dashboard asks of many jobs reads a bounded part of them, by an index: on SQLite, as the service asks it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from ojster.core.json_objects import read_members
from ojster.events import webhooks
from ojster.events.subscription import Subscription
from ojster.insight.attention import find_attention
from ojster.insight.facets import FacetQuestion, count_facets
from ojster.insight.failures import FailureQuestion, group_failures
from ojster.insight.receivers import DeliveryOutcome
from ojster.jobs import pages
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page
from ojster.jobs.scope import Caller
from ojster.jobs.statistics import Span, history
from ojster.storage.sqlite.schema import migrate
from ojster.storage.sqlite.statements import plan_once
from ojster.workflows.read.step_pages import StepFilter
from tests.conftest import Bench
from tests.storage.statements import Recorded, having, recorded_on_sqlite
from tests.storage.test_plans import plan_of, whole_scans

pytestmark = pytest.mark.anyio

TYPE = JobFilter(type="mail.*")

OF_WHAT_WAITS = ("jobs_needing", "nodes_unapproved", "jobs_suspended")
"""Indexes of what waits for a worker that can run it, an approval or an answer: read as a whole."""

FEW_AT_A_TIME = ("active", "scheduled", "retryable")
"""States that may be those of few jobs among millions, which were pushed at any time."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/surveys.db"


async def asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Ask everything that the pages ask of many jobs; return the statements."""
    service, retry = bench.service, {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    for number in range(4):
        await bench.push("mail.send", number, retry=retry)
        await bench.fail(await bench.fetch_one(), type="Smtp")
    steps = b'{"type":"group","jobs":[{"type":"a","args":[]},{"type":"wait"}]}'
    workflow = await service.workflows.create(read_members(steps))
    monkeypatch.setattr(pages, "MAX_EXAMINED", 2)  # as in a long list
    subscription = Subscription("sub_1", "http://127.0.0.1/", ("job.enqueued",), "secret", 0)
    await service.scope.do(webhooks.subscribe, subscription)
    await bench.push("told")
    failed = DeliveryOutcome("sub_1", "http://127.0.0.1/", "refused")
    await service.scope.do(webhooks.record_outcomes, ("webhook.failed", failed, {}))
    scope, span = service.scope, Span(0, bench.clock.now, 60, type="mail.send")
    with recorded_on_sqlite(service) as seen:
        for one in (scope, service.as_(Caller("acme")).scope):
            await scope.look(count_facets, FacetQuestion(TYPE, one))
            await scope.look(group_failures, FailureQuestion(TYPE, one))
        await scope.look(find_attention, None)
        await scope.look(history, span)
        page = await service.jobs.select(TYPE, Page(2, is_bounded=True))
        await service.jobs.select(TYPE, Page(2, before=page.next_before, is_bounded=True))
        for state in FEW_AT_A_TIME:
            await service.jobs.select(JobFilter(states=(state,)), Page(2, is_bounded=True))
        await service.workflows.steps(StepFilter(workflow.id, is_held=True))
        await service.workflows.steps(StepFilter(workflow.id, search="mail"))
    return seen


@pytest.mark.parametrize("knows", ["nothing", "the sizes"])
async def test_surveys_read_no_whole_table(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, knows: str
) -> None:
    seen = await asked(bench, monkeypatch)
    connection = apsw.Connection(str(tmp_path / "plans.db"))
    plan_once(connection)
    migrate(connection)
    if knows == "the sizes":
        connection.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5000) "
            "INSERT INTO jobs (seq, id, type, queue, state, priority, max_attempts, created_at, finished_at) "
            "SELECT x, 'id' || x, 't', 'q', 'completed', 0, 3, 0, x FROM n; ANALYZE"
        )
    plans = {sql: plan_of(connection, seen, sql) for sql in seen if sql.startswith("SELECT")}
    assert len(plans) > 15, "there is something to look at"
    for sql, plan in plans.items():
        is_newest = "FROM jobs WHERE TRUE ORDER BY seq DESC LIMIT" in sql  # in the order of the table, up to a number
        scans = [line for line in whole_scans(sql, plan) if not line.endswith(OF_WHAT_WAITS)]
        assert is_newest or not scans, f"{sql}\n{plan}"
    for words, uses in (
        (("FROM jobs WHERE state = 'discarded' AND dead = 1 ORDER BY finished_at",), "jobs_discarded (dead=?)"),
        (("FROM jobs WHERE tenant = :tenant", "ORDER BY seq DESC LIMIT :newest"), "jobs_tenant (tenant=?)"),
        (("FROM jobs", "finished_at > :since", "GROUP BY queue"), "jobs_discarded (dead=? AND finished_at>?)"),
        (("UNION ALL", "state = 'available'", ") AS available"), "(queue=?"),
        *((("seq AS key", f"state = '{state}'"), "jobs_due (state=?") for state in FEW_AT_A_TIME),
        (("FROM jobs", "seq >= :first_seq"), "INTEGER PRIMARY KEY (rowid>?"),
        (("FROM queue_minutes", "queue = :queue"), "PRIMARY KEY (queue=? AND minute>? AND minute<?)"),
        (("FROM nodes AS n", "SELECT node FROM jobs"), "jobs_suspended (node>? AND node<?)"),
    ):
        for sql in having(seen, *words):
            assert uses in " | ".join(plans[sql]), f"{sql}\n{plans[sql]}"

"""A short trial of ``make chaos``, and a ledger that shows each kind of fault."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from ojster.storage.open import migrate_database
from tests.chaos.__main__ import Options, trial
from tests.chaos.fleet import Fleet, settle
from tests.chaos.flow_load import UNSUCCESSFUL, FlowJudge, FlowLoad
from tests.chaos.journeys import EFFECTS, plan_of
from tests.chaos.ledger import HANDLERS, judge, read
from tests.chaos.nursery import Nursery
from tests.postgres import PostgresServer
from tests.waiting import until


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path)
    yield made
    made.close()


@pytest.mark.anyio
@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_nothing_is_lost_or_done_twice_at_a_time(kind: str, tmp_path: Path, nursery: Nursery) -> None:
    server = PostgresServer(fsync="on") if kind == "postgres" else None
    try:
        if server is not None:
            server.start()
            migrate_database(server.url)
        figures = await trial(tmp_path, nursery, server, Options(100, flows=100, seed=7, pause=0.2, crash_every=40))
    finally:
        if server is not None:
            server.remove()
    assert figures.wrong == []
    assert figures.kills >= 100
    assert figures.acknowledged > 100
    assert figures.workflows > 0
    assert figures.flows == 100
    assert figures.runs > figures.jobs, "some kills met a job before it was acknowledged, or some jobs were retried"


@pytest.mark.anyio
@pytest.mark.thorough
@pytest.mark.timeout(300)
async def test_flows_go_on_when_a_standby_takes_over(tmp_path: Path, nursery: Nursery) -> None:
    """Commits wait for the standby, so that what was acknowledged is there."""
    primary = PostgresServer(fsync="off", wal_level="replica")
    servers = [primary]
    fleet = None
    try:
        primary.start()
        migrate_database(primary.url)
        servers.append(standby := PostgresServer(standby_of=primary))
        standby.start()
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        hosts = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
        fleet = Fleet(tmp_path, hosts, nursery, HANDLERS)
        fleet.server("server")
        fleet.worker("worker of the server", "server")
        fleet.worker("worker of the database", hosts)
        await fleet.ready()
        flows = FlowLoad(fleet, ["server"])
        await flows.start(50)
        effects = tmp_path / f"ledger{EFFECTS}"
        await asyncio.to_thread(until, lambda: effects.exists() and len(effects.read_text().splitlines()) > 50)
        await asyncio.to_thread(primary.stop, "immediate")
        await asyncio.to_thread(standby.promote)
        await flows.start(80)
        await flows.stop()
        jobs = await settle(hosts, set(), unsuccessful=UNSUCCESSFUL)
        assert await FlowJudge(flows, jobs, tmp_path / "ledger").judge(hosts) == []
        assert len(flows.ids) == 80
    finally:
        if fleet is not None:
            fleet.stop()
        for server in reversed(servers):
            server.remove()


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (["start a 1 10", "end a 1 20"], []),
        (["start a 1 10", "start a 2 30", "end a 2 40"], []),
        (["start a 1 10", "fail a 1 20", "start a 1 30", "end a 1 40"], []),
        (["start a 1 10", "fail a 1 20"], ["a is completed, but no run of it succeeded"]),
        ([], ["a is completed, but no run of it succeeded"]),
        (["start a 1 10", "end a 1 20", "start b 1 30"], ["b was run and is not completed"]),
        (["start a 1 10", "start a 2 15", "end a 1 20", "end a 2 40"], ["a ran twice at the same time"]),
    ],
)
def test_the_ledger_tells_what_is_wrong(lines: list[str], wrong: list[str], tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("\n".join(lines))
    assert judge(read(tmp_path / "ledger"), ["a"]).wrong == wrong


NUMBER = 7


@pytest.mark.parametrize(
    ("stage", "value", "wrong"),
    [
        ("messages", [0, 1, 2], ""),
        ("messages", [0, 2, 1], "messages: [0, 2, 1], not [0, 1, 2]"),
        ("messages", [0, 0, 1, 2], "messages: [0, 0, 1, 2], not [0, 1, 2]"),
        ("jobs", ["a", "b", "c"], ""),
        ("jobs", ["a", "a", "c"], "right is a, which is the result of no run"),
        ("jobs", ["a", "b", "x"], "local is x, which is the result of no run"),
        ("undo", "undone", "stages: "),
    ],
)
def test_the_results_of_flows_tell_what_is_wrong(stage: str, value: Any, wrong: str, tmp_path: Path) -> None:
    plan = plan_of(NUMBER)._replace(stages=["messages", "jobs"], restarts_after=None, end="completed")
    effects = [f"{NUMBER} left a", f"{NUMBER} right b", f"{NUMBER} local c"]
    (tmp_path / f"ledger{EFFECTS}").write_text("\n".join(effects))
    flows = FlowJudge(SimpleNamespace(wrong=[], ids={NUMBER: "id"}), {}, tmp_path / "ledger")  # type: ignore[arg-type]
    told = {"messages": [0, 1, 2], "jobs": ["a", "b", "c"]} | {stage: value}
    flows.judge_result(NUMBER, plan, list(told.items()))
    assert (flows.wrong == []) == (wrong == "")
    assert wrong in "".join(flows.wrong)

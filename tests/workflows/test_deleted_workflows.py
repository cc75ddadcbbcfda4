"""Workflows that are deleted for good: no table has anything left that their callers, jobs and functions have said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ojster import App, Flow, JobContext, chain
from ojster.core.errors import Conflict
from ojster.service import Service
from ojster.storage.postgres.database import PostgresDatabase
from ojster.workflows.flow import FlowMessage
from ojster.workflows.read.selection import WorkflowConditions
from ojster.workflows.run import retention
from ojster.workflows.run.fork import Fork
from tests.conftest import Clock
from tests.flows.driver import FlowBench

pytestmark = pytest.mark.anyio

MARK = "Ada-Lovelace-1815"


@pytest.fixture
def bench(service: Service, clock: Clock, url: str) -> FlowBench:
    return FlowBench(service, clock, App(url))


async def tables_with_mark(service: Service) -> set[str]:
    """Return the tables in which the mark is, in any column."""

    def look(tx: Any, requests: Any) -> list[set[str]]:
        if isinstance(service.database, PostgresDatabase):
            query = f"SELECT tablename FROM pg_tables WHERE schemaname = '{service.database.url.schema}'"
        else:
            query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        names = [name for (name,) in tx.execute(query)]
        rows = {name: tx.execute(f"SELECT * FROM {name}") for name in names}
        marked = {name for name, some in rows.items() if any(_has_mark(value) for row in some for value in row)}
        return [marked for _ in requests]

    return await service.database.run(look, None)


def _has_mark(value: Any) -> bool:
    return MARK in (value.decode(errors="replace") if isinstance(value, bytes) else str(value))


async def one_run(bench: FlowBench) -> str:
    """Return the id of a flow with the mark in whatever it has."""

    @bench.app.job("greet")
    async def greet(job: JobContext, name: str) -> str:
        await job.stream("lines").aappend(name)
        return name

    @bench.app.job("fail", retry=1)
    async def fail(name: str) -> str:
        raise ValueError(name)

    @bench.app.flow("visit")
    async def visit(flow: Flow, name: str) -> str:
        flow.publish(name)
        flow.stream("tokens").append(name)
        await flow.step("note", str, name)
        await flow.run(chain(greet.s(name), greet.s(name)))
        try:
            await flow.run(fail, name)
        except Exception:
            return await flow.receive("name", str) + name
        return name

    info = await bench.start(visit.s(MARK), metadata={"who": MARK}, params={"who": MARK}, properties={"who": MARK})
    await bench.service.flows.send(FlowMessage(info.id, "name", msgspec.json.encode(MARK)))
    await bench.service.notes.add_to_workflow(info.id, msgspec.json.encode(MARK))
    return info.id


async def test_nothing_is_left_of_a_deleted_run(bench: FlowBench) -> None:
    await one_run(bench)
    assert (await bench.finish()).state == "completed"
    everything = WorkflowConditions(type="flow")
    assert len(await tables_with_mark(bench.service)) > 8
    foreseen = await bench.service.workflow_bulk.delete(everything, dry_run=True)
    assert (foreseen.succeeded, (await bench.look()).state) == (1, "completed")
    assert (await bench.service.workflow_bulk.delete(everything)).succeeded == 1
    assert await tables_with_mark(bench.service) == set()


async def test_a_run_that_goes_on_is_not_deleted(bench: FlowBench) -> None:
    await one_run(bench)
    assert (await bench.service.workflow_bulk.delete(WorkflowConditions(type="flow"))).matched == 0
    assert (await bench.look()).state == "running"


async def test_a_run_whose_results_a_fork_uses_is_deleted_after_the_fork(bench: FlowBench) -> None:
    id = await one_run(bench)
    await bench.finish()
    fork = await bench.service.workflows.fork(Fork(id, "fail"))
    chosen = WorkflowConditions(type="flow")
    swept = await bench.service.workflow_bulk.delete(chosen)
    ((_, refusal),) = swept.items
    assert isinstance(refusal, Conflict)
    assert fork.id in refusal.message
    bench.id = fork.id
    await bench.finish()
    for _ in range(2):
        await bench.service.workflow_bulk.delete(chosen)
    assert await tables_with_mark(bench.service) == set()


async def test_nothing_is_left_of_many_small_workflows(bench: FlowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_DUE_WORKFLOWS", 1)

    @bench.app.job("note")
    def note(name: str) -> str:
        return name

    for _ in range(3):
        await bench.start(chain(note.s(MARK)))
        assert (await bench.finish()).state == "completed"
    assert (await bench.service.workflow_bulk.delete(WorkflowConditions(type="chain"))).succeeded == 3
    assert await tables_with_mark(bench.service) == set()


async def test_the_log_forgets_jobs_that_retention_deletes_meanwhile(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = bench.service.workflow_bulk._sweep

    async def sweep_slowly(*args: Any, **options: Any) -> Any:
        swept = await sweep(*args, **options)
        await bench.service.maintenance.prune()
        return swept

    @bench.app.job("fail", retry=1)
    async def fail(name: str) -> None:
        raise ValueError(name)

    monkeypatch.setattr(bench.service.workflow_bulk, "_sweep", sweep_slowly)
    await bench.start(chain(fail.s(MARK)))
    assert (await bench.finish()).state == "failed"
    assert "event_batches" in await tables_with_mark(bench.service)
    await bench.service.workflow_bulk.delete(WorkflowConditions(type="chain"))
    assert await tables_with_mark(bench.service) == set()

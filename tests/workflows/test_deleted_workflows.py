"""Workflows that are deleted for good: no table has anything left that their callers, jobs and functions have said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ojster import App, Flow, JobContext, JobFailed, chain
from ojster.core.errors import Conflict
from ojster.core.json_objects import read_members
from ojster.events import erased_deliveries
from ojster.events.channel import Channel
from ojster.events.wire import SubscriptionBody
from ojster.files.open import open_store
from ojster.insight import task_history
from ojster.jobs.extension import Erasure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.idempotency import Key, StoredReply
from ojster.jobs.queries import Page
from ojster.reactions import notify, record
from ojster.service import Service
from ojster.storage.database import Database
from ojster.storage.postgres.database import PostgresDatabase
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import FlowMessage
from ojster.workflows.read.selection import WorkflowConditions
from ojster.workflows.run import deletion, retention
from ojster.workflows.run.fork import Fork
from tests.conftest import Clock
from tests.flows.driver import FlowBench

pytestmark = pytest.mark.anyio

MARK = "Ada-Lovelace-1815"


@pytest.fixture
async def service(database: Database, tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(database, store=open_store(str(tmp_path / "files")))
    yield made
    await made.maintenance.stop()


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


async def queues_with_mark(service: Service) -> set[str]:
    """Return the queues of jobs outside of workflows with the mark in their arguments, but for ``default``."""
    jobs = (await service.jobs.select(JobFilter(internal=True), Page(limit=1_000))).jobs
    return {job.queue for job in jobs if MARK in str(job.args)} - {"default"}


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


async def run_that_leaves_things_elsewhere(bench: FlowBench) -> str:
    """Run a flow that begins anew, with large results, recorded tasks, deliveries, notifications and a kept answer."""
    await bench.service.events.put_channel(Channel("team", "webhook", url="http://127.0.0.1:1/"))
    await bench.service.webhooks.subscribe(SubscriptionBody("http://127.0.0.1:1/", ["*"]))
    tells = {"subject": "{job.args.0}", "text": "{job.args.0}"}

    @bench.app.job("task", reactions={"on_success": [record("x"), notify("team", **tells)]})
    def task(name: str) -> str:
        return name

    @bench.app.job("fail", retry=1)
    async def fail(name: str) -> str:
        raise ValueError(name)

    @bench.app.job("large")
    async def large(job: JobContext, name: str) -> str:
        return name * 10_000

    @bench.app.flow("visit")
    async def visit(flow: Flow, name: str, rounds: int) -> int:
        length = len(await flow.step("long", lambda: name * 100_000))
        await flow.run(chain(task.s(name), large.s(name)))
        with suppress(JobFailed):
            await flow.run(fail, name)
        if rounds:
            return await flow.restart(name, rounds - 1)
        return length

    request = read_members(msgspec.json.encode(visit.s(MARK, 1).request(metadata={"who": MARK})))

    async def start() -> StoredReply:
        info = await bench.service.workflows.create(request)
        bench.id = info.id
        return StoredReply(201, b'{"workflow":%b}' % info.to_json())

    await bench.service.bulk.answer_once(Key("workflow", "key", "print"), start)
    assert (await bench.finish()).state == "completed"
    return bench.id


def pieces(folder: Path) -> list[Path]:
    return [path for path in (folder / "files").rglob("*") if path.is_file()]


@pytest.mark.parametrize("by", ["id", "metadata"])
async def test_nothing_is_left_elsewhere_of_a_deleted_run(bench: FlowBench, tmp_path: Path, by: str) -> None:
    id = await run_that_leaves_things_elsewhere(bench)
    before = await tables_with_mark(bench.service)
    assert {"task_runs", "idempotency_keys", "payloads", "event_batches"} <= before
    assert await queues_with_mark(bench.service) == {"ojster.webhooks", "ojster.notifications"}
    assert pieces(tmp_path)
    chosen = WorkflowConditions(ids=(id,)) if by == "id" else WorkflowConditions(metadata={"who": MARK})
    assert (await bench.service.workflow_bulk.delete(chosen)).succeeded == 1
    assert await tables_with_mark(bench.service) == set()
    assert not pieces(tmp_path)


async def test_a_repeated_request_does_not_start_a_deleted_run_again(bench: FlowBench) -> None:
    id = await run_that_leaves_things_elsewhere(bench)
    await bench.service.workflow_bulk.delete(WorkflowConditions(ids=(id,)))
    reply = await bench.service.bulk.answer_once(Key("workflow", "key", "print"), None)  # type: ignore[arg-type]
    assert reply.body == b'{"workflow":{"id":"%b"}}' % id.encode()


async def test_kept_answers_are_examined_in_small_steps(bench: FlowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "REPLIES_AT_ONCE", 2)
    kept: list[bytes] = []
    request = b'{"type": "chain", "name": "one", "steps": [{"type": "task", "args": []}]}'

    async def start() -> StoredReply:
        info = await bench.service.workflows.create(read_members(request))
        kept.append(b'{"workflow":%b}' % info.to_json())
        bench.id = info.id
        return StoredReply(201, kept[-1])

    async def repeated(number: int) -> bytes:
        key = Key("workflow", str(number), "print")
        return (await bench.service.bulk.answer_once(key, None)).body  # type: ignore[arg-type]

    for number in range(5):
        await bench.service.bulk.answer_once(Key("workflow", str(number), "print"), start)
        bench.clock.advance(1)
    await bench.service.workflows.terminate(bench.id)
    looked_at: list[int] = []
    blank = deletion._blank_replies

    def count(tx: Transaction, erasure: Erasure) -> int | None:
        looked_at.append(erasure.position)
        return blank(tx, erasure)

    monkeypatch.setattr(deletion, "_blank_replies", count)
    assert (await bench.service.workflow_bulk.delete(WorkflowConditions(ids=(bench.id,)))).succeeded == 1
    assert len(set(looked_at)) == 4
    assert [await repeated(number) for number in range(4)] == kept[:4]
    assert await repeated(4) == b'{"workflow":{"id":"%b"}}' % bench.id.encode()


async def test_the_runs_and_deliveries_of_others_stay(bench: FlowBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erased_deliveries, "WINDOW", 3)
    monkeypatch.setattr(task_history, "RUNS_AT_ONCE", 3)

    async def left() -> tuple[set[str], int]:
        page = await bench.service.jobs.select(JobFilter(type="ojster.*", internal=True), Page(limit=1_000))
        return {job.id for job in page.jobs}, len(await bench.service.tasks.runs("task", "x"))

    await run_that_leaves_things_elsewhere(bench)
    deliveries, runs = await left()

    @bench.app.job("other", reactions={"on_success": [record("x")]})
    def other(name: str) -> str:
        return name

    await bench.start(chain(other.s(MARK), other.s(MARK)))
    assert (await bench.finish()).state == "completed"
    assert len((await left())[0]) > len(deliveries)
    await bench.service.workflow_bulk.delete(WorkflowConditions(ids=(bench.id,)))
    assert await left() == (deliveries, runs)
    assert not await bench.service.tasks.runs("other", "x")


async def test_a_job_of_an_earlier_round_that_runs_again_keeps_its_flow(bench: FlowBench) -> None:
    @bench.app.job("fail", retry=1)
    async def fail(name: str) -> None:
        raise ValueError(name)

    @bench.app.flow("visit")
    async def visit(flow: Flow, rounds: int) -> int:
        try:
            await flow.run(fail, MARK)
        except JobFailed:
            if rounds:
                return await flow.restart(rounds - 1)
        return 7

    await bench.start(visit.s(1))
    await bench.finish()
    jobs = (await bench.service.jobs.select(JobFilter(type="fail"))).jobs
    (former,) = [job for job in jobs if job.workflow is None]
    await bench.service.jobs.retry(former.id)
    swept = await bench.service.workflow_bulk.delete(WorkflowConditions(ids=(bench.id,)))
    ((_, refusal),) = swept.items
    assert former.id in str(refusal)
    assert "Cancel it first" in str(refusal)
    await bench.service.jobs.cancel(former.id)
    assert (await bench.service.workflow_bulk.delete(WorkflowConditions(ids=(bench.id,)))).succeeded == 1
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

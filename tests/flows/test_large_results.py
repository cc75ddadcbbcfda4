"""Results of local steps that are too large to be kept with their flow are files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ojster import App, Flow, Worker, group
from ojster.core.errors import BackendError, BackendUnavailable, NotFound
from ojster.files.file import File
from ojster.files.open import open_store
from ojster.handlers.flow_export import ExportedFlow, export_flow, export_parts
from ojster.service import Service
from ojster.storage.database import Database
from ojster.testing import areplay
from ojster.workflows.flow import NewRecord, Turn
from ojster.workflows.read.run_errors import result_of
from ojster.workflows.run.fork import Fork
from tests.conftest import Clock
from tests.flows.driver import NEVER, FlowBench
from tests.serving import serving
from tests.waiting import PATIENCE

pytestmark = pytest.mark.anyio

LARGE = 1_200_000

DAYS = 100 * 86_400


@pytest.fixture
async def service(database: Database, tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(database, store=open_store(str(tmp_path / "files")))
    yield made
    await made.maintenance.stop()


@pytest.fixture
async def bench(service: Service, clock: Clock, app: App) -> FlowBench:
    bench = FlowBench(service, clock, app)

    def make(letter: str) -> str:
        bench.done.append(letter)
        return letter * LARGE

    @app.flow("large")
    async def large(flow: Flow, restarts: int = 0) -> list[int]:
        first = await flow.step("make", make, "a")
        await flow.receive("go")
        second = await flow.step("make", make, "b")
        if restarts:
            await flow.restart(restarts - 1)
        return [len(first), len(second)]

    bench.note = large
    return bench


async def test_an_exported_run_has_its_large_results_and_is_replayed(bench: FlowBench, tmp_path: Path) -> None:
    await bench.start(bench.note.s())
    await bench.send("go", None)
    assert result_of(await bench.finish()) == [LARGE, LARGE]
    sizes = []
    file = tmp_path / "run.json"
    with file.open("wb") as sink:
        async for part in export_parts(bench.service, bench.id):
            sizes.append(len(part))
            sink.write(part)
    assert sum(sizes) > 2 * LARGE
    assert max(sizes) < 1.5 * LARGE, "one result at a time"
    assert msgspec.json.decode(file.read_bytes(), type=ExportedFlow) == await export_flow(bench.service, bench.id)
    assert await areplay(bench.note, file) == [LARGE, LARGE]
    assert bench.done == ["a", "b"]


async def test_a_run_whose_large_result_is_lost_is_not_exported(bench: FlowBench, tmp_path: Path) -> None:
    await bench.start(bench.note.s())
    await bench.work()
    for piece in (tmp_path / "files").rglob("*"):
        if piece.is_file():
            piece.unlink()
    with pytest.raises((NotFound, BackendError)):
        await export_flow(bench.service, bench.id)


async def test_a_run_with_a_lost_result_among_others_is_not_exported(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")

        @app.job("long")
        async def long(letter: str) -> str:
            return letter * LARGE

        @app.flow("both")
        async def both(flow: Flow) -> int:
            return len(await flow.run(group(long.s("a"), long.s("b"))))

        run = await both.astart()
        await Worker(app).run(until_empty=True)
        assert await run.aresult(PATIENCE) == 2
        await app.aclose()
    exported = await export_flow(service, run.id)
    assert max(len(msgspec.json.encode(record)) for record in exported.records) > 2 * LARGE
    lost, find = (await service.files.select())[0].id, service.files.find

    async def find_others(file_id: str, job_id: str | None = None) -> File:
        if file_id == lost:
            raise NotFound("It is gone.")
        return await find(file_id, job_id)

    monkeypatch.setattr(service.files, "find", find_others)
    with pytest.raises(NotFound, match="a file that is gone"):
        await export_flow(service, run.id)


def _files(tx: Any, _: object) -> list[list[str]]:
    return [
        [name for (name,) in tx.execute("SELECT name FROM collection_items WHERE removed_at IS NULL ORDER BY name")]
    ]


async def _files_of(bench: FlowBench) -> list[str]:
    (names,) = await bench.service.database.run_many(_files, [0])
    return names


async def test_a_flow_that_runs_again_reads_a_large_result_back(bench: FlowBench) -> None:
    await bench.start(bench.note.s())
    await bench.work()
    (job_id,) = [step.job_id for step in (await bench.look()).walk() if step.job_id]
    records = {record.key: record for record in (await bench.service.flows.records(job_id)).records}
    assert len(records["make"].result) < 1_000  # type: ignore[arg-type]
    await bench.send("go", None)
    assert result_of(await bench.finish()) == [LARGE, LARGE]
    assert bench.done == ["a", "b"]
    assert await _files_of(bench) == ["/result/make", "/result/make#2"]


async def test_the_files_of_a_flow_are_deleted_with_its_run(bench: FlowBench) -> None:
    await bench.start(bench.note.s(), expiration_delay=1)
    await bench.send("go", None)
    await bench.finish()
    await bench.run_all_due()
    for _ in range(2):  # the workflow goes first, and then its job
        bench.clock.advance(DAYS)
        await bench.service.maintenance.prune()
    assert await _files_of(bench) == []


async def test_a_flow_whose_worker_dies_keeps_the_files_of_its_steps(bench: FlowBench) -> None:
    @bench.app.flow("dies")
    async def dies(flow: Flow) -> int:
        text = await flow.step("make", lambda: "a" * LARGE)
        return len(text) + await flow.step("more", lambda: 1)

    await bench.start(dies.s())
    (job,) = await bench.claim()
    bench.when = lambda number: "before" if number == 1 else NEVER
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.service.jobs, "release", lambda _: asyncio.sleep(0))  # it tells nobody that it dies
        await bench.run_job(job)
    info = await bench.finish()
    assert (info.state, result_of(info)) == ("completed", LARGE + 1)
    assert await _files_of(bench) == ["/result/make"]


async def test_a_flow_that_begins_anew_forgets_its_files(bench: FlowBench) -> None:
    await bench.start(bench.note.s(2))
    for _ in range(3):
        await bench.send("go", None)
    assert result_of(await bench.finish()) == [LARGE, LARGE]
    assert len(bench.done) == 6
    assert await _files_of(bench) == ["/result/make", "/result/make#2"]


async def test_a_fork_keeps_the_files_that_the_first_run_forgets(bench: FlowBench) -> None:
    def make() -> str:
        bench.done.append("made")
        return str(len(bench.done)) * LARGE

    @bench.app.flow("again")
    async def again(flow: Flow, restarts: int) -> str:
        made = await flow.step("make", make)
        await flow.receive("go")
        if restarts:
            await flow.restart(restarts - 1)
        return made[0]

    await bench.start(again.s(1))
    await bench.work()
    fork = await bench.service.workflows.fork(Fork(bench.id, "go"))
    await bench.send("go", None)
    await bench.work()
    bench.clock.advance(DAYS)
    await bench.service.files.prune()
    bench.id = fork.id
    for _ in range(2):
        await bench.send("go", None)
    assert result_of(await bench.finish()) == str(len(bench.done))
    assert await _files_of(bench) == ["/result/make", "/result/make"]


async def test_a_flow_goes_on_later_while_its_files_cannot_be_stored(
    bench: FlowBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreachable(*_: object) -> Any:
        raise BackendUnavailable("The file store is away.")

    create = bench.service.files.create
    monkeypatch.setattr(bench.service.files, "create", unreachable)
    await bench.start(bench.note.s())
    await bench.send("go", None)
    await bench.work()
    assert (await bench.look()).state == "running"
    monkeypatch.setattr(bench.service.files, "create", create)
    assert result_of(await bench.finish()) == [LARGE, LARGE]
    assert bench.done == ["a", "a", "b"]


async def test_a_worker_of_a_server_stores_large_results(service: Service) -> None:
    async with serving(service) as (_, port):
        app = App(f"http://127.0.0.1:{port}")

        @app.job("next")
        async def following(number: int) -> int:
            return number + 1

        @app.flow("large")
        async def large(flow: Flow) -> int:
            text = await flow.step("make", lambda: "ä" * LARGE)
            return await flow.run(following, len(text))

        run = await large.astart()
        await Worker(app).run(until_empty=True)
        assert await run.aresult(PATIENCE) == LARGE + 1
        await app.aclose()


async def test_only_a_local_step_has_a_file(bench: FlowBench) -> None:
    await bench.start(bench.note.s())
    (job,) = await bench.claim()
    record = NewRecord("a", "receive", "a", job.created_at, result_file="some")
    with pytest.raises(Exception, match="Only a local step has a 'result_file', not a 'receive'"):
        await bench.service.flows.turn(Turn(job.id, "w1", 1, records=(record,)))
    record = NewRecord("a", "step", "a", job.created_at, ended_at=job.created_at, result_file="some")
    with pytest.raises(Exception, match="some"):
        await bench.service.flows.turn(Turn(job.id, "w1", 1, records=(record,)))

"""PostgreSQL faults: crashes, network cuts and clock skew lose no job, and no process has to be restarted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ojster.api.app import App
from ojster.client.client import HttpClient
from ojster.handlers.job_options import JobOptions, request_of
from ojster.storage.open import migrate_database
from tests.chaos.fleet import Fleet, Load, settle
from tests.postgres import PostgresServer
from tests.waiting import LONG_WAIT, PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.thorough, pytest.mark.timeout(240)]

CUT_SECONDS = 30.0
"""Duration of the network cut, in seconds."""


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer(fsync="on")
    server.start()
    migrate_database(server.url)
    yield server
    server.remove()


class CuttableProxy:
    """A TCP proxy to the database that can be cut: it then passes no bytes, without closing any connection."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> CuttableProxy:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    def cut(self) -> None:
        self._open.clear()

    def mend(self, *, reset: bool) -> None:
        """Pass bytes again; with ``reset``, abort old connections first, like a firewall that has lost its state."""
        if reset:
            for writer in self._writers:
                writer.transport.abort()
        self._open.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, there_writer}
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


@pytest.fixture
async def fleet(tmp_path: Path, postgres: PostgresServer) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path, postgres.url)
    yield made
    made.stop()


async def test_a_database_that_crashes_under_load_loses_nothing(fleet: Fleet, postgres: PostgresServer) -> None:
    fleet.server("one")
    fleet.server("two")
    fleet.worker("worker", "one")
    fleet.worker("worker of the database", fleet.database)
    await fleet.ready()
    load = Load(fleet, ["one", "two"])
    await asyncio.sleep(1)
    for pause in (0.0, 0.5, 2.0, 0.1):
        await asyncio.to_thread(postgres.stop, "immediate")
        await asyncio.sleep(pause)
        await asyncio.to_thread(postgres.start)
        await asyncio.sleep(2)
    await load.stop()
    assert len(load.acknowledged) > 300
    await settle(fleet.database, load.acknowledged)
    assert all(process.poll() is None for process in fleet.processes.values()), fleet.logs()


@pytest.mark.parametrize("reset", [False, True])
async def test_servers_recover_from_a_network_cut_of_half_a_minute(
    fleet: Fleet, postgres: PostgresServer, reset: bool
) -> None:
    async with CuttableProxy(postgres.port) as way:
        through = postgres.tcp_url.replace(str(postgres.port), str(way.port))
        fleet.server("far", through)
        fleet.server("near")
        fleet.worker("worker of the far server", "far")
        fleet.worker("far worker", through)
        fleet.worker("near worker", "near")
        await fleet.ready()
        load = Load(fleet, ["near"])
        await asyncio.sleep(1)
        way.cut()
        await asyncio.sleep(CUT_SECONDS)
        way.mend(reset=reset)
        await asyncio.sleep(3)
        await load.stop()
        await settle(fleet.database, load.acknowledged)
        assert all(process.poll() is None for process in fleet.processes.values()), fleet.logs()
        # The far server works again, and its parked fetch is woken by a job pushed to the other server.
        fleet.kill("near worker")
        fleet.kill("far worker")
        near = HttpClient(fleet.url_of("near"))
        started = time.monotonic()
        (pushed,) = await near.jobs.enqueue([request_of("work.thread", [1], JobOptions())])
        await near.close()
        far = HttpClient(fleet.url_of("far"))
        job = await far.jobs.wait_for(pushed.job.id, LONG_WAIT)
        await far.close()
        assert job.state == "completed"
        assert time.monotonic() - started < PATIENCE


async def test_servers_whose_clocks_disagree_respect_each_others_leases(fleet: Fleet) -> None:
    fleet.server("right")
    fleet.server("fast", skew=5)
    fleet.server("slow", skew=-5)
    for name in list(fleet.ports):
        fleet.worker(f"worker of {name}", name)
    app = App(fleet.database)
    options = JobOptions(delay=1)
    requests = [request_of("work.long", [n], options if n % 2 else JobOptions()) for n in range(90)]
    started = time.time()
    pushed = await app.client().jobs.enqueue(requests)
    jobs = await settle(fleet.database, {one.job.id for one in pushed}, 60)
    await app.aclose()
    assert [job.attempt for job in jobs.values()] == [1] * 90, "no lease was taken to be over by somebody else's clock"
    assert not any(job.errors for job in jobs.values())
    begun = [job.started_at / 1e6 for job in jobs.values() if job.started_at is not None]
    assert min(begun) >= started - 1
    assert max(begun) <= time.time() + 1
    waited = [job.started_at - job.created_at for job in jobs.values() if job.started_at and job.args[0] % 2]
    assert min(waited) >= 1_000_000

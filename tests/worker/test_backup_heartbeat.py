"""While a handler blocks the event loop of a worker, another thread sends its heartbeats."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ojster import App, JobContext, Worker
from ojster.core.job import Job
from ojster.worker import loop_watch
from ojster.worker.backup_heartbeat import BackupHeartbeat
from tests import forked
from tests.postgres import free_port
from tests.waiting import PATIENCE

LEASE = 1.5

MAX_TRIES = 5
"""Tries to see leases kept on a machine that itself stands still now and then."""


@pytest.fixture
def served(shared_url: str) -> Iterator[str]:
    """The URL of a server process on the database."""
    port = free_port()
    command = [sys.executable, "-m", "ojster", "serve", "--database", shared_url, "--port", str(port), "--migrate"]
    process = forked.Popen(command, stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(PATIENCE)


@contextmanager
def working(app: App) -> Iterator[Worker]:
    """Run a worker in a thread, with an event loop of its own."""
    worker = Worker(app, lease=LEASE)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        yield worker
    finally:
        worker.stop(grace=5)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def blocking_app(url: str, began: threading.Event, seconds: float) -> tuple[App, list[str]]:
    app = App(url)
    runs: list[str] = []

    @app.job("neighbour", timeout=60)
    def neighbour() -> None:
        runs.append("neighbour")
        began.wait(PATIENCE)
        time.sleep(seconds)

    @app.job("blocker", timeout=60)
    async def blocker() -> None:
        runs.append("blocker")
        began.set()
        time.sleep(seconds)

    return app, runs


def settle(url: str, ids: list[str]) -> tuple[list[Job], float]:
    """Do the chores of a server until the jobs have ended.

    Returns
    -------
    tuple[list[Job], float]
        The jobs, and the longest time that the machine let this loop wait, in seconds.
    """

    async def run() -> tuple[list[Job], float]:
        app = App(url)
        service = app.service()
        service.maintenance.start()
        seen = time.monotonic()
        deadline = seen + 30
        longest = 0.0
        while True:
            jobs = [await service.jobs.find(id) for id in ids]
            longest = max(longest, time.monotonic() - seen)
            seen = time.monotonic()
            if all(job.state in ("completed", "discarded") for job in jobs) or seen > deadline:
                await app.aclose()
                return jobs, longest
            await asyncio.sleep(0.05)

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("over_http", [False, True])
def test_jobs_beside_one_that_blocks_the_loop_keep_their_leases(
    shared_url: str, over_http: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(loop_watch, "TICK_SECONDS", 0.1)
    url = request.getfixturevalue("served") if over_http else shared_url
    for _ in range(MAX_TRIES):
        began = threading.Event()
        app, runs = blocking_app(url, began, seconds=3 * LEASE)
        ids = [app.handlers[type].enqueue().id for type in ("neighbour", "blocker")]
        with working(app):
            jobs, longest_pause = settle(shared_url, ids)
        app.close()
        if longest_pause < LEASE / 3:  # else the machine stood still, and the leases may rightly have ended
            break
    assert [(job.state, job.attempt, job.losses) for job in jobs] == [("completed", 1, 0)] * 2
    assert sorted(runs) == ["blocker", "neighbour"]


@pytest.mark.slow
def test_a_worker_that_is_blocked_for_longer_than_a_job_may_take_loses_its_jobs(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "TICK_SECONDS", 0.1)
    began, may_end = threading.Event(), threading.Event()
    app = App(shared_url)

    @app.job("blocker", timeout=2 * PATIENCE)
    async def blocker(context: JobContext) -> None:
        context.job.timeout = 1  # the server, which would end the attempt, knows of the longer one
        began.set()
        may_end.wait(PATIENCE)

    id = blocker.enqueue().id

    async def lost() -> bool:
        other = App(shared_url)
        other.service().maintenance.start()
        deadline = time.monotonic() + PATIENCE / 2
        while (is_active := (await other.service().jobs.find(id)).state == "active") and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await other.aclose()
        return not is_active

    with working(app):
        assert began.wait(PATIENCE)
        try:
            assert asyncio.run(lost())
        finally:
            may_end.set()
    app.close()


class FakeFleet:
    """Counts heartbeats."""

    def __init__(self) -> None:
        self.beats = 0

    async def beat(self, heartbeat: Any, wait: float) -> None:
        self.beats += 1


class FakeClient:
    """A client that can do no more than send heartbeats, and close."""

    def __init__(self) -> None:
        self.fleet = FakeFleet()
        self.closed = False

    async def close(self) -> None:
        self.closed = True


def test_heartbeats_keep_their_interval_and_the_connection_is_closed() -> None:
    client: Any = FakeClient()
    backup = BackupHeartbeat(lambda: client, lambda: None, lambda: 3600.0, list)  # type: ignore[arg-type, return-value]
    for _ in range(3):
        backup.beat(1.0)
    assert client.fleet.beats == 1
    backup.close()
    assert client.closed

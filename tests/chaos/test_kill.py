"""kill -9, again and again, under load: no acknowledged push is lost, and every job is completed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from ojster.app import App, JobOptions, Retry, request_of
from ojster.client.http import HttpClient
from ojster.engine.inspect import JobFilter
from ojster.model.envelope import Job
from ojster.model.errors import OjsterError
from ojster.model.states import STATE_NAMES

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(240)]

CLIENTS = 6
SECONDS = 12.0
"""For how long things are killed."""

OPTIONS = JobOptions(retry=Retry(max_attempts=1000, initial_interval=0.05, max_interval=0.2))

HANDLERS = """
import asyncio, random
from ojster import App
app = App()
@app.job("work")
async def work(n):
    await asyncio.sleep(random.random() * 0.02)
    if random.random() < 0.05:
        raise ConnectionError("now and then")
    return n
@app.job("work.thread")
def work_thread(n):
    return n
"""


class Fleet:
    """A server and two workers that are killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.database = f"sqlite:///{folder}/jobs.db"
        (folder / "chaos_handlers.py").write_text(HANDLERS)
        self.environment = os.environ | {"PYTHONPATH": str(folder)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0

    def start(self, name: str) -> None:
        command = {
            "server": ("serve", "--database", self.database, "--port", str(self.port), "--heartbeat-timeout", "PT3S"),
            "http": ("worker", "chaos_handlers:app", "--url", self.url, "--lease", "2"),
            "file": ("worker", "chaos_handlers:app", "--url", self.database, "--lease", "2"),
        }[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "ojster", *command, "--log-level", "warning"],
                stdout=log,
                stderr=log,
                env=self.environment,
            )

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills += 1

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    for name in ("server", "http", "file"):
        made.start(name)
    yield made
    made.stop()


async def push_for_ever(fleet: Fleet, acknowledged: set[str], stop: asyncio.Event, seed: int) -> None:
    """A client that pushes, singly and in batches, and notes what was acknowledged."""
    chance = random.Random(seed)
    app = App(fleet.database)
    http = HttpClient(fleet.url, patience=20)
    number = 0
    while not stop.is_set():
        count = chance.choice([1, 1, 1, 20])
        type = chance.choice(["work", "work", "work.thread"])
        requests = [request_of(type, [number + n], OPTIONS) for n in range(count)]
        number += count
        client = http if chance.random() < 0.8 else app.client()
        with contextlib.suppress(OjsterError):
            acknowledged.update(pushed.job.id for pushed in await client.enqueue(requests))
        await asyncio.sleep(chance.random() * 0.03)
    await http.close()
    await app.aclose()


async def test_nothing_is_lost_however_often_processes_are_killed(fleet: Fleet) -> None:
    chance = random.Random(4)
    acknowledged: set[str] = set()
    stop = asyncio.Event()
    pushing = [asyncio.create_task(push_for_ever(fleet, acknowledged, stop, seed)) for seed in range(CLIENTS)]
    await asyncio.sleep(2)
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        name = chance.choice(["server", "http", "file"])
        await asyncio.to_thread(fleet.kill, name)
        await asyncio.sleep(chance.random() * 0.3)
        fleet.start(name)
        await asyncio.sleep(0.3 + chance.random() * 0.7)
    stop.set()
    await asyncio.gather(*pushing)
    assert fleet.kills >= 8
    assert len(acknowledged) > 500

    app = App(fleet.database)
    engine = app.engine()
    deadline = time.monotonic() + 120
    while True:
        counts = (await engine.count_jobs()).get("default", {})
        unfinished = {state: n for state, n in counts.items() if n and state != "completed"}
        if not unfinished:
            break
        assert time.monotonic() < deadline, unfinished
        await asyncio.sleep(0.2)

    jobs: dict[str, Job] = {}
    before = None
    while True:
        page = await engine.list_jobs(JobFilter(limit=200, before=before))
        jobs |= {job.id: job for job in page.jobs}
        before = page.next_before
        if before is None:
            break
    await app.aclose()
    assert acknowledged <= jobs.keys(), "an acknowledged push was lost"
    assert {job.state for job in jobs.values()} <= STATE_NAMES
    assert all(job.state == "completed" for job in jobs.values())
    assert sum(counts.values()) == len(jobs), "the counts are right"
    fleet.stop()
    (result,) = (
        apsw.Connection(fleet.database.removeprefix("sqlite:///")).execute("PRAGMA integrity_check").fetchall()[0]
    )
    assert result == "ok"

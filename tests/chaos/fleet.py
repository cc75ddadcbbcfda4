"""Servers and workers as real processes, clients that push constantly, and the invariants after all jobs have ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Container
from pathlib import Path

import msgspec

from ojster.api.app import App
from ojster.client.client import HttpClient
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.json_objects import read_members
from ojster.handlers.job_options import JobOptions, Retry, request_of
from ojster.jobs.queries import Page
from tests.chaos.nursery import Child, Nursery
from tests.postgres import free_port

CLIENTS = 6

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
@app.job("work.long")
async def work_long(n):
    await asyncio.sleep(1.0)
    return n
"""

SKEW = """
import os, time
skew = int(os.environ.get("SKEW_SECONDS", "0"))
real_time, real_time_ns = time.time, time.time_ns
time.time = lambda: real_time() + skew
time.time_ns = lambda: real_time_ns() + skew * 1_000_000_000
"""
"""Source of ``sitecustomize``, which Python runs at start; it shifts the clock by SKEW_SECONDS."""


class Fleet:
    """Server and worker processes on one database.

    Parameters
    ----------
    folder:
        Directory of the handlers and logs.
    database:
        URL of the database.
    nursery:
        Starts the processes, which then have no skew; ``None``: each is started as usual.
    handlers:
        Source of the application.
    """

    def __init__(self, folder: Path, database: str, nursery: Nursery | None = None, handlers: str = HANDLERS) -> None:
        self.folder = folder
        self.database = database
        self._nursery = nursery
        (folder / "chaos_handlers.py").write_text(handlers)
        (folder / "sitecustomize.py").write_text(SKEW)
        self.ports: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes] | Child] = {}
        self._commands: dict[str, tuple[tuple[str, ...], int]] = {}
        self.kills = 0

    def server(self, name: str, database: str | None = None, *, skew: int = 0) -> None:
        """Start a server with its clock shifted by ``skew`` seconds (default 0)."""
        self.ports[name] = free_port()
        where = ("--database", database or self.database, "--port", str(self.ports[name]))
        self._start(name, ("serve", *where, "--heartbeat-timeout", "PT3S", "--max-losses", "1000"), skew)

    def worker(self, name: str, url: str, *, skew: int = 0, queues: str = "default", lease: str = "2") -> None:
        """Start a worker with leases of ``lease`` seconds; ``url`` is the URL of a database or the name of a server."""
        url = self.url_of(url) if url in self.ports else url
        self._start(name, ("worker", "chaos_handlers:app", "--url", url, "--lease", lease, "--queues", queues), skew)

    def url_of(self, server: str) -> str:
        return f"http://127.0.0.1:{self.ports[server]}"

    async def ready(self, seconds: float = 60) -> None:
        """Wait until every server responds and lists every worker; fail after ``seconds`` (default 60)."""
        deadline = time.monotonic() + seconds
        expected = len(self.processes) - len(self.ports)
        for name in self.ports:
            client = HttpClient(self.url_of(name))
            known = -1
            while known < expected:
                assert time.monotonic() < deadline, self.logs()
                with contextlib.suppress(OjsterError):
                    known = len(await client.fleet.all())
                await asyncio.sleep(0.05)
            await client.close()

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.kills += 1

    def revive(self, name: str) -> None:
        """Restart a killed process."""
        self._start(name, *self._commands[name])

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def logs(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self.folder.glob("*.log"))

    def _start(self, name: str, command: tuple[str, ...], skew: int) -> None:
        self._commands[name] = (command, skew)
        arguments, log = [*command, "--log-level", "warning"], self.folder / f"{name}.log"
        environment = {"PYTHONPATH": str(self.folder), "SKEW_SECONDS": str(skew), "LEDGER": str(self.folder / "ledger")}
        if self._nursery is not None:
            self.processes[name] = self._nursery.start(arguments, environment, log)
            return
        with log.open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "ojster", *arguments], stdout=output, stderr=output, env=os.environ | environment
            )


class Load:
    """Clients that push single jobs and batches, and record the ids of acknowledged pushes.

    Parameters
    ----------
    direct:
        Share of the pushes that go to the database instead of a server.
    pause:
        Longest pause of a client between two pushes, in seconds.
    workflows:
        Share of the pushes that are workflows with a callback.
    """

    def __init__(
        self, fleet: Fleet, servers: list[str], *, direct: float = 0.2, pause: float = 0.03, workflows: float = 0.0
    ) -> None:
        self.acknowledged: set[str] = set()
        self.workflows: set[str] = set()
        self.refused = 0
        self._fleet = fleet
        self._stop = asyncio.Event()
        self._direct = direct
        self._pause = pause
        self._share = workflows
        self._tasks = [asyncio.create_task(self._push(seed, servers[seed % len(servers)])) for seed in range(CLIENTS)]

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _push(self, seed: int, server: str) -> None:
        chance = random.Random(seed)
        app = App(self._fleet.database)
        http = HttpClient(self._fleet.url_of(server), patience=20)
        number = 0
        while not self._stop.is_set():
            count = chance.choice([1, 1, 1, 20])
            type = chance.choice(["work", "work", "work.thread"])
            requests = [request_of(type, [number + n], OPTIONS) for n in range(count)]
            number += count
            try:
                client = app.client() if chance.random() < self._direct else http
                if chance.random() < self._share:
                    self.workflows.add((await client.workflows.create(read_members(_with_callback(number)))).id)
                    continue
                self.acknowledged.update(pushed.job.id for pushed in await client.jobs.enqueue(requests))
            except OjsterError:
                self.refused += 1
            finally:
                await asyncio.sleep(chance.random() * self._pause)
        with contextlib.suppress(OjsterError):
            await http.close()
        await app.aclose()


def _with_callback(number: int) -> bytes:
    jobs = [{"type": "work", "args": [number]}, {"type": "work.thread", "args": [number]}]
    callbacks = {"on_complete": {"type": "callback", "args": [number]}}
    options = msgspec.Raw(OPTIONS.to_wire())
    return msgspec.json.encode({"type": "batch", "jobs": jobs, "callbacks": callbacks, "options": options})


ENDED = {"completed", "cancelled", "discarded"}
"""States of jobs that have ended."""


async def settle(
    database: str, acknowledged: set[str], seconds: float = 120, unsuccessful: Container[str] = ()
) -> dict[str, Job]:
    """Wait until all jobs have ended, assert that none is missing and the counts match; return the jobs by id.

    All are completed but some of the types in ``unsuccessful``.
    """
    app = App(database)
    service = app.service()
    deadline = time.monotonic() + seconds
    while True:
        counts: Counter[str] = Counter()
        for states in (await service.jobs.count()).values():
            counts.update(states)
        unfinished = {state: n for state, n in counts.items() if n and state not in ENDED}
        if not unfinished and counts:
            break
        assert time.monotonic() < deadline, unfinished
        await asyncio.sleep(0.2)
    jobs: dict[str, Job] = {}
    before = None
    while True:
        page = await service.jobs.select(page=Page(200, before=before))
        jobs |= {job.id: job for job in page.jobs}
        before = page.next_before
        if before is None:
            break
    await app.aclose()
    assert acknowledged <= jobs.keys(), "an acknowledged push was lost"
    failed = [job.id for job in jobs.values() if job.state != "completed" and job.type not in unsuccessful]
    assert not failed, failed
    assert sum(counts.values()) == len(jobs), "the counts are right"
    return jobs

"""Benchmarks over HTTP and across processes."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks.figure import Figure, percentile
from benchmarks.floors import MEASURED_FLOORS
from benchmarks.servers import ojster
from benchmarks.stores import Store
from ojster import App

HANDLERS = """
from ojster import App
app = App()
@app.job("noop")
async def noop(n): return n
"""


CLIENTS = {"SQLite": {"whole1": 64, "whole100": 4}, "PostgreSQL": {"whole1": 128, "whole100": 16}}
"""Number of connections that saturate the server and its database, by store and scenario."""


CALLERS = 50
"""Number of coroutines that enqueue through one client."""


def run(store: Store, folder: Path, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure enqueues, whole jobs, memory and latency of a server."""
    if chosen.only and chosen.only not in "http enqueue whole jobs latency memory":
        return
    with ojster(store.fresh()) as server:
        single = server.load("enqueue", 64, chosen.seconds)
        yield Figure(
            f"{store.name}: single enqueue over HTTP, 64 connections",
            single["rate"],
            floor=MEASURED_FLOORS.get("asgi"),
            floor_name="raw ASGI",
            least_share=0.30,
        )
        yield Figure(f"{store.name}: single enqueue over HTTP, 64 connections, p99", single["p99"] * 1000, "ms")
        raw = server.load("enqueue", CALLERS, chosen.seconds)
        yield Figure(
            f"{store.name}: single enqueue by the Python client over HTTP, {CALLERS} callers",
            uvloop.run(_by_client(f"http://127.0.0.1:{server.port}")),
            floor=raw["rate"],
            floor_name="raw load",
            least_share=0.7,
        )
        batch = server.load("batch100", 4, chosen.seconds)
        yield Figure(f"{store.name}: enqueue over HTTP in batches of 100", batch["rate"] * 100)
    with ojster(store.fresh()) as server:
        for scenario, size, words in (("whole1", 1, "as three single calls"), ("whole100", 100, "in batches of 100")):
            clients = CLIENTS[store.name][scenario]
            whole = server.load(scenario, clients, chosen.seconds)
            name = f"{store.name}: whole jobs over HTTP {words}, {clients} connections"
            yield Figure(name, whole["rate"] / 3 * size)
        yield Figure(f"{store.name}: memory of the server afterwards", server.megabytes, "MiB")
    yield from _across_processes(store, folder)


async def _by_client(url: str) -> float:
    """Return the jobs per second that coroutines of one client enqueue, one at a time each."""
    app = App(url)

    @app.job("email.send")
    async def send(to: str, subject: str, more: dict[str, str]) -> None: ...

    async def push(count: int) -> None:
        for _ in range(count):
            await send.aenqueue("user@example.com", "welcome", {"locale": "en"})

    await asyncio.gather(*(push(20) for _ in range(CALLERS)))
    started = time.perf_counter()
    await asyncio.gather(*(push(400) for _ in range(CALLERS)))
    rate = 400 * CALLERS / (time.perf_counter() - started)
    await app.aclose()
    return rate


def _across_processes(store: Store, folder: Path) -> Iterator[Figure]:
    """Measure the latency from enqueue to start in another process, through a server and through the database."""
    (folder / "bench_handlers.py").write_text(HANDLERS)
    database = store.fresh()
    with ojster(database) as server:
        for name, url in (
            ("over HTTP", f"http://127.0.0.1:{server.port}"),
            ("through the database", database),
        ):
            environment = os.environ | {"PYTHONPATH": str(folder), "OJSTER_DATABASE_URL": url}
            command = [sys.executable, "-m", "ojster", "worker", "bench_handlers:app", "--log-level", "error"]
            worker = subprocess.Popen(command, env=environment)
            try:
                latencies = uvloop.run(_latencies(url))
            finally:
                worker.terminate()
                worker.wait()
            yield Figure(
                f"{store.name}: enqueue to start, idle, across processes {name}, p50",
                percentile(latencies, 0.5),
                "ms",
            )
            yield Figure(
                f"{store.name}: enqueue to start, idle, across processes {name}, p99", percentile(latencies, 0.99), "ms"
            )


async def _latencies(url: str) -> list[float]:
    app = App(url)

    @app.job("noop")
    async def noop(n: int) -> int:
        return n

    await (await noop.aenqueue(0)).aresult(30)
    found = []
    for n in range(250):
        started = time.time()
        handle = await noop.aenqueue(n)
        await handle.aresult(10)
        assert handle.job.started_at is not None
        found.append(handle.job.started_at / 1000 - started * 1000)
        await asyncio.sleep(0.01)
    await app.aclose()
    return found[50:]

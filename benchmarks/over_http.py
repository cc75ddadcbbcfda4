"""How fast is it over HTTP, and across processes?"""

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
from benchmarks.floors import FOUND
from benchmarks.servers import ojster
from benchmarks.stores import Store
from ojster import App

HANDLERS = """
from ojster import App
app = App()
@app.job("noop")
async def noop(n): return n
"""


GOALS = {"SQLite": {"whole1": 4_000, "whole100": 18_000}, "PostgreSQL": {"whole1": 3_000, "whole100": 15_000}}


def run(store: Store, folder: Path, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure the figures of a server."""
    if chosen.only and chosen.only not in "http enqueue whole jobs latency memory":
        return
    with ojster(store.fresh()) as server:
        single = server.load("enqueue", 64, chosen.seconds)
        yield Figure(
            f"{store.name}: single enqueue over HTTP, 64 connections",
            single["rate"],
            goal=11_000 if store.name == "SQLite" else None,
            floor=FOUND.get("asgi"),
            floor_name="raw ASGI",
            least_share=0.30,
        )
        yield Figure(f"{store.name}: single enqueue over HTTP, 64 connections, p99", single["p99"] * 1000, "ms")
        batch = server.load("batch100", 4, chosen.seconds)
        yield Figure(f"{store.name}: enqueue over HTTP in batches of 100", batch["rate"] * 100)
    with ojster(store.fresh()) as server:
        whole = server.load("whole1", 64, chosen.seconds)
        yield Figure(
            f"{store.name}: whole jobs over HTTP as three single calls",
            whole["rate"] / 3,
            goal=GOALS[store.name]["whole1"],
        )
        whole = server.load("whole100", 4, chosen.seconds)
        yield Figure(
            f"{store.name}: whole jobs over HTTP in batches of 100",
            whole["rate"] / 3 * 100,
            goal=GOALS[store.name]["whole100"],
        )
        yield Figure(f"{store.name}: memory of the server afterwards", server.megabytes, "MiB", 120)
    yield from _across_processes(store, folder)


def _across_processes(store: Store, folder: Path) -> Iterator[Figure]:
    """From an enqueue in one process to the start in another: through a server, and through the file alone."""
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
                5,
            )
            yield Figure(
                f"{store.name}: enqueue to start, idle, across processes {name}, p99", percentile(latencies, 0.99), "ms"
            )


async def _latencies(url: str) -> list[float]:
    app = App(url)

    @app.job("noop")
    async def noop(n: int) -> None: ...

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

"""Servers and workers of one, two and four processes, on one processor and on all: the law by which they grow."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.figure import Figure
from benchmarks.servers import ojster
from benchmarks.stores import Store
from ojster import App
from ojster.service import Service
from ojster.storage.open import open_database
from ojster.worker.worker import DEFAULT_CONCURRENCY

HANDLERS = """
from ojster import App
app = App()
@app.job("noop")
async def noop(a, b): ...
"""

COUNTS = (1, 2, 4)
"""Numbers of processes."""

BACKLOG = 150_000
"""Number of waiting jobs when the workers start."""

WARM_UP_JOBS = 10_000
"""Number of jobs that have ended before the measurement of workers begins, so that all processes run."""

CONCURRENCY = 500
PREFETCHES = (0, 500)
"""How many jobs a worker of few at once may hold beyond those that run."""


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure servers under load and workers with a backlog."""
    if chosen.only and chosen.only not in "server worker processes processors":
        return
    processors = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    places = [processors[:1], processors] if len(processors) > 1 else [[]]
    for place in places:
        words = "" if not place else f" on {len(place)} processor{'s' if len(place) > 1 else ''}"
        yield from _servers(store, chosen.seconds, place, words)
        yield from _workers(store, place, words)
    yield from _few_at_once(store)
    if store.name == "PostgreSQL":
        yield from _two_servers(store, chosen.seconds)


@contextlib.contextmanager
def _pinned(processors: list[int]) -> Iterator[None]:
    """Have what is started meanwhile run on some processors only; an empty list stands for all."""
    if not processors:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _named(count: int, kind: str) -> str:
    return f"{count} {kind} process{'es' if count > 1 else ''}"


def _servers(store: Store, seconds: float, place: list[int], where: str) -> Iterator[Figure]:
    """Measure single enqueues: the processor time of a request says what more processors would give."""
    first = None
    for count in COUNTS:
        with ExitStack() as stack:
            url = store.fresh()
            with _pinned(place):
                server = stack.enter_context(ojster(url, count))
            server.load("enqueue", 64, 1.0)
            before = server.processor_seconds
            rate = server.load("enqueue", 64, seconds)["rate"]
            spent = (server.processor_seconds - before) / (rate * seconds)
        name = f"{store.name}: single enqueue over HTTP, {_named(count, 'server')}{where}"
        yield Figure(name, rate, floor=first, floor_name="one process")
        yield Figure(f"{name}, processor time a request", spent * 1e6, "µs")
        first = first or rate


def _workers(store: Store, place: list[int], where: str) -> Iterator[Figure]:
    """Measure how fast a backlog of jobs that do nothing shrinks; the database may use all processors."""
    first = None
    for count in COUNTS:
        rate, spent = _drain(store.fresh(), count, place)
        name = f"{store.name}: no-op jobs processed, {_named(count, 'worker')}{where}"
        yield Figure(name, rate, floor=first, floor_name="one process")
        yield Figure(f"{name}, processor time a job", spent * 1e6, "µs")
        first = first or rate


def _few_at_once(store: Store) -> Iterator[Figure]:
    """Measure a worker with the default concurrency, without and with jobs that it fetches before they can begin."""
    first = None
    for prefetch in PREFETCHES:
        options = ("--concurrency", str(DEFAULT_CONCURRENCY), "--prefetch", str(prefetch))
        rate, spent = _drain(store.fresh(), 1, [], options)
        name = f"{store.name}: no-op jobs processed, {DEFAULT_CONCURRENCY} at once, --prefetch {prefetch}"
        yield Figure(name, rate, floor=first, floor_name="without")
        yield Figure(f"{name}, processor time a job", spent * 1e6, "µs")
        first = first or rate


def _drain(
    url: str, processes: int, place: list[int], options: Sequence[str] = ("--concurrency", str(CONCURRENCY))
) -> tuple[float, float]:
    """Return the jobs a second of workers that all run, and the processor time of the workers for each, in seconds."""
    asyncio.run(_fill(url))
    with TemporaryDirectory() as folder:
        (Path(folder) / "bench_handlers.py").write_text(HANDLERS)
        command = [sys.executable, "-m", "ojster", "worker", "bench_handlers:app", *options]
        command += ["--processes", str(processes), "--log-level", "error"]
        environment = os.environ | {"PYTHONPATH": folder, "OJSTER_DATABASE_URL": url}
        with _pinned(place):
            worker = subprocess.Popen(command, env=environment)
        try:
            return asyncio.run(_watch(url, psutil.Process(worker.pid)))
        finally:
            worker.terminate()
            worker.wait()


async def _fill(url: str) -> None:
    app = App(url)

    @app.job("noop")
    async def noop(a: int, b: int) -> None: ...

    for _ in range(BACKLOG // 1000):
        await noop.aenqueue_many([(1, 2)] * 1000)
    await app.aclose()


async def _watch(url: str, worker: psutil.Process) -> tuple[float, float]:
    service = Service(open_database(url))
    try:

        async def waiting() -> int:
            return (await service.queues.statistics("default")).counts.get("available", 0)

        def spent() -> float:
            return float(sum(sum(one.cpu_times()[:2]) for one in (worker, *worker.children(recursive=True))))

        while await waiting() > BACKLOG - WARM_UP_JOBS:
            await asyncio.sleep(0.05)
        began, first, before = time.perf_counter(), await waiting(), spent()
        while (left := await waiting()) > BACKLOG // 5 and time.perf_counter() - began < 3:
            await asyncio.sleep(0.1)
        done = first - left
        return done / (time.perf_counter() - began), (spent() - before) / done
    finally:
        await service.close()


def _two_servers(store: Store, seconds: float) -> Iterator[Figure]:
    """Measure one and two servers on one database under the same total load, with the CPU usage of the machine."""
    url = store.fresh()
    rates = {}
    for count in (1, 2):
        with ExitStack() as stack:
            servers = [stack.enter_context(ojster(url)) for _ in range(count)]
            with ThreadPoolExecutor(count) as pool:
                psutil.cpu_percent()
                loads = [pool.submit(server.load, "whole1", 128 // count, seconds) for server in servers]
                rates[count] = sum(load.result()["rate"] for load in loads) / 3
                busy = psutil.cpu_percent()
        words = "one server" if count == 1 else "two servers"
        yield Figure(
            f"PostgreSQL: whole jobs, single calls, {words} ({busy:.0f} % of all processors)",
            rates[count],
            floor=rates[1] if count == 2 else None,
            floor_name="one server",
        )

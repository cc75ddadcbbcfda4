"""Benchmarks within one process: enqueuing, processing, and the latency from enqueue to start."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import uvloop

from benchmarks.figure import Figure, percentile
from benchmarks.floors import MEASURED_FLOORS
from benchmarks.stores import Store
from ojster import App, JobContext, Worker
from ojster.core.tuning import tune_interpreter
from ojster.handlers.job_type import JobType
from ojster.reactions import OF_JOB, collect, enqueue

R = TypeVar("R")

ROUNDS = 5


LEAST_SHARE_OF_RAW = {"SQLite": 0.3, "PostgreSQL": 0.5}
"""The goal of bulk enqueues, as a share of the same rows inserted with the driver alone."""


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure enqueuing, processing, reactions and latency in this process."""
    tune_interpreter()

    def wanted(name: str) -> bool:
        return not chosen.only or chosen.only in name

    if wanted("bulk enqueue"):
        yield Figure.median_of(
            f"{store.name}: bulk enqueue of 1,000, in process",
            _rounds(store, _bulk),
            floor=MEASURED_FLOORS.get(f"{store.name} insert 1000"),
            floor_name="raw",
            least_share=LEAST_SHARE_OF_RAW[store.name],
        )
    if wanted("single enqueue"):
        yield Figure.median_of(
            f"{store.name}: single enqueue from 50 coroutines, in process",
            _rounds(store, _single),
            floor=MEASURED_FLOORS.get(f"{store.name} insert 100"),
            floor_name="raw by 100",
        )
    if wanted("processed"):
        alone = _rounds(store, _process)
        yield Figure.median_of(
            f"{store.name}: no-op jobs processed, one worker, in process",
            alone,
            floor=MEASURED_FLOORS.get(f"{store.name} cycle 100"),
            floor_name="raw by 100",
        )
        yield Figure.median_of(
            f"{store.name}: the same, beside 10,000 jobs that no worker can run",
            _rounds(store, _process_beside_unrunnable),
            floor=statistics.median(alone),
            floor_name="alone",
            least_share=0.9,
        )
    if wanted("reactions"):
        plain = statistics.median(_rounds(store, _whole))
        yield Figure.median_of(
            f"{store.name}: whole jobs that put two items into a collection, pushed and processed",
            _rounds(store, _collecting),
            floor=plain,
            floor_name="plain jobs",
            least_share=1 / 1.5,
        )
        yield Figure.median_of(
            f"{store.name}: whole jobs, two of three pushed by reactions to the third",
            _rounds(store, _reacting),
            floor=plain,
            floor_name="plain jobs",
        )
    if wanted("latency"):
        latencies = uvloop.run(_with_app(store, _latencies))
        yield Figure(f"{store.name}: enqueue to start, idle, in process, p50", percentile(latencies, 0.5), "ms")
        yield Figure(f"{store.name}: enqueue to start, idle, in process, p99", percentile(latencies, 0.99), "ms")


def _rounds(store: Store, measure: Callable[[App], Awaitable[float]]) -> list[float]:
    return [uvloop.run(_with_app(store, measure)) for _ in range(ROUNDS)]


async def _with_app(store: Store, measure: Callable[[App], Awaitable[R]]) -> R:
    app = App(store.fresh())
    try:
        return await measure(app)
    finally:
        await app.aclose()


async def _bulk(app: App) -> float:
    @app.job("email.send")
    async def send(to: str, subject: str, more: dict[str, str]) -> None: ...

    calls = [("user@example.com", "welcome", {"locale": "en"})] * 1000
    await send.aenqueue_many(calls)
    started = time.perf_counter()
    for _ in range(40):
        await send.aenqueue_many(calls)
    return 40_000 / (time.perf_counter() - started)


async def _single(app: App) -> float:
    @app.job("email.send")
    async def send(to: str, subject: str, more: dict[str, str]) -> None: ...

    async def push(count: int) -> None:
        for _ in range(count):
            await send.aenqueue("user@example.com", "welcome", {"locale": "en"})

    await asyncio.gather(*(push(20) for _ in range(50)))
    started = time.perf_counter()
    await asyncio.gather(*(push(600) for _ in range(50)))
    return 30_000 / (time.perf_counter() - started)


async def _process_beside_unrunnable(app: App) -> float:
    @app.job("impossible", resources={"gpu_type": "nvidia-a100"})
    async def impossible(a: int, b: int) -> None: ...

    for _ in range(10):
        await impossible.aenqueue_many([(1, 2)] * 1000)
    return await _process(app)


async def _process(app: App) -> float:
    @app.job("noop")
    async def noop(a: int, b: int) -> None: ...

    total = 50_000
    for _ in range(total // 1000):
        await noop.aenqueue_many([(1, 2)] * 1000)
    worker = Worker(app, concurrency=500)
    started = time.perf_counter()
    await worker.run(until_empty=True)
    assert worker.processed == total
    return total / (time.perf_counter() - started)


async def _whole(app: App) -> float:
    @app.job("noop")
    async def noop(n: int) -> None: ...

    return await _push_and_process(app, noop, 20_000)


async def _collecting(app: App) -> float:
    await app.client().collections.create("shelf")
    put = [collect(f"{name}-{{job.args.0}}", collection="shelf") for name in ("a", "b")]

    @app.job("noop", reactions={"on_success": put})
    async def noop(n: int) -> None: ...

    return await _push_and_process(app, noop, 20_000)


async def _reacting(app: App) -> float:
    @app.job("next")
    async def following(n: int) -> None: ...

    push = [enqueue(following.s(OF_JOB["args"][0]))] * 2

    @app.job("noop", reactions={"on_success": push})
    async def noop(n: int) -> None: ...

    return await _push_and_process(app, noop, 7_000, each=3)


async def _push_and_process(app: App, job: JobType[[int], Any], count: int, each: int = 1) -> float:
    """Return the jobs per second from the first push to the last completion; each push results in ``each`` jobs."""
    worker = Worker(app, concurrency=500)
    started = time.perf_counter()
    for first in range(0, count, 1000):
        await job.aenqueue_many([(n,) for n in range(first, first + 1000)])
    await worker.run(until_empty=True)
    assert worker.processed == count * each
    return count * each / (time.perf_counter() - started)


async def _latencies(app: App) -> list[float]:
    began: dict[int, float] = {}

    @app.job("noop")
    async def noop(context: JobContext, n: int) -> None:
        began[n] = time.perf_counter()

    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    await asyncio.sleep(0.2)
    found = []
    for n in range(400):
        started = time.perf_counter()
        await noop.aenqueue(n)
        while n not in began:
            await asyncio.sleep(0.0005)
        found.append((began[n] - started) * 1000)
        await asyncio.sleep(0.005)
    worker.stop()
    await working
    return found[50:]

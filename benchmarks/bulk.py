"""Bulk operations over HTTP: their rates, and how much a bulk cancel delays single enqueues."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import httpx
import uvloop

from benchmarks.figure import Figure, percentile
from benchmarks.servers import ojster
from benchmarks.stores import Store

BATCH = 1_000
ROUNDS = 20
CANCELLED_JOBS = 100_000
CLIENTS = 8
"""Number of connections that enqueue single jobs during the bulk cancel."""

PAUSE_SECONDS = 0.025
"""Pause of each connection between two enqueues, in seconds, so that the machine is not saturated."""

JOB = {"type": "email.send", "args": ["user@example.com", "welcome", {"locale": "en"}]}


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure bulk enqueues and a bulk cancel under load."""
    if chosen.only and chosen.only not in "bulk batch cancel sweep":
        return
    with ojster(store.fresh()) as server:
        atomic, partial = uvloop.run(_batches(f"http://127.0.0.1:{server.port}"))
    yield Figure(f"{store.name}: bulk, {BATCH:,} jobs in one request, atomic, jobs", atomic)
    name = f"{store.name}: bulk, {BATCH:,} jobs in one request, partial, jobs"
    yield Figure(name, partial, floor=atomic, floor_name="atomic", least_share=1 / 1.2)
    with ojster(store.fresh()) as server:
        alone, slowest, rate = uvloop.run(_sweep(f"http://127.0.0.1:{server.port}"))
    yield Figure(f"{store.name}: bulk, {CANCELLED_JOBS:,} jobs cancelled by a filter, under load", rate)
    name = f"{store.name}: bulk, single enqueues during the cancel, p99"
    yield Figure(name, slowest * 1000, "ms", floor=alone * 1000, floor_name="before")


async def _batches(url: str) -> tuple[float, float]:
    """Return the jobs enqueued per second by atomic and by partial requests, sent one after another."""
    seconds: dict[str, list[float]] = {"atomic": [], "partial": []}
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for _ in range(ROUNDS):
            for mode, times in seconds.items():
                started = time.perf_counter()
                response = await client.post("/ojs/v1/jobs/batch", json={"jobs": [JOB] * BATCH, "mode": mode})
                times.append(time.perf_counter() - started)
                response.raise_for_status()
    return BATCH / median(seconds["atomic"]), BATCH / median(seconds["partial"])


async def _sweep(url: str) -> tuple[float, float, float]:
    """Cancel many jobs by a filter while other connections enqueue.

    Returns the 99th percentile of single enqueues, in seconds, before and during the cancel, and the jobs cancelled
    per second.
    """
    doomed = JOB | {"options": {"queue": "doomed"}}
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for _ in range(CANCELLED_JOBS // BATCH):
            (await client.post("/ojs/v1/jobs/batch", json={"jobs": [doomed] * BATCH})).raise_for_status()
        await _enqueue_until(client, asyncio.create_task(asyncio.sleep(1)))  # open connections and warm caches
        before = await _enqueue_until(client, asyncio.create_task(asyncio.sleep(3)))
        started = time.perf_counter()
        sweep = asyncio.create_task(client.post("/ojs/v1/jobs/batch/cancel", json={"filter": {"queue": "doomed"}}))
        meanwhile = await _enqueue_until(client, sweep)
        took = time.perf_counter() - started
        assert sweep.result().json()["summary"]["succeeded"] == CANCELLED_JOBS
    return percentile(before, 0.99), percentile(meanwhile, 0.99), CANCELLED_JOBS / took


async def _enqueue_until(client: httpx.AsyncClient, end: asyncio.Task[Any]) -> list[float]:
    """Enqueue single jobs on several connections until ``end`` is done; return the duration of each, in seconds."""
    times: list[float] = []

    async def enqueue() -> None:
        while not end.done():
            started = time.perf_counter()
            (await client.post("/ojs/v1/jobs", json=JOB)).raise_for_status()
            times.append(time.perf_counter() - started)
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*[enqueue() for _ in range(CLIENTS)])
    await end
    return times

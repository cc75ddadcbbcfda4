"""Event streams: what 2,000 followers cost a server, and when an event has reached all of them."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator

import httpx
import psutil
import uvloop

from benchmarks.figure import Figure, percentile
from benchmarks.servers import Server, ojster
from benchmarks.stores import Store

FOLLOWERS = 2_000
"""Number of streams that are open at once."""

PER_ADDRESS = 80
"""Streams from one address of the loopback network: a server allows 100."""

EVENTS = 20
"""Number of jobs that are enqueued one after another, each of which is an event for all followers."""

IDLE_SECONDS = 5.0
"""Time for which the processor time of the server is measured while nothing happens."""


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure memory, idle processor time and delivery with many followers."""
    if chosen.only and chosen.only not in "streams events followers":
        return
    with ojster(store.fresh()) as server:
        before = server.megabytes
        times, idle = uvloop.run(_follow(server))
        memory = server.megabytes - before
    label = f"{store.name}: {FOLLOWERS:,} event streams"
    yield Figure(f"{label}, memory of each", memory * 1024 / FOLLOWERS, "KiB")
    yield Figure(f"{label}, processor of the server while nothing happens", idle * 100, "%")
    yield Figure(f"{label}, an event has reached all, p50", percentile(times, 0.5) * 1000, "ms")
    yield Figure(f"{label}, an event has reached all, p99", percentile(times, 0.99) * 1000, "ms")


async def _follow(server: Server) -> tuple[list[float], float]:
    """Return how long each event took to reach all followers, in seconds, and the idle processor time's share."""
    heard = asyncio.Semaphore(0)
    streams: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []
    for number in range(FOLLOWERS):
        address = f"127.0.0.{2 + number // PER_ADDRESS}"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(address, 0))
        writer.write(b"GET /ojs/v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"stream {number} was refused: {status.decode()}")
        streams.append(writer)
        tasks.append(asyncio.create_task(_listen(reader, heard)))
    await asyncio.sleep(2)
    process = psutil.Process(server.process.pid)
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(IDLE_SECONDS)
    idle = (sum(process.cpu_times()[:2]) - before) / IDLE_SECONDS
    times = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}/ojs/v1") as client:
        for _ in range(EVENTS):
            started = time.perf_counter()
            (await client.post("/jobs", json={"type": "a", "args": []})).raise_for_status()
            for _ in range(FOLLOWERS):
                await heard.acquire()
            times.append(time.perf_counter() - started)
    for task in tasks:
        task.cancel()
    for writer in streams:
        writer.close()
    return times, idle


async def _listen(reader: asyncio.StreamReader, heard: asyncio.Semaphore) -> None:
    while line := await reader.readline():
        if line.startswith(b"event: job.state_changed"):
            heard.release()

"""PostgreSQL with a standby: lists read from it, how far it is behind, and how long nobody works when it takes over."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median

import uvloop
from tests.postgres import PostgresServer, catch_up

from benchmarks.figure import Figure
from ojster import App, Worker
from ojster.core.errors import BackendUnavailable
from ojster.server.event_streams import Feed
from ojster.service import Service
from ojster.storage.open import migrate_database

ROUNDS = 3

MOST_SECONDS = 5.0
"""The goal for the time after the promotion."""


def run(chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure reads of a replica and the time after a promotion until jobs are enqueued and run and events arrive."""
    if chosen.only and chosen.only not in "failover replica standby promotion":
        return
    logging.getLogger("ojster").setLevel(logging.CRITICAL)  # what is lost is the point here
    rounds = [uvloop.run(_round()) for _ in range(ROUNDS)]
    for name, unit, most in (
        ("a page of jobs, read from the primary", "ms", None),
        ("a page of jobs, read from the replica", "ms", None),
        ("lag of the replica, under load", "ms", None),
        ("first enqueue after a promotion", "s", MOST_SECONDS),
        ("first start of a job after a promotion", "s", MOST_SECONDS),
        ("first event that a follower gets after a promotion", "s", MOST_SECONDS),
    ):
        yield Figure.median_of(f"PostgreSQL: {name}", [one[name] for one in rounds], unit, most=most)


async def _round() -> dict[str, float]:
    """Kill a primary under load and promote its standby; return what was measured before and after, by name."""
    primary = PostgresServer(wal_level="replica")
    standby: PostgresServer | None = None
    try:
        primary.start()
        migrate_database(primary.tcp_url, events="logged")
        standby = PostgresServer(standby_of=primary)
        standby.start()
        return await _measure(primary, standby)
    finally:
        for server in (standby, primary):
            if server is not None:
                server.remove()


async def _measure(primary: PostgresServer, standby: PostgresServer) -> dict[str, float]:
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    replica = f"read_host=127.0.0.1:{standby.port}"
    app = App(f"postgresql://postgres@{hosts}/postgres?{replica}")
    service: Service = app.service()
    started: list[float] = []

    @app.job("noop")
    async def noop(n: int) -> None:
        started.append(time.monotonic())

    enqueued: list[float] = []
    told: list[float] = []

    async def push() -> None:
        while True:
            with contextlib.suppress(BackendUnavailable):
                await noop.aenqueue(1)
                enqueued.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def follow() -> None:
        nonlocal told
        async for batch in Feed(service).follow(await service.events.last(), 1.0):
            told += [time.monotonic()] if batch.events else []

    worker = Worker(app)
    tasks = [asyncio.create_task(one) for one in (worker.run(), push(), push(), follow())]
    try:
        await asyncio.sleep(3)  # the lag is known after the first measurements
        from_replica = await _page_ms(service)
        state = service.database.replica
        lag = -1.0 if state is None or state.lag is None else state.lag * 1000
        await asyncio.to_thread(catch_up, primary, standby)
        await asyncio.to_thread(primary.stop, "immediate")
        await asyncio.to_thread(standby.promote)
        promoted = time.monotonic()
        firsts = [await _first_after(moments, promoted) for moments in (enqueued, started, told)]
        from_primary = await _page_ms(service)
    finally:
        worker.stop(0)
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await app.aclose()
    return {
        "a page of jobs, read from the primary": from_primary,
        "a page of jobs, read from the replica": from_replica,
        "lag of the replica, under load": lag,
        "first enqueue after a promotion": firsts[0],
        "first start of a job after a promotion": firsts[1],
        "first event that a follower gets after a promotion": firsts[2],
    }


async def _page_ms(service: Service) -> float:
    """Return the median time of a page of jobs, in milliseconds."""
    return median([await _timed(service.jobs.select) for _ in range(50)]) * 1000


async def _timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def _first_after(moments: list[float], moment: float) -> float:
    """Wait for a moment after another one; return how many seconds they are apart."""
    while True:
        for found in moments:
            if found > moment:
                return found - moment
        await asyncio.sleep(0.005)

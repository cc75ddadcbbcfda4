"""Flows of local steps and of jobs: many at a time, and a long one; compared with plain jobs and with chains."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median
from typing import NamedTuple, TypeVar

import uvloop

from benchmarks.costs import PostgresProbe, SqliteProbe
from benchmarks.figure import Figure
from benchmarks.stores import SqliteStore, Store
from ojster import App, Flow, Worker, chain
from ojster.api.flows import FlowType
from ojster.core.tuning import tune_interpreter
from ojster.handlers.job_type import JobType

R = TypeVar("R")

ROUNDS = 3
"""Number of runs; medians are reported."""

FLOWS = 2_000
"""Number of flows that are started before a worker runs them."""

AT_A_TIME = 500
"""Number of flows, or of jobs, that the worker runs at a time."""

STEPS = 5
LONG = 1_000

CALLERS = 50


class Run(NamedTuple):
    """What some flows or jobs took: seconds, and seconds of the processor, of this process and the database."""

    seconds: float
    processor: float


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure flows."""
    if chosen.only and chosen.only not in "flow flows":
        return
    tune_interpreter()
    plains = [_measure(store, _plain) for _ in range(ROUNDS)]
    chains = [_measure(store, _chains) for _ in range(ROUNDS)]
    three_jobs = median(one.processor for one in plains) / FLOWS * 3 * 1e6
    of_chains = median(FLOWS * STEPS / one.seconds for one in chains)
    local = [_measure(store, _local) for _ in range(ROUNDS)]
    name = f"{store.name}: flows of {STEPS} local steps, {AT_A_TIME} at a time"
    rates = [FLOWS * STEPS / one.seconds for one in local]
    yield Figure.median_of(f"{name}, steps, run", rates, floor=of_chains, floor_name="steps of chains")
    costs = [one.processor / FLOWS * 1e6 for one in local]
    name = f"{name}, processor of a flow"
    yield Figure.median_of(name, costs, "µs", floor=three_jobs, floor_name="three plain jobs")
    jobs = [_measure(store, _awaited) for _ in range(ROUNDS)]
    name = f"{store.name}: flows of {STEPS} jobs, {AT_A_TIME} at a time"
    rates = [FLOWS * STEPS / one.seconds for one in jobs]
    yield Figure.median_of(f"{name}, jobs, run", rates, floor=of_chains, floor_name="steps of chains")
    costs = [one.processor / FLOWS / STEPS * 1e6 for one in jobs]
    yield Figure.median_of(f"{name}, processor of a job", costs, "µs")
    long_ones = (
        ("local steps", _long_local),
        ("local steps in threads", _long_plain),
        ("jobs, one after the other", _long_awaited),
    )
    for what, measure in long_ones:
        times = [uvloop.run(_with_app(store, measure)) for _ in range(ROUNDS)]
        name = f"{store.name}: a flow of {LONG:,} {what}"
        yield Figure.median_of(f"{name}, a step", [lasted for lasted, _ in times], "ms")
        growth = [slower for _, slower in times]
        yield Figure.median_of(f"{name}, time of its last tenth relative to the first", growth, "x", most=1.2)


async def _with_app(store: Store, measure: Callable[[App, str], Awaitable[R]]) -> R:
    url = store.fresh()
    app = App(url)
    try:
        return await measure(app, url)
    finally:
        await app.aclose()


def _measure(store: Store, prepare: Callable[[App], Awaitable[None]]) -> Run:
    """Return what a worker took for the work that ``prepare`` has left."""

    async def measure(app: App, url: str) -> Run:
        await prepare(app)
        probe = SqliteProbe(url) if isinstance(store, SqliteStore) else PostgresProbe(url)
        before, began = probe.read(), time.perf_counter()
        await Worker(app, concurrency=AT_A_TIME).run(until_empty=True)
        seconds, after = time.perf_counter() - began, probe.read()
        return Run(seconds, after.own + after.database - before.own - before.database)

    return uvloop.run(_with_app(store, measure))


async def _start(start: Callable[[int], Awaitable[object]]) -> None:
    left = iter(range(FLOWS))

    async def caller() -> None:
        for number in left:
            await start(number)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


def _noop(app: App) -> JobType[[int, int], None]:
    @app.job("noop")
    async def noop(a: int, b: int) -> None: ...

    return noop


async def _add(a: int, b: int) -> int:
    return a + b


def _add_plainly(a: int, b: int) -> int:
    return a + b


async def _plain(app: App) -> None:
    await _noop(app).aenqueue_many([(1, number) for number in range(FLOWS)])


async def _chains(app: App) -> None:
    noop = _noop(app)
    await _start(lambda number: app.astart(chain(*[noop.s(number, place) for place in range(STEPS)])))


async def _local(app: App) -> None:
    @app.flow("local")
    async def local(flow: Flow, number: int) -> int:
        for place in range(STEPS):
            number = await flow.step("add", _add, number, place)
        return number

    await _start(local.astart)


async def _awaited(app: App) -> None:
    noop = _noop(app)

    @app.flow("awaited")
    async def awaited(flow: Flow, number: int) -> None:
        for place in range(STEPS):
            await flow.run(noop, number, place)

    await _start(awaited.astart)


async def _long_local(app: App, url: str) -> tuple[float, float]:
    moments: list[float] = []

    @app.flow("long")
    async def long(flow: Flow) -> None:
        moments.append(time.perf_counter())
        for place in range(LONG):
            await flow.step("add", _add, place, 1)
            moments.append(time.perf_counter())

    return await _times(app, long, moments)


async def _long_plain(app: App, url: str) -> tuple[float, float]:
    moments: list[float] = []

    @app.flow("long")
    async def long(flow: Flow) -> None:
        moments.append(time.perf_counter())
        for place in range(LONG):
            await flow.step("add", _add_plainly, place, 1)
            moments.append(time.perf_counter())

    return await _times(app, long, moments)


async def _times(app: App, long: FlowType[[], None], moments: list[float]) -> tuple[float, float]:
    """Return the time of a step in milliseconds, and that of the last tenth relative to the first."""
    await long.astart()
    await Worker(app).run(until_empty=True)
    tenth = LONG // 10
    first, last = moments[tenth] - moments[0], moments[-1] - moments[-1 - tenth]
    return (moments[-1] - moments[0]) / LONG * 1000, last / first


async def _long_awaited(app: App, url: str) -> tuple[float, float]:
    moments: list[float] = []

    @app.job("mark")
    async def mark() -> None:
        moments.append(time.perf_counter())

    @app.flow("long")
    async def long(flow: Flow) -> None:
        for _ in range(LONG):
            await flow.run(mark)

    return await _times(app, long, moments)

"""Workflows of several shapes and sizes, compared with plain jobs that are processed in the same way."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, TypeVar

import msgspec
import uvloop

from benchmarks.figure import Figure
from benchmarks.stores import Store
from ojster.core.json_objects import read_members
from ojster.core.tuning import tune_interpreter
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.service import Service
from ojster.storage.open import open_database

R = TypeVar("R")

BATCH_SIZE = 100
"""Number of jobs that a worker fetches and acknowledges in one call, and of jobs or workflows per create call."""

WORKERS = 2
ROUNDS = 3
"""Number of runs of the large group; medians are reported, because its tenths are short and noisy."""

RESULT = b'{"ok": true}'


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure plain jobs and workflows."""
    if chosen.only and chosen.only not in "workflow chain group graph nested":
        return
    tune_interpreter()
    plain = uvloop.run(_with_engine(store, _plain))
    yield Figure(f"{store.name}: plain jobs, enqueued and processed in batches of {BATCH_SIZE}", plain)
    rounds = [uvloop.run(_with_engine(store, partial(_group, size=100_000))) for _ in range(ROUNDS)]
    made, rate, slower = (median(figures) for figures in zip(*rounds, strict=True))
    yield Figure(f"{store.name}: workflow, a group of 100,000 created, jobs", made)
    name = f"{store.name}: workflow, a group of 100,000 with a callback, jobs, whole"
    yield Figure(name, rate, floor=plain, floor_name="plain jobs", least_share=0.5)
    yield Figure(f"{store.name}: workflow, time of its last tenth relative to the first", slower, "x")
    for name, wires in (
        ("10,000 chains of 5", [_chain(5) for _ in range(10_000)]),
        ("a chain of 1,000", [_chain(1000)]),
        ("a graph of 10,000 nodes and 30,000 edges", [_graph(10_000)]),
        ("1,000 nested 8 levels deep", [_nested(8) for _ in range(1000)]),
    ):
        rate = uvloop.run(_with_engine(store, partial(_whole, wires=wires)))
        yield Figure(f"{store.name}: workflow, {name}, jobs, whole", rate, floor=plain, floor_name="plain jobs")


async def _with_engine(store: Store, measure: Callable[[Service], Awaitable[R]]) -> R:
    engine = Service(open_database(store.fresh(), migrate=True))
    engine.maintenance.start()
    try:
        return await measure(engine)
    finally:
        await engine.close()


def _job(**more: Any) -> dict[str, Any]:
    return {"type": "email.send", "args": ["user@example.com", "welcome", {"locale": "en"}], **more}


def _chain(length: int) -> dict[str, Any]:
    return {"type": "chain", "steps": [_job() for _ in range(length)]}


def _graph(size: int) -> dict[str, Any]:
    rng = random.Random(1)
    steps = []
    for number in range(size):
        before = rng.sample(range(max(0, number - 500), number), min(3, number))
        steps.append(_job(id=f"s{number}", depends_on=[f"s{one}" for one in before]))
    return {"type": "graph", "steps": steps}


def _nested(levels: int) -> dict[str, Any]:
    if levels == 1:
        return _chain(2)
    if levels % 2:
        return {"type": "chain", "steps": [_job(), _nested(levels - 1)]}
    return {"type": "group", "jobs": [_job(), _nested(levels - 1)]}


async def _create(engine: Service, wires: list[dict[str, Any]]) -> int:
    """Create workflows in batches; return the number of their jobs."""
    jobs = 0
    for first in range(0, len(wires), BATCH_SIZE):
        some = wires[first : first + BATCH_SIZE]
        new = [await engine.workflows.prepare(read_members(msgspec.json.encode(wire))) for wire in some]
        jobs += sum(len(one.plan.jobs) for one in new)
        await engine.workflows.create_many(new)
    return jobs


async def _process_jobs(engine: Service, count: int, tell: Callable[[int], None] = lambda done: None) -> None:
    """Process jobs until at least ``count`` are acknowledged; call ``tell`` with the number after each batch."""
    done = 0

    async def work(name: str) -> None:
        nonlocal done
        while done < count:
            jobs = await engine.jobs.fetch(Claim(("default",), BATCH_SIZE, name), 0.05)
            await engine.jobs.acknowledge([Acknowledgement(job.id, RESULT, name, job.attempt) for job in jobs])
            done += len(jobs)
            tell(done)

    await asyncio.gather(*[work(f"w{number}") for number in range(WORKERS)])


async def _plain(engine: Service) -> float:
    body = msgspec.json.encode(_job())
    total = 30_000
    started = time.perf_counter()
    for _ in range(total // BATCH_SIZE):
        await engine.jobs.enqueue([read_members(body) for _ in range(BATCH_SIZE)])
    await _process_jobs(engine, total)
    return total / (time.perf_counter() - started)


async def _group(engine: Service, size: int) -> tuple[float, float, float]:
    wire = {"type": "batch", "jobs": [_job() for _ in range(size)], "callbacks": {"on_complete": _job()}}
    body = msgspec.json.encode(wire)
    started = time.perf_counter()
    await engine.workflows.create_many([await engine.workflows.prepare(read_members(body))])
    created = time.perf_counter()
    tenths: dict[int, float] = {0: created}

    def tell(done: int) -> None:
        tenths.setdefault(10 * done // size, time.perf_counter())

    await _process_jobs(engine, size + 1, tell)
    ended = time.perf_counter()
    first, last = tenths[1] - tenths[0], tenths[10] - tenths[9]
    return size / (created - started), (size + 1) / (ended - started), last / first


async def _whole(engine: Service, wires: list[dict[str, Any]]) -> float:
    started = time.perf_counter()
    jobs = await _create(engine, wires)
    await _process_jobs(engine, jobs)
    return jobs / (time.perf_counter() - started)

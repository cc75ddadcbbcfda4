"""Workflows of several shapes and sizes, compared with plain jobs that are processed in the same way."""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

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
from ojster.storage.postgres.pipeline import PipelineConnection

R = TypeVar("R")

BATCH_SIZE = 100
"""Number of jobs that a worker fetches and acknowledges in one call, and of jobs or workflows per create call."""

WORKERS = 2
ROUNDS = 3
"""Number of runs; medians are reported."""

RESULT = b'{"ok": true}'


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure plain jobs and workflows."""
    if chosen.only and chosen.only not in "workflow chain group graph nested":
        return
    tune_interpreter()
    plains = [uvloop.run(_with_engine(store, _plain)) for _ in range(ROUNDS)]
    plain = median(plains)
    yield Figure.median_of(f"{store.name}: plain jobs, enqueued and processed in batches of {BATCH_SIZE}", plains)
    rounds = [uvloop.run(_with_engine(store, partial(_group, size=100_000))) for _ in range(ROUNDS)]
    made, whole, slower = zip(*rounds, strict=True)
    yield Figure.median_of(f"{store.name}: workflow, a group of 100,000 created, jobs", made)
    name = f"{store.name}: workflow, a group of 100,000 with a callback, jobs, whole"
    yield Figure.median_of(name, whole, floor=plain, floor_name="plain jobs", least_share=0.5)
    name = f"{store.name}: workflow, time of its last tenth relative to the first"
    yield Figure.median_of(name, slower, "x", most=1.1)
    for name, wires in (
        ("10,000 chains of 5", [_chain(5) for _ in range(10_000)]),
        ("a graph of 10,000 nodes and 30,000 edges", [_graph(10_000)]),
        ("1,000 nested 8 levels deep", [_nested(8) for _ in range(1000)]),
    ):
        rates = [uvloop.run(_with_engine(store, partial(_whole, wires=wires))) for _ in range(ROUNDS)]
        name = f"{store.name}: workflow, {name}, jobs, whole"
        yield Figure.median_of(name, rates, floor=plain, floor_name="plain jobs")
    chains = [uvloop.run(_with_engine(store, _long_chain)) for _ in range(ROUNDS)]
    lasted, slower = zip(*chains, strict=True)
    yield Figure.median_of(f"{store.name}: a chain of 1,000, one step after the other, a step", lasted, "ms")
    name = f"{store.name}: a chain of 1,000, time of its last tenth relative to the first"
    yield Figure.median_of(name, slower, "x", most=1.1)
    if store.name == "PostgreSQL":
        statements = uvloop.run(_with_engine(store, _statements_of_a_step))
        yield Figure("PostgreSQL: statements for a step of a chain, with BEGIN and COMMIT", statements, "")


async def _with_engine(store: Store, measure: Callable[[Service], Awaitable[R]]) -> R:
    service = Service(open_database(store.fresh(), migrate=True))
    service.maintenance.start()
    try:
        return await measure(service)
    finally:
        await service.close()


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


async def _create(service: Service, wires: list[dict[str, Any]]) -> int:
    """Create workflows in batches; return the number of their jobs."""
    jobs = 0
    for first in range(0, len(wires), BATCH_SIZE):
        some = wires[first : first + BATCH_SIZE]
        new = [await service.workflows.prepare(read_members(msgspec.json.encode(wire))) for wire in some]
        jobs += sum(one.plan.job_count for one in new)
        await service.workflows.create_many(new)
    return jobs


async def _process_jobs(service: Service, count: int, tell: Callable[[int], None] = lambda done: None) -> None:
    """Process jobs until at least ``count`` are acknowledged; call ``tell`` with the number after each batch."""
    done = 0

    async def work(name: str) -> None:
        nonlocal done
        while done < count:
            jobs = await service.jobs.fetch(Claim(("default",), BATCH_SIZE, name), 0.05)
            await service.jobs.acknowledge([Acknowledgement(job.id, RESULT, name, job.attempt) for job in jobs])
            done += len(jobs)
            tell(done)

    await asyncio.gather(*[work(f"w{number}") for number in range(WORKERS)])


async def _plain(service: Service) -> float:
    body = msgspec.json.encode(_job())
    total = 30_000
    started = time.perf_counter()
    for _ in range(total // BATCH_SIZE):
        await service.jobs.enqueue([read_members(body) for _ in range(BATCH_SIZE)])
    await _process_jobs(service, total)
    return total / (time.perf_counter() - started)


async def _group(service: Service, size: int) -> tuple[float, float, float]:
    wire = {"type": "batch", "jobs": [_job() for _ in range(size)], "callbacks": {"on_complete": _job()}}
    body = msgspec.json.encode(wire)
    started = time.perf_counter()
    await service.workflows.create_many([await service.workflows.prepare(read_members(body))])
    created = time.perf_counter()
    tenths: dict[int, float] = {0: created}

    def tell(done: int) -> None:
        tenths.setdefault(10 * done // size, time.perf_counter())

    await _process_jobs(service, size + 1, tell)
    ended = time.perf_counter()
    first, last = tenths[1] - tenths[0], tenths[10] - tenths[9]
    return size / (created - started), (size + 1) / (ended - started), last / first


async def _whole(service: Service, wires: list[dict[str, Any]]) -> float:
    started = time.perf_counter()
    jobs = await _create(service, wires)
    await _process_jobs(service, jobs)
    return jobs / (time.perf_counter() - started)


async def _long_chain(service: Service) -> tuple[float, float]:
    """Return the time of a step in milliseconds, and that of the last tenth relative to the first."""
    length = 1_000
    await _create(service, [_chain(length)])
    began = time.perf_counter()
    moments = [began, *[moment async for moment in _steps(service, length)]]
    tenth = length // 10
    first, last = moments[tenth] - began, moments[-1] - moments[-1 - tenth]
    return (moments[-1] - began) / length * 1000, last / first


async def _steps(service: Service, count: int) -> AsyncIterator[float]:
    """Run the steps of a chain as a worker with nothing else to do; yield the time when each has ended."""
    wanted = Claim(("default",), 10, "w")
    jobs = await service.jobs.fetch(wanted, 1.0)
    for _ in range(count):
        (job,) = jobs
        done = [Acknowledgement(job.id, RESULT, "w", job.attempt)]
        _, found = await service.jobs.acknowledge_and_fetch(done, wanted)
        yield time.perf_counter()
        jobs = found if isinstance(found, list) else []


async def _statements_of_a_step(service: Service) -> float:
    """Return the number of statements for each step in the middle of a chain on PostgreSQL."""
    sent = 0
    real = PipelineConnection._send

    def send(*given: Any) -> Any:
        nonlocal sent
        sent += 1
        return real(*given)

    await _create(service, [_chain(30)])
    steps = _steps(service, 20)
    for _ in range(10):
        await anext(steps)
    with patch.object(PipelineConnection, "_send", send):
        for _ in range(10):
            await anext(steps)
    return sent / 10

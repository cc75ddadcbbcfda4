"""Migrations of a live PostgreSQL database (``python -m benchmarks.migration``): how long they make others wait.

Fills a database with finished jobs, enqueues and works on it without a pause, and runs scripts as a later version might
bring them: a column, and an index of the largest table, built beside others and, for comparison, in a transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import NamedTuple, TypeVar
from unittest.mock import patch

import psycopg
import uvloop

from benchmarks.figure import Figure
from benchmarks.stores import PostgresStore, schema_of
from ojster.core.json_objects import read_members
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Acknowledgement
from ojster.service import Service
from ojster.storage.migrations import scripts
from ojster.storage.open import migrate_database, open_database
from ojster.storage.postgres import schema

R = TypeVar("R")

SECONDS = 10.0
"""How long the load runs without a migration."""

MOST_MS = 1_000.0
"""The longest time that a migration may keep a caller waiting, in milliseconds."""

CALLERS = 20
ROWS_AT_ONCE = 500_000

INDEX = "CREATE INDEX CONCURRENTLY jobs_{name} ON jobs (created_at) WHERE state = 'completed';"
MIGRATIONS = {
    "a column": "ALTER TABLE jobs ADD COLUMN remark TEXT NOT NULL DEFAULT '';",
    "an index, built beside others": INDEX.format(name="beside"),
    "an index, built in a transaction": INDEX.format(name="alone").replace(" CONCURRENTLY", ""),
}


def fill(url: str, count: int) -> None:
    """Insert ``count`` finished jobs, with ids in order of time."""
    conninfo, name = schema_of(url)
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {name}".encode())
        for first in range(1, count + 1, ROWS_AT_ONCE):
            bounds = (first, min(first + ROWS_AT_ONCE - 1, count))
            connection.execute(
                "INSERT INTO jobs (seq, id, type, queue, state, priority, attempt, max_attempts, created_at, "
                "enqueued_at, started_at, finished_at) SELECT x, CAST('01890000-0000-7000-8000-' || "
                "lpad(to_hex(x), 12, '0') AS uuid), 'email.send', 'default', 'completed', 0, 1, 3, x, x, x, "
                "4000000000000000 + x FROM generate_series(%s, %s) AS x",
                bounds,
            )
            connection.execute(
                'INSERT INTO payloads (seq, stored) SELECT x, convert_to(\'{"specversion":"1.0","type":'
                '"email.send","args":["user@example.com"],"meta":{}}\', \'UTF8\') FROM generate_series(%s, %s) AS x',
                bounds,
            )
        connection.execute("SELECT setval('jobs_seq_seq', %s)", (count,))
        connection.execute("VACUUM ANALYZE jobs")
        connection.execute("CHECKPOINT")


class Load:
    """Callers that enqueue jobs and run them, one after the other."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopped = False
        self.times: list[float] = []
        """How long each call took, in seconds."""

    async def during(self, work: Awaitable[object]) -> None:
        """Run until some work is done."""
        callers = [asyncio.create_task(self._caller(number)) for number in range(CALLERS)]
        try:
            await work
        finally:
            self._stopped = True
            await asyncio.gather(*callers)

    async def _caller(self, number: int) -> None:
        queue, jobs = f"q{number}", self._service.jobs
        while not self._stopped:
            members = read_members(b'{"type":"email.send","args":[1],"options":{"queue":"%b"}}' % queue.encode())
            await self._timed(jobs.enqueue([members]))
            claimed = await self._timed(jobs.fetch(Claim((queue,), 1, "w")))
            await self._timed(jobs.acknowledge([Acknowledgement(job.id, b"1", "w", job.attempt) for job in claimed]))

    async def _timed(self, call: Awaitable[R]) -> R:
        started = time.perf_counter()
        result = await call
        self.times.append(time.perf_counter() - started)
        return result


class Beside(NamedTuple):
    """What a load saw beside a migration. Times are in milliseconds, ``took`` is in seconds."""

    name: str
    took: float
    calls: int
    p99: float
    longest: float


async def measure(url: str, wanted: list[str]) -> AsyncIterator[Beside]:
    """Measure the load alone, and beside each migration; ``wanted`` are the scripts that ``migrate_database`` runs."""
    service = Service(open_database(url))
    try:
        for name, script in {"nothing": "", **MIGRATIONS}.items():
            load = Load(service)
            if script:
                wanted.append(script)
            started = time.perf_counter()
            await load.during(asyncio.to_thread(migrate_database, url) if script else asyncio.sleep(SECONDS))
            took = time.perf_counter() - started
            times = sorted(load.times)
            slowest = times[len(times) * 99 // 100] * 1000
            yield Beside(name, took, len(times), slowest, times[-1] * 1000)
    finally:
        await service.close()


async def _all(url: str, wanted: list[str]) -> list[Beside]:
    return [one async for one in measure(url, wanted)]


def measured(store: PostgresStore, jobs: int) -> list[Beside]:
    """Return what a load saw beside each migration of a database with finished jobs."""
    url = store.fresh()
    fill(url, jobs)
    wanted = scripts("postgres")
    with patch.object(schema, "scripts", return_value=wanted):
        return uvloop.run(_all(url, wanted))


def run(store: PostgresStore, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure the longest call beside migrations, with as many finished jobs as the backlog has."""
    if not chosen.backlog or (chosen.only and chosen.only not in "migration migrations"):
        return
    for one in measured(store, chosen.backlog):
        most = MOST_MS if "transaction" not in one.name else None
        name = f"{store.name}: the longest call beside {one.name}, {chosen.backlog:,} finished jobs"
        yield Figure(name, one.longest, "ms", most=most)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migration", description=__doc__)
    parser.add_argument(
        "--jobs", type=int, default=10_000_000, help="Number of finished jobs, at least 200,000 (default 10,000,000)"
    )
    store = PostgresStore()
    try:
        print("| beside | took, s | calls a second | 99 % of the calls, ms | the longest, ms |\n|---|--:|--:|--:|--:|")
        for one in measured(store, parser.parse_args().jobs):
            rate = f"{one.calls / one.took:,.0f}"
            print(f"| {one.name} | {one.took:.1f} | {rate} | {one.p99:.0f} | {one.longest:.0f} |")
    finally:
        store.close()


if __name__ == "__main__":
    main()

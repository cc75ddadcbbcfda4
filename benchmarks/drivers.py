"""Comparison of PostgreSQL drivers for Ojster's transactions (``python -m benchmarks.drivers``).

Each driver runs the same three transactions (push, claim, complete) with the same statements on the same tables:
asyncpg in an event loop, psycopg 3 in threads with its pipeline mode, and libpq as psycopg wraps it, in threads, with
the pipelines of ``ojster.storage.postgres.pipeline``. Prints jobs per second and the client's CPU time per job.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import resource
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import psycopg
import uvloop

from benchmarks.floors import ENVELOPE
from benchmarks.stores import PostgresStore, schema_of
from ojster.core.ids import new_id
from ojster.core.job_table import JOB_COLUMNS, JOB_COLUMNS_OF_J
from ojster.storage.postgres.pipeline import PipelineConnection, blobs, ints, texts, unnest, uuids

TOTALS = {1: 1_000, 20: 8_000, 100: 20_000, 1_000: 40_000}
"""Number of jobs to push, claim and complete, by the number of jobs in a transaction."""

NAMES = "id, type, queue, state, priority, max_attempts, created_at, enqueued_at"
GATES = "SELECT name FROM queues WHERE paused_at IS NOT NULL OR max_per_second IS NOT NULL"
AVAILABLE = (
    f"SELECT {JOB_COLUMNS_OF_J}, p.stored FROM jobs AS j JOIN payloads AS p ON p.seq = j.seq "
    "WHERE j.queue = 'default' AND j.state = 'available' ORDER BY j.priority DESC, j.seq LIMIT ? "
    "FOR UPDATE OF j SKIP LOCKED"
)
START = "UPDATE jobs SET state = 'active', attempt = 1, started_at = 1, due_at = 2 WHERE seq = ANY(?)"
LOCK = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ANY(?) ORDER BY id FOR UPDATE"
COMPLETE = "UPDATE jobs SET state = 'completed', finished_at = 1, due_at = NULL WHERE seq = ANY(?)"
COUNT = (
    "INSERT INTO job_count_slots (queue, state, slot, jobs) VALUES ('default', ?, ?, ?) "
    "ON CONFLICT (queue, state, slot) DO UPDATE SET jobs = job_count_slots.jobs + excluded.jobs"
)


def insert_statement(schema: str) -> str:
    """Return the statement that inserts jobs from array parameters."""
    rows = unnest("uuid", "text", "text", "text", "bigint", "bigint", "bigint", "bigint", "bytea")
    return (
        f"WITH given AS MATERIALIZED (SELECT nextval('{schema}.jobs_seq_seq') AS seq, job.* "
        f"FROM {rows} AS job ({NAMES}, envelope)), "
        f"inserted AS (INSERT INTO jobs (seq, {NAMES}) SELECT seq, {NAMES} FROM given) "
        "INSERT INTO payloads (seq, stored) SELECT seq, envelope FROM given"
    )


def columns_of(ids: Sequence[str]) -> list[list[Any]]:
    """Return the array parameters of ``insert_statement``, one array per column."""
    count = len(ids)
    plain: list[Any] = ["email.send", "default", "available", 0, 3, 0, 0, ENVELOPE]
    return [list(ids), *([value] * count for value in plain)]


class Driver(ABC):
    """A connection through one driver. ``slot`` identifies it among the connections of a run."""

    def __init__(self, url: str, slot: int) -> None:
        self.conninfo, self.schema = schema_of(url)
        self.slot = slot

    @abstractmethod
    def push(self, ids: Sequence[str]) -> Any:
        """Push jobs."""

    @abstractmethod
    def claim(self, count: int) -> Any:
        """Claim jobs and return their ids."""

    @abstractmethod
    def complete(self, ids: Sequence[Any]) -> Any:
        """Complete jobs."""

    def counts(self, *changes: tuple[str, int]) -> list[tuple[str, int, int]]:
        """Return the parameters of ``COUNT``: state, slot and change."""
        return [(state, self.slot, change) for state, change in changes]


class Libpq(Driver):
    """libpq, as Ojster uses it."""

    def __init__(self, url: str, slot: int) -> None:
        super().__init__(url, slot)
        self.connection = PipelineConnection(self.conninfo, self.schema)

    def push(self, ids: Sequence[str]) -> None:
        connection, columns = self.connection, columns_of(ids)
        connection.execute("BEGIN")
        arrays = [uuids(columns[0]), *map(texts, columns[1:4]), *map(ints, columns[4:8]), blobs(columns[8])]
        connection.execute(insert_statement(self.schema), arrays)
        connection.execute_many(COUNT, self.counts(("available", len(ids))))
        connection.execute("COMMIT")
        connection.answer()

    def claim(self, count: int) -> list[Any]:
        connection = self.connection
        connection.execute("BEGIN")
        connection.execute(GATES)
        rows = connection.execute(AVAILABLE, (count,))
        connection.execute(START, (ints([row[0] for row in rows]),))
        connection.execute_many(COUNT, self.counts(("active", len(rows)), ("available", -len(rows))))
        connection.execute("COMMIT")
        connection.answer()
        return [row[1] for row in rows]

    def complete(self, ids: Sequence[Any]) -> None:
        connection = self.connection
        connection.execute("BEGIN")
        rows = connection.execute(LOCK, (uuids(ids),))
        connection.execute(COMPLETE, (ints([row[0] for row in rows]),))
        connection.execute_many(COUNT, self.counts(("active", -len(rows)), ("completed", len(rows))))
        connection.execute("COMMIT")
        connection.answer()


class Psycopg(Driver):
    """psycopg 3 with its own pipeline mode and binary parameters."""

    def __init__(self, url: str, slot: int) -> None:
        super().__init__(url, slot)
        options = f"-c search_path={self.schema}"
        self.connection = psycopg.connect(self.conninfo, autocommit=True, prepare_threshold=0, options=options)

    def run(self, work: Callable[[Any], Any]) -> Any:
        with self.connection.pipeline(), self.connection.cursor(binary=True) as cursor:
            cursor.execute("BEGIN")
            result = work(cursor)
            cursor.execute("COMMIT")
        return result

    def push(self, ids: Sequence[str]) -> None:
        def work(cursor: Any) -> None:
            cursor.execute(insert_statement(self.schema).replace("?", "%s"), columns_of(ids))
            self.count(cursor, ("available", len(ids)))

        self.run(work)

    def claim(self, count: int) -> Any:
        def work(cursor: Any) -> list[Any]:
            cursor.execute(GATES).fetchall()
            rows = cursor.execute(AVAILABLE.replace("?", "%s"), (count,)).fetchall()
            cursor.execute(START.replace("?", "%s"), ([row[0] for row in rows],))
            self.count(cursor, ("active", len(rows)), ("available", -len(rows)))
            return [row[1] for row in rows]

        return self.run(work)

    def complete(self, ids: Sequence[Any]) -> None:
        def work(cursor: Any) -> None:
            rows = cursor.execute(LOCK.replace("?", "%s"), (list(ids),)).fetchall()
            cursor.execute(COMPLETE.replace("?", "%s"), ([row[0] for row in rows],))
            self.count(cursor, ("active", -len(rows)), ("completed", len(rows)))

        self.run(work)

    def count(self, cursor: Any, *changes: tuple[str, int]) -> None:
        for values in self.counts(*changes):
            cursor.execute(COUNT.replace("?", "%s"), values)


class Asyncpg(Driver):
    """asyncpg, with coroutines for the three transactions."""

    connection: Any

    async def open(self) -> Asyncpg:
        """Connect."""
        parts = psycopg.conninfo.conninfo_to_dict(self.conninfo)
        self.connection = await asyncpg.connect(
            host=str(parts["host"]),
            port=int(str(parts["port"])),
            user=str(parts["user"]),
            database=str(parts["dbname"]),
            server_settings={"search_path": self.schema},
        )
        return self

    async def push(self, ids: Sequence[str]) -> None:
        async with self.connection.transaction():
            await self.connection.execute(numbered(insert_statement(self.schema)), *columns_of(ids))
            await self.count(("available", len(ids)))

    async def claim(self, count: int) -> list[Any]:
        async with self.connection.transaction():
            await self.connection.fetch(GATES)
            rows = await self.connection.fetch(numbered(AVAILABLE), count)
            await self.connection.execute(numbered(START), [row[0] for row in rows])
            await self.count(("active", len(rows)), ("available", -len(rows)))
        return [row[1] for row in rows]

    async def complete(self, ids: Sequence[Any]) -> None:
        async with self.connection.transaction():
            rows = await self.connection.fetch(numbered(LOCK), list(ids))
            await self.connection.execute(numbered(COMPLETE), [row[0] for row in rows])
            await self.count(("active", -len(rows)), ("completed", len(rows)))

    async def count(self, *changes: tuple[str, int]) -> None:
        for values in self.counts(*changes):
            await self.connection.execute(numbered(COUNT), *values)


def numbered(sql: str) -> str:
    """Replace the ``?`` placeholders with ``$1``, ``$2``, …."""
    parts = iter(range(1, 100))
    return re.sub(r"\?", lambda _: f"${next(parts)}", sql)


def measure_blocking(store: PostgresStore, kind: type[Libpq | Psycopg], size: int, lanes: int) -> None:
    """Measure a blocking driver with one thread per connection."""
    url = store.fresh()
    ways = [kind(url, number) for number in range(lanes)]
    rounds = TOTALS[size] // size // lanes
    claimed: list[list[Any]] = [[] for _ in ways]

    def measure(what: str, work: Callable[[int], object]) -> None:
        store.settle()
        started, before = time.perf_counter(), processor()
        threads = [threading.Thread(target=lambda n=n: [work(n) for _ in range(rounds)]) for n in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report(kind.__name__, what, size, lanes, rounds * lanes * size, started, before)

    measure("push", lambda n: ways[n].push([new_id() for _ in range(size)]))
    measure("claim", lambda n: claimed[n].append(ways[n].claim(size)))
    measure("complete", lambda n: ways[n].complete(claimed[n].pop()))


async def measure_asyncpg(store: PostgresStore, size: int, lanes: int) -> None:
    """Measure asyncpg with all connections in one event loop."""
    url = store.fresh()
    ways = [await Asyncpg(url, number).open() for number in range(lanes)]
    rounds = TOTALS[size] // size // lanes
    claimed: list[list[Any]] = [[] for _ in ways]

    async def measure(what: str, work: Callable[[int], Any]) -> None:
        store.settle()
        started, before = time.perf_counter(), processor()

        async def lane(number: int) -> None:
            for _ in range(rounds):
                await work(number)

        await asyncio.gather(*map(lane, range(lanes)))
        report("Asyncpg", what, size, lanes, rounds * lanes * size, started, before)

    async def claim(number: int) -> None:
        claimed[number].append(await ways[number].claim(size))

    await measure("push", lambda n: ways[n].push([new_id() for _ in range(size)]))
    await measure("claim", claim)
    await measure("complete", lambda n: ways[n].complete(claimed[n].pop()))
    for way in ways:
        await way.connection.close()


def processor() -> float:
    """Return the CPU time of this process, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def report(way: str, what: str, size: int, lanes: int, jobs: int, started: float, before: float) -> None:
    """Print one row of the table."""
    rate = jobs / (time.perf_counter() - started)
    own = (processor() - before) / jobs * 1e6
    print(f"| {what:8} | {size:5,} | {lanes} | {way:8} | {rate:9,.0f}/s | {own:6.1f} µs |", flush=True)


def main() -> int:
    """Measure all drivers; return the exit status."""
    argparse.ArgumentParser(prog="python -m benchmarks.drivers", description=__doc__).parse_args()
    store = PostgresStore()
    print("|          | batch size | connections | driver | jobs | client CPU per job |\n|---|--:|--:|---|--:|--:|")
    try:
        for size in TOTALS:
            for lanes in (1, 4):
                measure_blocking(store, Libpq, size, lanes)
                measure_blocking(store, Psycopg, size, lanes)
                uvloop.run(measure_asyncpg(store, size, lanes))
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

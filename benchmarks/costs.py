"""What a job costs: processor time, bytes on the disk and bytes of write-ahead log (``python -m benchmarks.costs``)."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psutil
import psycopg
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.stores import PostgresStore, SqliteStore, Store, schema_of
from ojster import App, RateLimit, Unique, Worker, chain, group
from ojster.core.tuning import tune_interpreter

CALLERS = 50

JOBS_IN_A_CALL = 1_000


class Reading(NamedTuple):
    """Totals at one moment: processor time in seconds, of this process and of the database, and bytes."""

    own: float
    database: float
    stored: int
    logged: int


class Cost(NamedTuple):
    """What one job cost: processor time in microseconds, and bytes; ``None`` for what this database does not tell."""

    what: str
    own: float
    database: float | None
    stored: float
    logged: float | None


class SqliteProbe:
    """Reads the totals of a file. Its writer is a thread of this process."""

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///")

    def read(self) -> Reading:
        """Return the totals."""
        with closing(apsw.Connection(self._path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Reading(time.process_time(), 0.0, Path(self._path).stat().st_size, 0)


class PostgresProbe:
    """Reads the totals of a schema and of all processes of its server."""

    def __init__(self, url: str) -> None:
        conninfo, self._schema = schema_of(url)
        self._connection = psycopg.connect(conninfo, autocommit=True)
        self._server = psutil.Process(self._connection.info.backend_pid).parent()

    def read(self) -> Reading:
        """Return the totals."""
        row = self._connection.execute(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint, "
            "(SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
            "WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r')",
            (self._schema,),
        ).fetchone()
        assert row is not None
        assert self._server is not None
        ended = self._server.cpu_times()
        used = ended.children_user + ended.children_system
        for process in [self._server, *self._server.children()]:
            times = process.cpu_times()
            used += times.user + times.system
        return Reading(time.process_time(), used, int(row[1]), int(row[0]))


async def costs(store: Store, jobs: int) -> list[Cost]:
    """Measure one kind of work after the other on an empty store."""
    url = store.fresh()
    app = App(url)
    probe = SqliteProbe(url) if isinstance(store, SqliteStore) else PostgresProbe(url)
    found: list[Cost] = []

    async def cost(what: str, work: Awaitable[Any], number: int) -> None:
        before = probe.read()
        await work
        after = probe.read()
        own, database, stored, logged = ((late - early) / number for late, early in zip(after, before, strict=True))
        known = isinstance(probe, PostgresProbe)
        found.append(Cost(what, own * 1e6, database * 1e6 if known else None, stored, logged if known else None))

    @app.job("plain")
    async def plain(a: int, b: int) -> None: ...

    @app.job("returns")
    async def returns(a: int, b: int) -> str:
        return "x" * 1_000

    @app.job("limited", rate_limit=RateLimit(key="bench", concurrency=1_000))
    async def limited(a: int, b: int) -> None: ...

    @app.job("unique", unique=Unique())
    async def unique(a: int, b: int) -> None: ...

    await plain.aenqueue(1, 2)
    await work_off(app)
    await cost("enqueue, 1,000 in a call", in_bulk(plain, jobs), jobs)
    await cost("run", work_off(app), jobs)
    await cost("enqueue, one in a call, 50 callers", one_by_one(plain.aenqueue, jobs), jobs)
    await work_off(app)
    for what, job in (
        ("enqueue and run, with a result of 1 kB", returns),
        ("enqueue and run, with a concurrency limit", limited),
        ("enqueue and run, each unique", unique),
    ):
        await cost(what, both(app, job, jobs), jobs)
    chains = max(jobs // 25, 1)

    async def start_chains() -> None:
        await one_by_one(lambda a, b: app.astart(chain(*[plain.s(a, b) for _ in range(5)])), chains)
        await work_off(app)

    async def start_group() -> None:
        await app.astart(group(*[plain.s(1, number) for number in range(jobs // 2)]))
        await work_off(app)

    await cost("a step in chains of 5", start_chains(), chains * 5)
    await cost(f"a step in a group of {jobs // 2:,}", start_group(), jobs // 2)
    await app.aclose()
    return found


async def in_bulk(job: Any, number: int) -> None:
    """Enqueue so many jobs with different arguments."""
    for first in range(0, number, JOBS_IN_A_CALL):
        await job.aenqueue_many([(1, first + place) for place in range(JOBS_IN_A_CALL)])


async def one_by_one(call: Callable[[int, int], Awaitable[Any]], number: int) -> None:
    """Make so many calls from several callers."""
    left = iter(range(number))

    async def caller() -> None:
        for place in left:
            await call(1, place)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def work_off(app: App) -> None:
    """Run all jobs that there are."""
    await Worker(app, concurrency=500).run(until_empty=True)


async def both(app: App, job: Any, number: int) -> None:
    """Enqueue jobs and run them."""
    await in_bulk(job, number)
    await work_off(app)


def table_of(store: Store, found: list[Cost]) -> Table:
    """Return the costs as a table."""
    table = Table(title=f"{store.name}: what one job costs", title_justify="left", header_style="bold")
    for head in ("", "processor", "of the database", "stored", "logged"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for one in found:
        database = "" if one.database is None else f"{one.database:.0f} µs"
        logged = "" if one.logged is None else f"{one.logged:,.0f} B"
        table.add_row(one.what, f"{one.own:.0f} µs", database, f"{one.stored:,.0f} B", logged)
    return table


def main() -> int:
    """Measure the chosen databases; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres"], help="Measure only this database (default: both)")
    parser.add_argument("--jobs", type=int, default=20_000, help="Number of jobs of each kind (default 20000)")
    chosen = parser.parse_args()
    tune_interpreter()
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("sqlite", lambda: SqliteStore(Path(folder))), ("postgres", PostgresStore)):
            if chosen.store in (None, name):
                store = make()
                try:
                    console.print(table_of(store, uvloop.run(costs(store, chosen.jobs))))
                finally:
                    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

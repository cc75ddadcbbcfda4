"""Benchmarks with a backlog: by default a million waiting and a million finished jobs in the database."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import apsw
import httpx
import psycopg

from benchmarks.figure import Figure
from benchmarks.servers import Server, ojster
from benchmarks.stores import Store, schema_of
from ojster.core.ids import new_id
from ojster.storage.sqlite.schema import migrate

ENVELOPE = (
    b'{"specversion":"1.0","id":"%b","type":"email.send",'
    b'"args":["user@example.com","welcome",{"locale":"en"}],"meta":{}}'
)


def run(store: Store, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure a server on an empty database and on one with the backlog."""
    if (chosen.only and chosen.only not in "backlog memory") or not chosen.backlog:
        return
    with ojster(store.fresh()) as server:
        empty = _measure(server, chosen.seconds)
    url = store.fresh()
    _fill(url, chosen.backlog)
    store.settle()
    with ojster(url) as server:
        server.load("enqueue", 16, 1.0)
        full = _measure(server, chosen.seconds)
        slow = _looks(server)
        memory = server.megabytes
    for name, rate in full.items():
        yield Figure(
            f"{store.name}: {name}, with {chosen.backlog:,} waiting and as many finished",
            rate,
            floor=empty[name],
            floor_name="empty",
            least_share=0.9,
        )
    for name, milliseconds in slow.items():
        label = f"{store.name}: {name}, with {chosen.backlog:,} waiting and as many finished"
        yield Figure(label, milliseconds, "ms", most=MOST_MS)
    yield Figure(f"{store.name}: memory of the server with all these jobs", memory, "MiB")


def _measure(server: Server, seconds: float) -> dict[str, float]:
    return {
        "single enqueue": server.load("enqueue", 64, seconds)["rate"],
        "whole jobs, single calls": server.load("whole1", 64, seconds)["rate"] / 3,
        "whole jobs, by 100": server.load("whole100", 4, seconds)["rate"] / 3 * 100,
    }


LOOKS = {
    "list of queues": "/admin/queues",
    "list of jobs": "/jobs?limit=200",
    "facets of all jobs": "/job-facets",
    "failures in groups": "/failures",
    "what needs attention": "/admin/attention",
    "list of finished jobs of a type": "/jobs?limit=200&state=completed&type=email.*",
    "dead letters": "/dead-letter?limit=200",
    "statistics": "/admin/stats",
}

MOST_MS = 50
"""Median time of a look at the whole database, in milliseconds, that is the goal."""


def _looks(server: Server) -> dict[str, float]:
    """Return the median time of each call that shows what there is, in milliseconds."""
    found: dict[str, float] = {}
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}/ojs/v1", timeout=60) as client:
        for name, path in LOOKS.items():
            times = []
            for _ in range(11):
                started = time.perf_counter()
                client.get(path).raise_for_status()
                times.append((time.perf_counter() - started) * 1000)
            found[name] = median(times)
    return found


def _fill(url: str, count: int) -> None:
    """Insert ``count`` finished and ``count`` waiting jobs."""
    if url.startswith("sqlite"):
        _fill_file(url.removeprefix("sqlite:///"), count)
    else:
        _fill_postgres(url, count)


def _jobs(count: int) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Yield each job as its row in ``jobs`` and its envelope."""
    now = 1_700_000_000_000_000
    for seq in range(1, 2 * count + 1):
        id, finished, at = new_id(), seq <= count, now + seq
        kept_until = 4_000_000_000_000_000 + seq if finished else None
        state = "completed" if finished else "available"
        row = (
            seq,
            id,
            "email.send",
            "default",
            state,
            0,
            int(finished),
            3,
            at,
            at,
            at if finished else None,
            kept_until,
        )
        yield row, ENVELOPE % id.encode()


COLUMNS = (
    "seq, id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, started_at, finished_at"
)


def _fill_file(path: str, count: int) -> None:
    connection = apsw.Connection(path)
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")
    migrate(connection)
    connection.execute("BEGIN")
    for row, envelope in _jobs(count):
        connection.execute(f"INSERT INTO jobs ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        connection.execute("INSERT INTO payloads (seq, stored) VALUES (?, ?)", (row[0], envelope))
    for state in ("completed", "available"):
        connection.execute("INSERT INTO job_counts (queue, state, jobs) VALUES ('default', ?, ?)", (state, count))
    connection.execute("INSERT INTO queues (name, created_at) VALUES ('default', 0)")
    connection.execute("COMMIT")
    connection.close()


def _fill_postgres(url: str, count: int) -> None:
    conninfo, schema = schema_of(url)
    with psycopg.connect(conninfo, options=f"-c search_path={schema}") as connection:
        cursor = connection.cursor()
        with cursor.copy(f"COPY jobs ({COLUMNS}) FROM STDIN") as copy:
            for row, _ in _jobs(count):
                copy.write_row(row)
        cursor.execute(
            "INSERT INTO payloads (seq, stored) "
            "SELECT seq, convert_to(replace(%s, '%%b', CAST(id AS TEXT)), 'UTF8') FROM jobs ORDER BY seq",
            (ENVELOPE.decode(),),
        )
        cursor.execute("SELECT setval('jobs_seq_seq', %s)", (2 * count,))
        for state in ("completed", "available"):
            cursor.execute("INSERT INTO job_count_slots VALUES ('default', %s, 0, %s)", (state, count))
        cursor.execute("INSERT INTO queues (name, created_at) VALUES ('default', 0)")

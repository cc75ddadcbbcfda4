"""Floors: the disk, the bare statements of each database, and an ASGI application that echoes."""

from __future__ import annotations

import argparse
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw

from benchmarks.figure import Figure, median_rate, percentile, timed
from benchmarks.stores import Store, schema_of
from ojster.core.ids import new_id
from ojster.core.job_table import PLAIN
from ojster.storage.postgres.pipeline import PipelineConnection, blobs, ints, texts, unnest, uuids
from ojster.storage.sqlite.schema import migrate

MEASURED_FLOORS: dict[str, float] = {}
"""Measured floors by name, for the figures that are compared with them."""

ENVELOPE = b"x" * 330

AVAILABLE = f"j.queue = 'default' AND j.tenant = '' AND j.state = 'available' AND {PLAIN}"
"""The jobs that a claim looks at, worded as the index of available jobs, so that the floor's claim uses it, too."""


def run(stores: Sequence[Store], folder: Path, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure the floors."""
    writes = _forced_writes(folder)
    yield Figure("floor: a forced write of 4 KiB, median", percentile(writes, 0.5) * 1000, "ms")
    for store in stores:
        raw_of = {"SQLite": RawSqlite, "PostgreSQL": RawPostgres}[store.name]
        for size in (1, 100, 1000):
            rate = median_rate(lambda store=store, raw_of=raw_of, size=size: _inserts(raw_of(store.fresh()), size))  # type: ignore[misc]
            MEASURED_FLOORS[f"{store.name} insert {size}"] = rate
            yield Figure(f"floor: {store.name}, raw inserts of {size} a transaction", rate)
        rate = median_rate(lambda store=store, raw_of=raw_of: _cycles(store, raw_of(store.fresh()), 100))  # type: ignore[misc]
        MEASURED_FLOORS[f"{store.name} cycle 100"] = rate
        yield Figure(f"floor: {store.name}, raw claims and completions of 100", rate)
    from benchmarks.servers import raw

    with raw() as server:
        MEASURED_FLOORS["asgi"] = server.load("echo", 64, chosen.seconds)["rate"]
    yield Figure("floor: raw ASGI echo, 64 connections", MEASURED_FLOORS["asgi"])


def _forced_writes(folder: Path) -> list[float]:
    times = []
    with (folder / "forced").open("wb") as file:
        for _ in range(200):
            started = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * 4096, 0)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return times


class Raw(ABC):
    """The bare SQL statements of insert, claim and complete, one transaction per call."""

    @abstractmethod
    def insert(self, ids: Sequence[str]) -> None:
        """Insert jobs with their envelopes."""

    @abstractmethod
    def claim(self, count: int) -> list[int]:
        """Claim up to ``count`` jobs and return their ``seq``."""

    @abstractmethod
    def complete(self, seqs: Sequence[int]) -> None:
        """Complete jobs."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class RawSqlite(Raw):
    """apsw with ``executemany``."""

    def __init__(self, url: str) -> None:
        self._connection = apsw.Connection(url.removeprefix("sqlite:///"))
        self._connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        migrate(self._connection)
        self._seq = 0

    def insert(self, ids: Sequence[str]) -> None:
        connection = self._connection
        rows = [(self._seq + n, id, 0, 0) for n, id in enumerate(ids)]
        self._seq += len(ids)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO jobs (seq, id, type, queue, state, priority, max_attempts, created_at, enqueued_at) "
            "VALUES (?, ?, 'email.send', 'default', 'available', 0, 3, ?, ?)",
            rows,
        )
        connection.executemany("INSERT INTO payloads (seq, stored) VALUES (?, ?)", [(row[0], ENVELOPE) for row in rows])
        connection.execute("COMMIT")

    def claim(self, count: int) -> list[int]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(
            "SELECT j.seq, p.stored FROM jobs AS j JOIN payloads AS p ON p.seq = j.seq "
            f"WHERE {AVAILABLE} ORDER BY j.priority DESC, j.seq LIMIT ?",
            (count,),
        ).fetchall()
        connection.executemany(
            "UPDATE jobs SET state = 'active', attempt = 1, started_at = 1, due_at = 2 WHERE seq = ?",
            [(seq,) for seq, _ in rows],
        )
        connection.execute("COMMIT")
        return [int(seq) for seq, _ in rows]  # type: ignore[arg-type]  # a column of integers

    def complete(self, seqs: Sequence[int]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "UPDATE jobs SET state = 'completed', finished_at = 1, due_at = NULL WHERE seq = ?",
            [(seq,) for seq in seqs],
        )
        connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


class RawPostgres(Raw):
    """libpq through psycopg, in pipelines, with arrays as parameters: the fastest driver in benchmarks.drivers."""

    def __init__(self, url: str) -> None:
        conninfo, schema = schema_of(url)
        self._connection = PipelineConnection(conninfo, schema)
        self._schema = schema

    def insert(self, ids: Sequence[str]) -> None:
        connection, count = self._connection, len(ids)
        connection.execute("BEGIN")
        names = "id, type, queue, state, priority, max_attempts, created_at, enqueued_at"
        rows = unnest("uuid", "text", "text", "text", "bigint", "bigint", "bigint", "bigint", "bytea")
        connection.execute(
            f"WITH given AS MATERIALIZED (SELECT nextval('{self._schema}.jobs_seq_seq') AS seq, job.* "
            f"FROM {rows} AS job ({names}, envelope)), "
            f"inserted AS (INSERT INTO jobs (seq, {names}) SELECT seq, {names} FROM given) "
            "INSERT INTO payloads (seq, stored) SELECT seq, envelope FROM given",
            (
                uuids(ids),
                *(texts([value] * count) for value in ("email.send", "default", "available")),
                *(ints([value] * count) for value in (0, 3, 0, 0)),
                blobs([ENVELOPE] * count),
            ),
        )
        connection.execute("COMMIT")
        connection.answer()

    def claim(self, count: int) -> list[int]:
        connection = self._connection
        connection.execute("BEGIN")
        rows = connection.execute(
            "SELECT j.seq, (SELECT p.stored FROM payloads AS p WHERE p.seq = j.seq) FROM jobs AS j "
            f"WHERE {AVAILABLE} ORDER BY j.priority DESC, j.seq LIMIT ? FOR UPDATE OF j SKIP LOCKED",
            (count,),
        )
        seqs = [row[0] for row in rows]
        connection.execute(
            "UPDATE jobs SET state = 'active', attempt = 1, started_at = 1, due_at = 2 WHERE seq = ANY(?)",
            (ints(seqs),),
        )
        connection.execute("COMMIT")
        connection.answer()
        return seqs

    def complete(self, seqs: Sequence[int]) -> None:
        connection = self._connection
        connection.execute("BEGIN")
        connection.execute(
            "UPDATE jobs SET state = 'completed', finished_at = 1, due_at = NULL WHERE seq = ANY(?)",
            (ints(seqs),),
        )
        connection.execute("COMMIT")
        connection.answer()

    def close(self) -> None:
        self._connection.close()


def _inserts(raw: Raw, size: int) -> float:
    count = 2_000 if size == 1 else 30_000
    groups = [[new_id() for _ in range(size)] for _ in range(count // size)]

    def work() -> int:
        for ids in groups:
            raw.insert(ids)
        return count

    rate = timed(work)
    raw.close()
    return rate


def _cycles(store: Store, raw: Raw, size: int) -> float:
    count = 20_000
    for _ in range(count // 1000):
        raw.insert([new_id() for _ in range(1000)])
    store.settle()

    def work() -> int:
        for _ in range(count // size):
            raw.complete(raw.claim(size))
        return count

    rate = timed(work)
    raw.close()
    return rate

"""What can the raw parts do here? The disk, SQLite's statements, and an ASGI application that does nothing."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from benchmarks.figure import Figure, median_rate, percentile, timed
from ojster.database.sqlite import migrate
from ojster.model.ids import new_id

FOUND: dict[str, float] = {}
"""The floors, by name, for the figures that stand beside them."""

ENVELOPE = b"x" * 330


def run(folder: Path, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure the floors."""
    if chosen.only and chosen.only not in "floor":
        chosen = argparse.Namespace(**vars(chosen))
    writes = _forced_writes(folder)
    yield Figure("floor: a forced write of 4 KiB, median", percentile(writes, 0.5) * 1000, "ms")
    for size in (1, 100, 1000):
        FOUND[f"insert {size}"] = median_rate(lambda size=size: timed(lambda: _insert(folder, size)))  # type: ignore[misc]
        yield Figure(f"floor: SQLite inserts of {size} a transaction", FOUND[f"insert {size}"])
    FOUND["cycle 100"] = median_rate(lambda: timed(lambda: _cycle(folder, 100)))
    yield Figure("floor: SQLite claims and completions of 100", FOUND["cycle 100"])
    from benchmarks.servers import raw

    with raw() as server:
        FOUND["asgi"] = server.load("echo", 64, chosen.seconds)["rate"]
    yield Figure("floor: raw ASGI echo, 64 connections", FOUND["asgi"])


def _forced_writes(folder: Path) -> list[float]:
    times = []
    with (folder / "forced").open("wb") as file:
        for _ in range(200):
            started = time.perf_counter()
            os.pwrite(file.fileno(), b"\0" * 4096, 0)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return times


def _open(folder: Path) -> apsw.Connection:
    for file in folder.glob("floor.db*"):
        file.unlink()
    connection = apsw.Connection(str(folder / "floor.db"))
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
    migrate(connection)
    return connection


def _fill(connection: apsw.Connection, count: int, size: int) -> None:
    seq = 0
    while seq < count:
        connection.execute("BEGIN IMMEDIATE")
        rows = [(seq + n, new_id(), 0, 0) for n in range(size)]
        connection.executemany(
            "INSERT INTO jobs (seq, id, type, queue, state, priority, max_attempts, created_at, enqueued_at) "
            "VALUES (?, ?, 'email.send', 'default', 'available', 0, 3, ?, ?)",
            rows,
        )
        connection.executemany(
            "INSERT INTO payloads (seq, envelope) VALUES (?, ?)", [(row[0], ENVELOPE) for row in rows]
        )
        connection.execute("COMMIT")
        seq += size


def _insert(folder: Path, size: int) -> int:
    connection = _open(folder)
    count = 2_000 if size == 1 else 30_000
    _fill(connection, count, size)
    connection.close()
    return count


def _cycle(folder: Path, size: int) -> int:
    connection = _open(folder)
    count = 20_000
    _fill(connection, count, 1000)
    for _ in range(count // size):
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(
            "SELECT j.seq, p.envelope FROM jobs AS j JOIN payloads AS p ON p.seq = j.seq "
            "WHERE j.queue = 'default' AND j.state = 'available' ORDER BY j.priority DESC, j.seq LIMIT ?",
            (size,),
        ).fetchall()
        connection.executemany(
            "UPDATE jobs SET state = 'active', attempt = 1, started_at = 1, due_at = 2 WHERE seq = ?",
            [(seq,) for seq, _ in rows],
        )
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "UPDATE jobs SET state = 'completed', finished_at = 1, due_at = NULL WHERE seq = ?",
            [(seq,) for seq, _ in rows],
        )
        connection.execute("COMMIT")
    connection.close()
    return count

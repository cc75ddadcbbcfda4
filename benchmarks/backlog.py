"""Does it stay fast with a million waiting and a million finished jobs in the file?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import apsw

from benchmarks.figure import Figure
from benchmarks.servers import Server, ojster
from ojster.database.sqlite import migrate
from ojster.model.ids import new_id

ENVELOPE = (
    b'{"specversion":"1.0","id":"%b","type":"email.send",'
    b'"args":["user@example.com","welcome",{"locale":"en"}],"meta":{}}'
)


def run(folder: Path, chosen: argparse.Namespace) -> Iterator[Figure]:
    """Measure with an empty file and with a full one."""
    if (chosen.only and chosen.only not in "backlog memory") or not chosen.backlog:
        return
    with ojster(folder / "empty.db") as server:
        empty = _measure(server, chosen.seconds)
    _fill(folder / "full.db", chosen.backlog)
    with ojster(folder / "full.db") as server:
        server.load("enqueue", 16, 1.0)
        full = _measure(server, chosen.seconds)
        memory = server.megabytes
    for name, rate in full.items():
        yield Figure(
            f"{name}, with {chosen.backlog:,} waiting and as many finished",
            rate,
            floor=empty[name],
            floor_name="empty file",
            least_share=0.9,
        )
    yield Figure("memory of the server with the full file", memory, "MiB", 120)


def _measure(server: Server, seconds: float) -> dict[str, float]:
    return {
        "single enqueue": server.load("enqueue", 64, seconds)["rate"],
        "whole jobs, single": server.load("whole1", 64, seconds)["rate"] / 3,
        "whole jobs, by 100": server.load("whole100", 4, seconds)["rate"] / 3 * 100,
    }


def _fill(path: Path, count: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")
    migrate(connection)
    now = 1_700_000_000_000_000
    connection.execute("BEGIN")
    for seq in range(1, 2 * count + 1):
        id = new_id()
        finished = seq <= count
        connection.execute(
            "INSERT INTO jobs (seq, id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, "
            "started_at, finished_at) VALUES (?, ?, 'email.send', 'default', ?, 0, ?, 3, ?, ?, ?, ?)",
            (
                seq,
                id,
                "completed" if finished else "available",
                int(finished),
                now + seq,
                now + seq,
                now + seq if finished else None,
                4_000_000_000_000_000 + seq if finished else None,
            ),
        )
        connection.execute("INSERT INTO payloads (seq, envelope) VALUES (?, ?)", (seq, ENVELOPE % id.encode()))
    for state in ("completed", "available"):
        connection.execute("INSERT INTO job_counts (queue, state, jobs) VALUES ('default', ?, ?)", (state, count))
    connection.execute("INSERT INTO queues (name, created_at) VALUES ('default', ?)", (now,))
    connection.execute("COMMIT")
    connection.close()

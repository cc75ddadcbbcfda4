"""SQL of the SQLite storage: what hot paths say, and statements for many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, TypeVar

import apsw

from ojster.core.job_table import AT_PLACE, JOB_COLUMNS, JOB_COLUMNS_OF_J, NEW_JOB, STARTED
from ojster.core.plain_end import PLAIN_COLUMNS, PLAIN_END

T = TypeVar("T")

STATEMENTS: Final = 400
"""Number of statements that each connection keeps prepared."""

ROWS_AT_ONCE: Final = (128, 64, 32, 16, 8, 4, 2, 1)
"""Numbers of rows per statement, largest first. After each statement, the writer waits for its turn in the
interpreter, which the event loop shares: a statement for many rows waits once, not once for each."""

RECORD: Final = """
    INSERT INTO event_batches (at, total, events)
    VALUES (?, ? + coalesce((SELECT total FROM event_batches ORDER BY seq DESC LIMIT 1), 0), ?)
    RETURNING total
"""

JOB_NAMES: Final = ("seq", *NEW_JOB)
"""The columns of a new job."""

OWN_NAMES: Final = ("seq", "id", "node")
"""Those of the columns of a new job that differ even between jobs that are pushed together and are alike."""

SHARED_NAMES: Final = tuple(name for name in JOB_NAMES if name not in OWN_NAMES)

ENVELOPE: Final = """
    CASE
        WHEN p.shared IS NULL THEN p.stored
        ELSE CAST(
            substr(p.stored, 1, p.shared_at)
            || (SELECT v.value FROM shared_values AS v WHERE v.digest = p.shared)
            || substr(p.stored, p.shared_at + 1)
            AS BLOB
        )
    END
"""
"""The whole envelope of a row of ``payloads``: two strings of UTF-8 and the value between them."""

INSERT_PAYLOADS: Final = "INSERT INTO payloads (seq, stored) SELECT ?1 + rowid - 1, value FROM carray(?2)"
INSERT_PARTS: Final = "INSERT INTO payloads (seq, stored, shared, shared_at) VALUES (?, ?, ?, ?)"
"""For jobs whose envelopes share values."""

START_JOBS: Final = f"""
    UPDATE jobs
    SET state = 'active', attempt = attempt + 1, {", ".join(f"{name} = ?" for name in STARTED)}
    WHERE seq IN carray(?)
"""
COMPLETE_JOBS: Final = (
    "UPDATE jobs SET state = 'completed', finished_at = ?, due_at = NULL, result = ? WHERE seq IN carray(?)"
)
# Plain jobs that run, with what `refusal_of_attempt` asks of their attempts. Nobody else writes before they are
# completed. One UPDATE with RETURNING took a fifth longer than this and COMPLETE_JOBS.
FIND_PLAIN_JOBS: Final = f"""
    SELECT attempt, started_at, worker_id, {PLAIN_COLUMNS}
    FROM jobs AS j
    WHERE seq IN carray(?) AND state = 'active' AND {PLAIN_END}
"""

# The claim, which every fetch executes: as on PostgreSQL (see there for its shape), with these differences:
# * It locks nothing: the transaction began with BEGIN IMMEDIATE, so nobody else claims at the same time.
# * It joins the payloads, because SQLite walks through the jobs first, by the index of {kind}, and looks up each
#   payload by its key. PostgreSQL could turn the join around.
# * "other.exclusive_key IS NOT NULL" is missing, because SQLite sees that the comparison implies it.
# * All values are parameters, and SQLite plans without them (see `plan_once`): to plan each claim cost more than to
#   execute it.
SELECT_AVAILABLE: Final = f"""
    SELECT {JOB_COLUMNS_OF_J}, {ENVELOPE}
    FROM jobs AS j
    JOIN payloads AS p ON p.seq = j.seq
    WHERE {AT_PLACE}
        AND j.state = 'available'
        AND {{kind}}
        AND (j.due_at IS NULL OR j.due_at > ?)
        AND (
            j.exclusive_key IS NULL
            OR NOT EXISTS (
                SELECT 1
                FROM jobs AS other
                WHERE other.exclusive_key = j.exclusive_key AND other.state = 'active'
            )
        )
    ORDER BY j.priority DESC, j.seq
    LIMIT ?
"""
# No clause locks the rows: the transaction began with BEGIN IMMEDIATE, so nobody else writes.
LOCK_JOBS: Final = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id IN carray(?)"
LOCK_JOB: Final = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ?"
FIND_ATTEMPTS: Final = """
    SELECT id, attempt, started_at, worker_id, node
    FROM jobs
    WHERE id IN carray(?) AND state = 'active' AND node IS NOT NULL
"""
FIND_JOBS: Final = f"""
    SELECT {JOB_COLUMNS_OF_J}, {ENVELOPE}
    FROM jobs AS j
    JOIN payloads AS p ON p.seq = j.seq
    WHERE j.id IN carray(?)
"""


def parts_of(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Divide rows into parts of the sizes in ``ROWS_AT_ONCE``."""
    start = 0
    for size in ROWS_AT_ONCE:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@lru_cache(maxsize=STATEMENTS)
def insertion(table: str, names: Sequence[str], number: int, end: str = "") -> str:
    """Return the statement that inserts a number of rows. ``end`` follows the rows."""
    row = f"({', '.join('?' * len(names))})"
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join([row] * number)}{end}"


@lru_cache(maxsize=STATEMENTS)
def insertion_of_alike(number: int) -> str:
    """Return the statement that inserts a number of jobs, given the values that they share, and then their own."""
    shared = ", ".join(f"?{place}" for place in range(1, len(SHARED_NAMES) + 1))
    own = f"({', '.join('?' * len(OWN_NAMES))})"
    return f"""
        INSERT INTO jobs ({", ".join(SHARED_NAMES + OWN_NAMES)})
        SELECT {shared}, own.*
        FROM (VALUES {", ".join([own] * number)}) AS own
    """


@lru_cache(maxsize=STATEMENTS)
def change(table: str, names: Sequence[str], number: int) -> str:
    """Return the statement that changes a number of rows, which the first of the columns finds."""
    key, *others = names
    row = f"({', '.join('?' * len(names))})"
    changes = ", ".join(f"{name} = changed.column{place}" for place, name in enumerate(others, 2))
    values = ", ".join([row] * number)
    return f"UPDATE {table} SET {changes} FROM (VALUES {values}) AS changed WHERE {table}.{key} = changed.column1"


@lru_cache(maxsize=STATEMENTS)
def completion_of(number: int) -> str:
    """Return the statement that completes a number of jobs, given the time, and the number and result of each."""
    rows = ", ".join(["(?, ?)"] * number)
    return f"""
        UPDATE jobs
        SET state = 'completed', finished_at = ?1, due_at = NULL, result = done.column2
        FROM (VALUES {rows.replace("?", "?2", 1)}) AS done
        WHERE jobs.seq = done.column1
    """


def plan_once(connection: apsw.Connection) -> None:
    """Plan each statement for all values of its parameters, once.

    Otherwise, SQLite plans many statements again each time that they run, because a value may decide whether a partial
    index can be used: the statement of a claim took 60 microseconds instead of 9.
    """
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)

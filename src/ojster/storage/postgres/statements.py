"""SQL of the PostgreSQL storage: what hot paths say, and statements for many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from ojster.core.job import Job
from ojster.core.job_table import AT_PLACE, AVAILABLE_CONDITIONS, JOB_COLUMNS, JOB_COLUMNS_OF_J, NEW_JOB, STARTED
from ojster.core.plain_end import PLAIN_COLUMNS, PLAIN_END
from ojster.core.states import UNFINISHED
from ojster.storage.postgres.pipeline import quoted, unnest
from ojster.storage.tally import ADDED, SUMS
from ojster.storage.transaction import ColumnType

_NEW_COLUMNS: Final = ", ".join(NEW_JOB)

_UNFINISHED: Final = ", ".join(f"'{state}'" for state in sorted(UNFINISHED))

Values = Sequence[tuple[Literal["bigint", "text", "bytea", "uuid"], Callable[[Job], Any]]]
"""Types of columns, each with the function that takes its value from a job."""

NEW_VALUES: Final[Values] = [(type, attrgetter(name)) for name, type in NEW_JOB.items()]

START_VALUES: Final[Values] = [(type, attrgetter(name)) for name, type in STARTED.items()]

# Materialized, because both insertions must see the same numbers.
_INSERT_JOBS: Final = f"""
    WITH given AS MATERIALIZED (
        SELECT nextval('{{schema}}.jobs_seq_seq') AS seq, job.*
        FROM {unnest(*NEW_JOB.values(), "bytea")} AS job ({_NEW_COLUMNS}, envelope)
    ),
    inserted AS (
        INSERT INTO jobs (seq, {_NEW_COLUMNS})
        SELECT seq, {_NEW_COLUMNS}
        FROM given
    )
    INSERT INTO payloads (seq, stored)
    SELECT seq, envelope
    FROM given
"""

_INSERT_PARTS: Final = f"""
    WITH given AS MATERIALIZED (
        SELECT nextval('{{schema}}.jobs_seq_seq') AS seq, job.*
        FROM {unnest(*NEW_JOB.values(), "bytea", "bytea", "bigint")}
            AS job ({_NEW_COLUMNS}, envelope, shared, shared_at)
    ),
    inserted AS (
        INSERT INTO jobs (seq, {_NEW_COLUMNS})
        SELECT seq, {_NEW_COLUMNS}
        FROM given
    )
    INSERT INTO payloads (seq, stored, shared, shared_at)
    SELECT seq, envelope, shared, shared_at
    FROM given
"""
"""For jobs whose envelopes share values."""

_SHARED: Final = {name: type for name, type in NEW_JOB.items() if name not in ("id", "node")}
"""The columns of a new job that are the same for jobs that are pushed together and are alike."""

shared_values: Final = attrgetter(*_SHARED)

_INSERT_ALIKE: Final = f"""
    WITH given AS MATERIALIZED (
        SELECT nextval('{{schema}}.jobs_seq_seq') AS seq, job.*
        FROM {unnest("uuid", "bigint", "bytea")} AS job (id, node, envelope)
    ),
    inserted AS (
        INSERT INTO jobs (seq, id, node, {", ".join(_SHARED)})
        SELECT seq, id, node, {", ".join(f"CAST(? AS {type})" for type in _SHARED.values())}
        FROM given
    )
    INSERT INTO payloads (seq, stored)
    SELECT seq, envelope
    FROM given
"""

_NUMBERS: Final = "SELECT nextval('{schema}.{table}_seq_seq') FROM generate_series(1, CAST(? AS integer)) AS one"


class Statements(NamedTuple):
    """Statements that name the schema of the tables."""

    insert_jobs: str
    insert_alike: str
    insert_parts: str


@cache
def statements_in(schema: str) -> Statements:
    """Return the statements for the tables of a schema."""
    statements = (_INSERT_JOBS, _INSERT_ALIKE, _INSERT_PARTS)
    return Statements(*[statement.format(schema=quoted(schema)) for statement in statements])


@cache
def numbers_of(schema: str, table: str) -> str:
    """Return the statement that takes numbers for new rows of a table."""
    return _NUMBERS.format(schema=quoted(schema), table=table)


START_JOBS: Final = f"""
    UPDATE jobs
    SET state = 'active', attempt = attempt + 1, {", ".join(f"{name} = started.{name}" for name in STARTED)}
    FROM {unnest("bigint", *STARTED.values())} AS started (seq, {", ".join(STARTED)})
    WHERE jobs.seq = started.seq
"""

START_JOB: Final = f"""
    UPDATE jobs
    SET state = 'active', attempt = attempt + 1, {", ".join(f"{name} = ?" for name in STARTED)}
    WHERE seq = ?
"""

start_values: Final = attrgetter(*STARTED, "seq")

COMPLETE_JOB: Final = "UPDATE jobs SET state = 'completed', finished_at = ?, due_at = NULL, result = ? WHERE seq = ?"

COMPLETE_JOBS: Final = f"""
    UPDATE jobs
    SET state = 'completed', finished_at = done.finished_at, due_at = NULL, result = done.result
    FROM {unnest("bigint", "bigint", "bytea")} AS done (seq, finished_at, result)
    WHERE jobs.seq = done.seq
"""

PLAIN_END_TYPES: Final[Sequence[ColumnType]] = ("bigint", "bigint", "bigint", "text", "bytea")
"""The types of the members of a ``PlainEnd``."""

# Completes plain jobs without LOCK_JOBS before it: its conditions are what `refusal_of_attempt` asks, and PLAIN_END. It
# waits for a row that another transaction has locked, and asks them again of the row that this one leaves. The arrays
# are in the order of ids, and the plan is a nested loop over them: rows are locked in the same order as by LOCK_JOBS.
# The id is not compared: it would offer the planner a second index, and number, start and worker name one attempt.
COMPLETE_PLAIN_JOBS: Final = f"""
    UPDATE jobs AS j
    SET state = 'completed', finished_at = CAST(? AS bigint), due_at = NULL, result = done.result
    FROM {unnest(*PLAIN_END_TYPES)}
        AS done (seq, attempt, started_at, worker_id, result)
    WHERE j.seq = done.seq
        AND j.state = 'active'
        AND j.attempt = done.attempt
        AND j.started_at = done.started_at
        AND j.worker_id = done.worker_id
        AND {PLAIN_END}
    RETURNING {", ".join(f"j.{name}" for name in PLAIN_COLUMNS.split(", "))}
"""

# In the order of ids, in which all transactions lock jobs, so that they do not wait for each other in a circle.
LOCK_JOBS: Final = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ANY(CAST(? AS uuid[])) ORDER BY id FOR UPDATE"

# Locks the jobs of attempts, whether they run or not, in the same order as LOCK_JOBS: the arrays are in the order of
# ids, and the plan is a nested loop over them. What `refusal_of_attempt` asks is asked of the rows that are locked.
LOCK_GIVEN: Final = """
    SELECT
        given.*,
        j.node AS now_node,
        j.state AS now_state,
        j.attempt AS now_attempt,
        j.started_at AS now_started_at,
        j.worker_id AS now_worker_id
    FROM given
    JOIN jobs AS j ON j.id = given.job_id
    FOR UPDATE OF j
"""
OF_RUNNING_ATTEMPTS: Final = """
    WHERE now_state = 'active'
        AND now_node IS NOT NULL
        AND attempt = now_attempt
        AND started_at = now_started_at
        AND worker_id = now_worker_id
"""

ATTEMPT: Final[Mapping[str, ColumnType]] = {
    "job_id": "uuid",
    "attempt": "bigint",
    "started_at": "bigint",
    "worker_id": "text",
}
"""The members of a ``RunningAttempt``, and their types."""

ENVELOPE: Final = """
    CASE
        WHEN p.shared IS NULL THEN p.stored
        ELSE substr(p.stored, 1, CAST(p.shared_at AS integer))
            || (SELECT v.value FROM shared_values AS v WHERE v.digest = p.shared)
            || substr(p.stored, CAST(p.shared_at + 1 AS integer))
    END
"""

# The id is made text here: that takes a fifth of the time that Python needs for it. The envelope is looked up for each
# row. A join could be planned in the other direction, through all payloads.
_WITH_ENVELOPE: Final = f"""
    SELECT
        {JOB_COLUMNS_OF_J.replace("j.id,", "CAST(j.id AS text),")},
        (SELECT {ENVELOPE} FROM payloads AS p WHERE p.seq = j.seq)
    FROM jobs AS j
"""

FIND_JOBS: Final = f"""
    {_WITH_ENVELOPE}
    WHERE j.id = ANY(CAST(? AS uuid[]))
"""

# The claim, which every fetch executes. Why it is written so:
# * It only locks; START_JOBS follows. In between, policies of capabilities decide which of the jobs
#   start, and the commit releases the others. One UPDATE could not ask them.
# * {kind} is worded as the condition of a partial index that has the columns of AT_PLACE and the order as its own: the
#   walk ends at LIMIT, and nothing is sorted. One statement for all kinds, with OR, would sort all available jobs.
# * SKIP LOCKED: claims never wait for each other. Who locks an available job, and does not start it, wakes the claims
#   that have passed over it (`Effects.opened`).
# * due_at of an available job is the time of its expiry. Due work ends what has expired, and records it.
# * "other.exclusive_key IS NOT NULL" repeats the condition of the index jobs_exclusive. Without it, a plan could read
#   all active jobs. Two claims at once may both pass; then that index, which is unique, makes one of them run again.
# * All values are parameters, so that each connection plans the text once for each kind.
SELECT_AVAILABLE: Final = f"""
    {_WITH_ENVELOPE}
    WHERE {AT_PLACE}
        AND j.state = 'available'
        AND {{kind}}
        AND (j.due_at IS NULL OR j.due_at > ?)
        AND (
            j.exclusive_key IS NULL
            OR NOT EXISTS (
                SELECT 1
                FROM jobs AS other
                WHERE other.exclusive_key = j.exclusive_key
                    AND other.exclusive_key IS NOT NULL
                    AND other.state = 'active'
            )
        )
    ORDER BY j.priority DESC, j.seq
    LIMIT ?
    FOR UPDATE OF j SKIP LOCKED
"""

# OFFSET lets PostgreSQL look for each queue by an index, instead of making a table of all available jobs.
_HAS_JOBS: Final = " OR ".join(
    f"EXISTS (SELECT 1 FROM jobs WHERE queue = name AND state = 'available' AND {condition} LIMIT 1 OFFSET 0)"
    for condition, _ in AVAILABLE_CONDITIONS
)
WITH_JOBS: Final = f"SELECT name FROM {unnest('text')} AS name WHERE {_HAS_JOBS}"

ENVELOPES: Final = f"SELECT p.seq, {ENVELOPE} FROM payloads AS p WHERE p.seq = ANY(CAST(? AS bigint[]))"

# Tried, not awaited: a transaction that waits keeps its connection, and the calls that share it, waiting for a
# transaction that may be a caller's and stay open. Such a lock ends with its transaction, also behind a pooler. Two
# keys with the same hash are one lock: then a call is tried again that could have gone on.
LOCK_KEYS: Final = (
    f"SELECT name FROM {unnest('text')} AS name WHERE NOT pg_try_advisory_xact_lock(hashtextextended(name, 0))"
)

# The clause that locks is appended. In the order of slots, so that callers that wait do not wait in a circle.
LOCK_SLOTS: Final = "SELECT slot FROM key_locks WHERE slot = ANY(CAST(? AS bigint[])) ORDER BY slot"

COUNT: Final = f"""
    INSERT INTO job_count_slots (queue, state, slot, jobs)
    SELECT queue, state, CAST(? AS bigint), jobs
    FROM {unnest("text", "text", "bigint")} AS change (queue, state, jobs)
    ON CONFLICT (queue, state, slot) DO UPDATE SET jobs = job_count_slots.jobs + excluded.jobs
"""


@cache
def tally_statement(rows: int) -> str:
    """Return the statement that adds this number of rows to the totals."""
    row = f"(?, ?, ?{', ?' * len(SUMS)})"
    return f"""
        INSERT INTO queue_minutes (queue, minute, slot, {", ".join(SUMS)})
        VALUES {", ".join([row] * rows)}
        ON CONFLICT (queue, minute, slot) DO UPDATE SET {ADDED}
    """


# Servers tidy at the same time: each takes rows that no other one has, so that none is added twice. The slot of a
# caller's transaction is visible after its commit only.
TAKE_COUNTS: Final = """
    DELETE FROM job_count_slots
    WHERE (queue, state, slot) IN (
        SELECT queue, state, slot
        FROM job_count_slots
        WHERE slot >= ?
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    )
    RETURNING queue, state, jobs
"""

# Skips locked rows for the same reason as the statement before.
TAKE_MINUTES: Final = """
    DELETE FROM queue_minutes
    WHERE (queue, minute, slot) IN (
        SELECT queue, minute, slot
        FROM queue_minutes
        WHERE slot >= ?
        LIMIT 1000
        FOR UPDATE SKIP LOCKED
    )
    RETURNING queue, minute, enqueued
"""

ADD_MINUTES: Final = f"""
    INSERT INTO queue_minutes (queue, minute, slot, enqueued, completed, failed, waited, ran)
    SELECT queue, minute, CAST(? AS bigint), enqueued, 0, 0, 0, 0
    FROM {unnest("text", "bigint", "bigint")} AS folded (queue, minute, enqueued)
    ON CONFLICT (queue, minute, slot) DO UPDATE SET enqueued = queue_minutes.enqueued + excluded.enqueued
"""

# The queues that callers' transactions have used, and those of pushes that a deletion of the queue did not see.
# Finished jobs outlive a deleted queue: their counts do not bring it back.
NEW_QUEUES: Final = f"""
    INSERT INTO queues (name, created_at)
    SELECT queue, CAST(? AS bigint)
    FROM job_count_slots
    WHERE queue >= '0' AND NOT EXISTS (SELECT 1 FROM queues WHERE name = job_count_slots.queue)
    GROUP BY queue
    HAVING queue = ANY(CAST(? AS text[])) OR sum(jobs) FILTER (WHERE state IN ({_UNFINISHED})) > 0
    ON CONFLICT (name) DO NOTHING
"""

RECORD: Final = "INSERT INTO event_batches (at, events) VALUES (?, ?)"

EVENTS: Final = (
    "SELECT position, events FROM event_batches WHERE position >= ? AND position IS NOT NULL ORDER BY position LIMIT ?"
)

# A crash of PostgreSQL, or the promotion of a standby, empties the unlogged table of events. Positions after it are
# left out, which tells followers: so many that it also tells those whose last position is unknown to a standby that
# lacks the last transactions.
_LOST_EVENTS: Final = """
    (
        SELECT 100000 * count(*)
        FROM event_positions
        WHERE NOT EXISTS (SELECT 1 FROM event_batches WHERE position IS NOT NULL)
    )
"""

LAST_POSITION: Final = f"SELECT coalesce(max(last), 0) + {_LOST_EVENTS} FROM event_positions"

ORDER_EVENTS: Final = f"""
    WITH waiting AS MATERIALIZED (
        SELECT seq, row_number() OVER (ORDER BY seq) AS place
        FROM event_batches
        WHERE position IS NULL
        ORDER BY seq
        LIMIT 10000
    ),
    given AS (
        INSERT INTO event_positions AS known (id, last)
        SELECT 1, count(*) + {_LOST_EVENTS}
        FROM waiting
        HAVING count(*) > 0
        ON CONFLICT (id) DO UPDATE SET last = known.last + excluded.last
        RETURNING last
    )
    UPDATE event_batches
    SET position = given.last - (SELECT count(*) FROM waiting) + waiting.place
    FROM waiting, given
    WHERE event_batches.seq = waiting.seq
"""

# Deleted events without a position leave a gap in the positions, so that a late reader detects the loss.
FORGET_EVENTS: Final = """
    WITH gone AS (
        DELETE FROM event_batches
        WHERE at < ? AND seq <= (SELECT max(seq) FROM event_batches) - CAST(? AS bigint)
        RETURNING position
    )
    INSERT INTO event_positions AS known (id, last)
    SELECT 1, count(*)
    FROM gone
    WHERE position IS NULL
    HAVING count(*) > 0
    ON CONFLICT (id) DO UPDATE SET last = known.last + excluded.last
"""

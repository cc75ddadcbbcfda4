"""Transactions on PostgreSQL, and their statements."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

from ojster.core.durations import MINUTE
from ojster.core.job import Job
from ojster.core.settings import Settings
from ojster.storage.memory import Memory
from ojster.storage.postgres.abilities import slots_of
from ojster.storage.postgres.pipeline import Array, Connection, blobs, ints, quoted, texts, unnest, uuids
from ojster.storage.postgres.url import PostgresUrl
from ojster.storage.tally import ADDED, SUMS
from ojster.storage.transaction import (
    AVAILABLE_CONDITIONS,
    JOB_COLUMNS,
    JOB_COLUMNS_OF_J,
    ColumnType,
    Parameters,
    Row,
    Transaction,
    TryAgain,
)

A = TypeVar("A")

LEAST_EVENT_AGE: Final = 10 * MINUTE
"""Minimum age of events before deletion, in microseconds."""

LEAST_EVENT_BATCHES: Final = 10_000
"""Number of the newest event batches (one per transaction) that are kept at any age."""

INSERTED_AT_ONCE: Final = 250
"""Maximum number of jobs in one INSERT."""

ROWS_AT_ONCE: Final = 1_000
"""Maximum number of rows of another table in one statement."""

SLOTS: Final = 32
"""Number of rows that hold the counts of a queue and state, so that transactions do not wait for each other."""

_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_NEW_JOB: Final[dict[str, ColumnType]] = {
    "id": "uuid",
    "type": "text",
    "queue": "text",
    "state": "text",
    "priority": "bigint",
    "max_attempts": "bigint",
    "created_at": "bigint",
    "enqueued_at": "bigint",
    "expires_at": "bigint",
    "due_at": "bigint",
    "timeout": "bigint",
    "lease": "bigint",
    "unique_key": "text",
    "cron_name": "text",
    "exclusive_key": "text",
    "node": "bigint",
    "limit_key": "text",
    "tenant": "text",
    "version": "bigint",
    "needs": "text",
    "agent": "bytea",
    "reacts": "bigint",
    "hold": "text",
    "trace_id": "text",
}
"""Columns of a new job and their types, without the envelope."""

_NEW_COLUMNS: Final = ", ".join(_NEW_JOB)

_NEW_VALUES: Final = [(type, attrgetter(name)) for name, type in _NEW_JOB.items()]

_INSERT_JOBS: Final = (
    f"WITH given AS MATERIALIZED (SELECT nextval('{{schema}}.jobs_seq_seq') AS seq, job.* "
    f"FROM {unnest(*_NEW_JOB.values(), 'bytea')} AS job ({_NEW_COLUMNS}, envelope)), "
    f"inserted AS (INSERT INTO jobs (seq, {_NEW_COLUMNS}) SELECT seq, {_NEW_COLUMNS} FROM given) "
    "INSERT INTO payloads (seq, stored) SELECT seq, envelope FROM given"
)

_INSERT_PARTS: Final = (
    f"WITH given AS MATERIALIZED (SELECT nextval('{{schema}}.jobs_seq_seq') AS seq, job.* "
    f"FROM {unnest(*_NEW_JOB.values(), 'bytea', 'bytea', 'bigint')} "
    f"AS job ({_NEW_COLUMNS}, envelope, shared, shared_at)), "
    f"inserted AS (INSERT INTO jobs (seq, {_NEW_COLUMNS}) SELECT seq, {_NEW_COLUMNS} FROM given) "
    "INSERT INTO payloads (seq, stored, shared, shared_at) SELECT seq, envelope, shared, shared_at FROM given"
)
"""For jobs whose envelopes share values."""

_SHARED: Final = {name: type for name, type in _NEW_JOB.items() if name not in ("id", "node")}
"""The columns of a new job that are the same for jobs that are pushed together and are alike."""

_shared_values: Final = attrgetter(*_SHARED)

_INSERT_ALIKE: Final = (
    f"WITH given AS MATERIALIZED (SELECT nextval('{{schema}}.jobs_seq_seq') AS seq, job.* "
    f"FROM {unnest('uuid', 'bigint', 'bytea')} AS job (id, node, envelope)), "
    f"inserted AS (INSERT INTO jobs (seq, id, node, {', '.join(_SHARED)}) "
    f"SELECT seq, id, node, {', '.join(f'CAST(? AS {type})' for type in _SHARED.values())} FROM given) "
    "INSERT INTO payloads (seq, stored) SELECT seq, envelope FROM given"
)

_NUMBER_WORKFLOWS: Final = (
    "SELECT nextval('{schema}.workflows_seq_seq') FROM generate_series(1, CAST(? AS integer)) AS one"
)


class _Statements(NamedTuple):
    """Statements that name the schema of the tables."""

    insert_jobs: str
    insert_alike: str
    insert_parts: str
    number_workflows: str


@cache
def _in_schema(schema: str) -> _Statements:
    statements = (_INSERT_JOBS, _INSERT_ALIKE, _INSERT_PARTS, _NUMBER_WORKFLOWS)
    return _Statements(*[statement.format(schema=quoted(schema)) for statement in statements])


_START_JOBS: Final = (
    "UPDATE jobs SET state = 'active', attempt = attempt + 1, started_at = started.at, due_at = started.due_at, "
    f"worker_id = started.worker_id FROM {unnest('bigint', 'bigint', 'bigint', 'text')} "
    "AS started (seq, at, due_at, worker_id) WHERE jobs.seq = started.seq"
)

_COMPLETE_JOBS: Final = (
    "UPDATE jobs SET state = 'completed', finished_at = done.finished_at, due_at = NULL, result = done.result "
    f"FROM {unnest('bigint', 'bigint', 'bytea')} AS done (seq, finished_at, result) WHERE jobs.seq = done.seq"
)

_LOCK_JOBS: Final = f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = ANY(CAST(? AS uuid[])) ORDER BY id FOR UPDATE"

_ENVELOPE: Final = (
    "CASE WHEN p.shared IS NULL THEN p.stored ELSE substr(p.stored, 1, CAST(p.shared_at AS integer)) || "
    "(SELECT v.value FROM shared_values AS v WHERE v.digest = p.shared) || "
    "substr(p.stored, CAST(p.shared_at + 1 AS integer)) END"
)

# The envelope is looked up for each row. A join could be planned in the other direction, through all payloads.
_WITH_ENVELOPE: Final = (
    f"SELECT {JOB_COLUMNS_OF_J}, (SELECT {_ENVELOPE} FROM payloads AS p WHERE p.seq = j.seq) FROM jobs AS j "
)

_FIND_JOBS: Final = _WITH_ENVELOPE + "WHERE j.id = ANY(CAST(? AS uuid[]))"

_SELECT_AVAILABLE: Final = _WITH_ENVELOPE + (
    "WHERE j.queue = ? AND j.tenant = ? AND j.state = 'available' AND {kind} "
    "AND (j.due_at IS NULL OR j.due_at > ?) "
    "AND (j.exclusive_key IS NULL OR NOT EXISTS "
    "(SELECT 1 FROM jobs AS other WHERE other.exclusive_key = j.exclusive_key AND other.exclusive_key IS NOT NULL "
    "AND other.state = 'active')) "
    "ORDER BY j.priority DESC, j.seq LIMIT ? FOR UPDATE OF j SKIP LOCKED"
)

# OFFSET lets PostgreSQL look for each queue by an index, instead of making a table of all available jobs.
_WITH_JOBS: Final = f"SELECT name FROM {unnest('text')} AS name WHERE " + " OR ".join(
    f"EXISTS (SELECT 1 FROM jobs WHERE queue = name AND state = 'available' AND {condition} LIMIT 1 OFFSET 0)"
    for condition, _ in AVAILABLE_CONDITIONS
)

_ENVELOPES: Final = f"SELECT p.seq, {_ENVELOPE} FROM payloads AS p WHERE p.seq = ANY(CAST(? AS bigint[]))"

_LOCK_KEYS: Final = (
    f"SELECT name FROM {unnest('text')} AS name WHERE NOT pg_try_advisory_xact_lock(hashtextextended(name, 0))"
)

_LOCK_SLOTS: Final = "SELECT slot FROM key_locks WHERE slot = ANY(CAST(? AS bigint[])) ORDER BY slot"

_COUNT: Final = (
    "INSERT INTO job_count_slots (queue, state, slot, jobs) SELECT queue, state, CAST(? AS bigint), jobs "
    f"FROM {unnest('text', 'text', 'bigint')} AS change (queue, state, jobs) "
    "ON CONFLICT (queue, state, slot) DO UPDATE SET jobs = job_count_slots.jobs + excluded.jobs"
)


@cache
def _tally(rows: int) -> str:
    """Return the statement that adds this number of rows to the totals."""
    row = f"(?, ?, ?{', ?' * len(SUMS)})"
    return (
        f"INSERT INTO queue_minutes (queue, minute, slot, {', '.join(SUMS)}) VALUES {', '.join([row] * rows)} "
        f"ON CONFLICT (queue, minute, slot) DO UPDATE SET {ADDED}"
    )


TALLIES_AT_ONCE: Final = 4
"""Maximum number of rows in one statement that adds to totals: each number is a statement of its own."""

_TAKE_COUNTS: Final = (
    "DELETE FROM job_count_slots WHERE (queue, state, slot) IN (SELECT queue, state, slot "
    "FROM job_count_slots WHERE slot >= ? LIMIT 1000 FOR UPDATE SKIP LOCKED) RETURNING queue, state, jobs"
)

_TAKE_MINUTES: Final = (
    "DELETE FROM queue_minutes WHERE (queue, minute, slot) IN (SELECT queue, minute, slot "
    "FROM queue_minutes WHERE slot >= ? LIMIT 1000 FOR UPDATE SKIP LOCKED) RETURNING queue, minute, enqueued"
)

_ADD_MINUTES: Final = (
    "INSERT INTO queue_minutes (queue, minute, slot, enqueued, completed, failed, waited, ran) "
    "SELECT queue, minute, CAST(? AS bigint), enqueued, 0, 0, 0, 0 "
    f"FROM {unnest('text', 'bigint', 'bigint')} AS folded (queue, minute, enqueued) "
    "ON CONFLICT (queue, minute, slot) DO UPDATE SET enqueued = queue_minutes.enqueued + excluded.enqueued"
)

_NEW_QUEUES: Final = (
    "INSERT INTO queues (name, created_at) SELECT DISTINCT queue, CAST(? AS bigint) FROM job_count_slots "
    "WHERE queue >= '0' AND NOT EXISTS (SELECT 1 FROM queues WHERE name = job_count_slots.queue) "
    "ON CONFLICT (name) DO NOTHING"
)

_RECORD: Final = "INSERT INTO event_batches (at, events) VALUES (?, ?)"

_EVENTS: Final = (
    "SELECT position, events FROM event_batches WHERE position >= ? AND position IS NOT NULL ORDER BY position LIMIT ?"
)

# A crash of PostgreSQL, or the promotion of a standby, empties the unlogged table of events. Positions after it are
# left out, which tells followers: so many that it also tells those whose last position is unknown to a standby that
# lacks the last transactions.
_LOST_EVENTS: Final = (
    "(SELECT 100000 * count(*) FROM event_positions "
    "WHERE NOT EXISTS (SELECT 1 FROM event_batches WHERE position IS NOT NULL))"
)

_LAST_POSITION: Final = f"SELECT coalesce(max(last), 0) + {_LOST_EVENTS} FROM event_positions"

_ORDER_EVENTS: Final = (
    "WITH waiting AS MATERIALIZED (SELECT seq, row_number() OVER (ORDER BY seq) AS place FROM event_batches "
    "WHERE position IS NULL ORDER BY seq LIMIT 10000), "
    "given AS (INSERT INTO event_positions AS known (id, last) "
    f"SELECT 1, count(*) + {_LOST_EVENTS} FROM waiting HAVING count(*) > 0 "
    "ON CONFLICT (id) DO UPDATE SET last = known.last + excluded.last RETURNING last) "
    "UPDATE event_batches SET position = given.last - (SELECT count(*) FROM waiting) + waiting.place "
    "FROM waiting, given WHERE event_batches.seq = waiting.seq"
)

# Deleted events without a position leave a gap in the positions, so that a late reader detects the loss.
_FORGET_EVENTS: Final = (
    "WITH gone AS (DELETE FROM event_batches WHERE at < ? "
    "AND seq <= (SELECT max(seq) FROM event_batches) - CAST(? AS bigint) RETURNING position) "
    "INSERT INTO event_positions AS known (id, last) SELECT 1, count(*) FROM gone WHERE position IS NULL "
    "HAVING count(*) > 0 ON CONFLICT (id) DO UPDATE SET last = known.last + excluded.last"
)


def _summed(rows: Iterable[Row]) -> list[tuple[Any, Any, int]]:
    """Return rows of two keys and a number, sorted, with the sums of the numbers for each pair of keys."""
    sums: Counter[tuple[Any, Any]] = Counter()
    for first, second, number in rows:
        sums[first, second] += int(number)
    return sorted((*keys, number) for keys, number in sums.items())


def _columns(jobs: Sequence[Job]) -> list[Array]:
    return [Array(type, [value(job) for job in jobs]) for type, value in _NEW_VALUES]


class PostgresTransaction(Transaction):
    """A transaction on one PostgreSQL connection."""

    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    select_available = _SELECT_AVAILABLE
    among = "= ANY(CAST(? AS bigint[]))"
    envelope = _ENVELOPE

    def __init__(
        self,
        connection: Connection,
        now: int,
        settings: Settings,
        memory: Memory,
        url: PostgresUrl,
        slot: int,
        *,
        records_events: bool,
    ) -> None:
        super().__init__(now, settings, memory, records_events=records_events)
        self._connection = connection
        self._statements = _in_schema(url.schema)
        self._slot = slot
        self._locks = f"{url.schema}/"
        self._lacks = url.lacks

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return self._connection.execute(sql, parameters)

    def execute_together(self, queries: Sequence[tuple[str, Sequence[Any]]]) -> list[list[Row]]:
        return self._connection.execute_together(queries)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.execute_many(sql, rows)

    def integers(self, values: Collection[int]) -> Any:
        return ints(list(values) or [-1])

    def insert_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            names = ", ".join(columns)
            given = f"SELECT {names} FROM {unnest(*columns.values())} AS given ({names})"
            self._in_columns(f"INSERT INTO {table} ({names}) {given}", columns, rows)

    def update_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            key, *others = columns
            changes = ", ".join(f"{name} = given.{name}" for name in others)
            given = f"{unnest(*columns.values())} AS given ({', '.join(columns)})"
            sql = f"UPDATE {table} SET {changes} FROM {given} WHERE {table}.{key} = given.{key}"
            self._in_columns(sql, columns, rows)

    def _in_columns(self, sql: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        for first in range(0, len(rows), ROWS_AT_ONCE):
            values = zip(*rows[first : first + ROWS_AT_ONCE], strict=True)
            self.execute(sql, [Array(type, column) for type, column in zip(columns.values(), values, strict=True)])
            self._connection.flush()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with super().savepoint():
            yield
            self._connection.answer()  # raise pending errors here, so that the savepoint rolls them back

    def insert_jobs(self, jobs: Sequence[Job]) -> None:
        for first in range(0, len(jobs), INSERTED_AT_ONCE):  # the database inserts a part while the next is encoded
            some = jobs[first : first + INSERTED_AT_ONCE]
            alike = {_shared_values(job) for job in some}
            if any(job.shared for job in some):
                envelopes, digests, places = zip(*self.payloads_of(some), strict=True)
                self.execute(
                    self._statements.insert_parts, (*_columns(some), blobs(envelopes), blobs(digests), ints(places))
                )
            elif len(alike) == 1:
                own = (uuids([job.id for job in some]), ints([job.node for job in some]))
                self.execute(self._statements.insert_alike, (*own, blobs([job.envelope for job in some]), *alike.pop()))
            else:
                self.execute(self._statements.insert_jobs, (*_columns(some), blobs([job.envelope for job in some])))
            self._connection.flush()

    def new_workflow_numbers(self, count: int) -> list[int]:
        return [number for (number,) in self.execute(self._statements.number_workflows, (count,))]

    def queues_with_jobs(self, queues: Sequence[str]) -> Sequence[str]:
        found = {name for (name,) in self.execute(_WITH_JOBS, (texts(queues),))}
        return [queue for queue in queues if queue in found]

    def start_jobs(self, jobs: Sequence[Job]) -> None:
        self.execute(
            _START_JOBS,
            (
                ints([job.seq for job in jobs]),
                ints([job.started_at for job in jobs]),
                ints([job.due_at for job in jobs]),
                texts([job.worker_id for job in jobs]),
            ),
        )

    def complete_jobs(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self.execute(
                _COMPLETE_JOBS,
                (
                    ints([job.seq for job in jobs]),
                    ints([job.finished_at for job in jobs]),
                    blobs([job.result for job in jobs]),
                ),
            )

    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        names = self.names_of_locks(keys)
        if not names:
            return frozenset()
        if "advisory-locks" in self._lacks:
            slots = slots_of(names)
            free = self.lock_slots(slots.values(), self.skip_locked)
            held = [name for name in names if slots[name] not in free]
        else:
            held = [name for (name,) in self.execute(_LOCK_KEYS, (texts(names),))]
        return {name.removeprefix(self._locks) for name in held}

    def lock_slots(self, slots: Iterable[int], lock: str) -> Set[int]:
        """Lock rows that stand for keys, and return those that are locked. ``lock``: how."""
        return {slot for (slot,) in self.execute(_LOCK_SLOTS + lock, (ints(list(set(slots))),))}

    def names_of_locks(self, keys: Iterable[str]) -> list[str]:
        """Return the sorted names of the advisory locks for keys. They begin with the schema, to be unique."""
        return [self._locks + key for key in sorted(keys)]

    def lock_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = [id for id in ids if _ID.fullmatch(id)]
        jobs = {row[1]: Job(*row) for row in self.execute(_LOCK_JOBS, (uuids(ids),))} if ids else {}
        for job in jobs.values():
            if job.state == "available":  # fetches that skip the locked job look again afterwards
                self.effects.opened.add(job.queue)
        return jobs

    def find_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = [id for id in ids if _ID.fullmatch(id)]
        return {row[1]: Job(*row) for row in self.execute(_FIND_JOBS, (uuids(ids),))} if ids else {}

    def _read_envelopes(self, jobs: Sequence[Job]) -> None:
        found: dict[int, bytes] = dict(self.execute(_ENVELOPES, (ints([job.seq for job in jobs]),)))
        for job in jobs:
            if job.seq not in found:
                raise TryAgain(f"The job {job.id} was deleted meanwhile.")
            job.envelope = found[job.seq]

    def tidy(self) -> None:
        """Fold the counts of callers' transactions from slots of their own, and insert the queues they used."""
        self._add_counts(_summed(self.execute(_TAKE_COUNTS, (SLOTS,))))
        if minutes := _summed(self.execute(_TAKE_MINUTES, (SLOTS,))):
            queues, numbers, enqueued = zip(*minutes, strict=True)
            self.execute(_ADD_MINUTES, (self._slot, texts(queues), ints(numbers), ints(enqueued)))
        self.execute(_NEW_QUEUES, (self.now,))

    def forget_events(self) -> None:
        self.execute(_FORGET_EVENTS, (self.now - LEAST_EVENT_AGE, LEAST_EVENT_BATCHES))

    def record_events(self, events: bytes) -> None:
        self.execute(_RECORD, (self.now, events))

    def order_events(self) -> bool:
        """Assign positions to visible events; return ``False`` if another transaction is doing so."""
        if self.lock_keys({"events"}):
            return False
        self.execute(_ORDER_EVENTS)
        return True

    def event_batches(self, position: int, limit: int) -> list[tuple[int, bytes]]:
        return [(here, events) for here, events in self.execute(_EVENTS, (position, limit))]

    def last_position(self) -> int:
        return int(self.execute(_LAST_POSITION)[0][0])

    def write_effects(self) -> None:
        self._add_counts(sorted((*key, change) for key, change in self.effects.counts.items() if change))
        self.write_history()
        self.write_events()
        minute = self.now // 60_000_000
        tallies = sorted(self.tallied().items())
        for first in range(0, len(tallies), TALLIES_AT_ONCE):
            some = tallies[first : first + TALLIES_AT_ONCE]
            values = [value for queue, tally in some for value in (queue, minute, self._slot, *tally.sums())]
            self.execute(_tally(len(some)), values)

    def _add_counts(self, counts: Sequence[tuple[str, str, int]]) -> None:
        """Add to the numbers of jobs, by queue and state."""
        if counts:
            queues, states, changes = zip(*counts, strict=True)
            self.execute(_COUNT, (self._slot, texts(queues), texts(states), ints(changes)))

"""Transactions on PostgreSQL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from ojster.core.durations import MINUTE
from ojster.core.ids import UUID
from ojster.core.job import Job
from ojster.core.settings import ServiceSettings
from ojster.storage.memory import Memory
from ojster.storage.postgres.abilities import slots_of
from ojster.storage.postgres.pipeline import Array, PipelineConnection, blobs, ints, texts, unnest, uuids
from ojster.storage.postgres.statements import (
    ADD_MINUTES,
    ATTEMPT,
    COMPLETE_JOB,
    COMPLETE_JOBS,
    COMPLETE_PLAIN_JOBS,
    COUNT,
    ENVELOPE,
    ENVELOPES,
    EVENTS,
    FIND_JOBS,
    FORGET_EVENTS,
    LAST_POSITION,
    LOCK_GIVEN,
    LOCK_JOBS,
    LOCK_KEYS,
    LOCK_SLOTS,
    NEW_QUEUES,
    NEW_VALUES,
    OF_RUNNING_ATTEMPTS,
    ORDER_EVENTS,
    PLAIN_END_TYPES,
    RECORD,
    SELECT_AVAILABLE,
    START_JOB,
    START_JOBS,
    START_VALUES,
    TAKE_COUNTS,
    TAKE_MINUTES,
    WITH_JOBS,
    Values,
    numbers_of,
    shared_values,
    start_values,
    statements_in,
    tally_statement,
)
from ojster.storage.postgres.url import PostgresUrl
from ojster.storage.transaction import (
    ColumnType,
    Parameters,
    PlainEnd,
    Query,
    Row,
    RunningAttempt,
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

FEW_ROWS: Final = 3
"""Maximum number of rows that are updated one by one, because an array for each column and a join cost more."""

SLOTS: Final = 32
"""Number of rows that hold the counts of a queue and state, so that transactions do not wait for each other."""

_ID: Final = re.compile(UUID)

TALLIES_AT_ONCE: Final = 4
"""Maximum number of rows in one statement that adds to totals: each number is a statement of its own."""


def _summed(rows: Iterable[Row]) -> list[tuple[Any, Any, int]]:
    """Return rows of two keys and a number, sorted, with the sums of the numbers for each pair of keys."""
    sums: Counter[tuple[Any, Any]] = Counter()
    for first, second, number in rows:
        sums[first, second] += int(number)
    return sorted((*keys, number) for keys, number in sums.items())


def _insertion(table: str, columns: Mapping[str, ColumnType]) -> str:
    """Return the statement that inserts rows of these columns, given as arrays."""
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) SELECT {names} FROM {unnest(*columns.values())} AS given ({names})"


def _insertion_of_attempts(table: str, columns: Mapping[str, ColumnType], returning: str) -> str:
    """Return the statement that locks the jobs of attempts, and inserts the rows of those that run."""
    node, *others = columns
    names = ", ".join(others)
    arrays = unnest(*ATTEMPT.values(), *(columns[name] for name in others))
    of_each = ", ".join((*ATTEMPT, *others))
    return f"""
        WITH given ({of_each}) AS MATERIALIZED (SELECT * FROM {arrays}),
            locked AS MATERIALIZED ({LOCK_GIVEN})
        INSERT INTO {table} ({node}, {names})
        SELECT now_node, {names}
        FROM locked
        {OF_RUNNING_ATTEMPTS}
        ON CONFLICT DO NOTHING
        RETURNING {returning}
    """


def _columns(jobs: Sequence[Job], values: Values = NEW_VALUES) -> list[Array]:
    return [Array(type, [value(job) for job in jobs]) for type, value in values]


class PostgresTransaction(Transaction):
    """A transaction on one PostgreSQL connection."""

    # Rows are locked to be changed or deleted. No foreign key refers to them, so a weaker lock would admit nobody.
    for_update = " FOR UPDATE"
    for_key_share = " FOR KEY SHARE"
    skip_locked = " FOR UPDATE SKIP LOCKED"
    select_available = SELECT_AVAILABLE
    among = "= ANY(CAST(? AS bigint[]))"
    among_texts = "= ANY(CAST(? AS text[]))"
    contains = "position({1} IN {0}) > 0"
    contains_text = """position({1} IN lower(encode({0}, 'escape') COLLATE "C")) > 0"""
    envelope = ENVELOPE

    def __init__(
        self,
        connection: PipelineConnection,
        now: int,
        settings: ServiceSettings,
        memory: Memory,
        url: PostgresUrl,
        slot: int,
        *,
        records_events: bool,
    ) -> None:
        super().__init__(now, settings, memory, records_events=records_events)
        self._connection = connection
        self._statements = statements_in(url.schema)
        self._schema = url.schema
        self._slot = slot
        self._locks = f"{url.schema}/"
        self._lacks = url.lacks

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return self._connection.execute(sql, parameters)

    def execute_together(self, queries: Sequence[Query]) -> list[list[Row]]:
        return self._connection.execute_together(queries)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        self._connection.execute_many(sql, rows)

    def integers(self, values: Collection[int]) -> Any:
        return ints(list(values) or [-1])

    def texts(self, values: Sequence[str]) -> Any:
        return texts(values)

    def among_rows(self, query: str) -> str:
        # With IN, the planner may compare each row of the table with each that the query finds: it does if it believes
        # that the table is empty, because autovacuum came while nothing ran. An array is looked up in the index.
        return f"= ANY(ARRAY({query}))"

    def insert_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._in_columns(_insertion(table, columns), columns, rows)

    def insert_new_rows(
        self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]], returning: str
    ) -> list[Row]:
        if not rows:
            return []
        sql = f"{_insertion(table, columns)} ON CONFLICT DO NOTHING RETURNING {returning}"
        return self._in_columns(sql, columns, rows)

    def insert_of_attempts(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        rows: Sequence[tuple[RunningAttempt, Sequence[Any]]],
        returning: str,
    ) -> list[Row]:
        rows = sorted((row for row in rows if _ID.fullmatch(row[0][0])), key=lambda row: row[0])
        returned: list[Row] = []
        for first in range(0, len(rows), ROWS_AT_ONCE):
            attempts, values = zip(*rows[first : first + ROWS_AT_ONCE], strict=True)
            in_columns = [*zip(*attempts, strict=True), *zip(*values, strict=True)]
            types = (*ATTEMPT.values(), *list(columns.values())[1:])
            arrays = [Array(type, column) for type, column in zip(types, in_columns, strict=True)]
            returned += self.execute(_insertion_of_attempts(table, columns, returning), arrays)
        return returned

    def update_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        key, *others = columns
        if len(rows) <= FEW_ROWS:
            changes = ", ".join(f"{name} = CAST(? AS {columns[name]})" for name in others)
            sql = f"UPDATE {table} SET {changes} WHERE {key} = CAST(? AS {columns[key]})"
            self.execute_many(sql, [(*values, number) for number, *values in rows])
        else:
            changes = ", ".join(f"{name} = given.{name}" for name in others)
            new_values = f"{unnest(*columns.values())} AS given ({', '.join(columns)})"
            sql = f"UPDATE {table} SET {changes} FROM {new_values} WHERE {table}.{key} = given.{key}"
            self._in_columns(sql, columns, rows)

    def _in_columns(self, sql: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> list[Row]:
        """Run a statement with the values of each column as an array; return the rows that it returns."""
        returned: list[Row] = []
        for first in range(0, len(rows), ROWS_AT_ONCE):
            values = zip(*rows[first : first + ROWS_AT_ONCE], strict=True)
            arrays = [Array(type, column) for type, column in zip(columns.values(), values, strict=True)]
            returned += self.execute(sql, arrays)
            self._connection.flush()
        return returned

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        with super().savepoint():
            yield
            self._connection.answer()  # raise pending errors here, so that the savepoint rolls them back

    def insert_jobs(self, jobs: Sequence[Job], *, are_alike: bool = False) -> None:
        for first in range(0, len(jobs), INSERTED_AT_ONCE):  # the database inserts a part while the next is encoded
            some = jobs[first : first + INSERTED_AT_ONCE]
            compared = some[:1] if are_alike else some
            alike = set(map(shared_values, compared))
            if any(job.shared for job in compared):
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

    def new_numbers(self, table: str, count: int) -> list[int]:
        return [number for (number,) in self.execute(numbers_of(self._schema, table), (count,))]

    def queues_with_jobs(self, queues: Sequence[str]) -> Sequence[str]:
        nonempty = {name for (name,) in self.execute(WITH_JOBS, (texts(queues),))}
        return [queue for queue in queues if queue in nonempty]

    def start_jobs(self, jobs: Sequence[Job]) -> None:
        if len(jobs) <= FEW_ROWS:
            self.execute_many(START_JOB, [start_values(job) for job in jobs])
        else:
            self.execute(START_JOBS, (ints([job.seq for job in jobs]), *_columns(jobs, START_VALUES)))

    def complete_jobs(self, jobs: Sequence[Job]) -> None:
        if len(jobs) <= FEW_ROWS:
            self.execute_many(COMPLETE_JOB, [(job.finished_at, job.result, job.seq) for job in jobs])
        else:
            self.execute(
                COMPLETE_JOBS,
                (
                    ints([job.seq for job in jobs]),
                    ints([job.finished_at for job in jobs]),
                    blobs([job.result for job in jobs]),
                ),
            )

    def complete_plain_jobs(self, ends: Sequence[PlainEnd]) -> list[Row]:
        if not ends:
            return []
        columns = zip(PLAIN_END_TYPES, zip(*ends, strict=True), strict=True)
        arrays = [Array(type, values) for type, values in columns]
        return self.execute(COMPLETE_PLAIN_JOBS, (self.now, *arrays))

    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        names = self.names_of_locks(keys)
        if not names:
            return frozenset()
        if "advisory-locks" in self._lacks:
            slots = slots_of(names)
            free = self.lock_slots(slots.values(), self.skip_locked)
            held = [name for name in names if slots[name] not in free]
        else:
            held = [name for (name,) in self.execute(LOCK_KEYS, (texts(names),))]
        return {name.removeprefix(self._locks) for name in held}

    def lock_slots(self, slots: Iterable[int], lock: str) -> Set[int]:
        """Lock rows that stand for keys, and return those that are locked. ``lock``: how."""
        return {slot for (slot,) in self.execute(LOCK_SLOTS + lock, (ints(list(set(slots))),))}

    def names_of_locks(self, keys: Iterable[str]) -> list[str]:
        """Return the sorted names of the advisory locks for keys. They begin with the schema, to be unique."""
        return [self._locks + key for key in sorted(keys)]

    def lock_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        return self.lock_jobs_and_read(ids, ())[0]

    def lock_jobs_and_read(
        self, ids: Sequence[str], queries: Sequence[Query]
    ) -> tuple[dict[str, Job], list[list[Row]]]:
        ids = [id for id in ids if _ID.fullmatch(id)]
        if not (ids or queries):
            return {}, []
        locked, *others = self.execute_together([(LOCK_JOBS, (uuids(ids),)), *queries])
        jobs = {row[1]: Job(*row) for row in locked}
        for job in jobs.values():
            if job.state == "available":  # fetches that skip the locked job look again afterwards
                self.effects.opened.add(job.queue)
        return jobs, others

    def find_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = [id for id in ids if _ID.fullmatch(id)]
        return {row[1]: Job(*row) for row in self.execute(FIND_JOBS, (uuids(ids),))} if ids else {}

    def _read_envelopes(self, jobs: Sequence[Job]) -> None:
        envelopes: dict[int, bytes] = dict(self.execute(ENVELOPES, (ints([job.seq for job in jobs]),)))
        for job in jobs:
            if job.seq not in envelopes:
                raise TryAgain(f"The job {job.id} was deleted meanwhile.")
            job.envelope = envelopes[job.seq]

    def tidy(self) -> None:
        """Fold the counts of callers' transactions from slots of their own, and insert the queues they used."""
        counts = _summed(self.execute(TAKE_COUNTS, (SLOTS,)))
        self._add_counts(counts)
        if minutes := _summed(self.execute(TAKE_MINUTES, (SLOTS,))):
            queues, numbers, enqueued = zip(*minutes, strict=True)
            self.execute(ADD_MINUTES, (self._slot, texts(queues), ints(numbers), ints(enqueued)))
        self.execute(NEW_QUEUES, (self.now, texts([queue for queue, *_ in counts])))

    def forget_events(self) -> None:
        self.execute(FORGET_EVENTS, (self.now - LEAST_EVENT_AGE, LEAST_EVENT_BATCHES))

    def record_events(self, events: bytes) -> None:
        self.execute(RECORD, (self.now, events))

    def order_events(self) -> bool:
        """Assign positions to visible events; return ``False`` if another transaction is doing so."""
        if self.lock_keys({"events"}):  # two at once would give the same positions to different events
            return False
        self.execute(ORDER_EVENTS)
        return True

    event_position = "position"

    def event_batches(self, position: int, limit: int) -> list[tuple[int, bytes]]:
        return [(here, events) for here, events in self.execute(EVENTS, (position, limit))]

    def last_position(self) -> int:
        return int(self.execute(LAST_POSITION)[0][0])

    def write_effects(self) -> None:
        self.effects.assert_followed_up()
        self._add_counts(sorted((*key, change) for key, change in self.effects.counts.items() if change))
        self.write_history()
        self.write_events()
        minute = self.now // 60_000_000
        tallies = sorted(self.tallied().items())
        for first in range(0, len(tallies), TALLIES_AT_ONCE):
            some = tallies[first : first + TALLIES_AT_ONCE]
            values = [value for queue, tally in some for value in (queue, minute, self._slot, *tally.sums())]
            self.execute(tally_statement(len(some)), values)

    def _add_counts(self, counts: Sequence[tuple[str, str, int]]) -> None:
        """Add to the numbers of jobs, by queue and state."""
        if counts:
            queues, states, changes = zip(*counts, strict=True)
            self.execute(COUNT, (self._slot, texts(queues), texts(states), ints(changes)))

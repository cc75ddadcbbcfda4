"""Transactions on SQLite."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import apsw
import msgspec

from ojster.core.errors import BackendUnavailable
from ojster.core.job import Job
from ojster.core.job_table import STARTED
from ojster.core.settings import ServiceSettings
from ojster.storage.memory import Memory
from ojster.storage.sqlite.disk_space import Room
from ojster.storage.sqlite.statements import (
    COMPLETE_JOBS,
    ENVELOPE,
    FIND_ATTEMPTS,
    FIND_JOBS,
    FIND_PLAIN_JOBS,
    INSERT_PARTS,
    INSERT_PAYLOADS,
    JOB_NAMES,
    LOCK_JOB,
    LOCK_JOBS,
    RECORD,
    SELECT_AVAILABLE,
    SHARED_NAMES,
    START_JOBS,
    change,
    completion_of,
    insertion,
    insertion_of_alike,
    parts_of,
)
from ojster.storage.transaction import ColumnType, Parameters, PlainEnd, Row, RunningAttempt, Transaction

KEPT_EVENT_BYTES: Final = 64 * 1024 * 1024
"""Size of the recorded events to keep, in bytes."""

TRIM_EVENTS: Final = 4 * 1024 * 1024
"""Size of new events, in bytes, after which the oldest are deleted."""

_start_values: Final = attrgetter(*STARTED)
_other_values: Final = attrgetter(*JOB_NAMES[1:])
_shared_values: Final = attrgetter(*SHARED_NAMES)


class SqliteTransaction(Transaction):
    """A transaction on one SQLite connection. Only one writes at a time, so no locks on rows or keys are needed."""

    def __init__(
        self,
        connection: apsw.Connection,
        now: int,
        settings: ServiceSettings,
        memory: Memory,
        *,
        records_events: bool = False,
        room: Room | None = None,
    ) -> None:
        super().__init__(now, settings, memory, records_events=records_events)
        self._connection = connection
        self._room = room
        self._cursor = connection.cursor()
        self._last_numbers: dict[str, int] = {}
        """The last number that a row of a table has, or that was given out for one."""

    def refuse_growth(self) -> BackendUnavailable | None:
        return None if self._room is None else self._room.refusal(self._connection)

    def close(self) -> None:
        """Close the cursor while the lane is locked: the garbage collector may do so during a fork."""
        self._cursor.close()

    select_available = SELECT_AVAILABLE
    among = "IN carray(?)"
    among_texts = "IN (SELECT value FROM json_each(?))"
    envelope = ENVELOPE

    def integers(self, values: Collection[int]) -> Any:
        return apsw.carray(array("q", values or (-1,)))

    def texts(self, values: Sequence[str]) -> Any:
        return msgspec.json.encode(values).decode()

    def insert_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        self._insert(table, tuple(columns), rows)

    def _insert(self, table: str, names: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> None:
        for part in parts_of(rows):
            self._cursor.execute(insertion(table, names, len(part)), list(chain.from_iterable(part)))

    def insert_new_rows(
        self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]], returning: str
    ) -> list[Row]:
        names, inserted = tuple(columns), []
        for part in parts_of(rows):
            statement = insertion(table, names, len(part), f" ON CONFLICT DO NOTHING RETURNING {returning}")
            inserted += self._cursor.execute(statement, list(chain.from_iterable(part))).fetchall()
        return inserted

    def insert_of_attempts(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        rows: Sequence[tuple[RunningAttempt, Sequence[Any]]],
        returning: str,
    ) -> list[Row]:
        ids = _without_nul(list({attempt[0] for attempt, _ in rows}))
        running = self.execute(FIND_ATTEMPTS, (apsw.carray(tuple(ids)),)) if ids else []
        nodes = {tuple(attempt): node for *attempt, node in running}
        known = [(nodes[attempt], *values) for attempt, values in rows if attempt in nodes]
        return self.insert_new_rows(table, columns, known, returning)

    def update_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        names = tuple(columns)
        for part in parts_of(rows):
            self._cursor.execute(change(table, names, len(part)), list(chain.from_iterable(part)))

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        return self._cursor.execute(sql, parameters).fetchall()

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        if rows:
            self._cursor.executemany(sql, rows)

    def insert_jobs(self, jobs: Sequence[Job], *, are_alike: bool = False) -> None:
        (last,) = self.execute("SELECT max(seq) FROM jobs")[0]
        first = (last or 0) + 1
        alike = set(map(_shared_values, jobs[:1] if are_alike else jobs))
        if len(alike) == 1:
            (values,) = alike
            own = [(seq, job.id, job.node) for seq, job in enumerate(jobs, first)]
            for part in parts_of(own):
                self._cursor.execute(insertion_of_alike(len(part)), [*values, *chain.from_iterable(part)])
        else:
            self._insert("jobs", JOB_NAMES, [(seq, *_other_values(job)) for seq, job in enumerate(jobs, first)])
        if any(job.shared for job in (jobs[:1] if are_alike else jobs)):
            self.execute_many(INSERT_PARTS, [(seq, *part) for seq, part in enumerate(self.payloads_of(jobs), first)])
        else:
            self._cursor.execute(INSERT_PAYLOADS, (first, apsw.carray(tuple([job.envelope for job in jobs]))))

    def new_numbers(self, table: str, count: int) -> list[int]:
        if table not in self._last_numbers:
            ((last,),) = self.execute(f"SELECT max(seq) FROM {table}")
            self._last_numbers[table] = last or 0
        first = self._last_numbers[table] + 1
        self._last_numbers[table] += count
        return list(range(first, first + count))

    def start_jobs(self, jobs: Sequence[Job]) -> None:
        alike: dict[tuple[Any, ...], list[int]] = {}
        for job in jobs:
            alike.setdefault(_start_values(job), []).append(job.seq)
        for values, seqs in alike.items():
            self._cursor.execute(START_JOBS, (*values, apsw.carray(array("q", seqs))))

    def complete_jobs(self, jobs: Sequence[Job]) -> None:
        self._complete([(job.seq, job.result) for job in jobs])

    def _complete(self, results: Sequence[tuple[int, bytes | None]]) -> None:
        alike: dict[bytes | None, list[int]] = {}
        for seq, result in results:
            alike.setdefault(result, []).append(seq)
        if len(alike) > len(results) // 4:  # most results differ
            for part in parts_of(results):
                self._cursor.execute(completion_of(len(part)), [self.now, *chain.from_iterable(part)])
            return
        for result, seqs in alike.items():
            self._cursor.execute(COMPLETE_JOBS, (self.now, result, apsw.carray(array("q", seqs))))

    def complete_plain_jobs(self, ends: Sequence[PlainEnd]) -> list[Row]:
        reported = {end[0]: end for end in ends}
        rows = self.execute(FIND_PLAIN_JOBS, (self.integers(reported),))
        running = [row[3:] for row in rows if row[:3] == reported[row[3]][1:4]]
        self._complete([(row[0], reported[row[0]][4]) for row in running])
        return running

    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        return frozenset()  # no other transaction writes

    def lock_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = _without_nul(ids)
        if not ids:
            return {}
        if len(ids) == 1:
            return {row[1]: Job(*row) for row in self.execute(LOCK_JOB, ids)}
        return {row[1]: Job(*row) for row in self.execute(LOCK_JOBS, (apsw.carray(tuple(ids)),))}

    def find_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        ids = _without_nul(ids)
        if not ids:
            return {}
        return {row[1]: Job(*row) for row in self.execute(FIND_JOBS, (apsw.carray(tuple(ids)),))}

    def record_events(self, events: bytes) -> None:
        ((total,),) = self.execute(RECORD, (self.now, len(events), events))
        if total // TRIM_EVENTS != (total - len(events)) // TRIM_EVENTS:
            self.execute("DELETE FROM event_batches WHERE total < ?", (total - KEPT_EVENT_BYTES,))

    def event_batches(self, position: int, limit: int) -> list[tuple[int, bytes]]:
        rows = self.execute(
            "SELECT seq, events FROM event_batches WHERE seq >= ? ORDER BY seq LIMIT ?", (position, limit)
        )
        return [(seq, events) for seq, events in rows]

    def last_position(self) -> int:
        return int(self.execute("SELECT coalesce(max(seq), 0) FROM event_batches")[0][0])

    def _read_envelopes(self, jobs: Sequence[Job]) -> None:
        query = f"SELECT p.seq, {ENVELOPE} FROM payloads AS p WHERE p.seq {self.among}"
        envelopes: dict[int, bytes] = dict(self.execute(query, (self.integers([job.seq for job in jobs]),)))
        for job in jobs:
            job.envelope = envelopes[job.seq]


def _without_nul(ids: Sequence[str]) -> Sequence[str]:
    """Return the ids without NUL characters, because SQLite's ``carray`` ends strings at NUL."""
    return [id for id in ids if "\0" not in id]

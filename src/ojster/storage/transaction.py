"""The interface of a transaction: SQL, the current time, and effects that are published after the commit."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import BackendUnavailable, OjsterError
from ojster.core.events import event_about
from ojster.core.job import NOT_LOADED, Job
from ojster.core.job_events import NOT_IN_HISTORY, circumstances, is_ordinary
from ojster.core.job_flags import BITS, JobEvent
from ojster.core.settings import ServiceSettings
from ojster.core.shared_value import STORE, SharedValue
from ojster.core.states import JOB_STATES
from ojster.core.tenant import qualify
from ojster.storage.effects import Effects
from ojster.storage.memory import Memory, Remembered
from ojster.storage.outages import LONG_TRANSACTION_SECONDS, Horizon, Outages
from ojster.storage.system import FOLLOWED_UNTIL, recall
from ojster.storage.tally import ADDED, SUMS, AttemptEnd, Tally, add_up

Row = tuple[Any, ...]
Query = tuple[str, Sequence[Any]]
"""A statement that returns rows, with its positional parameters."""

Parameters = Mapping[str, Any] | Sequence[Any]

encode_events: Final = msgspec.json.Encoder().encode

Payload = tuple[bytes, bytes | None, int | None]
"""The stored envelope of a job; the value that was taken from it, by its digest, and from where."""

ColumnType = Literal["bigint", "text", "bytea", "uuid"]
"""Type of a column, for ``insert_rows`` and ``update_rows``."""

PlainEnd = tuple[int, int, int, str, bytes | None]
"""The end of an attempt of a plain job: number of the job, the attempt, its start, its worker, the result."""

RunningAttempt = tuple[str, int, int, str]
"""An attempt as its worker knows it: id of the job, number, start, worker."""

HISTORY_COLUMNS: Final[dict[str, ColumnType]] = {"seq": "bigint", "at": "bigint", "type": "text", "data": "bytea"}


class TryAgain(Exception):
    """The database has rolled back a transaction for an external reason. Running it again may succeed.

    Parameters
    ----------
    lost:
        Whether the connection was lost, which no single call can cause.
    """

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.lost = lost


class Held(TryAgain):
    """Another transaction holds what is needed, and may do so for long: it may be an application's."""


class Later(BackendUnavailable):
    """Refusal of a call that must wait for another transaction. The dispatcher retries it before the caller sees it."""


_followed_until: Final = Remembered[int](lambda tx: msgspec.json.decode(recall(tx, FOLLOWED_UNTIL) or b"0"))
"""When recording of events ends unless a follower asks for more, in microseconds since the epoch."""


class Transaction(ABC):
    """One database transaction, at one time.

    A transaction function takes it first, runs to its end without waiting for anything else, and returns plain values.
    It must be safe to run again: its effects outside the database are in ``effects``, which is fresh each time.

    Attributes
    ----------
    now:
        The time of the transaction, in microseconds since the epoch.
    settings:
        The defaults and limits in force.
    memory:
        What this process remembers of the database.
    effects:
        What is to be told to others once it is committed.
    """

    select_available: str
    """SELECT of the jobs to claim next, with the placeholder ``{kind}`` for conditions."""

    for_update = ""
    """Appended to a SELECT to lock its rows, where the database needs it."""

    for_key_share = ""
    """Like ``for_update``, but only keeps its rows from being deleted: any number of transactions may do that."""

    among = among_texts = ""
    """Conditions to append to a column of integers or texts: its value is in the next parameter, of ``integers`` or
    ``texts``."""

    contains = "instr({0}, {1}) > 0"
    """Condition that the bytes ``{0}`` contain the bytes ``{1}``."""

    contains_text = "instr(lower(CAST({0} AS TEXT)), {1}) > 0"
    """Condition that the bytes ``{0}`` contain the text ``{1}``, which is ASCII in lower case, in whichever case."""

    envelope: str
    """Expression for the whole envelope of a row ``p`` of ``payloads``, with the value that it shares."""

    skip_locked = ""
    """Like ``for_update``, but skips rows that another transaction has locked, which then handles them."""

    def __init__(self, now: int, settings: ServiceSettings, memory: Memory, *, records_events: bool = False) -> None:
        self.records_events = records_events
        self.now = now
        self.settings = settings
        self.memory = memory
        self.memory_version = memory.version
        self.effects = Effects()
        self.known: defaultdict[object, dict[int, Row]] = defaultdict(dict)
        """Rows that are read once in a transaction, by their number, for whoever reads them."""
        self.outages: Outages | None = None
        """The outages of the database; ``None``: they do not matter, because no lease ends in this transaction."""
        self._depth = 0
        self.began = time.monotonic()
        """When the database was first asked for this transaction, in seconds of the monotonic clock."""

    @cached_property
    def lease_horizon(self) -> Horizon:
        """Which leases have expired: after an outage, those that ended meanwhile are spared for a while.

        Ask for it after the first statement: until then, it does not show that the database has hung.
        """
        if self.outages is None:
            return Horizon(self.now, self.now)
        if time.monotonic() - self.began > LONG_TRANSACTION_SECONDS:
            self.outages.begin()
        return self.outages.horizon(self.now)

    def refuse_growth(self) -> OjsterError | None:
        """Return why the database must not grow, so that there is room for the end of what it has; ``None``: it may."""
        return None

    # What has happened

    def emit(self, type: str, job: Job, **data: Any) -> None:
        """Record an event of a job. If the job changed its state since its last event, add ``from`` and ``to``."""
        if job.moved is not None:
            data["from"], data["to"] = job.moved
            job.moved = None
        if job.trace_id is not None:
            data["trace_id"] = job.trace_id
        if job.seq and type not in NOT_IN_HISTORY and not is_ordinary(data):
            self.effects.history.append((job.seq, type, data | circumstances(job, data)))
        self.effects.events.append((type, self.now, job.id, job.queue, job.type, data, job.tenant))

    def emit_together(self, type: str, jobs: Sequence[Job], data: dict[str, Any]) -> None:
        """Record an event of new jobs of one queue, type, tenant and trace, with the same data; see ``emit``.

        New jobs have no number yet, and so no history beside the event.
        """
        first = jobs[0]
        if first.trace_id is not None:
            data["trace_id"] = first.trace_id
        now, queue, job_type, tenant = self.now, first.queue, first.type, first.tenant
        self.effects.events += [(type, now, job.id, queue, job_type, data, tenant) for job in jobs]

    def emit_about(
        self, type: str, subject: str, queue: str | None = None, *, tenant: str | None = None, **data: Any
    ) -> None:
        """Record an event of ``subject``: a queue or another named resource.

        The event belongs to ``tenant``, by default to the tenant in the qualified name. Without either, it concerns all
        tenants, and only callers that are not limited to one tenant receive it.
        """
        self.effects.events.append(event_about(type, self.now, subject, queue, tenant, data))

    def emit_of(self, type: str, id: str, tenant: str, data: dict[str, Any]) -> None:
        """Record an event of a tenant's resource that is named by its id, with data that has no qualified names."""
        self.effects.events.append((type, self.now, id, None, None, data, tenant))

    def move(self, job: Job, state: str) -> None:
        """Change the state of ``job``, and update the counts of its queue. The row is not written."""
        JOB_STATES.check(job.state, state)
        self.count(job.queue, job.tenant, job.state, -1)
        self.count(job.queue, job.tenant, state, 1)
        job.moved = (job.state, state)
        job.state = state

    def move_all(self, jobs: Sequence[Job], state: str, event: str, data: Sequence[dict[str, Any]]) -> None:
        """Change the state of jobs, and record an event of each, with its data, which the history leaves out.

        It does what ``move`` and ``emit`` do for each of them, and counts those together that are alike.
        """
        assert event in NOT_IN_HISTORY, event
        now, events = self.now, self.effects.events
        numbers: dict[tuple[str, str, str], int] = defaultdict(int)
        for job, told in zip(jobs, data, strict=True):
            numbers[job.queue, job.tenant, job.state] += 1
            told["from"], told["to"] = job.state, state
            if job.trace_id is not None:
                told["trace_id"] = job.trace_id
            job.state = state
            events.append((event, now, job.id, job.queue, job.type, told, job.tenant))
        for (queue, tenant, before), number in numbers.items():
            JOB_STATES.check(before, state)
            self.count(queue, tenant, before, -number)
            self.count(queue, tenant, state, number)

    def count(self, queue: str, tenant: str, state: str, change: int) -> None:
        """Add ``change`` to the number of a queue's jobs in a state."""
        counts = self.effects.counts
        counts[queue, state] += change
        if tenant:
            counts[qualify(tenant, queue), state] += change

    def make_fetchable(self, *jobs: Job) -> None:
        """Record that jobs of one queue and tenant have become available."""
        for name in self.offer(*jobs):
            self.effects.tallies[name].enqueued += len(jobs)

    def offer(self, *jobs: Job) -> tuple[str, ...]:
        """Let workers look for available jobs of one queue and tenant; return by which names they do."""
        queue, tenant = jobs[0].queue, jobs[0].tenant
        names = (queue, qualify(tenant, queue)) if tenant else (queue,)
        for name in names:
            self.effects.available[name].update([job.id for job in jobs])
        return names

    def make_taken(self, *jobs: Job) -> None:
        """Record that jobs are no longer available."""
        available = self.effects.available
        for job in jobs if available else ():
            available[job.queue].discard(job.id)
            if job.tenant:
                available[qualify(job.tenant, job.queue)].discard(job.id)

    def note_attempt(self, job: Job, end: AttemptEnd, ran: int) -> None:
        """Note that an attempt ends which ran for ``ran`` microseconds, before the job changes its state.

        A job that was suspended, or is skipped, has not run since it was claimed.
        """
        waited = None
        if job.state == "active" and not job.is_skipped and job.started_at is not None:
            waited = job.started_at - (job.enqueued_at or job.started_at)
        self.effects.attempts.append((job.queue, job.tenant, job.type, end, ran, waited))

    def tallied(self) -> dict[str, Tally]:
        """Return the totals of the transaction by name. Call it once, at its end."""
        effects = self.effects
        if effects.waits or effects.attempts:
            add_up(effects.tallies, effects.waits, effects.attempts, self.memory.name_of_counted)
        return effects.tallies

    def note_event(self, job: Job, event: JobEvent) -> None:
        """Record an event of a job, if the job's flags ask for it."""
        if job.flags & BITS[event]:
            self.effects.watched.append((job, event))

    def expect(self, moment: int | None) -> None:
        """Record that work is due at ``moment``, in microseconds since the epoch; ``None`` is ignored."""
        due = self.effects.due
        if moment is not None and (due is None or moment < due):
            self.effects.due = moment

    # Plain SQL, with parameters :named

    @abstractmethod
    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Run one statement and return its rows."""

    def execute_together(self, queries: Sequence[Query]) -> list[list[Row]]:
        """Run queries with positional parameters, one after another in one message; return the rows of each."""
        return [self.execute(sql, parameters) for sql, parameters in queries]

    @abstractmethod
    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement once for each row of positional parameters (``?``)."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Roll back rows and effects of the block if it raises."""
        mark = self.effects.mark()
        self._depth += 1
        name = f"part_{self._depth}"  # of its own: if this one is not made, the rollback must not reach an outer one
        self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            self.effects.restore(mark)
            self.execute(f"ROLLBACK TO {name}")
            raise
        finally:
            self._depth -= 1
            self.execute(f"RELEASE {name}")

    # The statements that differ from database to database

    @abstractmethod
    def integers(self, values: Collection[int]) -> Any:
        """Return integers as one parameter, for ``among``."""

    @abstractmethod
    def texts(self, values: Sequence[str]) -> Any:
        """Return texts as one parameter, for ``among_texts``."""

    def among_rows(self, query: str) -> str:
        """Return a condition to append to an integer column: its value is among the few that a query finds."""
        return f"IN ({query})"

    @abstractmethod
    def insert_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows of these columns."""

    @abstractmethod
    def insert_new_rows(
        self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]], returning: str
    ) -> list[Row]:
        """Insert rows of these columns unless their key exists; return values of those that were inserted."""

    @abstractmethod
    def insert_of_attempts(
        self,
        table: str,
        columns: Mapping[str, ColumnType],
        rows: Sequence[tuple[RunningAttempt, Sequence[Any]]],
        returning: str,
    ) -> list[Row]:
        """Insert rows of steps, as ``insert_new_rows`` does, if these attempts of them run; lock their jobs.

        The first column gets the node of the step, and the others the values of the row.
        """

    @abstractmethod
    def update_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        """Update these columns of existing rows; the first column is the key."""

    @abstractmethod
    def insert_jobs(self, jobs: Sequence[Job], *, are_alike: bool = False) -> None:
        """Insert jobs with their envelopes. The database assigns ``seq``; the given objects are not updated.

        ``are_alike``: whether they are known to differ in their ids and envelopes alone; otherwise they are compared.
        """

    @abstractmethod
    def new_numbers(self, table: str, count: int) -> list[int]:
        """Return the numbers (``seq``) of rows that the caller inserts into a table."""

    @abstractmethod
    def start_jobs(self, jobs: Sequence[Job]) -> None:
        """Write jobs as active: one attempt more, and the columns ``STARTED`` of ``ojster.core.job_table``."""

    @abstractmethod
    def complete_jobs(self, jobs: Sequence[Job]) -> None:
        """Write jobs as completed, with their results."""

    @abstractmethod
    def complete_plain_jobs(self, ends: Sequence[PlainEnd]) -> list[Row]:
        """Write plain jobs as completed if these attempts run. ``ends`` is in the order of ids.

        Returns ``PLAIN_COLUMNS`` of ``ojster.core.plain_end`` of each job that it has written.
        """

    @abstractmethod
    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        """Lock keys until the end of the transaction; return those that another transaction has locked."""

    def tidy(self) -> None:
        """Fold the rows that callers' transactions have left for due work, if the database has any."""
        return

    @abstractmethod
    def lock_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Return the existing jobs with these ids, without envelopes, locked until the end of the transaction."""

    def lock_jobs_and_read(
        self, ids: Sequence[str], queries: Sequence[Query]
    ) -> tuple[dict[str, Job], list[list[Row]]]:
        """Do what ``lock_jobs`` does, and then ``execute_together``: in one message, where there are messages."""
        return self.lock_jobs(ids), self.execute_together(queries)

    @abstractmethod
    def find_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Return the existing jobs with these ids, with envelopes."""

    def queues_with_jobs(self, queues: Sequence[str]) -> Sequence[str]:
        """Return those of many queues that may have available jobs, in their order: others are not worth a look."""
        return queues

    def available_jobs(self, kind: str, parameters: Sequence[Any], limit: int) -> list[Job]:
        """Return the next available jobs of a queue and tenant, locked, with their envelopes: by priority, then age.

        Leaves out expired jobs and those whose ``exclusive_key`` an active job has.

        Parameters
        ----------
        kind:
            Which jobs, as conditions on ``j``; begins with ``PLAIN``, ``WITH_NEEDS`` or ``WITH_LIMIT``.
        parameters:
            The queue, the tenant, and the parameters of ``kind``.
        """
        return [Job(*row) for row in self.execute(*self.available_query(kind, parameters, limit))]

    def available_query(self, kind: str, parameters: Sequence[Any], limit: int) -> Query:
        """Return the query of ``available_jobs``."""
        return self.select_available.format(kind=kind), (*parameters, self.now, limit)

    def load_envelopes(self, jobs: Iterable[Job]) -> None:
        """Read the envelopes of those jobs that have none."""
        if missing := [job for job in jobs if job.envelope == NOT_LOADED]:
            self._read_envelopes(missing)

    @abstractmethod
    def _read_envelopes(self, jobs: Sequence[Job]) -> None:
        """Read the envelopes of jobs."""

    def store_envelopes(self, jobs: Sequence[Job]) -> None:
        """Store the whole envelopes of jobs, which share no value any more."""
        self.execute_many(
            "UPDATE payloads SET stored = ?, shared = NULL, shared_at = NULL WHERE seq = ?",
            [(job.envelope, job.seq) for job in jobs],
        )

    def payloads_of(self, jobs: Sequence[Job]) -> list[Payload]:
        """Store the values that jobs share; return what is left of their envelopes."""
        values: dict[bytes, SharedValue] = {}
        payloads: list[Payload] = []
        for job in jobs:
            taken = None if job.shared is None else job.shared.taken_from(job.envelope)
            if job.shared is None or taken is None:
                payloads.append((job.envelope, None, None))
            else:
                if not job.shared.is_stored:
                    values[job.shared.digest] = job.shared
                payloads.append((taken[0], job.shared.digest, taken[1]))
        self.execute_many(STORE, [shared.row for shared in values.values()])
        return payloads

    @abstractmethod
    def record_events(self, events: bytes) -> None:
        """Write the events of the transaction, as a JSON array."""

    event_position = "seq"
    """Column of the position of an event batch."""

    @abstractmethod
    def event_batches(self, position: int, limit: int) -> list[tuple[int, bytes]]:
        """Return at most ``limit`` event batches from ``position`` on, each with its position, in order."""

    @abstractmethod
    def last_position(self) -> int:
        """Return the position of the last readable event batch; 0 if there is none."""

    def forget_events(self) -> None:
        """Delete old recorded events, where that is left to due work."""
        return

    def write_history(self) -> None:
        """Write the history entries of ``effects``."""
        if rows := [(seq, self.now, type, encode_events(data)) for seq, type, data in self.effects.history]:
            self.insert_rows("job_history", HISTORY_COLUMNS, rows)

    def write_events(self) -> None:
        """Record the events of ``effects``, if this process records events or a client follows them."""
        if self.effects.events and (self.records_events or self.now < _followed_until(self)):
            self.record_events(encode_events(self.effects.events))

    def write_effects(self) -> None:
        """Write counts, history, events and tallies of ``effects``, as the last step of a transaction."""
        self.effects.assert_followed_up()
        if counts := [(queue, state, change) for (queue, state), change in self.effects.counts.items() if change]:
            self.execute_many(
                """
                INSERT INTO job_counts (queue, state, jobs)
                VALUES (?, ?, ?)
                ON CONFLICT (queue, state) DO UPDATE SET jobs = job_counts.jobs + excluded.jobs
                """,
                counts,
            )
        self.write_history()
        self.write_events()
        if tallies := self.tallied():
            minute = self.now // 60_000_000
            self.execute_many(
                f"""
                INSERT INTO queue_minutes (queue, minute, {", ".join(SUMS)})
                VALUES (?, ?{", ?" * len(SUMS)})
                ON CONFLICT (queue, minute) DO UPDATE SET {ADDED}
                """,
                [(queue, minute, *tally.sums()) for queue, tally in tallies.items()],
            )

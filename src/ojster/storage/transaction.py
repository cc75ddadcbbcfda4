"""What can a transaction function do? Run SQL, know the time, and say what others must be told once it is committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec

from ojster.core.errors import BackendUnavailable
from ojster.core.events import Event
from ojster.core.job import Job
from ojster.core.reacts import BITS, JobEvent
from ojster.core.settings import Settings
from ojster.core.tenant import EVERYBODY, called, qualify, split
from ojster.storage.memory import Memory, Remembered

Row = tuple[Any, ...]
Parameters = Mapping[str, Any] | Sequence[Any]

encode_events: Final = msgspec.json.Encoder().encode

JOB_COLUMNS = (
    "seq, id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, started_at, finished_at, "
    "expires_at, due_at, timeout, lease, retry_delay, worker_id, unique_key, cron_name, exclusive_key, dead, progress, "
    "result, errors, node, superseded_by, error_type, checkpoint_number, limit_key, tenant, version, "
    "needs, agent, hold, reacts"
)
"""The columns of ``jobs``, in the order of the fields of ``Job``."""

JOB_COLUMNS_OF_J: Final = ", ".join("j." + column.strip() for column in JOB_COLUMNS.split(","))
"""The same, of a table that is called ``j``."""


ColumnType = Literal["bigint", "text", "bytea", "uuid"]
"""What a column holds, as ``insert_rows`` and ``update_rows`` want to know it."""

PLAIN: Final = "j.limit_key IS NULL AND j.needs IS NULL"
WITH_NEEDS: Final = "j.needs = ? AND j.limit_key IS NULL"
WITH_LIMIT: Final = "j.limit_key = ?"
"""Which jobs are looked for, in the words of the indexes of those that are available."""

KINDS_OF_WAITING: Final = (
    ("limit_key IS NULL AND needs IS NULL", "priority DESC"),
    ("limit_key IS NOT NULL", "limit_key"),
    ("needs IS NOT NULL AND limit_key IS NULL", "needs"),
)
"""All that are available, each in the words of an index, and by what this is sorted first."""

EVERY_JOB: Final = 1_000_000
"""How many jobs can be fetched from a queue when nobody has counted them."""


class TryAgain(Exception):
    """The database has undone a transaction through no fault of its own; it may succeed if it is run again.

    Parameters
    ----------
    lost:
        Whether the connection was lost, which is no call's fault.
    """

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.lost = lost


class Later(BackendUnavailable):
    """The refusal of a call that has to wait for somebody else: it is made again for a while before anybody is told."""


WAITS: Final = tuple(
    round(milliseconds * 1000)
    for milliseconds in (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000)
)
"""Up to how many microseconds jobs have waited that are counted together; one more bucket has the others."""

SUMS: Final = ("enqueued", "completed", "failed", "waited", "ran", *(f"waits_{number}" for number in range(15)))
"""The columns of ``queue_minutes`` in which a minute of work is summed up."""

ADDED: Final = ", ".join(f"{name} = queue_minutes.{name} + excluded.{name}" for name in SUMS)


_ORDINARY: Final = frozenset(
    {"job.started", "job.completed", "job.progress", "job.checkpointed", "job.noted", "dead_letter.added"}
)
"""Events of jobs that show in their rows, or are too many to be remembered."""

_USUAL_STATES: Final = frozenset({None, "scheduled"})
"""The states out of which it is nothing to remember if a job gets: it was not there yet, or its time had come."""


def _circumstances(job: Job, data: Mapping[str, Any]) -> dict[str, Any]:
    """What else is to be remembered of an event that ends an attempt: which one, by whom, and since when."""
    if job.started_at is None or not (job.state == "active" or data.get("from") == "active"):
        return {}
    worker_id = None if job.worker_id is None else called(job.worker_id)
    return {"attempt": data.get("attempt", job.attempt), "started_at": job.started_at, "worker_id": worker_id}


def _read_followed(tx: Transaction) -> int:
    rows = tx.execute("SELECT value FROM system WHERE name = 'followed'")
    return int(msgspec.json.decode(rows[0][0])) if rows else 0


_followed_until: Final = Remembered[int](_read_followed)
"""When recording of events ends unless a follower asks for more, in microseconds since the epoch."""


class Tally:
    """What a minute of work in a queue amounted to. Durations are in microseconds."""

    __slots__ = ("completed", "enqueued", "failed", "ran", "waited", "waits")

    def __init__(self) -> None:
        self.enqueued = 0
        self.completed = 0
        self.failed = 0
        self.waited = 0
        self.ran = 0
        self.waits = [0] * (len(WAITS) + 1)

    def count_wait(self, wait: int) -> None:
        """Note that a job started after it had waited so long."""
        self.waited += wait
        self.waits[bisect_left(WAITS, wait)] += 1

    def copy(self) -> Tally:
        """Return the same, to be kept."""
        other = Tally()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.waits = self.waits.copy()
        return other

    def sums(self) -> tuple[int, ...]:
        """Return the values of ``SUMS``."""
        return (self.enqueued, self.completed, self.failed, self.waited, self.ran, *self.waits)


class Effects:
    """What a transaction brings about: in memory until it is committed, then told to those who wait."""

    def __init__(self) -> None:
        self.available: dict[str, set[str]] = defaultdict(set)
        """The ids of jobs that became available, by queue, and were not handed out in the same transaction.

        Those of a tenant stand under its name for the queue, too."""
        self.opened: set[str] = set()
        """Queues that may hand out jobs now which they could not before: resumed, or no longer held up."""
        self.finished: list[str] = []
        """The ids of jobs that finished."""
        self.ended: list[Job] = []
        """Jobs of workflows that finished, and have not advanced these yet: see ``ojster.workflows.advance``."""
        self.reactions: list[tuple[Job, JobEvent]] = []
        """To what has happened to which jobs there are reactions that were not carried out yet."""
        self.collected: set[str] = set()
        """The ids of jobs that have put into collections what they do when they have succeeded."""
        self.told = 0
        """Number of events that were handed to webhook subscribers."""
        self.workflows: dict[str, None] = {}
        """The ids of workflows that changed."""
        self.configured = False
        """Whether it has changed what operators have set."""
        self.due: int | None = None
        """The earliest time at which something is now due."""
        self.events: list[Event] = []
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        """What has happened to jobs that does not show in their rows: see ``ojster.jobs.history``."""
        self.counts: dict[tuple[str, str], int] = defaultdict(int)
        """By how much the number of jobs changed, by queue and state.

        Those of a tenant are also counted under its name for the queue."""
        self.tallies: dict[str, Tally] = defaultdict(Tally)

    def mark(self) -> dict[str, Any]:
        """Return what ``restore`` needs to undo what is added from now on; cheap, however much there is already."""
        lists = {name: (known := getattr(self, name), len(known)) for name in _LISTS}
        copies = {name: getattr(self, name).copy() for name in _COPIED}
        return {
            "lists": lists,
            "copies": copies,
            "available": {queue: ids.copy() for queue, ids in self.available.items()},
            "tallies": {queue: tally.copy() for queue, tally in self.tallies.items()},
            "configured": self.configured,
            "due": self.due,
        }

    def restore(self, mark: dict[str, Any]) -> None:
        """Undo what was added since ``mark``."""
        for name, (known, length) in mark["lists"].items():
            del known[length:]
            setattr(self, name, known)
        for name, known in mark["copies"].items():
            setattr(self, name, known)
        self.available = defaultdict(set, mark["available"])
        self.tallies = defaultdict(Tally, mark["tallies"])
        self.configured, self.due = mark["configured"], mark["due"]

    @property
    def fetchable(self) -> dict[str, int]:
        """The queues from which jobs can be fetched that could not before, and how many at least."""
        queues = {queue: len(ids) for queue, ids in self.available.items() if ids}
        for queue in self.opened:
            queues[queue] = queues[qualify(EVERYBODY, queue)] = EVERY_JOB
        return queues


_LISTS: Final = ("finished", "ended", "reactions", "events", "history")
"""What is only ever added to, or replaced as a whole."""

_COPIED: Final = ("opened", "collected", "workflows", "counts")


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
    """The statement that finds jobs to hand out: which, and what is left out, is put into it."""

    for_update = ""
    """Appended to a SELECT to lock its rows, where the database needs it."""

    among = ""
    """Behind a column of integers: whether its value is among those of the next parameter, made by ``integers``."""

    skip_locked = ""
    """The same, but leaving out rows that another transaction has locked, which looks after them: for chores."""

    def __init__(self, now: int, settings: Settings, memory: Memory, *, records_events: bool = False) -> None:
        self.records_events = records_events
        self.now = now
        self.settings = settings
        self.memory = memory
        self.memory_version = memory.version
        self.effects = Effects()

    # What has happened

    def emit(self, type: str, job: Job, **data: Any) -> None:
        """Record an event of a job: if it has got into another state since the last one, it is the event of that."""
        if job.moved is not None:
            data["from"], data["to"] = job.moved
            job.moved = None
        if job.seq and type not in _ORDINARY and data.get("from", "") not in _USUAL_STATES:
            self.effects.history.append((job.seq, type, data | _circumstances(job, data)))
        self.effects.events.append((type, self.now, job.id, job.queue, job.type, data, job.tenant))

    def emit_about(
        self, type: str, subject: str, queue: str | None = None, *, tenant: str | None = None, **data: Any
    ) -> None:
        """Record an event of a queue, a worker or a cron job, named ``subject``.

        Whose it is, its name says, or ``tenant``; else it concerns all, and only those who see all are told of it.
        """
        owner, name = split(subject)
        data = {key: called(value) if isinstance(value, str) else value for key, value in data.items()}
        self.effects.events.append(
            (type, self.now, name, queue, None, data, (owner or EVERYBODY) if tenant is None else tenant)
        )

    def move(self, job: Job, state: str) -> None:
        """Put ``job`` into another state, and keep the counts of its queue. The row is not written."""
        counts = self.effects.counts
        counts[job.queue, job.state] -= 1
        counts[job.queue, state] += 1
        if job.tenant:
            theirs = qualify(job.tenant, job.queue)
            counts[theirs, job.state] -= 1
            counts[theirs, state] += 1
        job.moved = (job.state, state)
        job.state = state

    def count(self, queue: str, tenant: str, state: str, change: int) -> None:
        """Note that there is a job more, or less, in a state."""
        counts = self.effects.counts
        counts[queue, state] += change
        if tenant:
            counts[qualify(tenant, queue), state] += change

    def make_fetchable(self, job: Job) -> None:
        """Note that a job has become available."""
        available, tallies = self.effects.available, self.effects.tallies
        available[job.queue].add(job.id)
        tallies[job.queue].enqueued += 1
        if job.tenant:
            theirs = qualify(job.tenant, job.queue)
            available[theirs].add(job.id)
            tallies[theirs].enqueued += 1

    def make_taken(self, job: Job) -> None:
        """Note that a job is no longer available."""
        available = self.effects.available
        available[job.queue].discard(job.id)
        if job.tenant:
            available[qualify(job.tenant, job.queue)].discard(job.id)

    def tallies_of(self, job: Job) -> Iterable[Tally]:
        """Return where it is to be noted what a job amounts to."""
        tallies = self.effects.tallies
        if not job.tenant:
            return (tallies[job.queue],)
        return (tallies[job.queue], tallies[qualify(job.tenant, job.queue)])

    def note_event(self, job: Job, event: JobEvent) -> None:
        """Let reactions follow to something that has happened to a job, if it has some."""
        if job.reacts & BITS[event]:
            self.effects.reactions.append((job, event))

    def expect(self, moment: int | None) -> None:
        """Say that something is due at ``moment``."""
        due = self.effects.due
        if moment is not None and (due is None or moment < due):
            self.effects.due = moment

    # Plain SQL, with parameters :named

    @abstractmethod
    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Run one statement and return its rows."""

    @abstractmethod
    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement once for each row of positional parameters (``?``)."""

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what happens inside, rows and effects, if it raises."""
        mark = self.effects.mark()
        self.execute("SAVEPOINT inner_part")
        try:
            yield
        except BaseException:
            self.effects.restore(mark)
            self.execute("ROLLBACK TO inner_part")
            raise
        finally:
            self.execute("RELEASE inner_part")

    # The statements that differ from database to database

    @abstractmethod
    def integers(self, values: Collection[int]) -> Any:
        """Return integers as one parameter, for ``among``."""

    @abstractmethod
    def insert_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows of these columns."""

    @abstractmethod
    def update_rows(self, table: str, columns: Mapping[str, ColumnType], rows: Sequence[Sequence[Any]]) -> None:
        """Write these columns of rows that are there; the first column says which."""

    @abstractmethod
    def insert_jobs(self, jobs: Sequence[Job]) -> None:
        """Insert jobs with their envelopes. Their ``seq`` is the database's affair: it is not set in what was given."""

    def start_jobs(self, jobs: Sequence[Job]) -> None:
        """Write that jobs are active now: attempt, start, lease and worker."""
        self.execute_many(
            "UPDATE jobs SET state = 'active', attempt = ?, started_at = ?, due_at = ?, worker_id = ? WHERE seq = ?",
            [(job.attempt, job.started_at, job.due_at, job.worker_id, job.seq) for job in jobs],
        )

    def complete_jobs(self, jobs: Sequence[Job]) -> None:
        """Write that jobs are completed now, with their results."""
        self.execute_many(
            "UPDATE jobs SET state = 'completed', finished_at = ?, due_at = NULL, result = ? WHERE seq = ?",
            [(job.finished_at, job.result, job.seq) for job in jobs],
        )

    @abstractmethod
    def lock_keys(self, keys: Iterable[str]) -> Set[str]:
        """Let no other transaction have these keys until this one has ended; return those that another one has."""

    def know_queues(self, names: Iterable[str]) -> None:
        """Note that there are queues of these names."""
        self.execute_many(
            "INSERT INTO queues (name, created_at) VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
            [(name, self.now) for name in sorted(names)],
        )

    def tidy(self) -> None:
        """Put in order what other transactions have left for the chores, where there is something of that kind."""
        return

    @abstractmethod
    def lock_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Return the jobs of these ids that exist, without envelopes, locked until the end of the transaction."""

    @abstractmethod
    def find_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Return the jobs of these ids that exist, with envelopes."""

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
        sql = self.select_available.format(kind=kind)
        return [Job(*row) for row in self.execute(sql, (*parameters, self.now, limit))]

    @abstractmethod
    def envelopes(self, jobs: Sequence[Job]) -> None:
        """Give each job its envelope."""

    @abstractmethod
    def record_events(self, events: bytes) -> None:
        """Write the events of the transaction, as a JSON array."""

    @abstractmethod
    def event_batches(self, position: int, limit: int) -> list[tuple[int, bytes]]:
        """Return the events of transactions from a position on, each with its position, in their order."""

    @abstractmethod
    def last_position(self) -> int:
        """Return the position of the last transaction whose events are there to be read; 0 if there is none."""

    def forget_events(self) -> None:
        """Delete recorded events that are too old, where that is a chore."""
        return

    def write_history(self) -> None:
        """Write what is to be remembered of jobs."""
        rows = [(seq, self.now, type, encode_events(data)) for seq, type, data in self.effects.history]
        if rows:
            self.insert_rows("job_history", {"seq": "bigint", "at": "bigint", "type": "text", "data": "bytea"}, rows)

    def write_events(self) -> None:
        """Record what has happened, where somebody wants to hear of it."""
        if self.effects.events and (self.records_events or self.now < _followed_until(self)):
            self.record_events(encode_events(self.effects.events))

    def write_effects(self) -> None:
        """Write the counts and tallies of ``effects``; the last thing that a transaction does."""
        assert not self.effects.ended, "a job of a workflow ended, and nobody advanced the workflow"
        assert not self.effects.reactions, "there are reactions that nobody has carried out"
        counts = [(queue, state, change) for (queue, state), change in self.effects.counts.items() if change]
        if counts:
            self.execute_many(
                "INSERT INTO job_counts (queue, state, jobs) VALUES (?, ?, ?) "
                "ON CONFLICT (queue, state) DO UPDATE SET jobs = job_counts.jobs + excluded.jobs",
                counts,
            )
        self.write_history()
        self.write_events()
        if self.effects.tallies:
            minute = self.now // 60_000_000
            self.execute_many(
                f"INSERT INTO queue_minutes (queue, minute, {', '.join(SUMS)}) "
                f"VALUES (?, ?{', ?' * len(SUMS)}) ON CONFLICT (queue, minute) DO UPDATE SET {ADDED}",
                [(queue, minute, *tally.sums()) for queue, tally in self.effects.tallies.items()],
            )

"""What does the engine need of a database? To run transaction functions, and to tell when something has happened."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Final, TypeVar
from urllib.parse import unquote

from ojster.core.errors import InvalidRequest
from ojster.core.events import Event
from ojster.core.settings import Settings
from ojster.core.timestamps import system_clock
from ojster.storage.dispatcher import Operation, Patience
from ojster.storage.memory import Memory
from ojster.storage.transaction import Effects
from ojster.storage.wakeups import DUE, EVENTS, FINISHED, WORKFLOWS, Wakeups, job_topic, workflow_topic

A = TypeVar("A")
R = TypeVar("R")


SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")

MOST_FINISHED: Final = 100
"""How many jobs of one transaction may finish, and workflows change, for each to be named to other processes; else they
hear of "finished" and "workflows"."""

_QUEUE: Final = "queue:"
_DUE: Final = "due:"
_CONFIGURED: Final = "configured"


class Database(ABC):
    """A database that holds jobs.

    Attributes
    ----------
    kind:
        Its kind, as the manifest names it.
    wakeups:
        Who waits in this process.
    memory:
        What this process remembers of the database.
    records_events:
        Whether what happens in this process is recorded (``ojster.events.log``).
    next_due:
        The earliest time at which something is known to be due; whoever does the chores keeps it.
    schema_version:
        The version of its schema, once it is open.
    """

    kind: str
    schema_version: int

    def __init__(self, settings: Settings, clock: Callable[[], int] = system_clock) -> None:
        self.settings = settings
        self.clock = clock
        self.wakeups = Wakeups()
        self.memory = Memory()
        self.records_events = False
        self.next_due: int | None = None
        self.on_events: Callable[[Sequence[Event]], None] | None = None
        """Called with what a transaction has brought about, once it is committed, from any thread."""

    @abstractmethod
    def open(self) -> None:
        """Connect, migrate if the schema is older, and start the threads.

        Raises
        ------
        BackendUnavailable
            The database cannot be opened.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way, and disconnect."""

    @abstractmethod
    def run_many(self, operation: Operation[A, R], arguments: Sequence[A]) -> Future[Sequence[R]]:
        """Run a transaction function that may write."""

    @abstractmethod
    def read_many(self, operation: Operation[A, R], arguments: Sequence[A]) -> Future[Sequence[R]]:
        """Run a transaction function that only reads, without holding up those that write."""

    @abstractmethod
    def run_patiently(self, operation: Operation[A, R], argument: A, patience: Patience) -> Future[Sequence[R]]:
        """Run a transaction function that may write, when it is worth it: see ``Patience``."""

    @abstractmethod
    def hurry(self, patience: Patience) -> None:
        """Answer a patient call now: with what it had got in vain, or, if it is being tried, with what that brings."""

    @abstractmethod
    def let_nobody_wait(self) -> None:
        """Answer all patient calls with what they had got in vain."""

    async def run(self, operation: Operation[A, R], argument: A) -> R:
        """Run a transaction function that may write, for one argument."""
        return (await self.run_many(operation, (argument,)))[0]

    async def read(self, operation: Operation[A, R], argument: A) -> R:
        """Run a transaction function that only reads, for one argument."""
        return (await self.read_many(operation, (argument,)))[0]

    async def order_events(self) -> None:
        """Let all events that have become visible have positions, where they do not have them from the beginning."""
        return

    @abstractmethod
    def ring_fetches(self, queues: Sequence[str]) -> None:
        """Let those look again who wait for jobs of these queues."""

    def publish(self, effects: Effects) -> None:
        """Tell this process what a transaction has brought about. Called once it is committed, from any thread."""
        wakeups = self.wakeups
        if effects.finished and wakeups.waits_for("job:"):
            for job_id in effects.finished:
                wakeups.wake(job_topic(job_id))
        if effects.workflows and wakeups.waits_for("workflow:"):
            for workflow_id in effects.workflows:
                wakeups.wake(workflow_topic(workflow_id))
        if effects.events:
            if wakeups.waits_for(EVENTS):
                wakeups.wake(EVENTS)
            if self.on_events is not None:
                self.on_events(effects.events)
        if effects.due is not None:
            self.expect(effects.due)
        if effects.configured:
            self.memory.forget()

    def heed(self, topics: Sequence[str]) -> None:
        """Hear what another process says that its transactions have brought about: see ``topics_of``."""
        if queues := [topic.removeprefix(_QUEUE) for topic in topics if topic.startswith(_QUEUE)]:
            self.ring_fetches(queues)
        for topic in topics:
            if topic.startswith(_DUE):
                with contextlib.suppress(ValueError):  # anybody may write to the channel
                    self.expect(int(topic.removeprefix(_DUE)))
            elif topic == _CONFIGURED:
                self.memory.forget()
            elif not topic.startswith(_QUEUE):
                self.wakeups.wake(topic)

    def expect(self, moment: int) -> None:
        """Note that something is due at ``moment``; wake whoever does the chores if nothing is due sooner."""
        if self.next_due is None or moment < self.next_due:
            self.next_due = moment
            self.wakeups.wake(DUE)


def topics_of(effects: Effects) -> list[str]:
    """Return what other processes may wait for of what a transaction has brought about."""
    topics = [_QUEUE + queue for queue in effects.fetchable]
    if len(effects.finished) > MOST_FINISHED:
        topics.append(FINISHED)
    else:
        topics += map(job_topic, effects.finished)
    if len(effects.workflows) > MOST_FINISHED:
        topics.append(WORKFLOWS)
    else:
        topics += map(workflow_topic, effects.workflows)
    if effects.due is not None:
        topics.append(f"{_DUE}{effects.due}")
    if effects.configured:
        topics.append(_CONFIGURED)
    return topics


def open_database(
    url: str,
    settings: Settings = Settings(),  # noqa: B008  (it is frozen)
    clock: Callable[[], int] | None = None,
    synchronous: str = "FULL",
    *,
    migrate: bool = False,
) -> Database:
    """Open the database that ``url`` names.

    Parameters
    ----------
    url:
        ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite:///:memory:`` or
        ``postgresql://user@host/database``, as libpq understands it.
    clock:
        What time it is, in microseconds since the epoch; ``None``: what the machine says, or the PostgreSQL server.
    synchronous:
        ``FULL`` survives a power loss, ``NORMAL`` only a crash of the process (SQLite) or may lose what was committed
        in the last moment (PostgreSQL), and is faster.
    migrate:
        Whether to bring the schema of a PostgreSQL database up to date; that of a file always is.

    Raises
    ------
    InvalidRequest
        The URL names no database that Ojster knows.
    BackendUnavailable
        The database cannot be opened.
    """
    database: Database
    if url.startswith(POSTGRES):
        try:
            from ojster.storage.postgres.database import PostgresDatabase
        except ImportError as error:
            raise InvalidRequest(f"PostgreSQL needs psycopg: pip install 'ojster[postgres]' ({error}).") from error
        database = PostgresDatabase(url, settings, clock, synchronous, migrate=migrate)
    elif url.startswith(SQLITE):
        from ojster.storage.sqlite.database import SqliteDatabase

        database = SqliteDatabase(url.removeprefix(SQLITE), settings, clock or system_clock, synchronous)
    else:
        raise InvalidRequest(
            f"The database URL {without_password(url)!r} must be like 'sqlite:///jobs.db' or "
            "'postgresql://user@host/database'."
        )
    database.open()
    return database


def migrate_database(url: str) -> int:
    """Bring the schema of a database up to date; return its version.

    Raises
    ------
    InvalidRequest
        The URL names no database that Ojster knows.
    BackendUnavailable
        The database cannot be reached, or its schema is newer than this version of Ojster.
    """
    database = open_database(url, migrate=True)
    database.close()
    return database.schema_version


def names_a_database(url: str) -> bool:
    """Tell whether a URL names a database, not a server."""
    return url.startswith((SQLITE, *POSTGRES))


def without_password(url: str) -> str:
    """Return a URL as people, logs and errors may see it."""
    hidden = re.sub(r"(?i)(password|secret)\s*=\s*('[^']*'|[^\s&]+)", r"\1=***", url)
    place, mark, query = re.sub(r"(?<=/)([^:@/?#]*):[^/].*@|(?<=/)([^:@/?#]*):@", r"\1\2:***@", hidden).partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    shown = [f"{name}=***" if _SECRET.search(unquote(name)) else name + equals + value for name, equals, value in pairs]
    return place + mark + "&".join(shown)


_SECRET: Final = re.compile("password|secret|token", re.IGNORECASE)

"""What does the engine need of a database? To run transaction functions, and to tell when something has happened."""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from ojster.database.dispatcher import Operation, Patience
from ojster.database.transaction import Effects
from ojster.database.wakeups import DUE, Wakeups, job_topic
from ojster.engine.events import EventLog
from ojster.engine.settings import Settings
from ojster.model.errors import InvalidRequest
from ojster.model.timestamps import system_clock

A = TypeVar("A")
R = TypeVar("R")


class Database(ABC):
    """A database that holds jobs.

    Attributes
    ----------
    kind:
        Its kind, as the manifest names it.
    wakeups:
        Who waits in this process.
    events:
        What has happened, as far as this process has done it; ``None`` records nothing.
    next_due:
        The earliest time at which something is known to be due; whoever does the chores keeps it.
    """

    kind: str

    def __init__(self, settings: Settings, clock: Callable[[], int] = system_clock) -> None:
        self.settings = settings
        self.clock = clock
        self.wakeups = Wakeups()
        self.events: EventLog | None = None
        self.next_due: int | None = None

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
    def let_nobody_wait(self) -> None:
        """Answer all patient calls with what they had got in vain."""

    async def run(self, operation: Operation[A, R], argument: A) -> R:
        """Run a transaction function that may write, for one argument."""
        return (await self.run_many(operation, (argument,)))[0]

    async def read(self, operation: Operation[A, R], argument: A) -> R:
        """Run a transaction function that only reads, for one argument."""
        return (await self.read_many(operation, (argument,)))[0]

    def publish(self, effects: Effects) -> None:
        """Tell this process what a transaction has brought about. Called once it is committed, from any thread."""
        if self.events is not None and effects.events:
            self.events.extend(effects.events)
        wakeups = self.wakeups
        if effects.finished and wakeups.waits_for("job:"):
            for job_id in effects.finished:
                wakeups.wake(job_topic(job_id))
        if effects.due is not None:
            self.expect(effects.due)

    def expect(self, moment: int) -> None:
        """Note that something is due at ``moment``; wake whoever does the chores if nothing is due sooner."""
        if self.next_due is None or moment < self.next_due:
            self.next_due = moment
            self.wakeups.wake(DUE)


def open_database(
    url: str,
    settings: Settings = Settings(),  # noqa: B008  (it is frozen)
    clock: Callable[[], int] = system_clock,
    synchronous: str = "FULL",
) -> Database:
    """Open the database that ``url`` names.

    Parameters
    ----------
    url:
        ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``sqlite:///:memory:``.
    synchronous:
        For SQLite: ``FULL`` survives a power loss, ``NORMAL`` only a crash of the process and is faster.

    Raises
    ------
    InvalidRequest
        The URL names no database that Ojster knows.
    BackendUnavailable
        The database cannot be opened.
    """
    from ojster.database.sqlite import SqliteDatabase

    if urlsplit(url).scheme != "sqlite" or not url.startswith("sqlite:///"):
        raise InvalidRequest(f"The database URL {_without_password(url)!r} must be like 'sqlite:///jobs.db'.")
    database = SqliteDatabase(url.removeprefix("sqlite:///"), settings, clock, synchronous)
    database.open()
    return database


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return url.replace(f":{parts.password}@", ":***@")

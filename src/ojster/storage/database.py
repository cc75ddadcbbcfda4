"""The interface of a database: it runs transaction functions, and sends wake-ups and notifications after commits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from abc import ABC, abstractmethod
from asyncio import Future
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.events import Event
from ojster.core.settings import ServiceSettings
from ojster.core.timestamps import system_clock
from ojster.storage.call import LongPoll, TransactionFunction
from ojster.storage.dispatcher import Dispatcher
from ojster.storage.effects import Effects
from ojster.storage.memory import Memory, Remembered
from ojster.storage.outages import Outages
from ojster.storage.transaction import Transaction
from ojster.storage.wakeups import (
    DUE,
    EVENTS,
    FINISHED,
    JOB,
    Wakeups,
    job_topic,
)

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")

SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")

_DATABASES: Final = (SQLITE, *POSTGRES)

MAX_NAMED_IDS: Final = 100
"""Maximum number of topics of a kind that one notification names, such as finished jobs. Beyond it, other processes
receive only the topic that stands for them all, such as "finished"."""

DUE_WORK_SECONDS: Final = 20.0
"""Maximum time between two looks of each process that does due work, in seconds."""

TOLD_SECONDS: Final = 25.0
"""How far ahead other processes are told of what is due, in seconds: further than their next looks, as long as these
and the commit take less than the difference. It is less than the default lease of a job, so that claims wake nobody."""

_NEWS: Final = "news:"
_DUE: Final = "due:"
_CONFIGURED: Final = "configured"


class ReplicaState(msgspec.Struct, frozen=True):
    """The state of a replica.

    Parameters
    ----------
    lag:
        For how long it has lacked something that the primary has written, in seconds; ``None``: unknown, because one
        of them cannot be reached.
    is_used:
        Whether reads go to it.
    """

    lag: float | None
    is_used: bool


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
    outages:
        When nothing could be written, as far as this process knows.
    records_events:
        Whether what happens in this process is recorded (``ojster.events.log``).
    next_due:
        The earliest time at which something is known to be due; whoever does the chores keeps it.
    schema_version:
        The version of its schema, once it is open.
    """

    kind: str
    schema_version: int
    _writer: Dispatcher
    """Runs transactions that may write; it and ``_reader`` are there once the database is open."""
    _reader: Dispatcher

    def __init__(self, settings: ServiceSettings, clock: Callable[[], int] = system_clock) -> None:
        self.settings = settings
        self.clock = clock
        self.wakeups = Wakeups()
        self.memory = Memory()
        self.outages = Outages()
        self.records_events = False
        self.draining = False
        """Whether long polls end at once, because the process shuts down."""
        self.next_due: int | None = None
        self.on_events: list[Callable[[Sequence[Event]], None]] = []
        """Callbacks for the events of a transaction, called after its commit, from any thread."""

    @abstractmethod
    def open(self) -> None:
        """Connect, migrate an older schema if that is enabled, and start the threads.

        Raises
        ------
        BackendUnavailable
            The database cannot be opened.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish the accepted calls, and disconnect."""

    def run_many(
        self, operation: TransactionFunction[A, R], arguments: Sequence[A], weight: int | None = None
    ) -> Future[Sequence[R]]:
        """Run a transaction function that may write. ``weight``: see ``Dispatcher.run``."""
        return self._writer.run(operation, arguments, weight=weight)

    def read_many(self, operation: TransactionFunction[A, R], arguments: Sequence[A]) -> Future[Sequence[R]]:
        """Run a transaction function that only reads, without blocking writers."""
        return self._reader.run(operation, arguments)

    def run_or_park(
        self, operation: TransactionFunction[A, R], argument: A, poll: LongPoll, *, joins: bool = False
    ) -> Future[Sequence[R]]:
        """Run a transaction function that may write; park the call while its result is empty (see ``LongPoll``).

        ``joins``: see ``Dispatcher.run``.
        """
        return self._writer.run(operation, (argument,), poll, joins=joins)

    def hurry(self, poll: LongPoll) -> None:
        """Answer a parked call now with its empty results; if it is being run, with the results of that run."""
        self._writer.hurry(poll)

    def answer_parked(self) -> None:
        """Answer all parked calls now with their empty results."""
        self._writer.ring(None)

    async def run(self, operation: TransactionFunction[A, R], argument: A, weight: int = 1) -> R:
        """Run a transaction function that may write, for one argument. ``weight``: see ``Dispatcher.run``."""
        return (await self.run_many(operation, (argument,), weight))[0]

    async def read(self, operation: TransactionFunction[A, R], argument: A) -> R:
        """Run a transaction function that only reads, for one argument."""
        return (await self.read_many(operation, (argument,)))[0]

    @property
    def replica(self) -> ReplicaState | None:
        """The state of the replica that answers surveys; ``None``: there is none."""
        return None

    async def survey(self, operation: TransactionFunction[A, R], argument: A) -> R:
        """Run a transaction function that only reads, for one argument; it may see what was true a moment ago."""
        return await self.read(operation, argument)

    async def look_until(
        self,
        topics: Sequence[str],
        look: Callable[[], Coroutine[Any, Any, T]],
        is_over: Callable[[T], bool],
        seconds: float,
    ) -> T:
        """Look at something now, and again whenever a topic wakes; return what is there when the wait is over.

        The wait ends after ``seconds``, too, and when the process shuts down.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with self.wakeups.waiter(*topics) as waiter:
            while True:
                waiter.arm()
                seen = await look()
                left = deadline - loop.time()
                if is_over(seen) or left <= 0 or self.draining:
                    return seen
                await waiter.wait(left)

    async def remembered(self, value: Remembered[R]) -> R:
        """Return a remembered value, outside of transactions."""
        known = value.known(self.memory)
        return await self.read(value.for_each, None) if known is None else known

    async def order_events(self) -> None:
        """Assign positions to all visible events, where the database does not assign them on insert."""
        return

    def log_events(self, *, ahead: bool) -> None:
        """Have events survive a failover and a crash of the database, or no longer. See ``migrate_database``."""
        raise InvalidRequest(f"Events are always kept here ({self.kind}): only PostgreSQL has a choice.")

    def publish(self, effects: Effects) -> None:
        """Publish the effects of a transaction in this process. Called after the commit, from any thread."""
        wakeups = self.wakeups
        if effects.finished and wakeups.waits_for(JOB):
            for job_id in effects.finished:
                wakeups.wake(job_topic(job_id))
        for topic in effects.topics:
            wakeups.wake(topic)
        if effects.events:
            if wakeups.waits_for(EVENTS):
                wakeups.wake(EVENTS)
            for tell in self.on_events:
                tell(effects.events)
        if effects.due is not None:
            self.expect(effects.due)
        if effects.configured:
            self.memory.forget()

    def announce_wait(self) -> None:
        """Tell other processes that this one waits for ends of jobs, where they do not tell of them anyway.

        Called by a waiter for a job before it looks at the job.
        """
        return

    def heed(self, topics: Sequence[str]) -> None:
        """Handle the topics of another process's notification: see ``topics_of``."""
        if _CONFIGURED in topics:  # before parked fetches run again
            self.memory.forget()
        if news := [topic.removeprefix(_NEWS) for topic in topics if topic.startswith(_NEWS)]:
            self._writer.ring(news)
        for topic in topics:
            if topic.startswith(_DUE):
                with contextlib.suppress(ValueError):  # any database client may notify the channel
                    self.expect(int(topic.removeprefix(_DUE)))
            elif topic != _CONFIGURED and not topic.startswith(_NEWS):
                self.wakeups.wake(topic)

    def expect(self, moment: int) -> None:
        """Record that work is due at ``moment``; wake whoever does due work if nothing is due sooner."""
        if self.next_due is None or moment < self.next_due:
            self.next_due = moment
            self.wakeups.wake(DUE)


def topics_of(tx: Transaction, *, with_ends: bool = True) -> list[str]:
    """Return the topics that notify other processes of a transaction's effects; ``with_ends``: of ends of jobs, too.

    What is due later than ``TOLD_SECONDS`` is not among them: each process looks by then. A caller's transaction may
    be committed at any time, and leaves nothing out.
    """
    effects = tx.effects
    topics = [_NEWS + topic for topic in effects.fetchable]
    if with_ends:
        topics += topics_of_ends(tx)
    numbers = Counter(effects.topics.values())
    too_many = {all_of for all_of, number in numbers.items() if all_of is not None and number > MAX_NAMED_IDS}
    topics += [*too_many, *(topic for topic, all_of in effects.topics.items() if all_of not in too_many)]
    if effects.due is not None and (tx.memory.is_callers or effects.due - tx.now < TOLD_SECONDS * 1e6):
        topics.append(f"{_DUE}{effects.due}")
    if effects.configured:
        topics.append(_CONFIGURED)
    return topics


def topics_of_ends(tx: Transaction) -> list[str]:
    """Return the topics that notify other processes of the jobs that a transaction has finished."""
    finished = tx.effects.finished
    return [FINISHED] if len(finished) > MAX_NAMED_IDS else list(map(job_topic, finished))


URL_VARIABLE: Final = "OJSTER_DATABASE_URL"
"""Environment variable with the database or server of programs and commands that name none."""

LISTEN_VARIABLE: Final = "OJSTER_LISTEN_URL"
"""Environment variable with a connection to PostgreSQL that can LISTEN, beside a pooler."""


def without_urls(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a process that does not work on the database: it must not learn the password."""
    return {name: value for name, value in environment.items() if name not in (URL_VARIABLE, LISTEN_VARIABLE)}


def are_same(url: str, other: str) -> bool:
    """Return whether two URLs name the same database or server; a path may be relative to the working directory."""
    return url == other or (url.startswith(SQLITE) and other.startswith(SQLITE) and located(url) == located(other))


def names_a_database(url: str) -> bool:
    """Return whether a URL is of a database, not of a server."""
    return url.startswith(_DATABASES)


def sqlite_path(url: str) -> str:
    """Return the path in the URL of a SQLite database, or ``:memory:``; raise ``InvalidRequest`` if it has none."""
    path = url.removeprefix(SQLITE)
    if not path:
        raise InvalidRequest(
            f"The URL '{SQLITE}' names no file. Name one, such as {SQLITE}jobs.db; if the path comes from a variable, "
            "check that it is set."
        )
    return path


def without_password(url: str) -> str:
    """Return a URL with its secrets replaced by ``***``, for logs and errors."""
    hidden = re.sub(r"(?is)(password|secret)\s*=\s*('[^']*'|[^\s&]+)", r"\1=***", url)
    place, mark, query = re.sub(r"(?s)(?<=/)([^:/?#]*):[^/].*@|(?<=/)([^:/?#]*):@", r"\1\2:***@", hidden).partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    shown = [f"{name}=***" if _SECRET.search(unquote(name)) else name + equals + value for name, equals, value in pairs]
    return place + mark + "&".join(shown)


def located(url: str) -> str:
    """Return a URL for logs: without its secrets, and with the whole path of a SQLite file."""
    path = url.removeprefix(SQLITE)
    if not url.startswith(SQLITE) or path == ":memory:":
        return without_password(url)
    return f"{SQLITE}{os.path.abspath(path)}"


_SECRET: Final = re.compile("password|secret|token", re.IGNORECASE)

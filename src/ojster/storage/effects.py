"""What a transaction does besides its rows: kept in memory, and told to others once it is committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from copy import copy
from typing import Any, Final, Generic, Protocol, TypeVar

from ojster.core.events import Event
from ojster.core.job import Job
from ojster.core.job_flags import JobEvent
from ojster.core.queue_names import names_opened
from ojster.storage.tally import EndedAttempt, Tally, WaitedTime

T = TypeVar("T")

UNKNOWN_COUNT: Final = 1_000_000
"""Number of fetchable jobs to assume in a queue if it is unknown."""


class HasEffects(Protocol):
    """A transaction, as far as its effects are concerned."""

    effects: Effects


class PerTransaction(Generic[T]):
    """A value that a capability notes in a transaction, for the rest of it. A savepoint that is rolled back undoes it.

    Parameters
    ----------
    factory:
        Makes the value when it is first used; ``copy.copy`` must make an independent copy of it.
    """

    def __init__(self, factory: Callable[[], T]) -> None:
        self._factory = factory

    def __call__(self, tx: HasEffects) -> T:
        """Return the value."""
        noted = tx.effects.noted
        if self not in noted:
            noted[self] = self._factory()
        value: T = noted[self]
        return value

    def put(self, tx: HasEffects, value: T) -> None:
        """Replace the value."""
        tx.effects.noted[self] = value


class Effects:
    """Effects of a transaction: kept in memory, and published to waiters after the commit."""

    def __init__(self) -> None:
        self.available: dict[str, set[str]] = defaultdict(set)
        """Ids of jobs that became available and were not claimed in the same transaction, by name of the queue.

        See ``ojster.core.queue_names``, for ``counts``, too."""
        self.opened: set[str] = set()
        """Queues with jobs that may have become claimable: the queue was resumed, or its jobs are no longer blocked."""
        self.skipped: set[str] = set()
        """Topics of claims that skipped jobs which depend on a locked row: they must look again after a pause."""
        self.finished: list[str] = []
        """Ids of jobs that finished."""
        self.ended: list[Job] = []
        """Finished jobs that others wait for, until what follows from them was carried out."""
        self.watched: list[tuple[Job, JobEvent]] = []
        """Jobs with the events that their flags ask for, until what follows from them was carried out."""
        self.noted: dict[PerTransaction[Any], Any] = {}
        """What capabilities note for the rest of the transaction: see ``PerTransaction``."""
        self.topics: dict[str, str | None] = {}
        """Topics of capabilities to wake, each with the topic that stands for many of its kind; ``None``: none does."""
        self.configured = False
        """Whether the operators' settings changed."""
        self.due: int | None = None
        """Earliest time at which work is due, in microseconds since the epoch."""
        self.events: list[Event] = []
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        """History entries of jobs, as ``seq``, event type and data: see ``ojster.jobs.history``."""
        self.counts: dict[tuple[str, str], int] = defaultdict(int)
        """Change of the number of jobs, by name of the queue and state."""
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        """Totals by name: see ``ojster.core.queue_names.name_of_type``. What is noted below is added at the end."""
        self.waits: list[WaitedTime] = []
        self.attempts: list[EndedAttempt] = []

    def assert_followed_up(self) -> None:
        """Fail if something was not carried out that follows from a change: what waits for it would wait for ever."""
        assert not self.ended, "a job ended, but what follows from it was not carried out"
        assert not self.watched, "an event of a job was noted, but what follows from it was not carried out"

    def mark(self) -> dict[str, Any]:
        """Return a mark for ``restore``. Of lists it keeps only the length; other effects are copied."""
        lists = {name: (known := getattr(self, name), len(known)) for name in _LISTS}
        copies = {name: getattr(self, name).copy() for name in _COPIED}
        return {
            "lists": lists,
            "copies": copies,
            "available": {queue: ids.copy() for queue, ids in self.available.items()},
            "tallies": {queue: tally.copy() for queue, tally in self.tallies.items()},
            "configured": self.configured,
            "due": self.due,
            "noted": {key: copy(value) for key, value in self.noted.items()},
        }

    def restore(self, mark: dict[str, Any]) -> None:
        """Undo all changes since ``mark``."""
        for name, (known, length) in mark["lists"].items():
            del known[length:]
            setattr(self, name, known)
        for name, known in mark["copies"].items():
            setattr(self, name, known)
        self.available = defaultdict(set, mark["available"])
        self.tallies = defaultdict(Tally, mark["tallies"])
        self.configured, self.due, self.noted = mark["configured"], mark["due"], mark["noted"]

    @property
    def fetchable(self) -> dict[str, int]:
        """Names to announce to parked calls, each with the number of new jobs (``UNKNOWN_COUNT`` if unknown)."""
        numbers = {name: len(ids) for name, ids in self.available.items() if ids}
        for queue in self.opened:
            numbers.update(dict.fromkeys(names_opened(queue), UNKNOWN_COUNT))
        return numbers


_LISTS: Final = ("finished", "ended", "watched", "events", "history", "waits", "attempts")
"""Effects that are only appended to, or replaced as a whole."""

_COPIED: Final = ("opened", "skipped", "topics", "counts")
"""Effects that ``mark`` copies."""

"""Who follows what happens, as it happens? Server-sent events and WebSocket (ojs-realtime.md).

One task of the server reads the log of events on for all who follow, as long as somebody does, and keeps the last ones
in memory. Each follower goes on at its own pace from the event that it has got last: nothing is buffered for it. Who
falls behind what is in memory, or comes back after a cut, reads the log itself until it has caught up, and misses
nothing that is still kept; who comes too late is told of the gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from ojster.core.errors import BackendUnavailable, OjsterError
from ojster.core.events import Event
from ojster.core.states import FINISHED
from ojster.core.tenant import EVERYBODY, NOBODY
from ojster.core.timestamps import format_timestamp
from ojster.service import Engine
from ojster.storage.wakeups import EVENTS

log = logging.getLogger(__name__)

LOOK_AGAIN: Final = 0.5
"""How often it is looked, in seconds, what other processes have done, while somebody follows."""

IN_MEMORY: Final = 10_000
"""How many events are kept in memory for those who follow."""

MOST_FOLLOWERS: Final = 100
"""How many connections of one address may follow at the same time."""

FAREWELL: Final = 2.0
"""How many seconds those who follow have to take in that the server stops."""

ALL: Final = "all"


class TooManyFollowers(OjsterError):
    """The address follows too many things already (section 5.2)."""

    code = "rate_limited"
    status = 429


class Told(msgspec.Struct, frozen=True):
    """What a follower is told.

    Parameters
    ----------
    name:
        What has happened, in the words of ojs-realtime.md.
    id:
        Where to go on after it; ``None``: it is no event of the log.
    """

    name: str
    data: dict[str, Any]
    id: str | None = None
    at: int = 0


class Channel(msgspec.Struct, frozen=True):
    """What is followed: ``job:ID``, ``queue:NAME`` or ``all``, of one tenant or of all; only these types, if any."""

    name: str
    types: frozenset[str] = frozenset()
    tenant: str | None = None

    def tell(self, number: int, event: Event) -> Told | None:
        """Return what is told of an event, if it is one of the channel, and of a type that is wanted."""
        if not self._has(event):
            return None
        told = tell(number, event)
        return told if not self.types or told.name in self.types else None

    def ends_with(self, event: Event) -> bool:
        """Whether it is about a job, and this is its end."""
        return self.name.startswith("job:") and event[5].get("to") in FINISHED and self._has(event)

    def _has(self, event: Event) -> bool:
        _, _, subject, queue, job_type, data, tenant = event
        if self.tenant is not None and tenant != self.tenant:
            return False
        kind, _, name = self.name.partition(":")
        if kind == "job":
            return (subject if job_type is not None else data.get("job_id")) == name
        return kind != "queue" or queue == name


class Piece(NamedTuple):
    """Some events that follow each other, and whether all are there between those before and these."""

    events: list[tuple[int, Event]]
    is_whole: bool = True


def tell(number: int, event: Event) -> Told:
    """Return how an event is told (section 4): transitions of jobs under one name, all others under their own."""
    type, at, subject, queue, job_type, more, tenant = event
    id, moment = number_to_id(number), format_timestamp(at)
    data: dict[str, Any] = {"job_id": subject, "queue": queue, "type": job_type} if job_type is not None else {}
    if queue is not None:
        data["queue"] = queue
    if tenant not in (NOBODY, EVERYBODY):
        data["tenant_id"] = tenant
    if "to" in more:
        moved = {"from": more.get("from"), "to": more["to"], "event_type": type, "timestamp": moment}
        extra = {name: value for name, value in more.items() if name not in ("from", "to")}
        return Told("job.state_changed", data | moved | extra, id, at)
    if type == "job.progress":
        percent = round(100 * float(more.get("progress") or 0))
        return Told(type, data | {"progress": percent, "message": more.get("message"), "timestamp": moment}, id, at)
    return Told(type, data | {"subject": subject} | more | {"timestamp": moment}, id, at)


def number_to_id(number: int) -> str:
    """Return the id of the event with a number."""
    return f"evt_{number}"


def id_to_number(id: str) -> int | None:
    """Return the number of the event with an id; ``None`` if it is no id of an event."""
    digits = id.removeprefix("evt_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


class Feed:
    """Reads on for all who follow what happens in a database.

    Parameters
    ----------
    engine:
        Whose log of events is read.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers: list[int] = []
        self._events: list[Event] = []
        self._since = 0
        """After which number all events up to ``_until`` are in memory."""
        self._until = 0
        self._followers = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._addresses: Counter[str] = Counter()
        self._all_gone = asyncio.Event()

    def check(self, address: str) -> None:
        """Refuse a connection of an address that has as many as it may have.

        Raises
        ------
        TooManyFollowers
            It has.
        """
        if self._addresses[address] >= MOST_FOLLOWERS:
            raise TooManyFollowers(f"{address} follows events on {MOST_FOLLOWERS} connections already.")

    @contextlib.contextmanager
    def admit(self, address: str) -> Iterator[None]:
        """Count a connection of an address for as long as it lasts."""
        self._addresses[address] += 1
        try:
            yield
        finally:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
            if not self._addresses:
                self._all_gone.set()

    async def farewell(self) -> None:
        """Return when all who follow have been told that the server stops, or do not listen."""
        if self._addresses:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), FAREWELL)

    async def follow(self, after: int, patience: float) -> AsyncIterator[Piece]:
        """Return what happens after the event with a number, some events at a time, until the server stops.

        Parameters
        ----------
        patience:
            How many seconds to wait for an event; after that a piece without any is returned.
        """
        self._followers += 1
        if self._task is None or self._task.done():
            self._since = self._until = await self._engine.last_event()
            self._numbers, self._events = [], []
            self._task = asyncio.create_task(self._read_on(), name="ojster-feed")
        try:
            while not self._engine.draining:
                if after < self._since:
                    stretch = await self._engine.read_on(after)
                    after = stretch.events[-1][0] if stretch.events else self._since
                    yield Piece(stretch.events, stretch.is_whole)
                    continue
                news = self._news
                if some := self._remembered(after):
                    after = some[-1][0]
                    yield Piece(some)
                    continue
                try:
                    await asyncio.wait_for(news.wait(), patience)
                except TimeoutError:
                    yield Piece([])
        finally:
            self._followers -= 1
            if not self._followers and self._task is not None:
                self._task.cancel()
                self._task = None

    def _remembered(self, after: int) -> list[tuple[int, Event]]:
        place = bisect_right(self._numbers, after)
        return list(zip(self._numbers[place:], self._events[place:], strict=True))

    async def _read_on(self) -> None:
        with self._engine.database.wakeups.waiter(EVENTS) as waiter:
            while not self._engine.draining:
                waiter.arm()
                try:
                    stretch = await self._engine.read_on(self._until)
                except BackendUnavailable as error:
                    log.warning("what happens cannot be followed now: %s", error)
                    await asyncio.sleep(LOOK_AGAIN)
                    continue
                if stretch.events:
                    self._remember(stretch.events)
                if not stretch.more:
                    await waiter.wait(LOOK_AGAIN)
        self._ring()

    def _remember(self, events: list[tuple[int, Event]]) -> None:
        self._numbers += [number for number, _ in events]
        self._events += [event for _, event in events]
        self._until = self._numbers[-1]
        if (surplus := len(self._numbers) - IN_MEMORY) > 0:
            self._since = self._numbers[surplus - 1]
            del self._numbers[:surplus], self._events[:surplus]
        self._ring()

    def _ring(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def gap(channel: str, at: int | None) -> Told:
    """Return what is told when events are no longer kept (section 4.5); ``at`` is when those after them begin."""
    end = None if at is None else format_timestamp(at)
    return Told("system.gap", {"channel": channel, "gap_start": None, "gap_end": end})

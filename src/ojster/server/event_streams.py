"""Live events for clients, over server-sent events and WebSocket.

While there are followers, one task of the server reads the event log for all of them and keeps the latest events in
memory. Each follower continues at its own pace after the last event that it received; nothing is buffered for it. A
follower that falls behind the events in memory, or reconnects, reads the log itself until it has caught up, and misses
no event that is still kept. If events were already deleted, it receives a gap notice.

Spec: ojs-realtime
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from ojster.core.errors import BackendUnavailable, OjsterError
from ojster.core.events import Event
from ojster.core.ids import canonical_job_id
from ojster.core.parsing import matches_any
from ojster.core.states import FINISHED
from ojster.core.tenant import ALL_TENANTS, NOBODY
from ojster.core.timestamps import format_timestamp
from ojster.events.event_types import check_event_types, check_types_of_queue
from ojster.service import Service
from ojster.storage.wakeups import EVENTS

log = logging.getLogger(__name__)

POLL_INTERVAL_SECONDS: Final = 0.5
"""Interval at which the log is polled for events of other processes while there are followers, in seconds."""

MAX_EVENTS_IN_MEMORY: Final = 10_000
"""Maximum number of events kept in memory for followers."""

MAX_FOLLOWERS_PER_ADDRESS: Final = 100
"""Maximum number of following connections per client address."""

DISCONNECT_TIMEOUT_SECONDS: Final = 2.0
"""Maximum wait for followers to disconnect when the server stops, in seconds."""

ALL: Final = "all"


class TooManyFollowers(OjsterError):
    """The client address has too many following connections.

    Spec: ojs-realtime 5.2
    """

    code = "rate_limited"
    status = 429


class StreamEvent(msgspec.Struct, frozen=True):
    """An event as a follower receives it.

    Parameters
    ----------
    name:
        The event name defined by ojs-realtime.
    id:
        The id to resume after; ``None``: it is not an event of the log.
    at:
        Time of the event, in microseconds since the epoch.
    """

    name: str
    data: dict[str, Any]
    id: str | None = None
    at: int = 0


class FollowedChannel(msgspec.Struct, frozen=True):
    """A subscription to ``job:ID``, ``queue:NAME`` or ``all``, of one tenant or all; ``types`` limits it, if any."""

    name: str
    types: frozenset[str] = frozenset()
    tenant: str | None = None

    def tell(self, number: int, event: Event) -> StreamEvent | None:
        """Return an event as followers receive it; ``None`` if the channel does not include it."""
        if not self._has(event):
            return None
        told = tell(number, event)
        wanted = not self.types or any(matches_any(type, self.types) for type in (told.name, event[0]))
        return told if wanted else None

    def ends_with(self, event: Event) -> bool:
        """Whether this is the channel of a job, and the event finishes that job."""
        return self.name.startswith("job:") and event[5].get("to") in FINISHED and self._has(event)

    def _has(self, event: Event) -> bool:
        _, _, subject, queue, job_type, data, tenant = event
        if self.tenant is not None and tenant != self.tenant:
            return False
        kind, _, name = self.name.partition(":")
        if kind == "job":
            return (subject if job_type is not None else data.get("job_id")) == name
        return kind != "queue" or queue == name


def canonical_channel(name: str) -> str:
    """Return the name of a channel, with the id of a job in lower case."""
    kind, colon, id = name.partition(":")
    return f"job:{canonical_job_id(id)}" if kind == "job" and colon else name


def check_types_of_channel(types: Collection[str], channel: str) -> None:
    """Raise ``InvalidRequest`` for types of events that do not exist, or that a channel never has."""
    check_event_types(types, "event_types", may_end_in_star=True)
    kind, _, name = channel.partition(":")
    if kind == "queue":
        check_types_of_queue(types, name, "event_types")


class EventBatch(NamedTuple):
    """Consecutive events, and whether none is missing between the previous ones and these."""

    events: list[tuple[int, Event]]
    is_whole: bool = True


def tell(number: int, event: Event) -> StreamEvent:
    """Return an event as followers receive it: job transitions share one name, other events keep their own.

    Spec: ojs-realtime 4
    """
    type, at, subject, queue, job_type, more, tenant = event
    id, moment = number_to_id(number), format_timestamp(at)
    data: dict[str, Any] = {"job_id": subject, "queue": queue, "type": job_type} if job_type is not None else {}
    if queue is not None:
        data["queue"] = queue
    if tenant not in (NOBODY, ALL_TENANTS):
        data["tenant_id"] = tenant
    if "to" in more:
        moved = {"from": more.get("from"), "to": more["to"], "event_type": type, "timestamp": moment}
        extra = {name: value for name, value in more.items() if name not in ("from", "to")}
        return StreamEvent("job.state_changed", data | moved | extra, id, at)
    if type == "job.progress":
        percent = round(100 * float(more.get("progress") or 0))
        return StreamEvent(
            type, data | {"progress": percent, "message": more.get("message"), "timestamp": moment}, id, at
        )
    return StreamEvent(type, data | {"subject": subject} | more | {"timestamp": moment}, id, at)


def number_to_id(number: int) -> str:
    """Return the id of the event with this number."""
    return f"evt_{number}"


def id_to_number(id: str) -> int | None:
    """Return the number of the event with this id; ``None`` if it is not an event id."""
    digits = id.removeprefix("evt_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


class Feed:
    """Reads the event log for all followers of a server.

    Parameters
    ----------
    service:
        The service with the event log.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._numbers: list[int] = []
        self._events: list[Event] = []
        self._since = 0
        """Number after which all events up to ``_until`` are in memory."""
        self._until = 0
        self._followers = 0
        self._news = asyncio.Event()
        self._begun = asyncio.Event()
        """Whether the reader knows where it begins."""
        self._task: asyncio.Task[None] | None = None
        self._addresses: Counter[str] = Counter()
        self._all_gone = asyncio.Event()

    def check(self, address: str) -> None:
        """Reject a connection from an address that already has the maximum number.

        Raises
        ------
        TooManyFollowers
            The address has ``MAX_FOLLOWERS_PER_ADDRESS`` connections.
        """
        if self._addresses[address] >= MAX_FOLLOWERS_PER_ADDRESS:
            raise TooManyFollowers(
                f"{address} already follows events on {MAX_FOLLOWERS_PER_ADDRESS} connections. Close one first."
            )

    @contextlib.contextmanager
    def admit(self, address: str) -> Iterator[None]:
        """Count a connection of an address until the context ends."""
        self._addresses[address] += 1
        try:
            yield
        finally:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
            if not self._addresses:
                self._all_gone.set()

    async def announce_shutdown(self) -> None:
        """Wait until all followers have disconnected, for at most ``DISCONNECT_TIMEOUT_SECONDS`` seconds."""
        if self._addresses:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), DISCONNECT_TIMEOUT_SECONDS)

    async def follow(self, after: int, patience: float) -> AsyncIterator[EventBatch]:
        """Yield the events after the event with a number, in batches, until the server stops.

        Parameters
        ----------
        patience:
            Maximum wait for an event, in seconds. After it, a piece without events is yielded.
        """
        self._followers += 1
        if self._task is None or self._task.done():
            self._begun = asyncio.Event()
            self._task = asyncio.create_task(self._read_on(self._begun), name="ojster-feed")
        try:
            await self._begun.wait()
            while not self._service.database.draining:
                if after < self._since:
                    stretch = await self._service.events.read_on(after)
                    after = stretch.events[-1][0] if stretch.events else self._since
                    yield EventBatch(stretch.events, stretch.is_whole)
                    continue
                news = self._news
                if some := self._remembered(after):
                    after = some[-1][0]
                    yield EventBatch(some)
                    continue
                try:
                    await asyncio.wait_for(news.wait(), patience)
                except TimeoutError:
                    yield EventBatch([])
        finally:
            self._followers -= 1
            if not self._followers and self._task is not None:
                self._task.cancel()
                self._task = None

    def _remembered(self, after: int) -> list[tuple[int, Event]]:
        place = bisect_right(self._numbers, after)
        return list(zip(self._numbers[place:], self._events[place:], strict=True))

    async def _read_on(self, begun: asyncio.Event) -> None:
        try:
            with self._service.database.wakeups.waiter(EVENTS) as waiter:
                while not self._service.database.draining:
                    waiter.arm()
                    try:
                        if not begun.is_set():
                            self._begin_after(await self._service.events.last())
                            begun.set()
                        stretch = await self._service.events.read_on(self._until)
                        if not stretch.is_whole:
                            events = stretch.events
                            self._begin_after(events[0][0] - 1 if events else await self._service.events.last())
                    except Exception as error:  # whatever it is, or the followers would wait for ever
                        trace = None if isinstance(error, BackendUnavailable) else error
                        log.warning("cannot read the event log, retrying: %s", error, exc_info=trace)
                        await asyncio.sleep(POLL_INTERVAL_SECONDS)
                        continue
                    if stretch.events:
                        self._remember(stretch.events)
                    if not stretch.more:
                        await waiter.wait(POLL_INTERVAL_SECONDS)
        finally:
            begun.set()
            self._ring()

    def _remember(self, events: list[tuple[int, Event]]) -> None:
        self._numbers += [number for number, _ in events]
        self._events += [event for _, event in events]
        self._until = self._numbers[-1]
        if (surplus := len(self._numbers) - MAX_EVENTS_IN_MEMORY) > 0:
            self._since = self._numbers[surplus - 1]
            del self._numbers[:surplus], self._events[:surplus]
        self._ring()

    def _begin_after(self, number: int) -> None:
        """Keep only events after a number: followers before it read the log themselves, and are told what was lost."""
        self._since = self._until = number
        self._numbers, self._events = [], []
        self._ring()

    def _ring(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def gap(channel: str, at: int | None) -> StreamEvent:
    """Return the notice that events are no longer kept.

    Parameters
    ----------
    at:
        Time of the first event after the gap, in microseconds since the epoch; ``None`` if unknown.

    Spec: ojs-realtime 4.5
    """
    end = None if at is None else format_timestamp(at)
    return StreamEvent("system.gap", {"channel": channel, "gap_start": None, "gap_end": end})

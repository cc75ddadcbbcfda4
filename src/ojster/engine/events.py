"""What has happened? The lifecycle events of a server (ojs-events.md), newest last, in a bounded memory.

An event is recorded as a cheap tuple when it happens and written out as JSON only if somebody asks for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from ojster.model.timestamps import format_timestamp

DEFAULT_MEMORY: Final = 10_000
MOST_EVENTS: Final = 1_000


class Event(NamedTuple):
    """Something that happened to a job, a queue, a worker or a cron job. ``subject`` is its id or name."""

    type: str
    at: int
    subject: str
    queue: str | None = None
    job_type: str | None = None
    data: dict[str, Any] | None = None

    def to_wire(self, number: int, source: str) -> dict[str, Any]:
        """Return the event's envelope (ojs-events.md section 2)."""
        data = dict(self.data or {})
        if self.job_type is not None:
            data |= {"job_id": self.subject, "job_type": self.job_type}
        if self.queue is not None:
            data["queue"] = self.queue
        return {
            "specversion": "1.0",
            "id": f"evt_{number}",
            "type": self.type,
            "source": source,
            "time": format_timestamp(self.at),
            "subject": self.subject,
            "data": data,
        }


class EventPage(msgspec.Struct, frozen=True):
    """Events that were asked for, oldest first."""

    events: list[dict[str, Any]]
    cursor: str | None
    has_more: bool


class EventLog:
    """The last events of this process, numbered without gaps. Filled by one thread, read by any."""

    def __init__(self, source: str = "ojs://ojster", memory: int = DEFAULT_MEMORY) -> None:
        self.source = source
        self._events: deque[Event] = deque(maxlen=memory)
        self._count = 0
        self._lock = threading.Lock()

    def extend(self, events: list[Event]) -> None:
        """Record events that are now committed."""
        with self._lock:
            self._events.extend(events)
            self._count += len(events)

    def select(
        self,
        *,
        after: int = 0,
        types: Iterable[str] = (),
        queues: Iterable[str] = (),
        job_types: Iterable[str] = (),
        limit: int = 100,
    ) -> EventPage:
        """Return events after number ``after`` that match every filter which is not empty."""
        with self._lock:
            kept, count = list(self._events), self._count
        wanted_types, wanted_queues, wanted_jobs = frozenset(types), frozenset(queues), frozenset(job_types)
        found: list[dict[str, Any]] = []
        cursor = None
        for number, event in enumerate(kept, count - len(kept) + 1):
            if (
                number <= after
                or (wanted_types and event.type not in wanted_types)
                or (wanted_queues and event.queue not in wanted_queues)
                or (wanted_jobs and event.job_type not in wanted_jobs)
            ):
                continue
            if len(found) == limit:
                return EventPage(found, cursor, True)
            found.append(event.to_wire(number, self.source))
            cursor = f"evt_{number}"
        return EventPage(found, cursor, False)

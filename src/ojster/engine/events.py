"""What has happened? The lifecycle events of a server (ojs-events.md), newest last, in a bounded memory.

An event is recorded as a cheap tuple when it happens and written out as JSON only if somebody asks for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ojster.model.timestamps import format_timestamp

DEFAULT_MEMORY: Final = 10_000
MOST_EVENTS: Final = 1_000


Event = tuple[str, int, str, str | None, str | None, dict[str, Any]]
"""Something that happened: its type, when, the subject's id or name, the queue, the job type, and more data."""


def describe(event: Event, number: int, source: str) -> dict[str, Any]:
    """Return an event's envelope (ojs-events.md section 2)."""
    type, at, subject, queue, job_type, more = event
    data = dict(more)
    if job_type is not None:
        data |= {"job_id": subject, "job_type": job_type}
    if queue is not None:
        data["queue"] = queue
    return {
        "specversion": "1.0",
        "id": f"evt_{number}",
        "type": type,
        "source": source,
        "time": format_timestamp(at),
        "subject": subject,
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
            type, _, _, queue, job_type, _ = event
            if (
                number <= after
                or (wanted_types and type not in wanted_types)
                or (wanted_queues and queue not in wanted_queues)
                or (wanted_jobs and job_type not in wanted_jobs)
            ):
                continue
            if len(found) == limit:
                return EventPage(found, cursor, True)
            found.append(describe(event, number, self.source))
            cursor = f"evt_{number}"
        return EventPage(found, cursor, False)

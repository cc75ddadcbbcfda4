"""What has changed, in numbers: a digest of events for pages that read again what they show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from ojster.core.tenant import ALL_TENANTS
from ojster.server.event_streams import EventBatch, StreamEvent, number_to_id

MAX_IDS: Final = 100
"""Maximum number of jobs and of workflows that are named; of more, none is."""


class EventChanges:
    """The events since the last digest that a caller may see.

    Parameters
    ----------
    tenant:
        The tenant of the caller; ``None``: all.
    covers:
        Whether the caller sees a queue; for ``None``, whether it sees what is of no queue, such as workflows.
    is_lost:
        Whether events were missed before.
    """

    def __init__(self, tenant: str | None, covers: Callable[[str | None], bool], *, is_lost: bool = False) -> None:
        self._tenant = tenant
        self._covers = covers
        self._is_lost = is_lost
        self._kinds: Counter[str] = Counter()
        self._ids: dict[str, None] = {}
        self._queues: dict[str, None] = {}
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._kinds) or self._is_lost

    def add(self, batch: EventBatch) -> None:
        """Add events."""
        self._is_lost |= not batch.is_whole
        for number, (type, _, subject, queue, job_type, data, tenant) in batch.events:
            self._last = number
            if self._tenant is not None and tenant not in (self._tenant, ALL_TENANTS):
                continue
            if not self._covers(queue):
                continue
            self._kinds[type.partition(".")[0]] += 1
            if queue is not None:
                self._queues[queue] = None
            if len(self._ids) <= MAX_IDS:
                self._ids[subject] = None
                if job_type is not None and (workflow := data.get("workflow_id")) is not None:
                    self._ids[workflow] = None

    def take(self, last: int | None = None) -> StreamEvent:
        """Return the digest, and begin another; ``last``: the number of the event after which the changes begin."""
        self._last = self._last if last is None else last
        ids = list(self._ids) if len(self._ids) <= MAX_IDS else None
        changes = {"kinds": dict(self._kinds), "queues": list(self._queues), "ids": ids, "is_lost": self._is_lost}
        told = StreamEvent("changes", changes, number_to_id(self._last) if self._last else None)
        self._kinds, self._ids, self._queues, self._is_lost = Counter(), {}, {}, False
        return told

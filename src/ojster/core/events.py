"""Lifecycle events and their envelopes. ``ojster.events.log`` stores them.

Spec: ojs-events
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ojster.core.parsing import Bounded, LogNumber, PageLimit
from ojster.core.tenant import ALL_TENANTS, NOBODY, called, split
from ojster.core.timestamps import format_timestamp
from ojster.core.wire import NumberedPaginationBody

SOURCE: Final = "ojs://ojster"
MAX_EVENTS_PER_PAGE: Final = 1_000

_TIMES: Final = frozenset({"created_at", "expired_at", "expires_at", "next_retry_at", "scheduled_at", "visible_until"})
"""Data of events that are times: recorded in microseconds since the epoch, and shown in RFC 3339."""

Event = tuple[str, int, str, str | None, str | None, dict[str, Any], str]
"""Type, time in microseconds since the epoch, id or name of the subject, queue, job type, more data, and tenant."""


def event_about(
    type: str, at: int, subject: str, queue: str | None, tenant: str | None, data: Mapping[str, Any]
) -> Event:
    """Return the event of a named resource; its owner is ``tenant``: see ``Transaction.emit_about``."""
    owner, name = split(subject)
    shown = {key: called(value) if isinstance(value, str) else value for key, value in data.items()}
    return type, at, name, queue, None, shown, (owner or ALL_TENANTS) if tenant is None else tenant


def describe_event(event: Event, id: str, source: str) -> dict[str, Any]:
    """Return the envelope of an event.

    Spec: ojs-events 2
    """
    type, at, subject, queue, job_type, more, tenant = event
    data = dict(more)
    for name in _TIMES & data.keys():
        if isinstance(data[name], int):
            data[name] = format_timestamp(data[name])
    if tenant not in (NOBODY, ALL_TENANTS):
        data["tenant_id"] = tenant
    if job_type is not None:
        data |= {"job_id": subject, "job_type": job_type}
    if queue is not None:
        data["queue"] = queue
    return {
        "specversion": "1.0",
        "id": id,
        "type": type,
        "source": source,
        "time": format_timestamp(at),
        "subject": subject,
        "data": data,
    }


class EventPage(msgspec.Struct, frozen=True):
    """A page of events, oldest first. One that was asked for by its number is newest first, with its ``pagination``.

    ``gap``: whether events are missing after the one that was named: they were deleted, or the log does not have it, as
    after a restore of the database. ``cursor`` then names where to go on, although the page may be empty.
    """

    events: list[dict[str, Any]]
    cursor: str | None
    has_more: bool
    pagination: NumberedPaginationBody | UnsetType = UNSET
    gap: Literal[True] | UnsetType = UNSET


class EventFilter(Bounded, frozen=True):
    """Events to list: those after the number ``after`` that match every filter that is not empty."""

    after: LogNumber = 0
    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    limit: PageLimit = 100
    tenant: str | None = None


def page_of_events(events: Iterable[tuple[int, Event]], chosen: EventFilter) -> EventPage:
    """Return a page of numbered events, oldest first."""
    rows: list[dict[str, Any]] = []
    cursor = None
    for number, event in events:
        type, _, _, queue, job_type, _, tenant = event
        if (
            number <= chosen.after
            or chosen.tenant not in (None, tenant)
            or (chosen.types and type not in chosen.types)
            or (chosen.queues and queue not in chosen.queues)
            or (chosen.job_types and job_type not in chosen.job_types)
        ):
            continue
        if len(rows) == chosen.limit:
            return EventPage(rows, cursor, True)
        rows.append(describe_event(event, f"evt_{number}", SOURCE))
        cursor = f"evt_{number}"
    return EventPage(rows, cursor, False)

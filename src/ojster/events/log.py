"""What has happened lately, for those who want to follow it: the events of each transaction, kept for a while.

Each transaction writes all its events as one row. Their numbers follow from the row's position, which grows in the
order in which transactions become visible: whoever reads on from the last event that he has seen misses none, and sees
none twice. Where transactions run at the same time, positions are given when somebody asks: ``Database.order_events``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.durations import MINUTE
from ojster.core.events import Event, EventFilter, EventPage, page_of_events
from ojster.storage.system import FOLLOWED, note
from ojster.storage.transaction import Transaction

EVENTS_IN_BATCH: Final = 1_000_000
"""How many numbers the events of a transaction take: more than it can have."""

BATCHES_AT_ONCE: Final = 200

FOLLOWED_FOR: Final = 5 * MINUTE
"""For how long it is recorded what happens after somebody has said that he wants to know."""

decode_events: Final = msgspec.json.Decoder(list[Event]).decode


class Stretch(msgspec.Struct, frozen=True):
    """Events behind a number, oldest first, each with its own.

    Parameters
    ----------
    more:
        Whether there are more behind these.
    is_whole:
        Whether none is missing between the number and these: else the oldest were deleted, or the number is of a time
        that is forgotten.
    """

    events: list[tuple[int, Event]]
    more: bool = False
    is_whole: bool = True


def read_on(tx: Transaction, numbers: Sequence[int]) -> list[Stretch]:
    """Return what has happened since the event with each number."""
    return [_stretch(tx, number) for number in numbers]


def last_event(tx: Transaction, requests: Sequence[None]) -> list[int]:
    """Return the number up to which all has happened already, for each request: where to begin to follow."""
    return [_last_of(tx.last_position()) for _ in requests]


def note_follower(tx: Transaction, requests: Sequence[None]) -> list[None]:
    """Note that somebody wants to know what happens: for a while all processes record it, not only servers."""
    note(tx, FOLLOWED, tx.now + FOLLOWED_FOR)
    tx.effects.configured = True
    return list(requests)


def select_events(tx: Transaction, filters: Sequence[EventFilter]) -> list[EventPage]:
    """Return a page of events for each filter."""
    pages = []
    for chosen in filters:
        stretch = _stretch(tx, chosen.after)
        events = stretch.events
        while stretch.more and not page_of_events(events, chosen).has_more:
            stretch = _stretch(tx, events[-1][0])
            events += stretch.events
        pages.append(page_of_events(events, chosen))
    return pages


def _last_of(position: int) -> int:
    return (position + 1) * EVENTS_IN_BATCH - 1


def _stretch(tx: Transaction, after: int) -> Stretch:
    position = after // EVENTS_IN_BATCH
    rows = tx.event_batches(position, BATCHES_AT_ONCE)
    events = [
        (number, event)
        for here, body in rows
        for number, event in enumerate(decode_events(body), here * EVENTS_IN_BATCH)
        if number > after
    ]
    is_whole = rows[0][0] <= position + 1 if rows else after <= _last_of(tx.last_position())
    return Stretch(events, len(rows) == BATCHES_AT_ONCE, is_whole)

"""Event log: the recent events, for clients that follow them.

Each transaction writes all its events as one row. Their numbers follow from the row's position, which grows in the
order in which transactions become visible: a client that continues after its last event misses none, and gets none
twice. Where transactions run at the same time, positions are assigned when a client asks: ``Database.order_events``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from ojster.core.durations import MINUTE
from ojster.core.events import Event, EventFilter, EventPage, page_of_events
from ojster.storage.call import for_each
from ojster.storage.system import FOLLOWED_UNTIL, note
from ojster.storage.transaction import Transaction

NUMBERS_PER_BATCH: Final = 1_000_000
"""Number of event numbers reserved for a transaction: more than the events it can have."""

MAX_BATCHES_PER_READ: Final = 200

FOLLOW_PERIOD_US: Final = 5 * MINUTE
"""Time that events are recorded after a client has asked for them, in microseconds."""

decode_events: Final = msgspec.json.Decoder(list[Event]).decode


class Stretch(msgspec.Struct, frozen=True):
    """Events after a number, oldest first, each with its own number.

    Parameters
    ----------
    more:
        Whether more events follow.
    is_whole:
        Whether no event is missing between the number and these: ``False`` if the oldest were deleted, or the number is
        higher than any in the log.
    """

    events: list[tuple[int, Event]]
    more: bool = False
    is_whole: bool = True


def read_on(tx: Transaction, numbers: Sequence[int]) -> list[Stretch]:
    """Return the events after each number."""
    return [_stretch(tx, number) for number in numbers]


def last_event(tx: Transaction, requests: Sequence[None]) -> list[int]:
    """Return the number from which to follow the events, for each request: all later events have a higher one."""
    return [_last_of(tx.last_position()) for _ in requests]


def record_follower(tx: Transaction, requests: Sequence[None]) -> list[None]:
    """Record that a client follows the events: for a while all processes record them, not only servers."""
    note(tx, FOLLOWED_UNTIL, tx.now + FOLLOW_PERIOD_US)
    tx.effects.configured = True
    return list(requests)


@for_each
def select_events(tx: Transaction, chosen: EventFilter) -> EventPage:
    """Return a page of events for each filter."""
    first = _stretch(tx, chosen.after)
    page = page_of_events(_events_from(tx, first), chosen)
    if first.is_whole or not chosen.after:
        return page
    return msgspec.structs.replace(page, gap=True, cursor=page.cursor or f"evt_{_last_of(tx.last_position())}")


def _events_from(tx: Transaction, stretch: Stretch) -> Iterator[tuple[int, Event]]:
    yield from stretch.events
    while stretch.more:
        stretch = _stretch(tx, stretch.events[-1][0])
        yield from stretch.events


def _last_of(position: int) -> int:
    return (position + 1) * NUMBERS_PER_BATCH - 1


def _stretch(tx: Transaction, after: int) -> Stretch:
    position = after // NUMBERS_PER_BATCH
    rows = tx.event_batches(position, MAX_BATCHES_PER_READ)
    last = position
    if not rows:  # a crash has emptied the log, or there were no events yet
        last = tx.last_position()
        rows = tx.event_batches(position, MAX_BATCHES_PER_READ)  # some may have come meanwhile
    events = [
        (number, event)
        for here, body in rows
        for number, event in enumerate(decode_events(body), here * NUMBERS_PER_BATCH)
        if number > after
    ]
    is_whole = rows[0][0] <= position + 1 if rows else position == last
    return Stretch(events, len(rows) == MAX_BATCHES_PER_READ, is_whole)

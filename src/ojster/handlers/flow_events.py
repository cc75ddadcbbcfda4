"""The events that the function of a flow gets, one after the other: ends of what it has asked for, and timers.

Each event is given alone, and its order is recorded wherever another could have come before it, so that the function
takes the same way whenever it runs again.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ojster.handlers.codec import Codecs
from ojster.handlers.flow_keys import FlowKeys
from ojster.handlers.flow_loop import FlowLoop
from ojster.handlers.flow_past import FlowPast
from ojster.handlers.flow_saying import clock, is_given_up
from ojster.workflows.flow import CANCELLATION, FlowRecord, FlowRecords, Seen

_UNPLACED: Final = 1 << 62


class FlowEvents:
    """The events of one run of a flow.

    Parameters
    ----------
    records:
        The records of the flow.
    codecs:
        Those of the application.
    """

    def __init__(self, records: FlowRecords, codecs: Codecs) -> None:
        self.codecs = codecs
        self._past = FlowPast(records, codecs)
        self._records = self._past.records
        self.keys = FlowKeys()
        self.loop = FlowLoop(self._past.began_at, self.keys.note_task)  # type: ignore[abstract]  # what is missing raises an error
        self._main: asyncio.Task[Any] | None = None
        self._offset = records.now - clock()
        self._woken_at = 0
        """When the flow was made to run: what ended before was known when it ran last."""
        self.is_replaying = len(self._records) > 0
        """Whether the function does again what it has done before."""
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._due: list[tuple[int, int, bool, str]] = []
        """Ends that the function waits for: place, time, whether it is the cancellation, key."""
        self._unplaced: list[tuple[str, int]] = []
        """Ends that the function has got when it waited for nothing else, with the times."""
        self._seen: list[Seen] = []
        self._received = 0
        """Size of the results that the function has got, in bytes."""

    @property
    def _now(self) -> int:
        """The time of the server, as far as it is known here."""
        return clock() + self._offset

    @property
    def last_end(self) -> int:
        """The number of the last end that others have brought to the flow, as far as it is known here."""
        return self._past.last

    def _make_due(self, record: FlowRecord) -> None:
        if not is_given_up(record):
            at = record.seen_at if record.seen_at is not None else record.ended_at
            is_cancellation = record.key == CANCELLATION
            # A cancellation that was not seen comes last of all that is known: more may follow from the others. Only
            # what was cancelled after it, such as a flow inside, is no event of its own.
            place = _UNPLACED + (is_cancellation or 2 * self._is_cancelled_with_flow(record))
            place = place if record.place is None else record.place
            heapq.heappush(self._due, (place, at or 0, is_cancellation, record.key))

    def _is_cancelled_with_flow(self, record: FlowRecord) -> bool:
        """Return whether something was cancelled after the flow was: by a number, as both may be seen together."""
        own = self._records.get(CANCELLATION)
        if own is None or own.number is None or record.error is UNSET or (record.number or 0) < own.number:
            return False
        error: dict[str, object] = msgspec.json.decode(record.error)
        return error.get("state") == "cancelled"

    def _give_next(self) -> bool:
        """Give the function its next event; return whether there was one."""
        while self._due and self._due[0][3] not in self._waiting and not self._due[0][2]:
            heapq.heappop(self._due)  # no longer awaited
        timer = self.loop.next_timer
        if not self._due:
            if timer is None or timer > self._now:
                return False
            self._fire(timer)
            return True
        place, ended_at, is_cancellation, key = self._due[0]
        is_clear = len(self._waiting) == 1 and timer is None and not is_cancellation
        at = max(ended_at, self.loop.now + 1)  # later than all before, so that it is clear what was seen before what
        if place >= _UNPLACED and not is_clear and at < self._past.latest:
            was_clear = timer is None and not is_cancellation and self._past.has_one_of(self._waiting)
            at = at if was_clear else self._past.latest
        if timer is not None and timer <= at:
            self._fire(timer)
            return True
        heapq.heappop(self._due)
        self._give(key, at, is_placed=place < _UNPLACED, is_clear=is_clear)
        return True

    def _fire(self, timer: int) -> None:
        self.is_replaying = self.is_replaying and (timer < self._woken_at and self._past.known > 0)
        self.loop.fire()

    def _give(self, key: str, at: int, *, is_placed: bool, is_clear: bool) -> None:
        record = self._records[key]
        is_old = is_placed or (record.ended_at or 0) < self._woken_at
        self.is_replaying = self.is_replaying and is_old
        self._past.known -= 1
        if key == CANCELLATION and not is_placed:  # it may come at any time, so that the order of all others counts
            for earlier, seen_at in self._unplaced:
                self._note_place(earlier, seen_at)
            self._unplaced = []
        if is_placed or (is_clear and at == record.ended_at):
            self._unplaced += [] if is_placed else [(key, at)]
        else:
            self._note_place(key, at)
        self.loop.now = at
        if key == CANCELLATION:
            assert self._main is not None
            self._main.cancel()
            return
        self._received += 0 if record.result is UNSET else len(memoryview(record.result))
        self._records[key] = msgspec.structs.replace(record, result=UNSET)  # the function has it: keep it once
        future = self._waiting.pop(key)
        if not future.done():
            future.set_result(record)

    def _note_place(self, key: str, at: int) -> None:
        self._past.place += 1
        self._seen.append(Seen(key, self._past.place, at))

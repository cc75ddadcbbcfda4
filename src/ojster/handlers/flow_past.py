"""What is recorded of a flow when its function begins to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec
from msgspec import UNSET

from ojster.handlers.codec import Codecs
from ojster.handlers.flow_saying import as_record, counts
from ojster.workflows.flow import ASKED_FOR, BEGIN, TOLD, FlowRecord, FlowRecords, NewRecord
from ojster.workflows.stream import key_of_chunk


class FlowPast:
    """What is recorded of a flow, and how much of it the function has not come to yet.

    Parameters
    ----------
    records:
        The records of the flow.
    codecs:
        Those of the application.

    Attributes
    ----------
    records, told:
        The records by key; apart from them those that the flow has only told.
    new:
        Keys of what the function has asked for first in the present attempt of its job.
    last:
        The number of the last end that others have brought to the flow.
    began_at, has_begun:
        When the flow began, and whether that is recorded.
    latest:
        The latest time that something is recorded for: what has ended and has no place was not seen before.
    place:
        The last place among the ends that the flow has seen.
    known:
        The number of known ends that the function has not got.
    seed:
        What the random numbers of the flow follow from: in a fork, what they followed from in the first run.
    args:
        The arguments with which the function began anew, as JSON; ``None``: those of its job.
    waited_at:
        The time at which the flow left a worker last: what it came to before, it has passed.
    unreached:
        The number of records that the function has not asked for, and of answers that it has not given again.
    """

    def __init__(self, records: FlowRecords, codecs: Codecs) -> None:
        self._codecs = codecs
        self.records = {record.key: record for record in records.records if record.kind not in TOLD}
        self.told = {record.key: record for record in records.records if record.kind in TOLD}
        self.new: set[str] = set()
        self.last = max((record.number or 0 for record in records.records), default=0)
        begin = self.records.get(BEGIN)
        self.seed = (begin and begin.name) or f"{records.workflow_id} {records.flow}"
        self.args = None if begin is None or begin.result is UNSET else begin.result
        own = [record for record in records.records if record.kind != "cancel"]
        # Not the first record: what was published in an earlier round, before a restart, stays.
        first = min((record.asked_at for record in own), default=records.now)
        self.began_at = first if begin is None else begin.asked_at
        self.has_begun = len(own) > 0
        self.latest = max((max(record.asked_at, record.seen_at or 0) for record in own), default=0)
        self.place = max((record.place or 0 for record in records.records), default=0)
        self.known = sum(counts(record) or record.kind == "step" for record in records.records)
        self.waited_at = records.waited_at or 0
        self.unreached = sum(record.kind in (*ASKED_FOR, "answer") for record in records.records)
        self._streamed = {
            record.name: msgspec.json.decode(record.result, type=int)
            for record in self.told.values()
            if record.kind == "stream" and record.result is not UNSET
        }
        self._appended = Counter[str]()

    def news(self, record: NewRecord) -> NewRecord | None:
        """Return what a flow tells, with its key, or ``None`` if it was told before."""
        if record.kind == "chunk":
            self._appended[record.name] += 1
            number = self._appended[record.name]
            if number <= self._streamed.get(record.name, 0):
                return None
            return msgspec.structs.replace(record, key=key_of_chunk(record.name, number))
        known = self.told.get(record.key)
        self.unreached -= known is not None and known.kind == "answer"
        is_news = known is None or (record.kind == "published" and self._value(record) != self._value(known))
        return record if is_news else None

    def _value(self, record: NewRecord | FlowRecord) -> Any:
        """Return what is published: the same may have been encrypted in another way."""
        raw: Any = record.result
        return self._codecs.decode_value(msgspec.json.decode(raw)) if self._codecs else raw

    def note_told(self, sent: Mapping[str, NewRecord]) -> None:
        """Note what the server is told now; chunks of streams, which may be many, have only their number."""
        for record in sent.values():
            if record.kind in TOLD and record.kind != "chunk":
                self.told[record.key] = as_record(record, record.result)

    def has_one_of(self, waiting: Iterable[str]) -> bool:
        """Return whether just one of the awaited keys was recorded: when it ended, nothing else could have come."""
        return len(list(islice((key for key in waiting if key not in self.new), 2))) == 1

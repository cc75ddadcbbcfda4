"""What a flow says to its server, within the limits of that, and what its records mean."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.core.errors import Forbidden, PayloadTooLarge
from ojster.handlers.context import JobContext
from ojster.handlers.outcomes import MAX_RESULT_BYTES
from ojster.workflows.flow import GIVEN_UP, MAX_RECORDS_AT_ONCE, RECEIVING, FlowRecord, FlowRecords, NewRecord, Turn
from ojster.workflows.flow_calls import FlowCalls

_LISTS: Final = ("records", "seen", "cancelled")


def clock() -> int:
    """Return the time of a clock that never jumps, in microseconds."""
    return time.monotonic_ns() // 1000


async def say(flows: FlowCalls, turn: Turn) -> FlowRecords:
    """Send a turn; one with many records in parts."""
    while max(len(turn.records), len(turn.seen), len(turn.cancelled)) > MAX_RECORDS_AT_ONCE:
        part: dict[str, Any] = {name: getattr(turn, name)[:MAX_RECORDS_AT_ONCE] for name in _LISTS}
        rest = {name: getattr(turn, name)[MAX_RECORDS_AT_ONCE:] for name in _LISTS}
        part |= {"suspends": False, "was_cancelled": False, "restarts": False}
        await flows.turn(msgspec.structs.replace(turn, **part))  # the last answer has all that has ended
        turn = msgspec.structs.replace(turn, **rest)
    return await flows.turn(turn)


async def file_of(context: JobContext, name: str, result: bytes) -> str:
    """Store the result of a local step, which is too large to be kept with the flow, as a file; return the file's id.

    Raises
    ------
    ValueError
        There is no file store, or no room.
    BackendUnavailable
        The file store cannot be reached.
    """
    why = "The server has no file store."
    try:
        if (file := await context.keep_result(result)) is not None:
            return file
    except (Forbidden, PayloadTooLarge) as refusal:
        why = refusal.message
    raise ValueError(
        f"The result of the step {name!r} takes {len(result)} bytes; beyond {MAX_RESULT_BYTES} it is kept as a file, "
        f"which is not possible: {why}"
    )


def as_record(new: NewRecord, result: Raw | UnsetType) -> FlowRecord:
    """Return the record of a local step that has ended, with its result."""
    return FlowRecord(
        new.key, new.kind, new.name, new.asked_at, new.input, new.ended_at, result=result, error=new.error
    )


def counts(record: FlowRecord) -> bool:
    """Return whether a record is one of those whose ends others bring about, and has ended."""
    return record.ended_at is not None and record.kind in ("run", "cancel", *RECEIVING)


def is_given_up(record: FlowRecord) -> bool:
    """Return whether a record is one that the flow no longer waits for."""
    return record.error is not UNSET and bytes(record.error) == GIVEN_UP

"""What does a step look like that nobody runs, because it waits: for a time, or for somebody's answer? (seed 003)"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.durations import parse_duration
from ojster.core.errors import InvalidRequest, SchemaViolation
from ojster.core.json_schema import compile_schema
from ojster.core.parsing import read_value
from ojster.core.timestamps import parse_timestamp

WAIT_TYPE: Final = "ojster.wait"
"""The type of jobs that wait. No worker is given one."""

ATTRIBUTE: Final = "ojster_wait"
"""The attribute of the job that says for what."""


MOST_REMINDERS: Final = 100
"""How often somebody can be reminded of one wait."""


class Wait(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For what a job waits.

    Parameters
    ----------
    delay, until:
        How long, an ISO 8601 duration from when it may start, or until when, an RFC 3339 time stamp. Without a form it
        is done then; with one it fails then, unless it was answered.
    form:
        A JSON Schema: what an answer must look like. With a form, or without a time, it waits for an answer.
    remind:
        After which times, ISO 8601 durations from when it begins, somebody is to be reminded that an answer is missing:
        then the reactions of ``on_reminder`` are carried out.
    """

    delay: str | None = None
    until: str | None = None
    form: dict[str, msgspec.Raw] | None = None
    remind: tuple[str, ...] = ()

    @property
    def is_for_a_time(self) -> bool:
        """Whether the time alone ends it."""
        return self.form is None and (self.delay is not None or self.until is not None)

    def deadline(self, now: int) -> int | None:
        """Return until when it waits that may start now, in microseconds since the epoch."""
        if self.until is not None:
            return parse_timestamp(self.until)
        return None if self.delay is None else now + parse_duration(self.delay)

    def due(self, begun: int, now: int) -> int | None:
        """Return when something is to happen next: a reminder, or the end of the wait; all in microseconds."""
        deadline = self.deadline(begun)
        moments = [moment for delay in self.remind if (moment := begun + parse_duration(delay)) > now]
        if deadline is not None:
            moments = [*(moment for moment in moments if moment < deadline), deadline]
        return min(moments, default=None)

    def is_over(self, begun: int, now: int) -> bool:
        """Whether nobody needs to be reminded any more, as the time is up."""
        deadline = self.deadline(begun)
        return deadline is not None and deadline <= now

    def check(self, answer: bytes | None) -> SchemaViolation | None:
        """Return what is wrong with an answer, if it is not what the form asks for."""
        if self.form is None:
            return None
        wrong = compile_schema(_decode_any(msgspec.json.encode(self.form)))(read_value(answer or b"null", "result"))
        if not wrong:
            return None
        shown = [problem.replace("args", "result", 1) for problem in wrong]
        return SchemaViolation("The answer is not what the form asks for: " + "; ".join(shown), violations=shown)


_decode_any: Final = msgspec.json.Decoder(dict[str, Any]).decode


decode_wait: Final = msgspec.json.Decoder(Wait).decode
"""Returns for what a job waits that was checked when it was pushed."""


def read_wait(raw: bytes | msgspec.Raw) -> Wait:
    """Return for what a job waits that says so.

    Raises
    ------
    InvalidRequest
        It is malformed, its form is no JSON Schema, or it has two times.
    Unsupported
        It has a form, and this server cannot validate any.
    """
    try:
        wait = msgspec.json.decode(raw, type=Wait)
    except msgspec.MsgspecError as error:
        message = f"A wait can have 'delay' or 'until', 'form', and 'remind': {error}."
        raise InvalidRequest(message, field=ATTRIBUTE) from None
    if wait.delay is not None and wait.until is not None:
        raise InvalidRequest("A wait has a 'delay' or an 'until', not both.", field=ATTRIBUTE)
    if wait.remind and wait.is_for_a_time:
        raise InvalidRequest("Nobody needs to be reminded of a wait that ends by itself.", field=ATTRIBUTE)
    if len(wait.remind) > MOST_REMINDERS:
        raise InvalidRequest(f"A wait has at most {MOST_REMINDERS} reminders.", field=ATTRIBUTE)
    wait.due(0, 0)
    if wait.form is not None:
        read_value(msgspec.json.encode(wait.form), "form")
        compile_schema(_decode_any(msgspec.json.encode(wait.form)))
    return wait

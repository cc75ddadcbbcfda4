"""Wait steps: they wait for a time or for an answer, and no worker runs them."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from ojster.core.durations import MILLISECOND, parse_duration
from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import read_members
from ojster.core.json_schema import compile_schema
from ojster.core.parsing import read_value
from ojster.core.refusals import SchemaViolation
from ojster.core.timestamps import parse_timestamp

WaitingFor = Literal["gate", "form", "delay", "promise", "suspension"]
"""What a step waits for: an approval, an answer, a time, a promised item, or that its suspended job is resumed."""

ATTRIBUTE: Final = "ojster_wait"
"""The job attribute that holds its ``Wait``."""

MAX_REMINDERS: Final = 100
"""Maximum number of reminders of a wait step."""


class WaitTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a wait step waits for.

    Parameters
    ----------
    delay, until:
        Duration of the wait (ISO 8601, from when the step may start) or its end (an RFC 3339 time stamp). Without a
        form the step completes then; with a form it fails then, unless it was answered.
    form:
        JSON Schema of the answer. With a form, or without a time, the step waits for an answer. The server sets the
        properties ``answered_by`` and ``answered_at`` of the answer if the form declares them as ``readOnly``.
    timeout_ms:
        Longest wait for an answer, in milliseconds. Then the step fails. ``None``: no limit.
    remind:
        ISO 8601 durations from the start of the wait, after which the reactions of ``on_reminder`` run if there is no
        answer.
    """

    delay: str | None = None
    until: str | None = None
    form: dict[str, msgspec.Raw] | None = None
    timeout_ms: int | None = None
    remind: tuple[str, ...] = ()

    @property
    def ends_by_time(self) -> bool:
        """Whether time alone ends the wait."""
        return self.form is None and (self.delay is not None or self.until is not None)

    def deadline(self, now: int) -> int | None:
        """Return the end of a wait that starts at ``now``, in microseconds since the epoch, or ``None``."""
        if self.until is not None:
            return parse_timestamp(self.until)
        if self.timeout_ms is not None:
            return now + self.timeout_ms * MILLISECOND
        return None if self.delay is None else now + parse_duration(self.delay)

    def due(self, begun: int, now: int) -> int | None:
        """Return when the next reminder or the end is due, or ``None``; all in microseconds since the epoch."""
        deadline = self.deadline(begun)
        moments = [moment for delay in self.remind if (moment := begun + parse_duration(delay)) > now]
        if deadline is not None:
            moments = [*(moment for moment in moments if moment < deadline), deadline]
        return min(moments, default=None)

    def is_over(self, begun: int, now: int) -> bool:
        """Whether the wait has reached its end, so that reminders stop."""
        deadline = self.deadline(begun)
        return deadline is not None and deadline <= now

    def signed(self, answer: bytes, *, by: str | None, at: str) -> bytes:
        """Return an answer with the members that the form leaves to the server.

        They are the properties ``answered_by`` and ``answered_at`` that the form declares as ``readOnly``.

        Parameters
        ----------
        by:
            Name of the token of whoever answers; ``None``: unknown.
        at:
            Time of the answer, RFC 3339.
        """
        properties = _decode_any(msgspec.json.encode(self.form or {})).get("properties")
        if not isinstance(properties, dict) or answer.lstrip()[:1] != b"{":
            return answer
        own = {
            name: msgspec.Raw(msgspec.json.encode(value))
            for name, value in (("answered_by", by), ("answered_at", at))
            if isinstance(properties.get(name), dict) and properties[name].get("readOnly") is True
        }
        return msgspec.json.encode(read_members(answer, "result") | own) if own else answer

    def check(self, answer: bytes | None) -> SchemaViolation | None:
        """Return the error for an answer that does not match the form, or ``None``."""
        if self.form is None:
            return None
        wrong = compile_schema(_decode_any(msgspec.json.encode(self.form)))(read_value(answer or b"null", "result"))
        if not wrong:
            return None
        shown = [problem.replace("args", "result", 1) for problem in wrong]
        return SchemaViolation("The answer does not match the form: " + "; ".join(shown), violations=shown)


_decode_any: Final = msgspec.json.Decoder(dict[str, Any]).decode

decode_wait: Final = msgspec.json.Decoder(WaitTarget).decode
"""Decodes the wait of a stored job, which was validated at its push."""


def read_wait(raw: bytes | msgspec.Raw) -> WaitTarget:
    """Return the wait in a job's attribute.

    Raises
    ------
    InvalidRequest
        It is malformed, its form is not a JSON Schema, or it has two of ``delay``, ``until`` and ``timeout``.
    Unsupported
        It has a form, and the extra ``ojster[schemas]`` is not installed.
    """
    try:
        wait = msgspec.json.decode(raw, type=WaitTarget)
    except msgspec.MsgspecError as error:
        message = (
            f"The wait is malformed: {error}. Write 'delay' as a duration such as 'PT30S', or 'until' as a time stamp; "
            "besides, it can have 'timeout', 'form' and 'remind'."
        )
        raise InvalidRequest(message, field=ATTRIBUTE) from None
    if wait.delay is not None and wait.until is not None:
        raise InvalidRequest("A wait can have 'delay' or 'until', not both.", field=ATTRIBUTE)
    if wait.timeout_ms is not None and (wait.delay is not None or wait.until is not None):
        message = "A wait can have 'timeout' only without 'delay' and 'until', which end it. Use one of them."
        raise InvalidRequest(message, field=ATTRIBUTE)
    if wait.remind and wait.ends_by_time:
        raise InvalidRequest("A wait that ends by time alone cannot have 'remind'.", field=ATTRIBUTE)
    if len(wait.remind) > MAX_REMINDERS:
        raise InvalidRequest(f"A wait can have at most {MAX_REMINDERS} reminders.", field=ATTRIBUTE)
    wait.due(0, 0)
    if wait.form is not None:
        read_value(msgspec.json.encode(wait.form), "form")
        compile_schema(_decode_any(msgspec.json.encode(wait.form)))
    return wait

"""The error of a failed attempt.

Spec: ojs-core 8, ojs-retry 10
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import check_depth
from ojster.core.timestamps import format_timestamp, parse_moment

MAX_KEPT_ERRORS: Final = 25
"""Maximum number of errors kept for a job; the oldest are dropped first. The specification asks for ten."""

MAX_MESSAGE_LENGTH: Final = 10_000
MAX_EVENT_MESSAGE_LENGTH: Final = 1_000
MAX_BACKTRACE_FRAMES: Final = 50
MAX_BACKTRACE_LENGTH: Final = 10_000

MAX_PATTERN_LENGTH: Final = 200
"""Maximum length of the pattern of a message, in characters."""

_VARIABLE: Final = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|0x[0-9a-fA-F]+|'[^']*'|\"[^\"]*\"|\b(?=[a-fA-F]*\d)[0-9a-fA-F]++\b|\d+"
)
"""What differs between messages of the same error: UUIDs, addresses, quoted values and numbers."""

_REPEATED: Final = re.compile(r"…(?:[.:,/-]?…)+")
"""Several of them in a row, such as an address and its port."""


class Failure(msgspec.Struct, frozen=True):
    """The error of a failed attempt.

    ``code`` may be one of the handler codes ``RETRY``, ``DISCARD``, ``DEAD_LETTER`` and ``FAIL``. ``retryable`` is the
    worker's judgement, or ``None``. Until ``rate_limit_until``, a time stamp or a duration from the report on such as
    ``+PT30S``, no other job with the same rate limit should start. ``least_delay`` is the shortest delay of a retry, in
    microseconds.

    Spec: ojs-rate-limiting 9.1
    """

    type: str
    message: str
    code: str = "handler_error"
    retryable: bool | None = None
    details: dict[str, Any] | None = None
    backtrace: tuple[str, ...] = ()
    rate_limit_until: str | None = None
    facts: dict[str, Any] | None = None
    """Members beside those of every error, such as ``limit_seconds`` of a timeout."""
    least_delay: int = 0

    def to_history(self, attempt: int, now: int) -> dict[str, Any]:
        """Return the failure as an entry of the job's ``errors``."""
        at = format_timestamp(now)
        entry: dict[str, Any] = {
            "attempt": attempt,
            "type": clean(self.type),
            "code": clean(self.code),
            "message": clean(self.message[:MAX_MESSAGE_LENGTH]),
            "occurred_at": at,
            "timestamp": at,
        }
        if self.facts:
            entry |= self.facts
        if self.details:
            entry["details"] = self.details
        if self.backtrace:
            entry["backtrace"] = [clean(frame) for frame in _shorten(self.backtrace)]
        return entry

    def to_event(self, *, retryable: bool) -> dict[str, Any]:
        """Return the failure as the ``error`` of an event."""
        return {
            "type": clean(self.type),
            "message": clean(self.message[:MAX_EVENT_MESSAGE_LENGTH]),
            "code": clean(self.code),
            "retryable": retryable,
        }


def parse_failure(error: Any) -> Failure:
    """Return the failure described by the ``error`` object of a FAIL request.

    The type is ``type``, else ``details.error_class``, else ``code``.

    Raises
    ------
    InvalidRequest
        The value is not an object, or one of its attributes has the wrong type.
    """
    if not isinstance(error, dict):
        raise InvalidRequest("The 'error' attribute must be an object with 'code' and 'message'.", field="error")
    for name in ("type", "code", "message"):
        if not isinstance(error.get(name, ""), str):
            raise InvalidRequest(f"error.{name} must be a string.", field=f"error.{name}")
    details, backtrace, retryable = error.get("details"), error.get("backtrace"), error.get("retryable")
    if details is not None and not isinstance(details, dict):
        raise InvalidRequest("error.details must be an object.", field="error.details")
    if details:
        check_depth(msgspec.json.encode(details), "error.details")
    if retryable is not None and not isinstance(retryable, bool):
        raise InvalidRequest("error.retryable must be true or false.", field="error.retryable")
    if isinstance(backtrace, str):
        backtrace = backtrace.splitlines()
    if backtrace is not None and not (isinstance(backtrace, list) and all(isinstance(f, str) for f in backtrace)):
        raise InvalidRequest("error.backtrace must be an array of strings.", field="error.backtrace")
    until = error.get("rate_limit_until")
    if until is not None:
        if not isinstance(until, str):
            raise InvalidRequest(
                "error.rate_limit_until must be an RFC 3339 time stamp.", field="error.rate_limit_until"
            )
        parse_moment(until, 0)
    code = error.get("code") or "handler_error"
    error_class = (details or {}).get("error_class")
    return Failure(
        type=error.get("type") or (error_class if isinstance(error_class, str) else "") or code,
        message=error.get("message", ""),
        code=code,
        retryable=retryable,
        details=details,
        backtrace=tuple(backtrace or ()),
        rate_limit_until=until,
    )


def pattern_of(message: str) -> str:
    """Return the first line of a message with ``…`` in place of ids, numbers and quoted values, cut if it is long.

    A pattern is its own pattern, so that a filter takes a message as well as a pattern.
    """
    line = message.strip().partition("\n")[0][: 2 * MAX_PATTERN_LENGTH]
    return _REPEATED.sub("…", _VARIABLE.sub("…", line))[:MAX_PATTERN_LENGTH].rstrip()


def clean(text: str) -> str:
    """Return the text with lone surrogates escaped, so that it can be JSON. File names that are not UTF-8 have some."""
    return text.encode("utf-8", "backslashreplace").decode()


def append_failure(history: bytes | None, failure: Failure, attempt: int, now: int) -> bytes:
    """Return the job's ``errors``, a JSON array, with the failure appended and at most ``MAX_KEPT_ERRORS`` entries."""
    entries: list[Any] = msgspec.json.decode(history, type=list[msgspec.Raw]) if history else []
    entries.append(failure.to_history(attempt, now))
    return msgspec.json.encode(entries[-MAX_KEPT_ERRORS:])


def _shorten(backtrace: tuple[str, ...]) -> list[str]:
    """Return the last frames, up to the limits: the error is at the end. A frame that is too long is cut off."""
    kept: list[str] = []
    room = MAX_BACKTRACE_LENGTH
    for frame in reversed(backtrace[-MAX_BACKTRACE_FRAMES:]):
        if room <= 0:
            break
        kept.append(frame if len(frame) <= room else f"{frame[: max(room - 1, 0)]}…")
        room -= len(frame)
    return kept[::-1]

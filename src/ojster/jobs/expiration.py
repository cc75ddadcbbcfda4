"""For how long is something kept once it is finished, if it says so itself? (seed 003: expiration delay)"""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.durations import format_duration, parse_duration
from ojster.core.errors import InvalidRequest

ATTRIBUTE: Final = "expiration_delay"
"""The attribute of jobs and workflows in which it stands."""


FOR_EVER: Final = 2**62
"""When something goes that is never to go."""


def read_expiration_delay(raw: bytes | msgspec.Raw) -> int:
    """Return a delay in microseconds; 0: it is kept for ever, as ``PT0S`` and ``never`` say.

    Raises
    ------
    InvalidRequest
        It is no duration.
    """
    try:
        text = msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        message = f"{ATTRIBUTE!r} must be an ISO 8601 duration such as 'P30D', or 'never'."
        raise InvalidRequest(message, field=ATTRIBUTE) from None
    if text == "never":
        return 0
    try:
        return parse_duration(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"{ATTRIBUTE!r}: {error.message}", field=ATTRIBUTE) from None


def shown_expiration_delay(delay: int) -> str:
    """Return a delay as it is written; the inverse of ``read_expiration_delay``."""
    return format_duration(delay) if delay else "never"


def kept_until(finished_at: int, delay: int) -> int:
    """Return until when something is kept that finished then."""
    return finished_at + delay if delay else FOR_EVER


class _Envelope(msgspec.Struct):
    expiration_delay: msgspec.Raw


_in_envelope: Final = msgspec.json.Decoder(_Envelope).decode


def delay_of(envelope: bytes) -> int:
    """Return the delay of a job that is stored, and has one."""
    return read_expiration_delay(_in_envelope(envelope).expiration_delay)

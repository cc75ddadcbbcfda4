"""Expiration delay: how long a finished job or workflow is kept, if it sets the time itself."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.durations import format_duration, parse_duration
from ojster.core.errors import InvalidRequest

ATTRIBUTE: Final = "expiration_delay"
"""The attribute of jobs and workflows that holds the delay."""

NEVER_EXPIRES_AT: Final = 2**62
"""The expiry time of jobs and workflows that never expire, in microseconds since the epoch."""


def read_expiration_delay(raw: bytes | msgspec.Raw) -> int:
    """Return a delay in microseconds; 0 for ``PT0S`` and ``never``: the job or workflow is kept forever.

    Raises
    ------
    InvalidRequest
        The value is neither an ISO 8601 duration nor ``never``.
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
    """Return a delay as JSON shows it; the inverse of ``read_expiration_delay``."""
    return format_duration(delay) if delay else "never"


def kept_until(finished_at: int, delay: int) -> int:
    """Return the expiry time in microseconds since the epoch; a delay of 0 means never."""
    return finished_at + delay if delay else NEVER_EXPIRES_AT


class _Envelope(msgspec.Struct):
    expiration_delay: msgspec.Raw


_in_envelope: Final = msgspec.json.Decoder(_Envelope).decode


def delay_of(envelope: bytes) -> int:
    """Return the delay of a stored job that has one, in microseconds."""
    return read_expiration_delay(_in_envelope(envelope).expiration_delay)

"""Broadcasts: messages to all flows that wait for a name and a key."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Struct

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.durations import DAY
from ojster.core.tenant import NOBODY
from ojster.core.wire import Identifier

MAX_LOOK_BACK: Final = 7 * DAY
"""Time for which broadcasts are kept, and longest look-back of a flow, in microseconds."""

MAX_BROADCASTS: Final = 10_000
"""Maximum number of kept broadcasts of one name and key."""

MAX_BROADCAST_KEY: Final = 255
"""Maximum length of the key of a broadcast, in characters."""

MAX_REACHED_AT_ONCE: Final = 100
"""Maximum number of flows that one transaction gives a broadcast to."""


class Broadcast(Struct, frozen=True):
    """A message to all flows of a tenant that wait for a name and a key.

    Parameters
    ----------
    name, key:
        What the flows wait for.
    data:
        Any JSON value.
    idempotency_key:
        A broadcast with the same name, key and idempotency key is not sent twice, as long as the first one is kept.
    by:
        Name of the sender, if it is known.
    tenant:
        The tenant whose flows get it.
    """

    name: Identifier
    key: Identifier
    data: bytes
    idempotency_key: Identifier | None = None
    by: Annotated[str | None, SET_BY_SERVICE] = None
    tenant: Annotated[str, SET_BY_SERVICE] = NOBODY

    @property
    def topic(self) -> str:
        """The topic that it is sent to."""
        return topic_of(self.tenant, self.name, self.key)


def topic_of(tenant: str, name: str, key: str) -> str:
    """Return what a tenant's broadcasts of a name and key are stored by."""
    return msgspec.json.encode([tenant, name, key]).decode()


def key_of_broadcast(key: str | int) -> str:
    """Return a key as text: ``42`` and ``"42"`` are the same.

    Raises
    ------
    ValueError
        It is neither a number nor a text of 1 to 255 characters.
    """
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ValueError(f"The key of a message is a text or a whole number, not {key!r}. Send it as a text.")
    text = str(key)
    if not 0 < len(text) <= MAX_BROADCAST_KEY:
        raise ValueError(
            f"The key of a message has 1 to {MAX_BROADCAST_KEY} characters, not {len(text)}. Send a digest of it."
        )
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text):  # neither can be stored
        raise ValueError(
            f"The key of a message is text without NUL and lone surrogates, not {text[:40]!a}. Leave them out."
        )
    return text

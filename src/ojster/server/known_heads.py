"""Heads of requests that a server process has read: many requests differ in their bodies alone."""

from __future__ import annotations

from typing import Final, NamedTuple

from ojster.server.answer import Header
from ojster.server.endpoint import Endpoint

MOST_KNOWN_HEADS: Final = 1_000
"""Maximum number of heads that a server process remembers."""

LARGEST_KNOWN_HEAD: Final = 2_000
"""Maximum size of a head that is remembered, in bytes."""

_SHARED: Final = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"ojs-version",
        b"user-agent",
        b"x-ojs-tenant",
    }
)
"""Headers that many requests have in common, and that tell no secret. Heads with others, or with a query, are not
remembered."""


class KnownHead(NamedTuple):
    """What was read of a head."""

    endpoint: Endpoint
    headers: list[Header]
    query: bytes
    body_bytes: int


class KnownHeads(dict[bytes, KnownHead]):
    """What was read of heads, by their bytes."""

    def remember(self, request: bytes, body: bytes, known: KnownHead) -> None:
        """Remember the head of a request that came whole, for those that follow."""
        end = request.find(b"\r\n\r\n") + 4
        is_shared = not known.query and all(name in _SHARED for name, _ in known.headers)
        if not is_shared or end > LARGEST_KNOWN_HEAD or request[end:] != body:
            return
        if len(self) >= MOST_KNOWN_HEADS:
            self.clear()
        self[request[:end]] = known

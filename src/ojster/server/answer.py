"""Responses of endpoints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

Header = tuple[bytes, bytes]

MEDIA_TYPE: Final = b"application/openjobspec+json"
PLAIN_JSON: Final = b"application/json"
SDK_JSON: Final = MEDIA_TYPE + b'; alt="application/json"'
"""The media type of answers to the official SDKs: that for Python looks for the name of plain JSON in the header."""

LARGEST_LIST: Final = 16 << 20
"""Size of a list in an answer from which on its other entries are left to the next call, in bytes."""


def number_that_fits(entries: Sequence[bytes]) -> int:
    """Return how many of the first entries of a list an answer has: one at least, and up to ``LARGEST_LIST`` bytes."""
    size = 0
    for number, entry in enumerate(entries):
        size += len(entry) + 1
        if size > LARGEST_LIST and number:
            return number
    return len(entries)


encode: Final = msgspec.json.Encoder().encode

_SECURITY: Final[tuple[Header, ...]] = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of what browsers could show: it runs no scripts, loads nothing, and is in no frame of another page."""

_OWN_FILES: Final = (
    b"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    b"frame-ancestors 'none'"
)
_PAGE_SECURITY: Final[tuple[Header, ...]] = (
    (b"content-security-policy", _OWN_FILES),
    (b"referrer-policy", b"no-referrer"),
)
"""Headers of the server's own pages: they load files of the server alone."""


class Answer:
    """The response of an endpoint: a body, which is JSON unless ``content_type`` says otherwise, or a stream.

    Parameters
    ----------
    may_stop:
        Whether an error may end the stream as if it were complete, as it may events, which go on when the client
        reconnects. Otherwise, the connection breaks.
    """

    __slots__ = ("body", "content_type", "headers", "may_stop", "status", "stream")

    def __init__(
        self,
        body: bytes = b"",
        status: int = 200,
        headers: Sequence[Header] = (),
        content_type: bytes = MEDIA_TYPE,
        stream: AsyncGenerator[bytes, None] | None = None,
        *,
        may_stop: bool = False,
    ) -> None:
        self.stream = stream
        self.may_stop = may_stop
        self.body = body
        self.status = status
        self.headers = headers
        self.content_type = content_type

    def warn(self, warnings: Sequence[str]) -> None:
        """Add warnings to an object that is the answer to an accepted request."""
        if self.status < 400 and self.body.endswith(b"}"):
            comma = b"," if len(self.body) > 2 else b""
            self.body = b'%b%b"warnings":%b}' % (self.body[:-1], comma, encode(warnings))

    @property
    def is_json(self) -> bool:
        """Whether its media type is one of those for JSON, and not only equal to it: users' files may be, too."""
        return self.content_type is MEDIA_TYPE or self.content_type is PLAIN_JSON or self.content_type is SDK_JSON

    def all_headers(self, request_id: str) -> list[Header]:
        """Return the headers of the response, including content type, request id and, if known, content length.

        Spec: ojs-http-binding 6.5
        """
        return [(b"content-type", self.content_type), *self.own_headers(request_id)]

    def own_headers(self, request_id: str) -> list[Header]:
        """Return the headers of the response without its content type."""
        headers = [(b"x-request-id", request_id.encode("latin-1"))]
        if self.stream is None and self.status != 304:
            headers.append((b"content-length", b"%d" % len(self.body)))
        if not self.is_json:  # browsers do not run JSON
            headers += self._security()
        headers += self.headers
        return headers

    def _security(self) -> Sequence[Header]:
        if any(name == b"content-security-policy" for name, _ in self.headers):
            return ()
        return _PAGE_SECURITY if self.content_type.startswith(b"text/html") else _SECURITY


class UnchangedAnswer(Answer):
    """The response to a request that could have changed something and has not: the audit log has no entry of it."""

    __slots__ = ()

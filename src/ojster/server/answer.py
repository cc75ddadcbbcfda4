"""Responses of endpoints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

Header = tuple[bytes, bytes]

MEDIA_TYPE: Final = b"application/openjobspec+json"
PLAIN_JSON: Final = b"application/json"

encode: Final = msgspec.json.Encoder().encode


class Answer:
    """The response of an endpoint: a body, which is JSON unless ``content_type`` says otherwise, or a stream."""

    __slots__ = ("body", "content_type", "headers", "status", "stream")

    def __init__(
        self,
        body: bytes = b"",
        status: int = 200,
        headers: Sequence[Header] = (),
        content_type: bytes = MEDIA_TYPE,
        stream: AsyncGenerator[bytes, None] | None = None,
    ) -> None:
        self.stream = stream
        self.body = body
        self.status = status
        self.headers = headers
        self.content_type = content_type

    def all_headers(self, request_id: str) -> list[Header]:
        """Return the headers of the response, including content type, request id and, if known, content length.

        Spec: ojs-http-binding 6.5
        """
        has_none = self.stream is not None or self.status == 304
        length = [] if has_none else [(b"content-length", b"%d" % len(self.body))]
        return [
            (b"content-type", self.content_type),
            (b"x-request-id", request_id.encode("latin-1")),
            *length,
            *self.headers,
        ]

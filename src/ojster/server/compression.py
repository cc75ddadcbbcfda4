"""Compressed request bodies.

Spec: ojs-payload-limits 6.2
"""

from __future__ import annotations

import zlib
from typing import Final

from ojster.core.errors import InvalidPayload, InvalidRequest, PayloadTooLarge
from ojster.core.refusals import size_details

_GZIP: Final = 16 + zlib.MAX_WBITS
"""The window of ``zlib`` that means the format of gzip."""


def decompress(body: bytes, encoding: str, largest: int) -> bytes:
    """Return a body whose ``Content-Encoding`` is gzip or identity.

    Raises
    ------
    InvalidRequest
        The encoding is another one.
    InvalidPayload
        The body is not of the format gzip.
    PayloadTooLarge
        The decompressed body is longer than ``largest`` bytes.
    """
    kind = encoding.strip().lower()
    if kind == "identity":
        return body
    if kind not in ("gzip", "x-gzip"):
        raise InvalidRequest(f"The content encoding {encoding[:40]!r} is not supported; use 'gzip', or none.")
    stream = zlib.decompressobj(_GZIP)
    try:
        plain = stream.decompress(body, largest + 1)
    except zlib.error as error:
        raise InvalidPayload(f"The request body is not gzip: {error}.") from None
    if len(plain) > largest:
        message = f"The decompressed request body takes more than {largest} bytes."
        raise PayloadTooLarge(message, **size_details(largest, None, "body"))
    if not stream.eof or stream.unused_data:
        raise InvalidPayload("The request body is not one complete gzip stream.")
    return plain

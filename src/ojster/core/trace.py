"""The trace that a job belongs to, as its ``meta`` names it.

Spec: ojs-events 8
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")
"""The value of a W3C ``traceparent``, with the trace id as its group."""

_MAX_LENGTH: Final = 128
"""Maximum length of a trace id that events repeat, in characters. Ids with a NUL are not repeated either."""


class _Meta(msgspec.Struct, frozen=True):
    trace_id: msgspec.Raw = msgspec.Raw(b"null")
    traceparent: msgspec.Raw = msgspec.Raw(b"null")


_read_meta: Final = msgspec.json.Decoder(_Meta).decode
_read_text: Final = msgspec.json.Decoder(str).decode


def trace_of_meta(meta: bytes) -> str | None:
    """Return the id of the trace of a job with this ``meta``: ``trace_id``, or else the one in ``traceparent``."""
    return _trace_id(_read_meta(meta)) if b'"trace' in meta else None


def _trace_id(meta: _Meta) -> str | None:
    if 0 < len(trace_id := _text(meta.trace_id)) <= _MAX_LENGTH and "\0" not in trace_id:
        return trace_id
    match = _TRACEPARENT.fullmatch(_text(meta.traceparent))
    return None if match is None else match[1]


def _text(raw: msgspec.Raw) -> str:
    """Return a text; the empty one for other values."""
    return _read_text(raw) if bytes(raw)[:1] == b'"' else ""

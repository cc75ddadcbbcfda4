"""Encoded arguments: how the server, which never decodes them, tells them from plain ones.

Spec: ojs-encryption
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import msgspec
from msgspec import Raw

from ojster.core.json_objects import Members, stored_members

ENCODINGS: Final = "ojs.codec.encodings"
"""Member of ``meta``: names of the applied codecs, in order."""

KEY_ID: Final = "ojs.codec.key_id"
"""Member of ``meta``: id of the encryption key."""

LEGACY_ENCRYPTED: Final = "ojs.encryption.encrypted"
"""Member of ``meta``: how earlier versions of official SDKs mark encrypted arguments."""


def is_encoded(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a decoded JSON value is one that a codec has encoded."""
    return isinstance(value, dict) and value.get("ojs_encoded") is True


def are_encoded(args: list[Any], meta: Mapping[str, Any]) -> bool:
    """Return whether a codec has encoded the arguments of a job: they say so, or its metadata does."""
    return (len(args) == 1 and is_encoded(args[0])) or bool(meta.get(ENCODINGS) or meta.get(LEGACY_ENCRYPTED))


def with_honest_meta(members: Members) -> Members:
    """Return a checked job with new arguments, and metadata that does not call plain ones encoded.

    A worker would refuse to decode them.
    """
    args: list[Any] = msgspec.json.decode(members["args"])
    if (len(args) == 1 and is_encoded(args[0])) or "meta" not in members:
        return members
    meta = stored_members(members["meta"])
    kept = {name: value for name, value in meta.items() if name not in (ENCODINGS, KEY_ID, LEGACY_ENCRYPTED)}
    return members | {"meta": Raw(msgspec.json.encode(kept))} if len(kept) < len(meta) else members

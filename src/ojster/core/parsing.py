"""How is a JSON value read that somebody has sent? Precisely, or with a refusal that names it."""

from __future__ import annotations

from typing import Any

import msgspec

from ojster.core.errors import InvalidRequest


def read_value(raw: bytes | msgspec.Raw, name: str) -> Any:
    """Return the value of a member that is JSON as far as its syntax goes.

    Raises
    ------
    InvalidRequest
        It has a number that is none, such as ``1e999``, or half a character.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The {name!r} attribute cannot be read: {error}.", field=name) from None

"""Decoding of a JSON value in a request, with an error that names the attribute."""

from __future__ import annotations

from typing import Any

import msgspec

from ojster.core.errors import InvalidRequest


def read_value(raw: bytes | msgspec.Raw, name: str) -> Any:
    """Return the value of an attribute with valid JSON syntax.

    Raises
    ------
    InvalidRequest
        It has a number out of range, such as ``1e999``, or a lone surrogate.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The {name!r} attribute cannot be read: {error}.", field=name) from None

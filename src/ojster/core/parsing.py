"""Checks of values and members in a request, with errors that name them."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import cache
from typing import Any

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import MAX_VALUE_DEPTH, check_depth


def read_value(raw: bytes | msgspec.Raw, name: str, deepest: int = MAX_VALUE_DEPTH) -> Any:
    """Return the value of an attribute with valid JSON syntax.

    Raises
    ------
    InvalidRequest
        It has a number out of range, such as ``1e999``, or a lone surrogate, or is nested deeper than
        ``deepest`` levels.
    """
    check_depth(bytes(raw), f"The {name!r} attribute", deepest)
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The {name!r} attribute cannot be read: {error}.", field=name) from None


def refuse_misspelt(members: Collection[str], kind: object) -> None:
    """Refuse members that the type of a request does not have and that look like one that it has.

    Other unknown members are accepted: they may be of a later version of the specification.

    Raises
    ------
    InvalidRequest
        A member looks misspelt.
    """
    known = _members_of(kind)
    for name in sorted(set(members) - known) if known else ():
        if meant := difflib.get_close_matches(name, known, 1, 0.85):
            raise InvalidRequest(f"Unknown member {name[:60]!r}; did you mean {meant[0]!r}?", field=name)


@cache
def _members_of(kind: object) -> frozenset[str]:
    """Return the names of the members of a type of request; none if it may have any."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return frozenset(field.encode_name for field in msgspec.structs.fields(kind))
    return frozenset()

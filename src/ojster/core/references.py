"""References (``{"$ref": "…"}``) in a step's arguments, to results of other steps and parameters of the workflow.

A reference is ``steps.NAME.result``, ``steps.NAME.error``, ``steps.NAME.state``, ``params``, or a name that a map binds
(``item``, ``index``). A path may follow: names of members, and positions in arrays. A string that begins with ``#`` is
an ordinary JSON pointer and stays unchanged.

JSON is decoded only as far as needed to find and follow references; the rest is copied unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from ojster.core.ids import is_segment
from ojster.core.json_objects import raw_list
from ojster.core.short_cache import cache_short

STEP_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*|\d+")
ITEM: Final = "item"
INDEX: Final = "index"

_ASPECTS: Final = ("result", "error", "state")
_encode: Final = msgspec.json.Encoder().encode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def can_be_step_id(text: str) -> bool:
    """Tell whether ``text`` can be the id of a step: a name in references and paths, not a position."""
    return is_segment(text) and "." not in text and not text.isdigit()


class Reference(msgspec.Struct, frozen=True):
    """A parsed reference.

    Parameters
    ----------
    text:
        The reference as written.
    root:
        ``steps``, ``params``, or a name that a map binds.
    step, aspect:
        The step, and its ``result``, ``error`` or ``state``; ``None`` for other roots.
    path:
        The path inside that value.
    """

    text: str
    root: str
    step: str | None
    aspect: str | None
    path: tuple[str, ...]


class Unresolvable(ValueError):
    """A reference that is malformed or leads to nothing. The message says why."""


def is_index(name: str) -> bool:
    """Tell whether a name is a position in a list."""
    return name.isascii() and name.isdigit() and len(name) < 10


def may_hold_references(raw: bytes | msgspec.Raw) -> bool:
    """Tell whether JSON may contain references or lookups. Fast; ``False`` is always correct."""
    text = bytes(raw)
    return b'"$ref"' in text or b'"$lookup"' in text or b"\\u0024" in text


@cache_short(4096)
def parse_reference(text: str) -> Reference:
    """Return the parsed form of a reference.

    Raises
    ------
    Unresolvable
        It is malformed.
    """
    root, *rest = text.split(".")
    if not STEP_NAME.fullmatch(root) or root.isdigit() or not all(rest):
        raise Unresolvable(f"The reference {text!r:.100} must be like 'steps.NAME.result' or 'params.NAME'.")
    if root != "steps":
        return Reference(text, root, None, None, tuple(rest))
    if len(rest) < 2 or not is_segment(rest[0]) or rest[1] not in _ASPECTS:
        raise Unresolvable(
            f"The reference {text!r:.100} must be 'steps.NAME.result', 'steps.NAME.error' or 'steps.NAME.state', "
            "and a path may follow."
        )
    return Reference(text, root, rest[0], rest[1], tuple(rest[2:]))


def references_in(raw: bytes | msgspec.Raw) -> Iterator[Reference]:
    """Yield the references in JSON.

    Raises
    ------
    Unresolvable
        A reference is malformed.
    """
    if not may_hold_references(raw):
        return
    for part in _parts(raw):
        if isinstance(part, str):
            yield parse_reference(part)
        else:
            yield from references_in(part)


def lookups_in(raw: bytes | msgspec.Raw) -> Iterator[msgspec.Raw]:
    """Yield the contents of the lookups in JSON (``ojster.collections.items``)."""
    if not may_hold_references(raw):
        return
    start = bytes(raw)[:1]
    if start == b"{":
        members = _members(raw)
        lookup = _lookup_of(members)
        if lookup is not None:
            yield lookup
        else:
            for value in members.values():
                yield from lookups_in(value)
    elif start == b"[":
        for value in raw_list(raw):
            yield from lookups_in(value)


def no_lookups(raw: bytes) -> bytes:
    """Reject a lookup where none is allowed."""
    raise Unresolvable("A '$lookup' is allowed only in the arguments of jobs and steps.")


def resolve(
    raw: bytes | msgspec.Raw, look_up: Callable[[Reference], bytes], find: Callable[[bytes], bytes] = no_lookups
) -> bytes:
    """Return JSON with each reference replaced by the JSON from ``look_up``, and each lookup by the JSON from ``find``.

    References inside lookups are replaced first.
    """
    raw = bytes(raw)
    if not may_hold_references(raw):
        return raw
    if raw[:1] == b"{":
        members = _members(raw)
        text = _text_of(members)
        if text is not None:
            return look_up(parse_reference(text))
        if (lookup := _lookup_of(members)) is not None:
            return find(resolve(lookup, look_up, find))
        return _encode({name: msgspec.Raw(resolve(value, look_up, find)) for name, value in members.items()})
    if raw[:1] == b"[":
        return b"[%b]" % b",".join([resolve(value, look_up, find) for value in raw_list(raw)])
    return raw


def replace_lookups(raw: bytes | msgspec.Raw, find: Callable[[bytes], bytes]) -> bytes:
    """Return JSON with each lookup replaced by the JSON from ``find``; the rest is copied unchanged."""
    raw = bytes(raw)
    if not may_hold_references(raw):
        return raw
    if raw[:1] == b"{":
        members = _members(raw)
        if (lookup := _lookup_of(members)) is not None:
            return find(bytes(lookup))
        return _encode({name: msgspec.Raw(replace_lookups(value, find)) for name, value in members.items()})
    if raw[:1] == b"[":
        return b"[%b]" % b",".join([replace_lookups(value, find) for value in raw_list(raw)])
    return raw


def follow(reference: Reference, raw: bytes | msgspec.Raw, first: int = 0) -> bytes:
    """Return the JSON at the end of a reference's path, starting in ``raw`` with the name at index ``first``.

    Raises
    ------
    Unresolvable
        The path leads to nothing.
    """
    for place in range(first, len(reference.path)):
        name = reference.path[place]
        start = bytes(raw).lstrip()[:1]
        member: msgspec.Raw | None = None
        if start == b"{":
            member = _members(raw).get(name)
        elif start == b"[" and is_index(name):
            elements = raw_list(raw)
            member = elements[int(name)] if int(name) < len(elements) else None
        if member is None:
            raise _nowhere(reference, place)
        raw = member
    return bytes(raw)


def _nowhere(reference: Reference, place: int) -> Unresolvable:
    names = reference.text.split(".")
    before = ".".join(names[: len(names) - len(reference.path) + place])
    name = reference.path[place]
    return Unresolvable(f"The reference {reference.text!r:.200} leads nowhere: {before!r} has no {name!r:.60}.")


def _parts(raw: bytes | msgspec.Raw) -> list[Any]:
    """Return the values inside JSON; of a reference, its text as a string."""
    start = bytes(raw)[:1]
    if start == b"{":
        members = _members(raw)
        text = _text_of(members)
        return list(members.values()) if text is None else [text]
    return list(raw_list(raw)) if start == b"[" else []


def _lookup_of(members: dict[str, msgspec.Raw]) -> msgspec.Raw | None:
    """Return the content of a lookup; ``None`` if this is not one."""
    return members.get("$lookup") if len(members) == 1 else None


def _text_of(members: dict[str, msgspec.Raw]) -> str | None:
    raw = members.get("$ref") if len(members) == 1 else None
    if raw is None or bytes(raw)[:1] != b'"':
        return None
    text = msgspec.json.decode(raw, type=str)
    return None if text.startswith("#") else text

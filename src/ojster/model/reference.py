"""What do ``{"$ref": "…"}`` in a step's arguments stand for? Results of other steps, and parameters of the workflow.

``steps.NAME.result``, ``steps.NAME.error``, ``steps.NAME.state``, ``params``, and what a map binds (``item``,
``index``), each with a path behind it: names of members, and positions in arrays. A string that begins with ``#`` is a
JSON pointer of somebody else's, and stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

STEP_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*|\d+")
_ASPECTS: Final = ("result", "error", "state")


class Reference(msgspec.Struct, frozen=True):
    """What a reference names.

    Parameters
    ----------
    text:
        As it was written.
    root:
        ``steps``, ``params``, or a name that a map binds.
    step, aspect:
        Which step, and what of it: its result, error or state.
    path:
        Where in that.
    """

    text: str
    root: str
    step: str | None
    aspect: str | None
    path: tuple[str, ...]


class Unresolvable(ValueError):
    """A reference that stands for nothing. The message says why."""


def may_hold_references(raw: bytes) -> bool:
    """Tell whether JSON may hold references; quick, and never wrong when it says no."""
    return b'"$ref"' in raw or b'"\\u0024' in raw


def parse_reference(text: str) -> Reference:
    """Return what a reference says.

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
    if len(rest) < 2 or not STEP_NAME.fullmatch(rest[0]) or rest[1] not in _ASPECTS:
        raise Unresolvable(
            f"The reference {text!r:.100} must be 'steps.NAME.result', 'steps.NAME.error' or 'steps.NAME.state', "
            "and may go on with a path."
        )
    return Reference(text, root, rest[0], rest[1], tuple(rest[2:]))


def references_in(value: Any) -> Iterator[Reference]:
    """Return the references in decoded JSON.

    Raises
    ------
    Unresolvable
        One of them is malformed.
    """
    if isinstance(value, dict):
        if (text := _text_of(value)) is not None:
            yield parse_reference(text)
        else:
            for inner in value.values():
                yield from references_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references_in(inner)


def resolve(value: Any, lookup: Callable[[Reference], Any]) -> Any:
    """Return decoded JSON with every reference replaced by what ``lookup`` returns for it.

    ``lookup`` may return ``KEEP`` for a reference that is not its affair, which then stays.
    """
    if isinstance(value, dict):
        if (text := _text_of(value)) is not None:
            found = lookup(parse_reference(text))
            return value if found is KEEP else found
        return {name: resolve(inner, lookup) for name, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, lookup) for inner in value]
    return value


KEEP: Final = object()


def follow(reference: Reference, value: Any) -> Any:
    """Return what stands at the end of a reference's path in ``value``.

    Raises
    ------
    Unresolvable
        There is nothing.
    """
    for place, name in enumerate(reference.path):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            before = ".".join(reference.text.split(".")[: len(reference.text.split(".")) - len(reference.path) + place])
            raise Unresolvable(f"The reference {reference.text!r} leads nowhere: {before!r} has no {name!r}.")
    return value


def bind(value: Any, bindings: Mapping[str, Any]) -> Any:
    """Return a map's template with the references to what the map binds replaced, but for those of a map inside it."""

    def lookup(reference: Reference) -> Any:
        return follow(reference, bindings[reference.root]) if reference.root in bindings else KEEP

    if isinstance(value, dict) and value.get("type") == "map" and "do" in value:
        hidden = {value.get("as", ITEM), INDEX}
        inner = {name: bound for name, bound in bindings.items() if name not in hidden}
        shallow = {name: bind(part, bindings) for name, part in value.items() if name != "do"}
        return shallow | {"do": bind(value["do"], inner)}
    if isinstance(value, dict):
        if _text_of(value) is not None:
            return resolve(value, lookup)
        return {name: bind(inner, bindings) for name, inner in value.items()}
    if isinstance(value, list):
        return [bind(inner, bindings) for inner in value]
    return value


ITEM: Final = "item"
INDEX: Final = "index"


def _text_of(value: dict[str, Any]) -> str | None:
    text = value.get("$ref") if len(value) == 1 else None
    return text if isinstance(text, str) and not text.startswith("#") else None

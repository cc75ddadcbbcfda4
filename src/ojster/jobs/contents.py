"""What a request contains: the jobs that it makes, at any depth, and what only some callers may put into them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ojster.core.access import Operation
from ojster.jobs.attributes import readers
from ojster.jobs.code import ATTRIBUTE, CODE_TYPE

_DATA: Final = frozenset({"args", "compensate_args", "meta", "metadata", "options", "over", "params", "properties"})
"""Members of requests that hold users' values, in which nothing is a job."""

Objects = Sequence[dict[str, Any]]
"""The objects in a request that may be jobs, steps or actions of reactions."""


def objects_in(request: bytes | msgspec.Raw) -> Objects:
    """Return the objects in a request that may be jobs, steps or actions of reactions, at any depth."""
    # Numbers are read as texts: they say nothing, and may be out of range.
    return list(_objects(json.loads(bytes(request), parse_int=str, parse_float=str)))


def carries_code(objects: Objects) -> bool:
    """Return whether a request makes a job that carries code: itself, as a step at any depth, or by a reaction."""
    return any(map(_is_code, objects))


def _is_code(members: dict[str, Any]) -> bool:
    type = members.get("type", members.get("job_type"))
    if type == CODE_TYPE or ATTRIBUTE in members or ("body" in members and type is None):
        return True
    return isinstance(type, str) and type.partition("@")[0] == CODE_TYPE


def names_recipients(objects: Objects) -> bool:
    """Return whether a job that a request makes, as in ``carries_code``, sets the recipients of a notification."""
    return any(members.get("action") == "notify" and (members.get("to") or members.get("cc")) for members in objects)


def replaces_others(objects: Objects) -> bool:
    """Return whether a job that a request makes, as in ``carries_code``, may replace jobs with the same unique key."""
    return any(map(_replaces, objects))


def _replaces(members: dict[str, Any]) -> bool:
    for holder in (members, members.get("options")):
        unique = holder.get("unique") if isinstance(holder, dict) else None
        if isinstance(unique, dict) and any(str(value).startswith("replace") for value in unique.values()):
            return True
    return False


def needs_of_reactions(objects: Objects) -> dict[str, tuple[Operation, ...]]:
    """Return the operations that the reactions of the jobs that a request makes need, by the kind of their actions.

    The caller needs one operation of each kind.
    """
    needs: dict[str, tuple[Operation, ...]] = {}
    for reader in readers().readers:
        for members in objects:
            needs |= reader.operations(members)
    return needs


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    waiting = [value]
    while waiting:
        element = waiting.pop()
        if isinstance(element, list):
            waiting += element
        elif isinstance(element, dict):
            yield element
            waiting += [value for name, value in element.items() if name not in _DATA]

"""Compensations in requests: the step that undoes a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from ojster.core.errors import OjsterError
from ojster.core.json_objects import Members, raw_list, read_members
from ojster.workflows.plan.members import Problem, text

_encode: Final = msgspec.json.Encoder().encode

UNDO_MOMENTS: Final = ("completed", "started")
"""Values of ``compensate_when``: a step is undone once it has completed, or once it has started."""

_NOT_UNDONE: Final = (
    "'compensate' is allowed only in a step of a container. It is not allowed in a compensation, in a branch of one "
    "step, and in a step that is added to a container without compensations: make that one a saga."
)


class Own(msgspec.Struct, frozen=True):
    """The compensation that a step has itself.

    Parameters
    ----------
    request:
        The compensation as a step.
    id:
        The id of the undone step, by which the compensation can refer to it.
    once_started:
        Whether the step is undone once it has started, whatever became of it.
    """

    request: bytes
    path: str
    id: str | None
    once_started: bool


_IDLE: Final = (
    ("compensate_type", "compensate", True),
    ("compensate_args", "compensate", True),
    ("compensate_args", "compensate_type", False),
)
"""Members of steps that have no effect beside another one (true), or without it."""


def own_compensation(members: Members, path: str, *, is_allowed: bool) -> Own | None:
    """Return the compensation of a step, or ``None``."""
    request = _compensation_of(members)
    for idle, other, beside in _IDLE:
        is_empty = idle == "compensate_args" and msgspec.json.decode(members.get(idle, b"[]")) == []
        if idle in members and (other in members) == beside and not is_empty:
            what = f"beside {other!r}. Leave one of them out." if beside else f"without {other!r}. Add that."
            raise Problem(f"{path}.{idle}", f"{idle!r} has no effect {what}")
    moment = text(members, "compensate_when", path)
    if moment is not None and moment not in UNDO_MOMENTS:
        shown = " or ".join(repr(moment) for moment in UNDO_MOMENTS)
        raise Problem(f"{path}.compensate_when", f"'compensate_when' must be {shown}, not {moment!r:.40}.")
    if request is None:
        if moment is not None:
            raise Problem(f"{path}.compensate_when", "'compensate_when' has no effect without 'compensate'. Add that.")
        return None
    if not is_allowed:
        raise Problem(path, _NOT_UNDONE)
    id = text(members, "id", path) or text(members, "name", path)
    return Own(request, f"{path}.compensate", id, moment == "started")


def _compensation_of(members: Members) -> bytes | None:
    """Return the compensation of a step: ``compensate``, or ``compensate_type`` with ``compensate_args``.

    Spec: ojs-workflows 14
    """
    if bytes(members.get("compensate", b"null")) != b"null":
        return bytes(members["compensate"])
    if bytes(members.get("compensate_type", b"null")) != b"null":
        args = members.get("compensate_args", msgspec.Raw(b"[]"))
        return _encode({"type": members["compensate_type"], "args": args})
    return None


def holds_compensation(members: Members) -> bool:
    """Whether a step inside a container has a compensation, at any depth."""
    return any(map(is_undone, _inside(members)))


def is_undone(step: bytes | msgspec.Raw) -> bool:
    """Whether a step, or one inside it, has a compensation."""
    step = bytes(step)
    if b'"compensate' not in step or step[:1] != b"{":
        return False
    try:
        members = read_members(step, "The step")
    except OjsterError:
        return False  # the planner refuses it with its place
    return _compensation_of(members) is not None or holds_compensation(members)


def _inside(members: Members) -> Iterator[bytes]:
    """Yield the steps inside a container, as far as they can be read."""
    for name in ("steps", "jobs"):
        if bytes(members.get(name, b""))[:1] == b"[":
            yield from map(bytes, raw_list(members[name]))
    for name in ("do", "fallback"):
        if name in members:
            yield bytes(members[name])
    if bytes(members.get("callbacks", b""))[:1] == b"{":
        yield from map(bytes, read_members(members["callbacks"], "callbacks").values())

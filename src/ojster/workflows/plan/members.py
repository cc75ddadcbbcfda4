"""Members of workflow requests, and the problems found in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from ojster.core.errors import InvalidWorkflow, OjsterError
from ojster.core.json_objects import MAX_VALUE_DEPTH, Members, check_depth, read_members

_decode: Final = msgspec.json.decode

MAX_REPORTED_PROBLEMS: Final = 20
"""Maximum number of problems of a request that are reported."""


class Problem(Exception):
    """An error at one place of a request."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


@contextmanager
def problems_at(path: str) -> Iterator[None]:
    """Turn a refusal in the block into a problem at a place of the request."""
    try:
        yield
    except OjsterError as error:
        raise Problem(path, error.message) from None


def refusal_of(problems: Sequence[Problem]) -> InvalidWorkflow:
    """Return the error that reports the problems, at most ``MAX_REPORTED_PROBLEMS`` of them."""
    shown = [{"path": problem.path, "message": problem.message} for problem in problems[:MAX_REPORTED_PROBLEMS]]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return InvalidWorkflow(
        f"The workflow is invalid at {problems[0].path}: {problems[0].message}{more}", validation_errors=shown
    )


def in_order(of_steps: Sequence[Problem], of_order: Sequence[tuple[int, Problem]]) -> list[Problem]:
    """Return the problems of a request in the order of its steps.

    Parameters
    ----------
    of_steps:
        Problems of single steps.
    of_order:
        Problems of the order of steps, each with the number of problems of steps that come before it.
    """
    problems: list[Problem] = []
    taken = 0
    for number, problem in of_order:
        problems += [*of_steps[taken:number], problem]
        taken = max(taken, number)
    return problems + list(of_steps[taken:])


def inside(refusal: OjsterError, member: str) -> OjsterError:
    """Return the refusal of a request that is a member of another one: its places begin with that member."""
    details = dict(refusal.details)
    if (field := details.get("field")) is not None:
        details["field"] = f"{member}.{field}"
    message = refusal.message
    problems = details.get("validation_errors")
    if isinstance(refusal, InvalidWorkflow) and problems:
        places = [problem | {"path": problem["path"].replace("$", f"$.{member}", 1)} for problem in problems]
        details["validation_errors"] = places
        message = message.replace(problems[0]["path"], places[0]["path"], 1)
    return type(refusal)(message, **details)


def choice(members: Members, name: str, allowed: Sequence[str]) -> str | None:
    """Return a member that must be one of some values, or ``None``."""
    value = text(members, name, "$")
    if value is not None and value not in allowed:
        raise Problem(f"$.{name}", f"'{name}' must be one of {', '.join(allowed)}, not {value!r:.40}.")
    return value


def text(members: Members, name: str, path: str) -> str | None:
    """Return a member that must be a string, or ``None``."""
    raw = members.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    if bytes(raw)[:1] != b'"':
        raise Problem(f"{path}.{name}", f"'{name}' must be a string.")
    return str(_decode(raw))


def flag(members: Members, name: str, path: str, *, otherwise: bool = False) -> bool:
    """Return a member that must be true or false; ``otherwise`` if it is missing."""
    raw = bytes(members.get(name, b"null"))
    if raw not in (b"true", b"false", b"null"):
        raise Problem(f"{path}.{name}", f"'{name}' must be true or false.")
    return raw == b"true" or (raw == b"null" and otherwise)


def json_object(members: Members, name: str, path: str = "$", *, deepest: int = MAX_VALUE_DEPTH) -> bytes:
    """Return a member that must be a JSON object, nested ``deepest`` levels at most, as bytes."""
    raw = bytes(members.get(name, b"{}"))
    if raw == b"null":
        return b"{}"
    if raw[:1] != b"{":
        raise Problem(f"{path}.{name}", f"'{name}' must be an object.")
    with problems_at(f"{path}.{name}"):
        read_members(raw, f"{name!r}")
        check_depth(raw, f"{name!r}", deepest)
    try:
        _decode(raw)
    except msgspec.DecodeError as error:
        raise Problem(f"{path}.{name}", f"'{name}' cannot be read: {error}.") from None
    return raw


MAX_OTHERS_BYTES: Final = 65_536
"""Maximum size of the unknown members of a workflow or a container as JSON, in bytes."""

_encode: Final = msgspec.json.Encoder().encode


def others_in(
    members: Members, known: frozenset[str], path: str, what: str, hidden: frozenset[str] = frozenset()
) -> tuple[Members, list[Problem]]:
    """Return the members beyond the known ones, which are kept and shown, and a warning of each. See ``unknown_in``.

    Raises
    ------
    Problem
        They are too large, or nested too deeply.

    Spec: ojs-json-format 14.3
    """
    others = {name: raw for name, raw in members.items() if name not in known}
    if not others:
        return others, []
    encoded = _encode(others)
    check_depth(encoded, "The unknown members", 1 + MAX_VALUE_DEPTH)
    if len(encoded) > MAX_OTHERS_BYTES:
        message = f"Its unknown members take {len(encoded)} bytes; at most {MAX_OTHERS_BYTES} are allowed."
        raise Problem(path, message)
    return others, unknown_in(others, known, path, what, hidden)


def unknown_in(
    members: Members, known: frozenset[str], path: str, what: str, hidden: frozenset[str] = frozenset()
) -> list[Problem]:
    """Return a problem for each member beyond the known ones: a warning, where a request may have unknown members.

    Parameters
    ----------
    hidden:
        Known members that the problem does not name, because others refuse them.

    Spec: ojs-json-format 14.3
    """
    return [
        Problem(
            f"{path}.{name}", f"{what} has no member {name!r:.60}; it can have {', '.join(sorted(known - hidden))}."
        )
        for name in members
        if name not in known and bytes(members[name]) != b"null"
    ]

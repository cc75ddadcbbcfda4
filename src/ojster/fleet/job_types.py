"""Which types of jobs is a worker given? Lists of what it gets, or does not. (seed 003: allow and deny lists)"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest

MOST_PATTERNS: Final = 100
"""How many patterns a list may have."""

_PATTERN: Final = re.compile(r"[a-zA-Z0-9_.\-:]{1,255}\*?|\*")


class Types(msgspec.Struct, frozen=True):
    """The types of jobs that a worker is given.

    Parameters
    ----------
    allowed:
        Only these, each a type or the beginning of some (``mail.*``); ``None``: all but ``denied``, which says nothing
        where there is a list of what is allowed.
    """

    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()

    def accepts(self, type: str) -> bool:
        """Whether jobs of a type are among them."""
        if self.allowed is not None:
            return any(_matches(type, pattern) for pattern in self.allowed)
        return not any(_matches(type, pattern) for pattern in self.denied)

    def condition(self, column: str) -> tuple[str, list[str | int]]:
        """Return what stands in a statement behind others to leave out all other types, and its parameters."""
        patterns = self.denied if self.allowed is None else self.allowed
        tests, parameters = [], list[str | int]()
        for pattern in patterns:
            if pattern.endswith("*"):
                tests.append(f"substr({column}, 1, ?) = ?")
                parameters += [len(pattern) - 1, pattern[:-1]]
            else:
                tests.append(f"{column} = ?")
                parameters.append(pattern)
        if self.allowed is None:
            return (f" AND NOT ({' OR '.join(tests)})" if tests else ""), parameters
        return f" AND ({' OR '.join(tests) or '1 = 0'})", parameters


ALL: Final = Types()


def _matches(type: str, pattern: str) -> bool:
    return type.startswith(pattern[:-1]) if pattern.endswith("*") else type == pattern


def read_patterns(patterns: Sequence[str], name: str) -> tuple[str, ...]:
    """Return a list of types and beginnings of types, called ``name`` in errors.

    Raises
    ------
    InvalidRequest
        It is too long, or one is malformed.
    """
    if len(patterns) > MOST_PATTERNS:
        raise InvalidRequest(f"{name!r} has more than {MOST_PATTERNS} entries.", field=name)
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise InvalidRequest(f"{pattern[:80]!r} in {name!r} is no job type, nor the beginning of some.", field=name)
    return tuple(dict.fromkeys(patterns))

"""Allow and deny lists: the job types that a worker accepts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.parsing import matches_any

MAX_TYPE_PATTERNS: Final = 100
"""Maximum number of patterns in a list."""

_PATTERN: Final = re.compile(r"[a-zA-Z0-9_.\-:]{1,255}\*?|\*")


class Types(msgspec.Struct, frozen=True):
    """The job types that a worker accepts.

    Parameters
    ----------
    allowed:
        The only accepted types: each a type or a prefix with ``*`` (``mail.*``). ``None``: all types except ``denied``.
    denied:
        Types that are not accepted; ignored if ``allowed`` is set.
    """

    allowed: tuple[str, ...] | None = None
    denied: tuple[str, ...] = ()

    def accepts(self, type: str) -> bool:
        """Whether jobs of a type are accepted."""
        if self.allowed is not None:
            return matches_any(type, self.allowed)
        return not matches_any(type, self.denied)

    def condition(self, column: str) -> tuple[str, list[str | int]]:
        """Return an SQL condition to append to others (`` AND …``) that selects these types, and its parameters."""
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


def read_patterns(patterns: Sequence[str], name: str) -> tuple[str, ...]:
    """Return a list of types and prefixes without duplicates; ``name`` is its name in errors.

    Raises
    ------
    InvalidRequest
        The list is too long, or an entry is malformed.
    """
    if len(patterns) > MAX_TYPE_PATTERNS:
        raise InvalidRequest(
            f"{name!r} has {len(patterns)} entries; at most {MAX_TYPE_PATTERNS} are allowed.", field=name
        )
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise InvalidRequest(
                f"{pattern[:80]!r} in {name!r} is not a job type or a prefix such as 'mail.*'.", field=name
            )
    return tuple(dict.fromkeys(patterns))

"""The versions of a job type that a worker can handle.

Spec: ojs-job-versioning 5, 8
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import parse_version

ANY: Final = "*"

_PART: Final = 1_000_000
"""Exclusive upper bound of each of the three numbers of a version."""

_UNBOUNDED: Final = _PART**3
_BOUND: Final = re.compile(r"(>=|<=|>|<|=|)(\d+(?:\.\d+){0,2})")


class HandledVersions(msgspec.Struct, frozen=True):
    """The versions of a job type that a worker can handle, as numbers: from ``low`` to ``high``, which is excluded."""

    type: str
    low: int = 0
    high: int = _UNBOUNDED

    @property
    def versions(self) -> str:
        """The range as text; the inverse of ``parse_handled``."""
        bounds = [f">={shown_version(self.low)}"] * (self.low > 0) + [f"<{shown_version(self.high)}"] * (
            self.high < _UNBOUNDED
        )
        return " ".join(bounds) or ANY


def shown_version(number: int) -> str:
    """Return the version of a number; the inverse of ``version_number``."""
    rest, patch = divmod(number, _PART)
    major, minor = divmod(rest, _PART)
    return f"{major}.{minor}.{patch}"


def version_number(version: Any) -> int | None:
    """Return a version as a number that increases with the version; ``None`` if it is not a version."""
    try:
        parts = parse_version(version)
    except InvalidRequest:
        return None
    if max(parts) >= _PART:
        return None
    major, minor, patch = parts
    return (major * _PART + minor) * _PART + patch


def parse_handled(type: str, versions: str) -> HandledVersions | None:
    """Return the versions in a range such as ``2.0``, ``>=1.0, <3.0`` or ``>=2.0``; ``None`` if it includes all.

    Raises
    ------
    InvalidRequest
        It is not a range, or no version is in it.

    Spec: ojs-job-versioning 8.1, 15.1
    """
    low, high = 0, _UNBOUNDED
    for bound in versions.replace(",", " ").split():
        if bound == ANY:
            continue
        match = _BOUND.fullmatch(bound)
        number = None if match is None else version_number(match[2])
        if match is None or number is None:
            raise InvalidRequest(
                f"{versions[:80]!r} is not a version range such as '2.0', '>=1.0 <3.0' or '*'.", field="versions"
            )
        match match[1]:
            case ">=":
                low = max(low, number)
            case ">":
                low = max(low, number + 1)
            case "<":
                high = min(high, number)
            case "<=":
                high = min(high, number + 1)
            case _:
                low, high = max(low, number), min(high, number + 1)
    if low >= high:
        raise InvalidRequest(f"The range {versions[:80]!r} contains no version.", field="versions")
    return None if (low, high) == (0, _UNBOUNDED) else HandledVersions(type, low, high)

"""Which versions of a job can a worker handle? (ojs-job-versioning.md sections 5 and 8)"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_schema import parse_version

ANY: Final = "*"

_PART: Final = 1_000_000
"""Each of the three numbers of a version is smaller."""

_LAST: Final = _PART**3
_BOUND: Final = re.compile(r"(>=|<=|>|<|=|)(\d+(?:\.\d+){0,2})")


class Handled(msgspec.Struct, frozen=True):
    """The versions of a job type that a worker can handle: from one, up to and without another, as numbers."""

    type: str
    low: int = 0
    high: int = _LAST

    @property
    def versions(self) -> str:
        """Return the range as it is written; the inverse of ``parse_handled``."""
        bounds = [f">={shown_version(self.low)}"] * (self.low > 0) + [f"<{shown_version(self.high)}"] * (
            self.high < _LAST
        )
        return " ".join(bounds) or ANY


def shown_version(number: int) -> str:
    """Return the version that a number stands for; the inverse of ``version_number``."""
    rest, patch = divmod(number, _PART)
    major, minor = divmod(rest, _PART)
    return f"{major}.{minor}.{patch}"


def version_number(given: Any) -> int | None:
    """Return a version as a number, which is greater for a later one; ``None`` if it is none."""
    try:
        parts = parse_version(given)
    except InvalidRequest:
        return None
    if max(parts) >= _PART:
        return None
    major, minor, patch = parts
    return (major * _PART + minor) * _PART + patch


def parse_handled(type: str, versions: str) -> Handled | None:
    """Return the versions that a range stands for: ``2.0``, ``>=1.0 <3.0``, ``>=2.0``; ``None`` if it is any.

    Raises
    ------
    InvalidRequest
        It is no range.
    """
    low, high = 0, _LAST
    for bound in versions.split():
        if bound == ANY:
            continue
        match = _BOUND.fullmatch(bound)
        number = None if match is None else version_number(match[2])
        if match is None or number is None:
            raise InvalidRequest(
                f"{versions[:80]!r} is no range of versions such as '2.0', '>=1.0 <3.0' or '*'.", field="versions"
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
    return None if (low, high) == (0, _LAST) else Handled(type, low, high)

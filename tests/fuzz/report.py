"""Findings of fuzzing, and how they are shown."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

import msgspec

SOURCE: Final = str(Path(__file__).parents[2] / "src")

Kind = Literal["error", "rule", "slow", "memory", "hang", "server", "answer", "access"]
"""What is wrong: an unexpected exception, a broken rule, an input that takes too long or too much memory, an input that
never ends or ends the process, a request that fails, an answer that is not as declared, or data of others.
"""

SHOWN_BYTES: Final = 600
"""Number of bytes of an input that a report shows."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong.

    Parameters
    ----------
    target:
        The parser, or the method and path of the call.
    place:
        Where it comes from. Findings of the same kind and place are the same finding.
    text:
        What is wrong.
    data:
        The input that shows it.
    """

    target: str
    kind: Kind
    place: str
    text: str
    data: bytes = b""

    @property
    def key(self) -> tuple[str, str, str]:
        """What distinguishes it from other findings."""
        return self.target, self.kind, self.place


class Report:
    """The findings of a run, each of them once, with its smallest input."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], Finding] = {}

    def add(self, finding: Finding) -> bool:
        """Add a finding; return whether it is new, or shown by a smaller input than before."""
        known = self._found.get(finding.key)
        if known is not None and len(known.data) <= len(finding.data):
            return False
        self._found[finding.key] = finding
        return True

    def add_all(self, findings: Iterable[Finding]) -> None:
        """Add several findings."""
        for finding in findings:
            self.add(finding)

    def __bool__(self) -> bool:
        return bool(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        parts = [_shown(number, found) for number, found in enumerate(self._found.values(), 1)]
        return "\n".join(parts) or "Nothing was found."


def _shown(number: int, found: Finding) -> str:
    rest = len(found.data) - SHOWN_BYTES
    data = repr(found.data[:SHOWN_BYTES]) + (f" and {rest} more bytes" if rest > 0 else "")
    return f"{number}. {found.target}: {found.kind} at {found.place}\n   {found.text}\n   {data}"


def place_of(trace: TracebackType | None) -> str:
    """Return the innermost line of the product in a traceback, or else its last line."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if frame.filename.startswith(SOURCE)]
    if not frames:
        return "?"
    last = (own or frames)[-1]
    return f"{last.filename.removeprefix(SOURCE).lstrip('/')}:{last.lineno}"

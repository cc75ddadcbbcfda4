"""What a target of fuzzing is: a parser that gets any bytes, with the errors by which it refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from ojster.core.errors import OjsterError

CORPUS: Final = Path(__file__).parent / "corpus"


class RuleBroken(AssertionError):
    """A parser has accepted what a rule of the documentation forbids, or its value is wrong."""


class Target(msgspec.Struct, frozen=True):
    """A parser under test.

    Parameters
    ----------
    run:
        Parses an input; raises ``RuleBroken`` if what it has accepted breaks a rule.
    refusals:
        Errors by which the parser itself refuses inputs, beside those of callers.
    """

    name: str
    run: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = ()

    def seeds(self) -> list[bytes]:
        """Return the inputs to begin with."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]

    def is_refusal(self, error: Exception) -> bool:
        """Whether an error refuses an input as the caller's fault."""
        return isinstance(error, self.refusals) or (isinstance(error, OjsterError) and 400 <= error.status < 500)


def need(holds: bool, rule: str) -> None:
    """Raise ``RuleBroken`` if a rule does not hold."""
    if not holds:
        raise RuleBroken(rule)


def text_of(data: bytes) -> str:
    """Return an input as text; what is not UTF-8 is replaced."""
    return data.decode(errors="replace")


def lines_of(data: bytes, count: int) -> list[str]:
    """Return the first lines of an input as text; missing ones are empty."""
    lines = [text_of(line) for line in data.split(b"\n", count - 1)]
    return lines + [""] * (count - len(lines))

"""How many random cases thorough tests try: a quarter of those of ``make soak``, which runs them alone and longer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

VARIABLE: Final = "OJSTER_TEST_SOAK"

_OF: Final = 1 if VARIABLE in os.environ else 4


def cases(soak: int, usual: int | None = None) -> int:
    """Return the number of cases of a test that tries ``soak`` cases in ``make soak``; else ``usual``, or a quarter."""
    if usual is not None and VARIABLE not in os.environ:
        return usual
    return max(1, soak // _OF)


def share(soak: Sequence[T], turn: int) -> Sequence[T]:
    """Return the cases of a turn: all in ``make soak``, else a quarter, which is another one in each of four turns."""
    return soak[turn % _OF :: _OF]

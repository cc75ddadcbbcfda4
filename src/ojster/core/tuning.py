"""Interpreter settings for server and worker processes."""

from __future__ import annotations

import gc
import sys
from typing import Final

GC_THRESHOLD: Final = 50_000
"""Allocations between two garbage collections, in objects; Python's default of 700 is for small programs."""

SWITCH_INTERVAL: Final = 0.0002
"""Maximum time a thread keeps others from running Python, in seconds: a twenty-fifth of Python's default, at which the
writer's thread would starve while the event loop is busy. See docs/adr/0004-sqlite-through-apsw.md.
"""


def tune_interpreter() -> None:
    """Tune the interpreter for fair threads and rare garbage collection."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)

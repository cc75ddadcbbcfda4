"""How is the interpreter set up for a process that serves or works?"""

from __future__ import annotations

import gc
import sys
from typing import Final

COLLECT_EVERY: Final = 50_000
"""How many objects are made before the garbage collector looks for cycles; Python's 700 is for small programs."""

SWITCH_INTERVAL: Final = 0.0005
"""How long, in seconds, one thread may keep the others from running Python while they want to. The writer's thread
would starve at Python's default, ten times that, while the event loop is busy; see docs/architecture.md."""


def be_quick() -> None:
    """Tune the interpreter: fair threads, and rare garbage collection."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)

"""Interpreter settings for server and worker processes."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GC_THRESHOLD: Final = 50_000
"""Allocations between two garbage collections, in objects; Python's default of 700 is for small programs."""

SWITCH_INTERVAL: Final = 0.001
"""Maximum time a thread keeps others from running Python, in seconds: a fifth of Python's default. See
docs/adr/0004-sqlite-through-apsw.md.
"""

QUICK_SWITCH_INTERVAL: Final = 0.0002
"""The same while long work is done: a thread waits this long after each of its many statements."""


def tune_interpreter() -> None:
    """Tune the interpreter for fair threads and rare garbage collection."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    long_work.is_tuned = True
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


class _LongWork:
    """The long work that is being done in this process."""

    def __init__(self) -> None:
        self.is_tuned = False
        self.renew()

    def renew(self) -> None:
        """Forget all work: a forked process has none, and a thread of its parent may have had the lock."""
        self._lock = threading.Lock()
        self._number = 0
        if self.is_tuned:
            sys.setswitchinterval(SWITCH_INTERVAL)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Let threads take turns more often while the block runs, if the interpreter is tuned."""
        if not self.is_tuned:
            yield
            return
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            self._number += by
            sys.setswitchinterval(QUICK_SWITCH_INTERVAL if self._number else SWITCH_INTERVAL)


long_work: Final = _LongWork()
"""Lets threads take turns more often while a block runs that takes long."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=long_work.renew)

"""The signal that a handler should stop. Most jobs end without one, so it costs nothing until somebody waits for it."""

from __future__ import annotations

import threading


class StopSignal:
    """Like ``threading.Event``, for one call of ``set``; it makes locks only for threads that wait."""

    __slots__ = ("_waiting", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        """Whether the handler should stop."""
        self._waiting: list[threading.Event] = []

    def set(self) -> None:
        """Wake the threads that wait. Any thread may call it."""
        self.is_set = True
        for woken in tuple(self._waiting):
            woken.set()

    def wait(self, seconds: float) -> bool:
        """Wait at most so many seconds; return whether the signal is set. Any number of threads may wait."""
        woken = threading.Event()
        self._waiting.append(woken)  # before the look at is_set: either set() sees this, or this sees that it is set
        try:
            return self.is_set or woken.wait(seconds)
        finally:
            self._waiting.remove(woken)

"""What is waiting to be run, and which thread takes it? All that is there, by one thread, as long as that is quick.

Merged calls are cheap, so a second thread joins only if there is a lot to do, or if what waits has waited too long
because the first is held up. Taken at once by whoever is free, the same calls would make many small transactions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

MUCH: Final = 100
"""How much must wait for another thread to join those that are busy."""

TOO_LONG: Final = 0.02
"""After how many seconds another thread takes what waits, however little it is."""


class Inbox(Generic[T]):
    """Items for some threads. Each ``take`` must be followed by ``finish``.

    Parameters
    ----------
    threads:
        How many threads take.
    most:
        How much work one takes at once.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._threads = threads
        self._most = most
        self._changed = threading.Condition(threading.Lock())
        self._items: list[tuple[T, int]] = []
        self._size = 0
        self._since = 0.0
        self.busy = 0
        """How many threads have taken something that they have not finished."""
        self._watched = False
        """Whether a free thread watches, from time to time, that nothing waits too long for those that are busy."""
        self._closed = False

    def put(self, items: Sequence[tuple[T, int]]) -> None:
        """Put in items, each with how much work it makes."""
        with self._changed:
            if not self._items:
                self._since = time.monotonic()
            self._items += items
            self._size += sum(size for _, size in items)
            if not self.busy or not self._watched or self._urgent():
                self._changed.notify()

    def close(self) -> None:
        """Let those who take get what is left, and then nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self) -> list[T]:
        """Wait for items; return those that came first: all, or a share if there is much to do and others are free.

        An empty list is the end.
        """
        with self._changed:
            while not self._items or (self.busy and not self._urgent()):
                if not self._items and self._closed:
                    return []
                if self.busy and not self._watched:
                    self._watched = True
                    self._changed.wait(TOO_LONG)
                    self._watched = False
                else:
                    self._changed.wait()
            share = max(MUCH, self._size // (self._threads - self.busy))
            self.busy += 1
            count = size = 0
            for _, one in self._items:
                if count and size + one > min(share, self._most):
                    break
                count += 1
                size += one
            taken = [item for item, _ in self._items[:count]]
            del self._items[:count]
            self._size -= size
            if self._items:
                self._changed.notify()
            return taken

    def finish(self) -> None:
        """Say that what was taken is done."""
        with self._changed:
            self.busy -= 1  # who says so takes next what is there

    def _urgent(self) -> bool:
        return self._closed or self._size >= MUCH or time.monotonic() - self._since >= TOO_LONG

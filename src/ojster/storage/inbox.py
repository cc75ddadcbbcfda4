"""The inbox of the database threads: one thread takes all waiting items, as long as that is quick.

Merged calls are cheap, so a second thread joins only if much work waits, or if items have waited too long because the
first thread is busy. If every free thread took items at once, the same calls would make many small transactions.

A large item is taken alone, in turn with all small ones, so that a small one waits for one large one at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

JOIN_SIZE: Final = 100
"""Amount of waiting work (sum of item sizes) at which another thread joins the busy ones."""

JOIN_AFTER_SECONDS: Final = 0.02
"""Time in seconds after which another thread takes waiting items, however few."""

LARGE: Final = 600
"""Size from which on an item is large: more than one report of finished jobs has, so that they share
transactions."""


class Inbox(Generic[T]):
    """Items for several threads. After each ``take``, the thread must call ``finish``.

    Parameters
    ----------
    threads:
        Number of threads that take items.
    most:
        Maximum total size of the items of one ``take``. A larger item is taken alone.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._threads = threads
        self._most = most
        self._changed = threading.Condition(threading.Lock())
        self._items: list[tuple[T, int]] = []
        self._size = 0
        self._large = 0
        """Number of large items."""
        self._took_large = False
        """Whether the last ``take`` was of a large item."""
        self._since = 0.0
        self.busy = 0
        """Number of threads that have taken items and not called ``finish``."""
        self._watched = False
        """Whether a free thread waits with a timeout, to take items that have waited too long."""
        self._closed = False

    def put(self, items: Sequence[tuple[T, int]]) -> None:
        """Add items, each with its size: the amount of work."""
        with self._changed:
            if not self._items:
                self._since = time.monotonic()
            self._items += items
            self._size += sum(size for _, size in items)
            self._large += sum(size >= LARGE for _, size in items)
            if not self.busy or not self._watched or self._urgent():
                self._changed.notify()

    def close(self) -> None:
        """Let ``take`` return the remaining items, and then empty lists."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self) -> list[T]:
        """Wait for items and return the oldest: all, or a share if much work waits and other threads are free.

        Large items are returned alone, in turn with the others.

        An empty list means that the inbox is closed.
        """
        with self._changed:
            while not self._items or (self.busy and not self._urgent()):
                if not self._items and self._closed:
                    return []
                if self.busy and not self._watched:
                    self._watched = True
                    self._changed.wait(JOIN_AFTER_SECONDS)
                    self._watched = False
                else:
                    self._changed.wait()
            share = max(JOIN_SIZE, self._size // (self._threads - self.busy))
            self.busy += 1
            taken = self._first_large() if self._is_turn_of_large() else self._first_small(min(share, self._most))
            if self._items:
                self._changed.notify()
            return taken

    def _is_turn_of_large(self) -> bool:
        self._took_large = self._large > 0 and (self._large == len(self._items) or not self._took_large)
        return self._took_large

    def _first_large(self) -> list[T]:
        place = next(place for place, (_, size) in enumerate(self._items) if size >= LARGE)
        item, size = self._items.pop(place)
        self._large -= 1
        self._size -= size
        return [item]

    def _first_small(self, most: int) -> list[T]:
        """Take the oldest items that are not large, up to a total size, and at least one."""
        taken: list[T] = []
        kept: list[tuple[T, int]] = []
        size = place = 0
        for place, (item, bytes_of_item) in enumerate(self._items, 1):
            if bytes_of_item >= LARGE:
                kept.append((item, bytes_of_item))
                continue
            if taken and size + bytes_of_item > most:
                place -= 1
                break
            taken.append(item)
            size += bytes_of_item
        self._items[:place] = kept
        self._size -= size
        return taken

    def finish(self) -> None:
        """Mark the taken items as done."""
        with self._changed:
            self.busy -= 1  # no notification: this thread takes the next items itself

    def _urgent(self) -> bool:
        return self._closed or self._size >= JOIN_SIZE or time.monotonic() - self._since >= JOIN_AFTER_SECONDS

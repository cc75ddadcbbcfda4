"""Long work of an event loop, with turns for other tasks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from ojster.core.tuning import long_work

T = TypeVar("T")

ITEMS_PER_TURN: Final = 20
"""Number of items after which other tasks of the event loop run."""

LARGE_BYTES: Final = 16_000
"""Size of JSON, in bytes, from which on it is read in a thread."""


class _Reader:
    """The thread that reads large JSON: one, because each more would take as much time as the event loop gets."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin a new thread: a forked process has none."""
        self.executor = ThreadPoolExecutor(1, "ojster-reads")


_reader: Final = _Reader()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reader.renew)


async def read_aside(size: int, read: Callable[..., T], *args: Any) -> T:
    """Return ``read(*args)``, which reads JSON of a size in bytes: in a thread if that is large."""
    if size < LARGE_BYTES:
        return read(*args)
    with long_work():
        return await asyncio.get_running_loop().run_in_executor(_reader.executor, partial(read, *args))


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let other tasks run after every ``ITEMS_PER_TURN``, for work of less than 0.1 ms an item."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % ITEMS_PER_TURN:
            await asyncio.sleep(0)

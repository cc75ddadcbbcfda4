"""Long work of an event loop, with turns for other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeVar

T = TypeVar("T")

ITEMS_PER_TURN: Final = 100
"""Number of items after which other tasks of the event loop run."""

LARGE_BYTES: Final = 16_000
"""Size of JSON, in bytes, from which on it is read in a thread."""


async def read_aside(size: int, read: Callable[..., T], *args: Any) -> T:
    """Return ``read(*args)``, which reads JSON of a size in bytes: in a thread if that is large."""
    return read(*args) if size < LARGE_BYTES else await asyncio.to_thread(read, *args)


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let other tasks run after every ``ITEMS_PER_TURN``, for work of less than 0.1 ms an item."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % ITEMS_PER_TURN:
            await asyncio.sleep(0)

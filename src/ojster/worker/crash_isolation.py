"""Crash isolation: a job whose worker has died before begins alone.

Such a job may have caused the death, and would take its neighbors along once more. The worker therefore fetches no
others until the running ones have ended, and lets it run alone for its first seconds. A job that survives them runs
beside others from then on, so that long jobs do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

ALONE_SECONDS: Final = 10.0
"""Time that a job whose worker has died runs alone."""

PATIENCE_SECONDS: Final = 30.0
"""Maximum time that such a job waits for the running ones to end, before it begins beside them."""


class WorkerPlace:
    """The place of a running job. ``is_proven``: it has run alone for long enough."""

    __slots__ = ("is_proven", "timer")

    def __init__(self) -> None:
        self.is_proven = False
        self.timer: asyncio.TimerHandle | None = None


_ORDINARY: Final = WorkerPlace()


class CrashIsolation:
    """The running jobs of a worker, with those kept apart that may have crashed one.

    Parameters
    ----------
    on_room:
        Called when the worker may fetch jobs again.
    """

    def __init__(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room
        self._size = 0
        self._proven = 0
        self._waiting = 0
        self._alone: WorkerPlace | None = None
        self._news = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether a job runs alone, or waits for it, so that no other jobs should be fetched."""
        return self._alone is not None or self._waiting > 0

    async def join(self, *, suspect: bool) -> WorkerPlace:
        """Wait until a job may begin; return its place, for ``leave``.

        Parameters
        ----------
        suspect:
            Whether a worker has died while the job ran.
        """
        place = await self._join_alone() if suspect else _ORDINARY
        while self._alone is not None and not suspect:
            await self._news.wait()
        self._size += 1
        return place

    def join_at_once(self) -> WorkerPlace:
        """Begin a job that is no suspect, while nothing is closed; return its place, for ``leave``."""
        self._size += 1
        return _ORDINARY

    async def _join_alone(self) -> WorkerPlace:
        self._waiting += 1
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_SECONDS
        try:
            while self._alone is not None or (self._size > self._proven and loop.time() < deadline):
                try:
                    async with asyncio.timeout_at(deadline if self._alone is None else None):
                        await self._news.wait()
                except TimeoutError:
                    continue
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._ring()
        self._alone = place = WorkerPlace()
        place.timer = loop.call_later(ALONE_SECONDS, self._prove, place)
        return place

    def leave(self, place: WorkerPlace) -> None:
        """Record that a job has ended."""
        self._size -= 1
        if place.timer is not None:
            place.timer.cancel()
        if place.is_proven:
            self._proven -= 1
        if self._alone is place:
            self._alone = None
        if place is not _ORDINARY or self._waiting:
            self._ring()

    def _prove(self, place: WorkerPlace) -> None:
        place.is_proven = True
        self._proven += 1
        self._alone = None
        self._ring()

    def _ring(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
        self._on_room()

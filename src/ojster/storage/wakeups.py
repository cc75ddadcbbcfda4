"""Wake-ups within a process: waiters wait for topics, and commits wake them. Waiting costs nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Final

DUE: Final = "due"
"""Topic: the next due time has become earlier."""

FINISHED: Final = "finished"
"""Topic: any job has finished."""

EVENTS: Final = "events"
"""Topic: a transaction of this process has emitted events."""


QUIET: Final = "quiet:"
"""Beginning of topics that do not say that there is something to do."""


JOB: Final = "job:"
"""Beginning of the topic of the end of one job."""


def job_topic(job_id: str) -> str:
    """Return the topic of the end of one job."""
    return JOB + job_id


class Waiter:
    """A waiter for topics. Use it as a context manager, and call ``arm`` before checking for work.

    A wake-up between ``arm`` and ``wait`` is not lost.
    """

    def __init__(self, wakeups: Wakeups, topics: Iterable[str]) -> None:
        self._wakeups = wakeups
        self.topics = tuple(topics)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self.woken = False

    def __enter__(self) -> Waiter:
        self._wakeups.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wakeups.remove(self)

    def arm(self) -> None:
        """Forget earlier wake-ups."""
        self._event.clear()
        self.woken = False

    async def wait(self, seconds: float | None) -> bool:
        """Wait for a wake-up since ``arm``, at most ``seconds`` (``None``: no limit); return whether there was one."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    def wake(self) -> None:
        """Wake the waiter. Safe to use from any thread."""
        self.woken = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            self._wakeups.remove(self)  # its event loop is closed


class Wakeups:
    """The waiters of a process, by topic. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, dict[Waiter, None]] = {}

    def waiter(self, *topics: str) -> Waiter:
        """Return a waiter for these topics, for the running event loop."""
        return Waiter(self, topics)

    def add(self, waiter: Waiter) -> None:
        """Register a waiter for its topics."""
        with self._lock:
            for topic in waiter.topics:
                self._waiters.setdefault(topic, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Unregister a waiter."""
        with self._lock:
            for topic in waiter.topics:
                waiters = self._waiters.get(topic)
                if waiters is not None:
                    waiters.pop(waiter, None)
                    if not waiters:
                        del self._waiters[topic]

    def wake(self, topic: str) -> None:
        """Wake the waiters of a topic that are not awake."""
        if topic not in self._waiters:
            return
        with self._lock:
            chosen = [waiter for waiter in self._waiters.get(topic, ()) if not waiter.woken]
        for waiter in chosen:
            waiter.wake()

    def wake_all(self) -> None:
        """Wake the waiters of all topics."""
        for topic in list(self._waiters):
            self.wake(topic)

    def waits_for(self, prefix: str) -> bool:
        """Return whether a waiter exists for a topic that begins with ``prefix``."""
        with self._lock:
            return any(topic.startswith(prefix) for topic in self._waiters)

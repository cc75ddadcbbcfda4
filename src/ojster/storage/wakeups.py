"""Who in this process waits for what? Waiting costs nothing; a wake-up is sent when a commit makes something happen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Final

DUE: Final = "due"
"""The topic of those who wait for the next time at which something is due."""

FINISHED: Final = "finished"
"""The topic of those who wait for any job to finish."""


EVENTS: Final = "events"
"""The topic of those who wait for anything that happens in this process."""

WORKFLOWS: Final = "workflows"
"""The topic of those who wait for any workflow to change."""


def workflow_topic(workflow_id: str) -> str:
    """The topic of those who wait for one workflow to change."""
    return "workflow:" + workflow_id


def job_topic(job_id: str) -> str:
    """The topic of those who wait for one job to finish."""
    return "job:" + job_id


class Waiter:
    """One who waits for topics. Use it as a context manager, and ``arm`` it before looking whether there is anything.

    What becomes known between ``arm`` and ``wait`` is not missed.
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
        """Wait for a wake-up since ``arm``, at most ``seconds``; tell whether there was one."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    def wake(self) -> None:
        """Wake it, from any thread."""
        self.woken = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            self._wakeups.remove(self)  # its loop is closed: nobody waits any more


class Wakeups:
    """The waiters of a process, by topic. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: dict[str, dict[Waiter, None]] = {}

    def waiter(self, *topics: str) -> Waiter:
        """Return a waiter for these topics, for the running event loop."""
        return Waiter(self, topics)

    def add(self, waiter: Waiter) -> None:
        """Let a waiter be woken."""
        with self._lock:
            for topic in waiter.topics:
                self._waiters.setdefault(topic, {})[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Forget a waiter."""
        with self._lock:
            for topic in waiter.topics:
                waiters = self._waiters.get(topic)
                if waiters is not None:
                    waiters.pop(waiter, None)
                    if not waiters:
                        del self._waiters[topic]

    def wake(self, topic: str, count: int | None = None) -> None:
        """Wake those who wait for a topic: all of them, or ``count`` that are not awake yet, in turn."""
        if topic not in self._waiters:
            return
        with self._lock:
            waiters = self._waiters.get(topic, {})
            chosen = [waiter for waiter in waiters if not waiter.woken][:count]
            for waiter in chosen:  # to the end of the line, so that all have their turn
                waiters[waiter] = waiters.pop(waiter)
        for waiter in chosen:
            waiter.wake()

    def wake_all(self) -> None:
        """Wake everybody, whatever they wait for."""
        for topic in list(self._waiters):
            self.wake(topic)

    def waits_for(self, prefix: str) -> bool:
        """Tell whether anybody waits for a topic that begins so."""
        with self._lock:
            return any(topic.startswith(prefix) for topic in self._waiters)

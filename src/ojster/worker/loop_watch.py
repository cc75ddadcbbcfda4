"""A watch over the event loop of a worker: it logs what blocks the loop, and lets another thread send heartbeats."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import Final

from ojster.worker.backup_heartbeat import BackupHeartbeat

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 1.0
"""Interval at which the loop shows that it runs."""

BLOCKED_SECONDS: Final = 5.0
"""Time without a sign of the loop after which it is reported as blocked."""


class LoopWatch:
    """Watches the running event loop, from a thread of its own, until ``stop``.

    Attributes
    ----------
    backup_heartbeat:
        Sends heartbeats while the loop is blocked; ``None``: nobody does.
    """

    def __init__(self) -> None:
        self.backup_heartbeat: BackupHeartbeat | None = None
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._seen = time.monotonic()
        self._stopped = threading.Event()
        self._timer = self._loop.call_soon(self._tick)
        threading.Thread(target=self._watch, name="ojster-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        self._timer.cancel()

    def _tick(self) -> None:
        self._seen = time.monotonic()
        self._timer = self._loop.call_later(TICK_SECONDS, self._tick)

    def _watch(self) -> None:
        reported = 0.0
        while True:
            began = time.monotonic()
            if self._stopped.wait(TICK_SECONDS):
                break
            seen = self._seen
            waited, blocked = time.monotonic() - began, time.monotonic() - seen
            if blocked > 2 * TICK_SECONDS and self.backup_heartbeat is not None:
                self.backup_heartbeat.beat(blocked)
            if waited >= BLOCKED_SECONDS:  # this thread has stood still, too; the loop may have had a turn since
                reported = seen
                log.warning(
                    "this process has stood still for %.0f seconds, so that leases of its jobs may have ended: it was "
                    "stopped or paused, its machine is overloaded, or a function did not release Python's lock (GIL)",
                    waited,
                )
            if blocked < BLOCKED_SECONDS or seen == reported:
                continue
            reported = seen
            frame = sys._current_frames().get(self._thread_id)
            stack = "" if frame is None else "".join(traceback.format_stack(frame))
            log.warning(
                "the event loop has been blocked for %.0f seconds, so that all jobs on it wait; declare the handler "
                "with 'def' instead of 'async def', or await what takes long:\n%s",
                blocked,
                stack,
            )
        if self.backup_heartbeat is not None:
            self.backup_heartbeat.close()

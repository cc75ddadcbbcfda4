"""Progress reports of a job on their way to the server: not too many, and the last one always."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from ojster.jobs.job_logs import storable
from ojster.jobs.messages import Progress
from ojster.jobs.progress import MAX_MESSAGE_CHARACTERS

MIN_PROGRESS_INTERVAL_SECONDS: Final = 0.25
"""Minimum interval between two progress reports of a job, in seconds. Only the latest report is sent."""


class ProgressReports:
    """Sends the progress of one attempt.

    Parameters
    ----------
    send:
        Sends a report.
    loop:
        Event loop of the worker.
    """

    def __init__(self, send: Callable[[Progress], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        self._sent_at = 0.0
        self._pending: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def offer(self, report: Progress) -> None:
        """Send a report as soon as the interval allows, unless another one follows. Any thread may call it."""
        self._pending = report  # here, because the handler may end before the event loop comes to send it
        self._loop.call_soon_threadsafe(self._send_soon)

    async def finish(self, *, drop: bool) -> None:
        """Send the report that waits, and wait until the server has answered; ``drop``: the attempt was given up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if drop:
            self._pending = None
        self._send_pending()
        if self._sending is not None:
            await asyncio.wait((self._sending,))

    def _send_soon(self) -> None:
        if self._timer is None and self._pending is not None:
            wait = max(0.0, self._sent_at + MIN_PROGRESS_INTERVAL_SECONDS - time.monotonic())
            self._timer = self._loop.call_later(wait, self._send_pending)

    def _send_pending(self) -> None:
        self._timer = None
        report, self._pending = self._pending, None
        if report is not None:
            message = None if report.message is None else storable(report.message, MAX_MESSAGE_CHARACTERS)
            report = msgspec.structs.replace(report, message=message)
            self._sent_at = time.monotonic()
            self._sending = self._loop.create_task(self._send_after(self._sending, report))

    async def _send_after(self, earlier: asyncio.Task[None] | None, report: Progress) -> None:
        """Send a report when the one before it has been answered: else the older one could arrive last."""
        if earlier is not None:
            await asyncio.wait((earlier,))
        await self._send(report)

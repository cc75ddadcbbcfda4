"""Backup heartbeat: sent from another thread while the event loop of a worker is blocked.

A handler that blocks the loop, with ``time.sleep`` in a coroutine for example, would otherwise cost all jobs beside it
their leases. It only keeps the leases: orders of operators and cancellations are followed when the loop runs
again. It ends when the loop has been blocked for longer than a running job may take: the worker is then taken for lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ojster.client.interface import Client
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.fleet.workers import Heartbeat
from ojster.jobs.messages import hand_back
from ojster.service import Service
from ojster.worker.local_queue import LocalQueue

log = logging.getLogger(__name__)

MAX_CALL_SECONDS: Final = 10.0
"""Maximum duration of a heartbeat, in seconds."""


class BackupHeartbeat:
    """Sends heartbeats while an event loop is blocked.

    Parameters
    ----------
    connect:
        Returns a client for the running event loop.
    heartbeat:
        Returns the heartbeat to send.
    interval:
        Returns the time between two heartbeats, in seconds.
    running:
        Returns the running jobs.
    held:
        Jobs that have not begun, which are handed back; none by default.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        heartbeat: Callable[[], Heartbeat],
        interval: Callable[[], float],
        running: Callable[[], Iterable[Job]],
        held: LocalQueue | None = None,
    ) -> None:
        self._connect = connect
        self._heartbeat = heartbeat
        self._interval = interval
        self._running = running
        self._held = held
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None
        self._next_at = 0.0
        self._has_given_up = False

    def beat(self, blocked: float) -> None:
        """Send a heartbeat, if one is due; ``blocked``: how long the event loop has been blocked, in seconds."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + self._interval()
        limits = [job.timeout / 1e6 for job in self._running() if job.timeout]
        if limits and blocked > min(limits):
            if not self._has_given_up:
                log.error(
                    "the event loop is blocked for longer than a job may take; no more heartbeats are sent for it"
                )
            self._has_given_up = True
            return
        self._has_given_up = False
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            self._loop.run_until_complete(asyncio.wait_for(self._send(), MAX_CALL_SECONDS))
        except (OjsterError, TimeoutError) as error:
            log.warning("heartbeat for the blocked event loop failed: %s", str(error) or "no answer")

    async def _send(self) -> None:
        self._client = self._connect()
        if self._held is not None and (held := self._held.take_all()):
            await self._hand_back(self._client, self._held, held)
        await self._client.fleet.beat(self._heartbeat(), 0.0)

    async def _hand_back(self, client: Client, queue: LocalQueue, held: Sequence[Job]) -> None:
        """Hand back jobs that cannot begin; if that fails, the worker has them still."""
        try:
            await client.jobs.release([hand_back(job, self._heartbeat().worker_id) for job in held])
        except OjsterError as error:
            queue.put_back(held)
            log.warning("%d jobs that cannot begin could not be handed back: %s", len(held), error)
        except BaseException:
            queue.put_back(held)
            raise

    def close(self) -> None:
        """Close the connections. No heartbeat may follow."""
        if self._loop is not None:
            if self._client is not None and not isinstance(self._client, Service):  # the service is the worker's
                self._loop.run_until_complete(self._client.close())
            self._loop.close()

"""Drain check, of a worker that runs until no jobs are left: large workflows start their steps a part at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from ojster.client.interface import Client
from ojster.core.errors import BackendError, OjsterError
from ojster.service import Service
from ojster.worker.reporting import ERROR_PATIENCE_SECONDS

DRAIN_CHECK_SECONDS: Final = 0.5
"""How long the last fetch from a server waits, in which the server starts the next steps of large workflows."""


class DrainCheck:
    """Decides when nothing is left, for a worker without running jobs whose fetches find none.

    Parameters
    ----------
    client:
        Where the worker fetches jobs.
    registering:
        The registration of what the application declares. Nothing is over before it has ended.
    """

    def __init__(self, client: Client, registering: asyncio.Future[None]) -> None:
        self._registering = registering
        self._maintenance = client.maintenance if isinstance(client, Service) else None
        self._is_next = False
        self._registers_until: float | None = None
        """When the registration has lasted too long while nothing else was left to do (``time.monotonic``)."""

    @property
    def wait(self) -> float:
        """How long the next fetch should wait, in seconds."""
        return DRAIN_CHECK_SECONDS if self._is_next and self._maintenance is None else 0.0

    def note_jobs(self) -> None:
        """Note that a fetch has found jobs, whose ends may start others."""
        self._is_next = False

    async def is_over(self) -> bool:
        """Start what is left of large workflows; return whether nothing was, and this fetch was the last one.

        Raises
        ------
        BackendError
            Not all that the application declares could be registered.
        """
        if self._is_next:
            return True
        if not self._registering.done():
            self._registers_until = self._registers_until or time.monotonic() + ERROR_PATIENCE_SECONDS
            if time.monotonic() >= self._registers_until:  # the database answers, or no fetch would end
                raise BackendError("Not all that the application declares can be registered. The log says why.")
            await asyncio.wait((self._registering,), timeout=DRAIN_CHECK_SECONDS)
            return False
        self._registering.result()
        try:
            self._is_next = self._maintenance is None or not await self._maintenance.go_on()
        except OjsterError:
            self._is_next = True  # the next fetch says what is wrong
        return False

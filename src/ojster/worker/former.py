"""Jobs that an earlier worker with the same identity held when it died."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ojster.client.interface import Client
from ojster.core.errors import BackendError, BackendUnavailable
from ojster.worker.reporting import LONGEST_PAUSE

log = logging.getLogger(__name__)


async def hand_back_former_jobs(client: Client, worker_id: str, is_stopping: Callable[[], bool]) -> None:
    """Hand back jobs held by an earlier worker of this identity that was not shut down cleanly."""
    pause = 0.1
    while not is_stopping():
        try:
            await client.fleet.leave(worker_id, lost=True)
            return
        except (BackendUnavailable, BackendError) as error:
            log.warning("cannot hand back jobs held before, trying again in %.1f s: %s", pause, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

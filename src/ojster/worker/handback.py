"""Handback of jobs that an earlier worker with the same identity held when it died."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ojster.client.interface import Client
from ojster.worker.backoff import UNREACHABLE, Backoff

log = logging.getLogger(__name__)


async def hand_back_jobs(client: Client, worker_id: str, is_stopping: Callable[[], bool]) -> None:
    """Hand back jobs held by an earlier worker of this identity that was not shut down cleanly."""
    backoff = Backoff()
    while not is_stopping():
        try:
            await client.fleet.leave(worker_id, lost=True)
            return
        except UNREACHABLE as error:
            log.warning("cannot hand back jobs held before, trying again in %.1f s: %s", backoff.seconds, error)
            await backoff.wait()

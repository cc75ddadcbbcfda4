"""The heartbeats of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ojster.core.errors import OjsterError

log = logging.getLogger("ojster.worker.worker")


async def beat_for_ever(
    beat: Callable[[float], Coroutine[Any, Any, bool]], interval: Callable[[], float], news: asyncio.Event
) -> None:
    """Send heartbeats. Each waits at the server until there is news for the worker, or the next one is due.

    Parameters
    ----------
    beat:
        Sends a heartbeat that waits at most so many seconds; returns whether another should follow at once.
    interval:
        Returns the time between two heartbeats, in seconds.
    news:
        Set if the worker has something to say: then a heartbeat is sent at once.
    """
    loop = asyncio.get_running_loop()
    while True:
        pause = interval()
        next_at = loop.time() + pause
        news.clear()
        sent = asyncio.create_task(_try(beat, pause))
        heard = asyncio.create_task(news.wait())
        try:
            await asyncio.wait((sent, heard), return_when=asyncio.FIRST_COMPLETED)
            if sent.done() and not sent.result() and not news.is_set():  # the next one is not due yet
                await asyncio.wait((heard,), timeout=max(0.0, next_at - loop.time()))
        finally:
            sent.cancel()
            heard.cancel()
            await asyncio.gather(sent, heard, return_exceptions=True)


async def _try(beat: Callable[[float], Coroutine[Any, Any, bool]], wait: float) -> bool:
    try:
        return await beat(wait)
    except OjsterError as error:
        log.warning("heartbeat failed, trying again: %s", error)
    except Exception:
        log.exception("heartbeat failed unexpectedly, trying again")
    return False

"""The heartbeats of a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.fleet.workers import Heartbeat
from ojster.handlers.register import HandlerRegister
from ojster.worker.backoff import Backoff

log = logging.getLogger(__name__)

BEATS_PER_LEASE: Final = 6
BEATS_PER_PATIENCE: Final = 3
LEAST_HEARTBEAT_SECONDS: Final = 0.2
MAX_HEARTBEAT_SECONDS: Final = 5.0
"""Least and maximum interval between heartbeats, in seconds. After six missed ones a worker counts as lost."""


def interval_between(lease: float, patience: float, jobs: Iterable[Job]) -> float:
    """Return the time between two heartbeats, in seconds.

    Parameters
    ----------
    lease:
        The lease of jobs that set none, in seconds.
    patience:
        Silence after which the server counts the worker as lost, in seconds.
    jobs:
        The jobs that the worker has.
    """
    leases = [job.lease / 1e6 for job in jobs if job.lease]
    longest = min(MAX_HEARTBEAT_SECONDS, lease / BEATS_PER_LEASE, patience / BEATS_PER_PATIENCE)
    return min(longest, max(LEAST_HEARTBEAT_SECONDS, min(leases, default=lease) / 3))


class Described(Protocol):
    """What a heartbeat tells of a worker."""

    app: HandlerRegister
    id: str
    lease: float
    queues: tuple[str, ...]
    labels: tuple[str, ...]
    concurrency: int
    pool: str | None
    capabilities: dict[str, Any]

    @property
    def state(self) -> str:
        """Whether it is ``running``, ``quiet`` or told to ``terminate``."""

    @property
    def job_types(self) -> tuple[str, ...]:
        """The job types that it has handlers for."""


def heartbeat_of(worker: Described, attempts: dict[str, int]) -> Heartbeat:
    """Return what a worker says of itself; ``attempts``: those of the jobs that it has, by job id."""
    return Heartbeat(
        worker_id=worker.id,
        active_jobs=tuple(attempts),
        attempts=attempts,
        lease=round(worker.lease * 1e6),
        state=worker.state,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        queues=worker.queues,
        labels=worker.labels,
        concurrency=worker.concurrency,
        pool=worker.pool,
        handlers=worker.app.handled,
        job_types=worker.job_types,
        capabilities=worker.capabilities,
        code_version=worker.app.code_version,
    )


async def beat_for_ever(
    beat: Callable[[float], Coroutine[Any, Any, bool]], interval: Callable[[], float], news: asyncio.Event
) -> None:
    """Send heartbeats. Each waits at the server until there is news for the worker, or the next one is due.

    After one that failed, the next one comes earlier: a worker that is not known yet gets no jobs, and may have been
    started together with its server.

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
    backoff = Backoff()
    while True:
        pause = interval()
        next_at = loop.time() + pause
        news.clear()
        sent = asyncio.create_task(_try(beat, pause))
        heard = asyncio.create_task(news.wait())
        try:
            await asyncio.wait((sent, heard), return_when=asyncio.FIRST_COMPLETED)
            if not sent.done() or news.is_set():
                continue
            if (follows := sent.result()) is None:
                next_at = min(next_at, loop.time() + backoff.take())
            else:
                backoff = Backoff()
            if not follows:  # the next one is not due yet
                await asyncio.wait((heard,), timeout=max(0.0, next_at - loop.time()))
        finally:
            sent.cancel()
            heard.cancel()
            await asyncio.gather(sent, heard, return_exceptions=True)


async def _try(beat: Callable[[float], Coroutine[Any, Any, bool]], wait: float) -> bool | None:
    """Return whether another heartbeat follows at once; nothing if this one failed."""
    try:
        return await beat(wait)
    except OjsterError as error:
        log.warning("heartbeat failed, trying again: %s", error)
    except Exception:
        log.exception("heartbeat failed unexpectedly, trying again")
    return None

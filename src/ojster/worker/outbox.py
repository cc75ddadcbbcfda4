"""Outcomes on their way to the server: those of one turn of the event loop in one call, with a fetch if it can be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ojster.client.interface import Client
from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim
from ojster.jobs.messages import Release
from ojster.worker.execution import Ending
from ojster.worker.reporting import Reporter

MAX_REPORTED_OUTCOMES: Final = 500
"""Maximum number of outcomes sent in one call."""


class Outbox:
    """The outcomes that a worker has not reported yet.

    Parameters
    ----------
    reporter:
        Sends them.
    worker_id:
        The worker's id.
    on_change:
        Called after each report, and when an outcome is kept for the next fetch.

    Attributes
    ----------
    waits_for_fetch:
        Whether outcomes are kept for the next ``fetch``, which is to come as soon as a job has ended.
    """

    def __init__(self, reporter: Reporter, worker_id: str, on_change: Callable[[], None]) -> None:
        self._reporter = reporter
        self._worker_id = worker_id
        self._on_change = on_change
        self._endings: list[Ending] = []
        self._calls: set[asyncio.Task[list[Job]]] = set()
        self._is_sending_soon = False
        self.waits_for_fetch = False

    @property
    def is_empty(self) -> bool:
        """Whether all outcomes are reported."""
        return not (self._endings or self._calls)

    def tell(self, client: Client, ending: Ending) -> None:
        """Report the outcome of a job, together with others of the same turn of the event loop."""
        self._endings.append(ending)
        if not self._is_sending_soon:
            self._is_sending_soon = True
            asyncio.get_running_loop().call_soon(self._send_soon, client)

    def _send_soon(self, client: Client) -> None:
        self._is_sending_soon = False
        if self.waits_for_fetch:
            self._on_change()
        else:
            self.send(client)

    def send(self, client: Client) -> None:
        """Report what waits for a fetch."""
        self.waits_for_fetch = False
        while self._endings:
            self._begin(self._reporter.send(client, self._take()))

    async def fetch(self, client: Client, request: Claim, wait: float) -> list[Job]:
        """Fetch jobs, together with what there is to report. See ``JobCalls.fetch``."""
        self.waits_for_fetch = False
        if self._endings:
            call = self._begin(self._reporter.send(client, self._take(), request))
            self.send(client)
            try:
                if jobs := await asyncio.shield(call):
                    return jobs
            except asyncio.CancelledError:
                call.add_done_callback(lambda done: self._give_back(client, done))
                raise
        return await client.jobs.fetch(request, wait)

    async def drain(self, client: Client) -> None:
        """Report everything, and wait until that is done."""
        await asyncio.sleep(0)
        while not self.is_empty:
            self.send(client)
            await asyncio.gather(*self._calls)
            await asyncio.sleep(0)

    def _take(self) -> list[Ending]:
        some, self._endings = self._endings[:MAX_REPORTED_OUTCOMES], self._endings[MAX_REPORTED_OUTCOMES:]
        return some

    def _begin(self, call: Coroutine[Any, Any, list[Job]]) -> asyncio.Task[list[Job]]:
        task = asyncio.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[list[Job]]) -> None:
        self._calls.discard(task)
        self._on_change()

    def _give_back(self, client: Client, call: asyncio.Task[list[Job]]) -> None:
        """Release jobs that came when nobody waited for them any more."""
        if not call.cancelled() and call.exception() is None:
            for job in call.result():
                self.tell(client, Release(job.id, self._worker_id, job.attempt))

"""Outcomes on their way to the server: those of one turn of the event loop in one call, with a fetch if it can be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec

from ojster.client.interface import Client
from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.states import JobState
from ojster.jobs.claim_policy import Claim
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.messages import Acknowledgement, hand_back
from ojster.jobs.queries import Page
from ojster.worker.backoff import UNREACHABLE
from ojster.worker.execution import Ending
from ojster.worker.reporting import Reporter

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_REPORTED_OUTCOMES: Final = 500
"""Maximum number of outcomes sent in one call."""

LAST_REPORT_SECONDS: Final = 2.0
"""Time that a stopping worker gets to report outcomes after the grace period, in seconds."""

LINGER_SECONDS: Final = 0.01
"""Time for which outcomes wait for others, or for the next fetch, while the worker holds more jobs, in seconds."""


class OutcomeReports:
    """The outcomes that a worker has not reported yet.

    Parameters
    ----------
    reporter:
        Sends them.
    worker_id:
        The worker's id.
    on_change:
        Called after each report, and when an outcome is kept for the next fetch.
    lingers:
        Returns whether outcomes wait for others, ``LINGER_SECONDS`` at most; false by default.

    Attributes
    ----------
    waits_for_fetch:
        Whether outcomes are kept for the next ``fetch``, which is to come as soon as a job has ended.
    """

    def __init__(
        self,
        reporter: Reporter,
        worker_id: str,
        on_change: Callable[[], None],
        lingers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reporter = reporter
        self._worker_id = worker_id
        self._on_change = on_change
        self._endings: list[Ending] = []
        self._calls: dict[asyncio.Task[Any], Sequence[Ending]] = {}
        """The calls that are under way, and the outcomes that they report."""
        self._lingers = lingers
        self._timer: asyncio.TimerHandle | None = None
        self._is_sending_soon = False
        self._may_have_missed_jobs = False
        """Whether a fetch had no answer: the server may have handed out jobs all the same."""
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
        elif not self._lingers():
            self.send(client)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._send_at_last, client)

    def _send_at_last(self, client: Client) -> None:
        self._timer = None
        self.send(client)

    def send(self, client: Client) -> None:
        """Report what waits for a fetch."""
        self.waits_for_fetch = False
        for first in range(0, len(self._endings), MAX_REPORTED_OUTCOMES):
            part = self._endings[first : first + MAX_REPORTED_OUTCOMES]
            self._begin(self._reporter.send(client, part), part)
        self._endings = []

    async def fetch(
        self,
        client: Client,
        request: Claim,
        wait: float,
        patiently: int,
        known_ids: Callable[[], Iterable[str]] = tuple,
    ) -> list[Job]:
        """Fetch jobs, together with a report of those that have completed; wait for ``patiently`` of them at most.

        Hand back the jobs in the answers to earlier fetches that never came. ``known_ids`` returns those of the jobs
        that the worker has. See ``JobCalls.fetch``.
        """
        if self._may_have_missed_jobs:
            await self._hand_back_missed(client, known_ids())
        done = [ending for ending in self._endings if isinstance(ending, Acknowledgement)]
        acks = done[:MAX_REPORTED_OUTCOMES]
        self._endings = [ending for ending in self._endings if not isinstance(ending, Acknowledgement)]
        self._endings += done[MAX_REPORTED_OUTCOMES:]
        self.send(client)
        if acks:
            call = self._begin(self._report_and_fetch(client, acks, request), acks)
            try:
                if jobs := await asyncio.shield(call):
                    return jobs
            except asyncio.CancelledError:
                call.add_done_callback(lambda done: self._give_back(client, done))
                raise
            if self._may_have_missed_jobs:
                await self._hand_back_missed(client, known_ids())
        try:
            if not acks and request.count > patiently and (jobs := await client.jobs.fetch(request)):
                return jobs
            return await client.jobs.fetch(msgspec.structs.replace(request, count=min(request.count, patiently)), wait)
        except BaseException:
            self._may_have_missed_jobs = True
            raise

    async def _report_and_fetch(self, client: Client, acks: list[Acknowledgement], request: Claim) -> list[Job]:
        """Make one call, and leave it to others to try again: the jobs that it brings must begin at once."""
        try:
            outcomes, fetched = await client.jobs.acknowledge_and_fetch(acks, request)
        except Exception as error:  # whatever happens, the outcomes of finished jobs are sent again
            log.debug("a report with a fetch failed: %s", error)
            self._may_have_missed_jobs = True
            self._begin(self._reporter.send(client, [*acks]), acks)
            return []
        if any(isinstance(outcome, OjsterError) for outcome in outcomes):
            self._begin(self._reporter.settle(client, acks, outcomes), acks)
        return fetched if isinstance(fetched, list) else []  # why there are none, the next fetch says again

    async def hand_back_now(self, client: Client, jobs: Sequence[Job]) -> None:
        """Release jobs that nobody will begin, in one try."""
        if jobs:
            releases = [hand_back(job, self._worker_id) for job in jobs]
            failed: list[Exception]
            try:
                outcomes = await asyncio.wait_for(client.jobs.release(releases), LAST_REPORT_SECONDS)
                failed = [error for error in outcomes if isinstance(error, UNREACHABLE)]
            except (OjsterError, TimeoutError) as error:
                failed = [error for _ in jobs]
            if failed:
                log.warning(
                    "%d jobs could not be handed back, and run when their leases end: %s", len(failed), failed[0]
                )

    async def _hand_back_missed(self, client: Client, known_ids: Iterable[str]) -> None:
        """Release the jobs in the answers to fetches that never came: they would wait until their leases end.

        They are all that the server counts as this worker's, but those that it has or is reporting. No fetch may be
        under way.
        """
        known = {*known_ids, *(ending.job_id for ending in chain(self._endings, *self._calls.values()))}
        held = JobFilter(states=(JobState.ACTIVE,), worker=self._worker_id, internal=True)
        missed: list[Job] = []
        page = Page(limit=MAX_REPORTED_OUTCOMES, is_counted=False)
        try:
            while True:
                jobs = await client.jobs.select(held, page)
                missed += [job for job in jobs.jobs if job.id not in known]
                if jobs.next_before is None:
                    break
                page = msgspec.structs.replace(page, before=jobs.next_before)
        except UNREACHABLE:  # the fetch would fail, too, and is made again
            raise
        except OjsterError as error:
            log.warning("cannot look for jobs whose fetch had no answer; they run when their leases end: %s", error)
        await self.hand_back_now(client, missed)
        self._may_have_missed_jobs = False

    async def drain(self, client: Client) -> None:
        """Report everything, and wait until that is done."""
        await asyncio.sleep(0)
        while not self.is_empty:
            self.send(client)
            await asyncio.gather(*self._calls)
            await asyncio.sleep(0)

    def _begin(self, call: Coroutine[Any, Any, T], outcomes: Sequence[Ending]) -> asyncio.Task[T]:
        task = asyncio.create_task(call)
        self._calls[task] = outcomes
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        del self._calls[task]
        self._on_change()

    def _give_back(self, client: Client, call: asyncio.Task[list[Job]]) -> None:
        """Release jobs that came when nobody waited for them any more."""
        if not call.cancelled() and call.exception() is None:
            for job in call.result():
                self.tell(client, hand_back(job, self._worker_id))

"""Reports of what became of jobs, sent until the server has them."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ojster.client.interface import Client
from ojster.core.errors import (
    BackendUnavailable,
    Forbidden,
    InvalidPayload,
    InvalidRequest,
    InvalidWorkflow,
    OjsterError,
    PayloadTooLarge,
    TenantLimitExceeded,
)
from ojster.core.property_values import PropertyConflict
from ojster.core.refusals import ResultTooLarge
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Progress, Release
from ojster.worker.backoff import UNREACHABLE, Backoff
from ojster.worker.execution import Ending

log = logging.getLogger(__name__)

OUTAGE_PATIENCE_SECONDS: Final = 3600.0
"""Time for which a report is retried while the server or its database is away, in seconds: leases do not end then."""

ERROR_PATIENCE_SECONDS: Final = 60.0
"""Minimum time for which a report is retried that the server answers with an error of its own, in seconds."""

_KINDS: Final[dict[type[OjsterError], str]] = {
    PayloadTooLarge: "ResultTooLarge",
    ResultTooLarge: "ResultTooLarge",
    Forbidden: "InvalidSteps",
    InvalidWorkflow: "InvalidSteps",
    InvalidRequest: "InvalidSteps",
    InvalidPayload: "InvalidResult",
    TenantLimitExceeded: "TenantLimitExceeded",
}
"""Failure types of jobs with an outcome that the server does not accept, by error."""


class Reporter:
    """Reports the outcomes of a worker's jobs.

    Parameters
    ----------
    worker_id:
        The worker's id.
    lease:
        The lease of its jobs, in seconds: how long a report is retried that the server answers with an error of its
        own, at least ``ERROR_PATIENCE_SECONDS``.

    Attributes
    ----------
    deadline:
        Time (``time.monotonic``) after which reports are given up.
    """

    def __init__(self, worker_id: str, lease: float) -> None:
        self._worker_id = worker_id
        self._lease = lease
        self.deadline = float("inf")

    async def send(self, client: Client, endings: list[Ending]) -> None:
        """Send outcomes until they are received, so that a server restart does not make finished jobs run again."""
        acks = [item for item in endings if isinstance(item, Acknowledgement)]
        failures = [item for item in endings if isinstance(item, FailureReport)]
        releases = [item for item in endings if isinstance(item, Release)]
        for call, items in (
            (client.jobs.acknowledge, acks),
            (client.jobs.fail, failures),
            (client.jobs.release, releases),
        ):
            if items:
                await self._follow(client, await self._call_until_answered(call, items))

    async def settle(self, client: Client, items: Sequence[Ending], outcomes: Sequence[object]) -> None:
        """Do what refused outcomes ask for, and send again what was not answered.

        ``outcomes``: the server's answer for each item.
        """
        await self._follow(client, _refused(items, outcomes))
        if unanswered := _unanswered(items, outcomes):
            await self.send(client, [item for item, _ in unanswered])

    async def _follow(self, client: Client, refused: Sequence[tuple[Ending, OjsterError]]) -> None:
        pause = round(random.random() * 1e6)
        stale = [
            Release(item.job_id, self._worker_id, item.attempt, pause, started_at=item.started_at)
            for item, error in refused
            if isinstance(error, PropertyConflict)
        ]
        if stale:  # based on properties that other jobs changed meanwhile: run them again
            await self._call_until_answered(client.jobs.release, stale)
        unacceptable = [
            FailureReport(item.job_id, _failure(error), self._worker_id, item.attempt, started_at=item.started_at)
            for item, error in refused
            if type(error) in _KINDS
        ]
        if unacceptable:
            await self._call_until_answered(client.jobs.fail, unacceptable)

    async def _call_until_answered(
        self, call: Callable[..., Coroutine[Any, Any, Sequence[Any]]], items: Sequence[Ending]
    ) -> list[tuple[Ending, OjsterError]]:
        """Retry a call until it is answered; return the rejected outcomes and their errors.

        What was answered is not sent again: a server of others gets one report a job, and may answer only some of them.
        Give up after ``OUTAGE_PATIENCE_SECONDS`` if the server cannot be reached, else after the lease time (at least
        ``ERROR_PATIENCE_SECONDS``), or at the end of a shutdown.
        """
        backoff = Backoff()
        began = time.monotonic()
        refused: list[tuple[Ending, OjsterError]] = []
        while True:
            try:
                outcomes = await call(items)
            except Exception as error:  # whatever happens, the outcomes of finished jobs are sent again
                if not isinstance(error, BackendUnavailable) and len(items) > 1:  # one item may cause the error
                    return refused + [pair for item in items for pair in await self._call_until_answered(call, [item])]
                if not isinstance(error, OjsterError):
                    log.exception("a report failed in an unexpected way")
                elif not isinstance(error, UNREACHABLE):
                    return [*refused, (items[0], error)]
                trouble = error
            else:
                refused += _refused(items, outcomes)
                if not (unanswered := _unanswered(items, outcomes)):
                    return refused
                items, trouble = [item for item, _ in unanswered], unanswered[0][1]
            is_away = isinstance(trouble, BackendUnavailable)
            patience = OUTAGE_PATIENCE_SECONDS if is_away else max(self._lease, ERROR_PATIENCE_SECONDS)
            if time.monotonic() + backoff.seconds > min(began + patience, self.deadline):
                log.error("cannot report %d jobs, giving up; they will run again: %s", len(items), trouble)
                return refused
            log.warning("cannot report %d jobs, trying again in %.1f s: %s", len(items), backoff.seconds, trouble)
            await backoff.wait()


def _refused(items: Sequence[Ending], outcomes: Sequence[object]) -> list[tuple[Ending, OjsterError]]:
    """Return the refused outcomes with their errors, and log them."""
    pairs = zip(items, outcomes, strict=True)
    refused = [
        (item, error) for item, error in pairs if isinstance(error, OjsterError) and not isinstance(error, UNREACHABLE)
    ]
    for item, refusal in refused:
        # The server ends attempts itself at their timeout, and a late release confirms the end of one.
        is_usual = isinstance(item, Release) or (isinstance(item, FailureReport) and item.failure.code == "timeout")
        level = logging.DEBUG if is_usual else logging.WARNING
        log.log(level, "the outcome of job %s was rejected: %s", item.job_id, refusal)
    return refused


def _unanswered(items: Sequence[Ending], outcomes: Sequence[object]) -> list[tuple[Ending, Exception]]:
    """Return the outcomes that did not reach the server, or its database, with their errors."""
    return [(item, error) for item, error in zip(items, outcomes, strict=True) if isinstance(error, UNREACHABLE)]


def _failure(refusal: OjsterError) -> Failure:
    """Return the failure of a job whose outcome was refused. It runs again if that may be accepted the next time."""
    may_be_accepted = isinstance(refusal, TenantLimitExceeded)
    return Failure(_KINDS[type(refusal)], refusal.message, retryable=None if may_be_accepted else False)


async def send_progress(client: Client, item: Progress) -> None:
    """Send the progress of a job."""
    try:
        await client.jobs.report(item)
    except OjsterError as error:
        log.debug("the progress of job %s was rejected: %s", item.job_id, error)

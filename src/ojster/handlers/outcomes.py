"""Exceptions with which a handler ends its job other than by a result or an error, and what a caller of it gets."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from ojster.core.durations import LONGEST_SECONDS
from ojster.core.values import Seconds, refuse_both, to_json, to_micros, to_seconds
from ojster.jobs.messages import Release

MAX_RESULT_BYTES: Final = 1_048_576
"""Maximum size of a result that is sent as it is, in bytes of JSON. Larger ones of jobs are uploaded as files."""


class JobFailed(Exception):
    """The awaited job was discarded. ``error`` is the error of its last attempt.

    Parameters
    ----------
    message:
        The job, and the type and message of its error.
    error:
        The error: ``type``, ``message``, ``code`` and more.

    Examples
    --------
    >>> import asyncio
    >>> from ojster import App, Discard, JobFailed, Worker
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("card.charge")
    ... def charge() -> None:
    ...     raise Discard("the card has expired")
    >>> async def main() -> None:
    ...     handle = await charge.aenqueue()
    ...     await Worker(app).run(until_empty=True)
    ...     try:
    ...         await handle.aresult()
    ...     except JobFailed as failed:
    ...         print(failed.error["message"])
    ...     await app.aclose()
    >>> asyncio.run(main())
    the card has expired
    """

    def __init__(self, message: str, error: dict[str, Any]) -> None:
        super().__init__(message)
        self.error = error


class JobCancelled(Exception):
    """The awaited job was cancelled.

    Parameters
    ----------
    args:
        The message, with the id of the job.

    Examples
    --------
    >>> from ojster import App, JobCancelled
    >>> app = App("sqlite:///:memory:")
    >>> @app.job("report.build")
    ... def build() -> None: ...
    >>> handle = build.enqueue()
    >>> handle.cancel()
    >>> try:
    ...     handle.result()
    ... except JobCancelled:
    ...     print("cancelled")
    cancelled
    >>> app.close()
    """


class HandlerOutcome(Exception):
    """Base of the exceptions with which a handler decides how its failed attempt ends.

    Spec: ojs-retry 7
    """

    code: str = "RETRY"
    retryable: bool | None = None


class Discard(HandlerOutcome):
    """Fail the job without retry, and do not keep it as a dead letter.

    Parameters
    ----------
    args:
        The reason. It becomes the message of the job's error; without it, the message is ``Discard``.

    Examples
    --------
    >>> from ojster import Discard
    >>> def charge(card: str) -> None:
    ...     if not card.isdigit():
    ...         raise Discard(f"{card} is not a card number")
    >>> charge("none")
    Traceback (most recent call last):
    ojster.handlers.outcomes.Discard: none is not a card number
    """

    code = "DISCARD"


class DeadLetter(HandlerOutcome):
    """Fail the job without retry, and keep it as a dead letter.

    Parameters
    ----------
    args:
        The reason. It becomes the message of the job's error; without it, the message is ``DeadLetter``.

    Examples
    --------
    >>> from ojster import DeadLetter
    >>> def charge(card: str) -> None:
    ...     if not card.isdigit():
    ...         raise DeadLetter(f"{card} is not a card number")
    >>> charge("none")
    Traceback (most recent call last):
    ojster.handlers.outcomes.DeadLetter: none is not a card number
    """

    code = "DEAD_LETTER"


def _seconds(span: Seconds, name: str) -> float:
    seconds = to_seconds(span)
    if not 0 <= seconds <= LONGEST_SECONDS:  # also NaN
        raise ValueError(f"The {name} must be from 0 to {LONGEST_SECONDS} seconds (100 years), not {span!r}.")
    return seconds


class Reported(BaseException):
    """End an attempt whose outcome the server knows already. No code of users sees it."""


class Released(Exception):
    """Base of the exceptions with which a handler ends its attempt without a failure."""

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return the request that the worker sends to the server."""
        raise NotImplementedError


class Snooze(Released):
    """Run this job again later, without counting this attempt.

    Parameters
    ----------
    delay:
        Delay from now, in seconds or as a ``timedelta``; 0 by default.
    until:
        Earliest time, instead of ``delay``; a datetime with a time zone.

    Raises
    ------
    ValueError
        ``delay`` is negative or longer than 100 years.
    InvalidRequest
        ``until`` has no time zone.

    Examples
    --------
    >>> from ojster import Snooze
    >>> def import_file(is_there: bool) -> None:
    ...     if not is_there:
    ...         raise Snooze(60)
    >>> import_file(is_there=False)
    Traceback (most recent call last):
    ojster.handlers.outcomes.Snooze: run again in 60 s
    """

    def __init__(self, delay: Seconds = 0.0, *, until: datetime | None = None) -> None:
        refuse_both({"delay": delay or None, "until": until})
        self.delay = _seconds(delay, "delay")
        super().__init__(f"run again in {self.delay:g} s" if until is None else f"run again at {until}")
        self.not_before = None if until is None else to_micros(until, "until")

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return the request that the worker sends to the server.

        Parameters
        ----------
        job_id, worker_id, attempt:
            The job, the worker, and the number of the attempt.

        Returns
        -------
        Release
            The request.
        """
        return Release(job_id, worker_id, attempt, round(self.delay * 1e6), not_before=self.not_before)


class Wait(Released):
    """Suspend this job until it is resumed with data or an error, directly or through its workflow.

    A suspended job occupies no worker and has no lease. The data becomes its result, unless ``again`` is set. Resumed
    with an error, the job fails without retry. An answer that comes while the job still runs, before it waits for the
    first time, is kept until it does.

    Parameters
    ----------
    timeout:
        Maximum suspension, in seconds or as a ``timedelta``; then the attempt fails. ``None``, the default: unlimited.
    deadline:
        End of the suspension, instead of ``timeout``; a datetime with a time zone.
    again:
        Run the job again when it is resumed, without counting this attempt. ``job.resumed`` is then the data. The
        default is false.

    Raises
    ------
    ValueError
        ``timeout`` is negative or longer than 100 years.
    InvalidRequest
        ``deadline`` has no time zone.

    Examples
    --------
    >>> from ojster import JobContext, Wait
    >>> def order(job: JobContext) -> str:
    ...     if job.resumed is None:
    ...         raise Wait(timeout=3600, again=True)
    ...     return f"paid by {job.resumed['payer']}"
    >>> Wait(timeout=3600).timeout
    3600.0
    """

    def __init__(
        self, timeout: Seconds | None = None, *, deadline: datetime | None = None, again: bool = False
    ) -> None:
        refuse_both({"timeout": timeout, "deadline": deadline})
        super().__init__("suspended until it is resumed")
        self.timeout = None if timeout is None else _seconds(timeout, "timeout")
        self.deadline = None if deadline is None else to_micros(deadline, "deadline")
        self.again = again

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return the request that the worker sends to the server.

        Parameters
        ----------
        job_id, worker_id, attempt:
            The job, the worker, and the number of the attempt.

        Returns
        -------
        Release
            The request.
        """
        return Release(
            job_id,
            worker_id,
            attempt,
            then="wait",
            again=self.again,
            deadline=self.deadline,
            wait=None if self.timeout is None else round(self.timeout * 1e6),
        )


class RetryWorkflow(Released):
    """End the workflow of this job, and run it again from the beginning as a new workflow.

    The ``retry`` policy of its definition sets the number of attempts (10 by default) and the delays. When retries are
    exhausted, or if the workflow has no definition, the job fails without retry instead.

    Parameters
    ----------
    args:
        Ignored.

    Examples
    --------
    >>> from ojster import RetryWorkflow
    >>> def check(stock: int) -> int:
    ...     if stock < 0:
    ...         raise RetryWorkflow
    ...     return stock
    >>> check(-1)
    Traceback (most recent call last):
    ojster.handlers.outcomes.RetryWorkflow
    """

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return the request that the worker sends to the server.

        Parameters
        ----------
        job_id, worker_id, attempt:
            The job, the worker, and the number of the attempt.

        Returns
        -------
        Release
            The request.
        """
        return Release(job_id, worker_id, attempt, then="retry")


class SkipRest(Released):
    """Complete this job and its workflow: steps that have not started are skipped; active jobs may finish.

    In a flow, it completes the construct that the flow runs: the flow gets the result, and goes on.

    Parameters
    ----------
    result:
        Result of this job, a JSON value; ``None`` by default.

    Raises
    ------
    TypeError
        ``result`` is not a JSON value.

    Examples
    --------
    >>> from ojster import SkipRest
    >>> def check(changed: int) -> int:
    ...     if not changed:
    ...         raise SkipRest({"changed": 0})
    ...     return changed
    >>> check(0)
    Traceback (most recent call last):
    ojster.handlers.outcomes.SkipRest: skip the rest of the workflow
    """

    def __init__(self, result: Any = None) -> None:
        super().__init__("skip the rest of the workflow")
        self.result = None if result is None else to_json(result)

    def release(self, job_id: str, worker_id: str, attempt: int) -> Release:
        """Return the request that the worker sends to the server.

        Parameters
        ----------
        job_id, worker_id, attempt:
            The job, the worker, and the number of the attempt.

        Returns
        -------
        Release
            The request.
        """
        return Release(job_id, worker_id, attempt, then="skip", result=self.result)


class RateLimited(Exception):
    """Fail the attempt and block all jobs with the same rate limit for a while.

    Raise it when a service that the job calls answers that it is overloaded.

    Parameters
    ----------
    delay:
        Duration of the block, in seconds or as a ``timedelta``, for example from a ``Retry-After`` header.
    message:
        Message of the job's error; by default a text with ``delay``.

    Raises
    ------
    ValueError
        ``delay`` is negative or longer than 100 years.

    Examples
    --------
    >>> from ojster import RateLimited
    >>> def call(status: int, retry_after: float) -> None:
    ...     if status == 429:
    ...         raise RateLimited(retry_after)
    >>> call(429, 30)
    Traceback (most recent call last):
    ojster.handlers.outcomes.RateLimited: rate limited for 30 s
    """

    def __init__(self, delay: Seconds, message: str = "") -> None:
        self.delay = _seconds(delay, "delay")
        super().__init__(message or f"rate limited for {self.delay:g} s")

"""What a worker says of its jobs in its log: that they begin and how they end, each with its job.

Every line has the members ``job_id``, ``job_type``, ``queue``, ``attempt`` and, at the end, ``duration`` in seconds,
for handlers that write structured logs. Control characters are escaped: no job can write a line of its own.
"""

from __future__ import annotations

import logging
from typing import Any

from ojster.core.job import Job
from ojster.events.reaction_rules import most_attempts
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement, FailureReport, Release
from ojster.worker.execution import Ending
from ojster.worker.failures import may_be_retried

log = logging.getLogger("ojster.jobs")


def begins(job: Job) -> None:
    """Say that a job begins."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s begins, %s", _named(job), _attempt_of(job), extra=_members(job))


def ends(job: Job, ending: Ending | None, seconds: float, *, was_stopped: bool) -> None:
    """Say how an attempt has ended; ``None``: the worker has stopped it, or it is a flow that waits."""
    match ending:
        case FailureReport():
            is_last = not may_be_retried(job, ending.failure)
            log.log(
                logging.ERROR if is_last else logging.WARNING,
                "%s failed after %s, %s%s: %s: %s%s",
                *(_named(job), _shown(seconds), _attempt_of(job), "" if is_last else ", and may be tried again"),
                *(escaped(ending.failure.type), escaped(ending.failure.message), _trace_of(ending.failure)),
                extra=_members(job, seconds),
            )
        case Acknowledgement():
            _say(job, "completed in", seconds)
        case Release():
            _say(job, "gave its lease back after", seconds)
        case None:
            _say(job, "was stopped after" if was_stopped else "began to wait after", seconds)


def _say(job: Job, what: str, seconds: float) -> None:
    if log.isEnabledFor(logging.INFO):
        log.info("%s %s %s", _named(job), what, _shown(seconds), extra=_members(job, seconds))


def _named(job: Job) -> str:
    return f"job {job.id} {escaped(job.type)}"


def _attempt_of(job: Job) -> str:
    return f"attempt {job.attempt} of {most_attempts(job) + job.losses}"


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _trace_of(failure: Failure) -> str:
    lines = [line for part in failure.backtrace for line in part.splitlines()]
    return "".join(f"\n{escaped(line)}" for line in lines)


def escaped(text: str) -> str:
    """Return a text with its control characters escaped as in Python, so that it stays one line."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _members(job: Job, seconds: float | None = None) -> dict[str, Any]:
    known = {"job_id": job.id, "job_type": job.type, "queue": job.queue, "attempt": job.attempt}
    return known if seconds is None else known | {"duration": seconds}

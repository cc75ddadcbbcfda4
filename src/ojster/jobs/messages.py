"""What workers say of the jobs that they hold: done, failed, released, progress."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeVar

import msgspec

from ojster.core.job import Job
from ojster.core.property_values import Changes
from ojster.jobs.failure import Failure


class Holder(msgspec.Struct, frozen=True):
    """The attempt in which a worker does something for a job, whose lease it must hold. ``None`` stands for any."""

    job_id: str
    worker_id: str | None = None
    attempt: int | None = None


class Acknowledgement(msgspec.Struct, frozen=True):
    """A worker's report that a job is complete. Worker, attempt and start are checked if they are given.

    Parameters
    ----------
    result:
        Result of the job, as JSON.
    append:
        Steps that the job adds to its workflow, as JSON.
    changes:
        Changes to the properties of its workflow.
    result_file:
        File with a result that is too large to send inline.
    started_at:
        When the attempt began, as the job said when it was fetched, in microseconds since the epoch. A report that is
        sent again is then refused even if the same worker has got the job again with the same number of the attempt.
    seq:
        Number of the job in its database, from callers in the process of the service, if the job was plain when it
        was fetched: see ``ojster.core.plain_end``. It changes how the report is written, and not what it does.
        The job in the answer then has only what its end needs.
    node:
        The step that the job is, from callers in the process of the service. It changes what is read at once.
    """

    job_id: str
    result: bytes | None = None
    worker_id: str | None = None
    attempt: int | None = None
    append: tuple[bytes, ...] = ()
    changes: Changes | None = None
    result_file: str | None = None
    started_at: int | None = None
    seq: int | None = None
    node: int | None = None


class FailureReport(msgspec.Struct, frozen=True):
    """A worker's report that an attempt has failed. See ``Acknowledgement`` for ``started_at``."""

    job_id: str
    failure: Failure
    worker_id: str | None = None
    attempt: int | None = None
    changes: Changes | None = None
    started_at: int | None = None


Then = Literal["queue", "wait", "retry", "skip"]
"""What happens to a released job."""


class Release(msgspec.Struct, frozen=True):
    """A worker's release of a job that has neither succeeded nor failed.

    Parameters
    ----------
    then:
        ``queue``: the job runs again, and the attempt does not count. ``wait``: it is suspended until it is resumed.
        ``retry``: its workflow runs again, as a new one. ``skip``: it completes, and steps of its workflow that have
        not started are skipped.
    delay, not_before:
        With ``queue``: delay before the job runs again, in microseconds, or the earliest time, in microseconds since
        the epoch. ``not_before`` takes precedence.
    again:
        With ``wait``: whether the job runs again when it is resumed. By default it completes.
    deadline, wait:
        With ``wait``: time at which the attempt fails unless the job was resumed, in microseconds since the epoch, or
        the delay until then, in microseconds. ``wait`` takes precedence.
    result:
        With ``skip``: result of the job, as JSON.
    changes:
        Changes to the properties of its workflow.
    started_at:
        See ``Acknowledgement``: a release gives the number of the attempt back, so that the next one has the same.
    """

    job_id: str
    worker_id: str | None = None
    attempt: int | None = None
    delay: int = 0
    then: Then = "queue"
    not_before: int | None = None
    again: bool = False
    deadline: int | None = None
    wait: int | None = None
    result: bytes | None = None
    changes: Changes | None = None
    started_at: int | None = None


def hand_back(job: Job, worker_id: str | None, delay: int = 0) -> Release:
    """Return the release of a job that a worker does not run; it is available again after ``delay`` microseconds."""
    return Release(job.id, worker_id, job.attempt, delay, started_at=job.started_at)


class Progress(msgspec.Struct, frozen=True):
    """Progress of a job.

    Parameters
    ----------
    fraction:
        Work done, from 0 to 1; ``None``: as before.
    message:
        Text for people.
    data:
        Details, a JSON object; ``None``: none.

    Spec: ojs-progress
    """

    job_id: str
    fraction: float | None
    message: str | None = None
    worker_id: str | None = None
    attempt: int | None = None
    data: bytes | None = None


EndWithoutSuccess = FailureReport | Release
EndOfAttempt = Acknowledgement | EndWithoutSuccess
"""What a worker says of an attempt that has ended."""


class LeaseReport(Protocol):
    """A worker's report about a job. Worker and attempt are checked if they are given."""

    @property
    def job_id(self) -> str:
        """Id of the job whose lease is reported on."""

    @property
    def worker_id(self) -> str | None:
        """Worker that sends the report."""

    @property
    def attempt(self) -> int | None:
        """Attempt that the report is about."""


W = TypeVar("W", bound=LeaseReport)


def unnamed(report: W) -> W:
    """Return a report that names no worker, so that it is refused for a job that is leased to one with a name."""
    changed: Any = report
    strict: W = msgspec.structs.replace(changed, worker_id="")
    return strict

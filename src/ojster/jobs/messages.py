"""What workers say of the jobs that they hold: done, failed, released, progress."""

from __future__ import annotations

from typing import Literal

import msgspec

from ojster.jobs.failure import Failure
from ojster.workflows.property_values import Changes


class Acknowledgement(msgspec.Struct, frozen=True):
    """A worker's word that a job is done. ``result`` is JSON; worker and attempt are checked if they are given.

    ``append`` are steps, as JSON, that the job adds to its workflow; ``changes`` those of its properties.
    ``result_file`` is the file of a result that is too large to be said.
    """

    job_id: str
    result: bytes | None = None
    worker_id: str | None = None
    attempt: int | None = None
    append: tuple[bytes, ...] = ()
    changes: Changes | None = None
    result_file: str | None = None

    @property
    def says_more(self) -> bool:
        """Whether it says more than the result."""
        return self.changes is not None or bool(self.append) or self.result_file is not None


class FailureReport(msgspec.Struct, frozen=True):
    """A worker's word that a job failed."""

    job_id: str
    failure: Failure
    worker_id: str | None = None
    attempt: int | None = None
    changes: Changes | None = None


Then = Literal["queue", "wait", "retry", "skip"]
"""What is to become of a job that is released."""


class Release(msgspec.Struct, frozen=True):
    """A worker lets go of a job that has neither succeeded nor failed.

    Parameters
    ----------
    then:
        ``queue``: it runs again, and the attempt does not count. ``wait``: it waits until somebody resumes it.
        ``retry``: its workflow is run again, as a new one. ``skip``: it is done, and with it the whole workflow; what
        has not started is skipped.
    delay, not_before:
        Of ``queue``: how long not to run it, in microseconds, or before when not.
    again:
        Of ``wait``: whether it runs again when it is resumed; else it is done then.
    deadline, wait:
        Of ``wait``: when the attempt fails if nobody has resumed it, or after how many microseconds.
    result:
        Of ``skip``: its result, as JSON.
    changes:
        Changes of the properties of its workflow.
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


class Progress(msgspec.Struct, frozen=True):
    """How far a worker is with a job: a fraction from 0 to 1, and words for people (ojs-progress.md)."""

    job_id: str
    fraction: float
    message: str | None = None
    worker_id: str | None = None
    attempt: int | None = None


EndOfAttempt = FailureReport | Release
"""The end of an attempt that has not succeeded."""

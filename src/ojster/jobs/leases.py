"""Who may speak for a job? Only who holds its lease, while it is active. (ojs-worker-protocol.md section 5)"""

from __future__ import annotations

from typing import Protocol

from ojster.core.errors import Conflict, OjsterError
from ojster.core.job import Job
from ojster.core.tenant import called
from ojster.jobs.queries import no_job


class Word(Protocol):
    """What somebody says of a job; worker and attempt are checked if they are given."""

    @property
    def job_id(self) -> str:
        """Of which job."""

    @property
    def worker_id(self) -> str | None:
        """Who says it."""

    @property
    def attempt(self) -> int | None:
        """In which of its attempts."""


def refusal_of(job: Job | None, word: Word) -> OjsterError | None:
    """Return why this word about a job cannot be accepted: only the holder of its lease may speak."""
    if job is None:
        return no_job(word.job_id)
    if job.state != "active":
        return Conflict(
            f"The job {job.id} is {job.state}, not active.",
            job_id=job.id,
            current_state=job.state,
            expected_state="active",
        )
    if word.attempt is not None and word.attempt != job.attempt:
        return Conflict(
            f"The job {job.id} is in attempt {job.attempt}; attempt {word.attempt} has lost its lease.",
            job_id=job.id,
            current_attempt=job.attempt,
        )
    if word.worker_id is not None and job.worker_id is not None and word.worker_id != job.worker_id:
        return Conflict(
            f"The job {job.id} is leased to the worker {called(job.worker_id)}, not to {called(word.worker_id)}.",
            job_id=job.id,
        )
    return None

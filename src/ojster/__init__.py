"""Ojster: durable jobs for Python, and for every language through Open Job Spec.

>>> from ojster import App
>>> app = App("sqlite:///jobs.db")
>>> @app.job("email.send", retry=5)
... async def send(to: str, subject: str) -> None: ...
>>> handle = send.enqueue("ada@example.com", "Hello")
"""

from ojster.app import App, JobHandle, JobOptions, JobType, Retry, Unique
from ojster.engine.settings import Retention, Settings
from ojster.job import DeadLetter, Discard, JobCancelled, JobContext, JobFailed, Snooze, current_job
from ojster.model.envelope import Job
from ojster.model.errors import (
    BackendUnavailable,
    Conflict,
    Duplicate,
    InvalidRequest,
    NotFound,
    NotInTransaction,
    OjsterError,
    PayloadTooLarge,
)
from ojster.model.states import JobState
from ojster.version import __version__
from ojster.worker.worker import Worker

__all__ = [
    "App",
    "BackendUnavailable",
    "Conflict",
    "DeadLetter",
    "Discard",
    "Duplicate",
    "InvalidRequest",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobHandle",
    "JobOptions",
    "JobState",
    "JobType",
    "NotFound",
    "NotInTransaction",
    "OjsterError",
    "PayloadTooLarge",
    "Retention",
    "Retry",
    "Settings",
    "Snooze",
    "Unique",
    "Worker",
    "__version__",
    "current_job",
]

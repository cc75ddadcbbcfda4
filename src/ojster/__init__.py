"""Ojster: durable jobs for Python, and for every language through Open Job Spec.

>>> from ojster import App
>>> app = App("sqlite:///jobs.db")
>>> @app.job("email.send", retry=5)
... async def send(to: str, subject: str) -> None: ...
>>> handle = send.enqueue("ada@example.com", "Hello")
"""

from ojster.app import App
from ojster.codec import CodecError, Encryption, Gzip
from ojster.constructs import Graph, batch, code, each, error_of, gate, param, result_of, saga, wait
from ojster.context import JobContext, current_job
from ojster.core.errors import (
    BackendUnavailable,
    Conflict,
    Duplicate,
    InvalidRequest,
    InvalidWorkflow,
    NotFound,
    NotInTransaction,
    OjsterError,
    PayloadTooLarge,
)
from ojster.core.job import Job
from ojster.core.refusals import JobDropped
from ojster.core.states import JobState
from ojster.job_handle import JobHandle
from ojster.job_options import JobOptions, RateLimit, Retry, Unique
from ojster.job_type import JobType
from ojster.outcomes import (
    DeadLetter,
    Discard,
    JobCancelled,
    JobFailed,
    RateLimited,
    RetryWorkflow,
    SkipRest,
    Snooze,
    Wait,
)
from ojster.queues.fairness import Sharing
from ojster.settings import Retention, Settings
from ojster.version import __version__
from ojster.worker.children import ChildLimits
from ojster.worker.worker import Worker
from ojster.workflow import INDEX, Step, Workflow, chain, element, found, group
from ojster.workflows.child import Child
from ojster.workflows.handle import AsyncRun, Run
from ojster.workflows.info import StepInfo, WorkflowInfo
from ojster.workflows.orchestrator import Orchestrator
from ojster.workflows.property_values import PropertyConflict
from ojster.workflows.run_errors import WorkflowCancelled, WorkflowFailed
from ojster.workflows.shared_properties import SharedProperties

__all__ = [
    "INDEX",
    "App",
    "AsyncRun",
    "BackendUnavailable",
    "Child",
    "ChildLimits",
    "CodecError",
    "Conflict",
    "DeadLetter",
    "Discard",
    "Duplicate",
    "Encryption",
    "Graph",
    "Gzip",
    "InvalidRequest",
    "InvalidWorkflow",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobDropped",
    "JobFailed",
    "JobHandle",
    "JobOptions",
    "JobState",
    "JobType",
    "NotFound",
    "NotInTransaction",
    "OjsterError",
    "Orchestrator",
    "PayloadTooLarge",
    "PropertyConflict",
    "RateLimit",
    "RateLimited",
    "Retention",
    "Retry",
    "RetryWorkflow",
    "Run",
    "Settings",
    "SharedProperties",
    "Sharing",
    "SkipRest",
    "Snooze",
    "Step",
    "StepInfo",
    "Unique",
    "Wait",
    "Worker",
    "Workflow",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowInfo",
    "__version__",
    "batch",
    "chain",
    "code",
    "current_job",
    "each",
    "element",
    "error_of",
    "found",
    "gate",
    "group",
    "param",
    "result_of",
    "saga",
    "wait",
]

"""Ojster: durable jobs for Python, and for every language through Open Job Spec.

>>> from ojster import App
>>> app = App("sqlite:///jobs.db")
>>> @app.job("email.send", retry=5)
... async def send(to: str, subject: str) -> None: ...
>>> handle = send.enqueue("ada@example.com", "Hello")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ojster.core.version import __version__

if TYPE_CHECKING:
    from ojster.api.app import App
    from ojster.api.constructs import Graph, batch, code, definition, each, error_of, gate, result_of, saga, wait
    from ojster.api.flows import FlowRun, FlowType
    from ojster.api.workflow_handle import Run
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
    from ojster.core.property_values import PropertyConflict
    from ojster.core.public_settings import Retention, Settings
    from ojster.core.refusals import JobDropped
    from ojster.core.signatures import InvalidSignature, verify_signature
    from ojster.core.states import JobState
    from ojster.handlers.child import Child
    from ojster.handlers.codec import CodecError, Encryption, Gzip
    from ojster.handlers.compensation import Compensation
    from ojster.handlers.context import JobContext, current_job
    from ojster.handlers.flow import Flow
    from ojster.handlers.flow_check import FlowWarning
    from ojster.handlers.flow_errors import FlowChanged, StepFailed, UpdateFailed
    from ojster.handlers.flow_loop import NotInFlow
    from ojster.handlers.flow_updates import UpdateHandler
    from ojster.handlers.injection import Depends, Provided
    from ojster.handlers.job_handle import JobHandle
    from ojster.handlers.job_info import JobInfo
    from ojster.handlers.job_options import JobOptions, RateLimit, Retry, Unique
    from ojster.handlers.job_type import JobType
    from ojster.handlers.orchestrator import Orchestrator
    from ojster.handlers.outcomes import (
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
    from ojster.handlers.shared_properties import SharedProperties
    from ojster.queues.fairness import Sharing
    from ojster.storage.sqlite.step_connection import StepConnection
    from ojster.worker.children import ChildLimits
    from ojster.worker.worker import Worker
    from ojster.workflows.declaration import Step, Workflow, chain, group
    from ojster.workflows.placeholders import INDEX, element, found, param
    from ojster.workflows.read.info import StepInfo, WorkflowInfo
    from ojster.workflows.read.run_errors import WorkflowCancelled, WorkflowFailed

__all__ = [
    "INDEX",
    "App",
    "BackendUnavailable",
    "Child",
    "ChildLimits",
    "CodecError",
    "Compensation",
    "Conflict",
    "DeadLetter",
    "Depends",
    "Discard",
    "Duplicate",
    "Encryption",
    "Flow",
    "FlowChanged",
    "FlowRun",
    "FlowType",
    "FlowWarning",
    "Graph",
    "Gzip",
    "InvalidRequest",
    "InvalidSignature",
    "InvalidWorkflow",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobDropped",
    "JobFailed",
    "JobHandle",
    "JobInfo",
    "JobOptions",
    "JobState",
    "JobType",
    "NotFound",
    "NotInFlow",
    "NotInTransaction",
    "OjsterError",
    "Orchestrator",
    "PayloadTooLarge",
    "PropertyConflict",
    "Provided",
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
    "StepConnection",
    "StepFailed",
    "StepInfo",
    "Unique",
    "UpdateFailed",
    "UpdateHandler",
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
    "definition",
    "each",
    "element",
    "error_of",
    "found",
    "gate",
    "group",
    "param",
    "result_of",
    "saga",
    "verify_signature",
    "wait",
]

_PLACES: Final = {
    "ojster.api.app": ("App",),
    "ojster.api.flows": ("FlowRun", "FlowType"),
    "ojster.handlers.compensation": ("Compensation",),
    "ojster.handlers.flow": ("Flow",),
    "ojster.handlers.flow_check": ("FlowWarning",),
    "ojster.handlers.flow_errors": ("FlowChanged", "StepFailed", "UpdateFailed"),
    "ojster.handlers.flow_loop": ("NotInFlow",),
    "ojster.handlers.flow_updates": ("UpdateHandler",),
    "ojster.storage.sqlite.step_connection": ("StepConnection",),
    "ojster.handlers.codec": (
        "CodecError",
        "Encryption",
        "Gzip",
    ),
    "ojster.api.constructs": (
        "Graph",
        "batch",
        "code",
        "definition",
        "each",
        "error_of",
        "gate",
        "result_of",
        "saga",
        "wait",
    ),
    "ojster.handlers.context": (
        "JobContext",
        "current_job",
    ),
    "ojster.core.errors": (
        "BackendUnavailable",
        "Conflict",
        "Duplicate",
        "InvalidRequest",
        "InvalidWorkflow",
        "NotFound",
        "NotInTransaction",
        "OjsterError",
        "PayloadTooLarge",
    ),
    "ojster.core.job": ("Job",),
    "ojster.core.refusals": ("JobDropped",),
    "ojster.core.signatures": ("InvalidSignature", "verify_signature"),
    "ojster.core.states": ("JobState",),
    "ojster.handlers.injection": (
        "Depends",
        "Provided",
    ),
    "ojster.handlers.job_handle": ("JobHandle",),
    "ojster.handlers.job_info": ("JobInfo",),
    "ojster.handlers.job_options": (
        "JobOptions",
        "RateLimit",
        "Retry",
        "Unique",
    ),
    "ojster.handlers.job_type": ("JobType",),
    "ojster.handlers.outcomes": (
        "DeadLetter",
        "Discard",
        "JobCancelled",
        "JobFailed",
        "RateLimited",
        "RetryWorkflow",
        "SkipRest",
        "Snooze",
        "Wait",
    ),
    "ojster.queues.fairness": ("Sharing",),
    "ojster.core.public_settings": (
        "Retention",
        "Settings",
    ),
    "ojster.worker.children": ("ChildLimits",),
    "ojster.worker.worker": ("Worker",),
    "ojster.workflows.declaration": (
        "Step",
        "Workflow",
        "chain",
        "group",
    ),
    "ojster.workflows.placeholders": ("INDEX", "element", "found", "param"),
    "ojster.handlers.child": ("Child",),
    "ojster.api.workflow_handle": ("Run",),
    "ojster.workflows.read.info": (
        "StepInfo",
        "WorkflowInfo",
    ),
    "ojster.handlers.orchestrator": ("Orchestrator",),
    "ojster.core.property_values": ("PropertyConflict",),
    "ojster.workflows.read.run_errors": (
        "WorkflowCancelled",
        "WorkflowFailed",
    ),
    "ojster.handlers.shared_properties": ("SharedProperties",),
}
"""The public names of each module. They are imported when they are used, so that the command line starts quickly."""

_PLACE_OF: Final = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the names of the module."""
    return sorted({*globals(), *__all__})

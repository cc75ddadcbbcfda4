"""OpenTelemetry spans, and the trace context that jobs carry.

A job carries the W3C trace context of its producer in its ``meta``. The span of its run links to the producer's span
and is not its child, because hours may lie between them. Without OpenTelemetry (the extra ``otel``) or a configured
provider, nothing is done that could be noticed: a job then carries only what its producer's context holds already.

Spec: ojs-distributed-tracing
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from ojster.core.job import Job, membership_of
from ojster.core.version import __version__
from ojster.jobs.messages import Acknowledgement, FailureReport, Release

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    ENABLED = True
    _IS_NAMED = OTEL_PYTHON_TRACER_PROVIDER in os.environ
    """Whether the environment, as it was at the start, names a provider, which OpenTelemetry loads when it is asked."""
except ImportError:  # it is optional
    ENABLED = False

SCOPE: Final = "ojster"
CARRIED: Final = ("traceparent", "tracestate", "baggage")
"""The headers that a job carries in its ``meta``."""

_NOTHING_CARRIED: Final = nullcontext[dict[str, str]]({})


def _tracer() -> Any:
    return trace.get_tracer(SCOPE, __version__)


def records() -> bool:
    """Return whether a provider is configured, so that spans lead somewhere.

    Where none was set, OpenTelemetry would look at the environment each time, which takes a microsecond of each call.
    """
    if not ENABLED or (not _IS_NAMED and getattr(trace, "_TRACER_PROVIDER", trace) is None):
        return False
    return not isinstance(trace.get_tracer_provider(), (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


def _has_context() -> bool:
    """Return whether there is anything for jobs to carry: a provider, or what the caller has put in its context."""
    return ENABLED and (bool(contexts.get_current()) or records())


def enqueuing(queue: str, type: str, count: int = 1) -> AbstractContextManager[dict[str, str]]:
    """Record that jobs are enqueued; the context yields the headers that the jobs have to carry.

    Parameters
    ----------
    count:
        The number of jobs.
    """
    if not _has_context():
        return _NOTHING_CARRIED
    attributes = {"messaging.system": "ojs", "ojs.job.type": type, "ojs.job.queue": queue}
    name = f"{queue} enqueue"
    if count != 1:
        name += "_batch"
        attributes["messaging.batch.message_count"] = str(count)
    return _producing(name, attributes)


def starting(type: str) -> AbstractContextManager[dict[str, str]]:
    """Record that a workflow is started; the context yields the headers that its jobs have to carry."""
    if not _has_context():
        return _NOTHING_CARRIED
    return _producing("ojs.workflow.start", {"messaging.system": "ojs", "ojs.workflow.type": type})


@contextmanager
def _producing(name: str, attributes: dict[str, str]) -> Iterator[dict[str, str]]:
    with _tracer().start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        yield {key: value for key, value in carrier.items() if key in CARRIED}


class RecordedRun:
    """The span of one run of a job."""

    def __init__(self, span: Any, job: Job) -> None:
        self._span = span
        self._job = job

    def end(self, ending: Acknowledgement | FailureReport | Release) -> None:
        """Record the outcome of the run."""
        if isinstance(ending, FailureReport):
            failure = ending.failure
            attributes = {
                "error.type": failure.type,
                "error.message": failure.message,
                "ojs.job.error.attempt": self._job.attempt,
            }
            self._span.set_attributes(attributes)
            details = {"exception.type": failure.type, "exception.message": failure.message}
            if failure.backtrace:
                details["exception.stacktrace"] = "\n".join(failure.backtrace)
            self._span.add_event("exception", details)
            self._span.set_status(Status(StatusCode.ERROR, failure.message))
        else:
            self._span.set_status(Status(StatusCode.OK))


def is_traced(job: Job, *, recorded: bool) -> bool:
    """Return whether the run of a job is recorded, or its handler belongs to a trace: else nothing is to be done.

    Parameters
    ----------
    recorded:
        Whether a provider is configured: see ``records``.
    """
    return ENABLED and (recorded or b'"traceparent"' in job.envelope or b'"baggage"' in job.envelope)


@contextmanager
def running(job: Job, worker_id: str | None) -> Iterator[RecordedRun]:
    """Record that a job runs. Spans of its handler belong to this span; the baggage is that of the producer."""
    carrier = {key: value for key in CARRIED if isinstance(value := job.meta.get(key), str)}
    origin = propagate.extract(carrier, context=contexts.Context()) if carrier else None
    links = [Link(trace.get_current_span(origin).get_span_context())] if origin is not None else []
    attributes: dict[str, Any] = {
        "messaging.system": "ojs",
        "ojs.job.id": job.id,
        "ojs.job.type": job.type,
        "ojs.job.queue": job.queue,
        "ojs.job.attempt": job.attempt,
        "ojs.job.priority": job.priority,
    }
    if worker_id is not None:
        attributes["ojs.worker.id"] = worker_id
    shown = membership_of(job.envelope)
    if shown.workflow_id is not None:
        attributes |= {"ojs.workflow.id": shown.workflow_id, "ojs.workflow.step": shown.workflow_step or ""}
    around = contexts.Context() if origin is None else trace.set_span_in_context(trace.INVALID_SPAN, origin)
    token = contexts.attach(around)
    try:
        with _tracer().start_as_current_span(
            f"{job.queue} process", kind=SpanKind.CONSUMER, links=links, attributes=attributes
        ) as span:
            yield RecordedRun(span, job)
    finally:
        contexts.detach(token)


def serving(operation: str, headers: Callable[[], Mapping[str, str]]) -> AbstractContextManager[object]:
    """Record that a server handles a request, as part of the trace in its headers."""
    if not records():
        return _NOTHING_CARRIED
    parent = propagate.extract(headers())
    span: AbstractContextManager[object] = _tracer().start_as_current_span(
        f"ojs.{operation}", context=parent, kind=SpanKind.SERVER
    )
    return span

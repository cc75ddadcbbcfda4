"""The JSON of answers about the server, its work and its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

from msgspec import UNSET, Struct, UnsetType

from ojster.core.calls import Single, Whole
from ojster.core.timestamps import format_optional, format_timestamp, parse_timestamp
from ojster.core.wire import Count, JobCountsBody, Json, ThroughputBody, Timestamp
from ojster.fleet.worker_starts import Deployment
from ojster.insight.attention import Finding
from ojster.insight.facets import Facet
from ojster.insight.task_values import TaskRun, TaskStatistics
from ojster.insight.work_of_workers import WorkerHistory
from ojster.jobs.statistics import Work


class SystemAnswer(Whole):
    """System totals.

    Spec: ojs-admin-api
    """

    queues: Count
    workers: Count
    jobs: JobCountsBody
    throughput: ThroughputBody
    uptime_seconds: Count


class HistoryStepBody(Struct):
    """The work in one step of the statistics history.

    Latencies are times of waiting, runs are times from the start of an attempt until it completed or failed.
    """

    timestamp: Timestamp
    enqueued: Count
    processed: Count
    completed: Count
    failed: Count
    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    run_p50_ms: float
    run_p95_ms: float
    run_p99_ms: float

    @classmethod
    def of(cls, at: int, work: Work) -> HistoryStepBody:
        """Return the JSON form of the work in the step that begins at ``at``."""
        waits, runs = (
            [percentile(share) for share in (0.5, 0.95, 0.99)] for percentile in (work.percentile, work.run_percentile)
        )
        counts = work.enqueued, work.processed, work.completed, work.failed
        return cls(format_timestamp(at), *counts, *waits, *runs)


class DeploymentBody(Struct):
    """The first start of a worker with new code, and the queues that it serves."""

    at: Timestamp
    code_version: str
    queues: list[str]


class StatisticsHistoryAnswer(Whole):
    """The statistics history, in steps of ``period``.

    Of a worker or a host, jobs are counted that were created since ``counted_since``; null: all.
    """

    period: str
    data: list[HistoryStepBody]
    deployments: Sequence[DeploymentBody] = ()
    counted_since: Timestamp | None = None

    @classmethod
    def made_of(cls, period: str, counted: WorkerHistory, deployed: Sequence[Deployment]) -> Self:
        """Return the answer that shows work in steps, and when new code came."""
        steps = [HistoryStepBody.of(at, work) for at, work in counted.steps]
        marks = [DeploymentBody(format_timestamp(mark.at), mark.code_version, mark.queues) for mark in deployed]
        return cls(period, steps, marks, format_optional(counted.counted_since))


class ReplicaBody(Struct):
    """The replica that answers lists and statistics, unless it is too far behind. A lag of null is unknown."""

    is_used: bool
    lag_seconds: float | None


class SystemConfigurationAnswer(Whole):
    """The settings of a server. Durations are ISO 8601."""

    backend: str
    schema_version: int
    default_visibility_timeout: str
    default_timeout: str | None
    heartbeat_timeout: str
    max_job_bytes: Count
    max_batch_size: Count
    retention: dict[str, str | int | None]
    replica: ReplicaBody | None = None


class BackendBody(Struct):
    """The state of the database."""

    type: str
    status: Literal["ok", "unhealthy"]
    latency_ms: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


class HealthAnswer(Struct):
    """The health of the server.

    Spec: ojs-http-binding 18
    """

    status: Literal["ok", "degraded"]
    version: str
    uptime_seconds: Count
    backend: BackendBody


class ReadyAnswer(Struct):
    """Whether the server accepts requests, and if not, why."""

    status: Literal["ready", "not_ready", "stopping"]
    reason: str | UnsetType = UNSET


class TimeAnswer(Struct):
    """The time by which jobs are due, which is that of the database."""

    time: Timestamp

    @classmethod
    def of(cls, now: int) -> TimeAnswer:
        """Return the answer that shows a time."""
        return cls(format_timestamp(now))

    def value(self) -> int:
        """Return the time, in microseconds since the epoch."""
        return parse_timestamp(self.time)


class PingAnswer(Struct):
    """The latency of the database."""

    ping: Literal["pong"]
    backend: Literal["up"]
    latency_ms: float
    pid: int


class ImplementationBody(Struct):
    """Name and version of the server."""

    name: str
    version: str
    language: str


class ExtensionBody(Struct):
    """An extension of the specification."""

    name: str
    uri: str
    version: str


_CANDIDATE: Final = "1.0.0-rc.1"

EXTENSIONS: Final = [
    ExtensionBody(name, f"urn:ojs:ext:{name}", version)
    for name, version in (
        ("admin-api", _CANDIDATE),
        ("backpressure", _CANDIDATE),
        ("bulk-operations", _CANDIDATE),
        ("dead-letter", _CANDIDATE),
        ("durable-execution", _CANDIDATE),
        ("encryption", _CANDIDATE),
        ("execution-history", "0.1.0"),
        ("fair-scheduling", _CANDIDATE),
        ("graceful-shutdown", _CANDIDATE),
        ("multi-tenancy", _CANDIDATE),
        ("observability", _CANDIDATE),
        ("progress", _CANDIDATE),
        ("rate-limiting", _CANDIDATE),
        ("results", _CANDIDATE),
        ("schema-registry", _CANDIDATE),
        ("timeouts", _CANDIDATE),
        ("webhooks", _CANDIDATE),
    )
]
"""The fully supported official extensions, with the versions of their documents.

Spec: ojs-extension-lifecycle 7
"""

EXPERIMENTAL: Final = [
    ExtensionBody(name, f"urn:ojs:ext:experimental:{name}", version)
    for name, version in (("cloudevents-interop", _CANDIDATE), ("job-versioning", "0.1.0"), ("realtime", "0.1.0"))
]
"""The fully supported experimental extensions."""


class ExtensionsBody(Struct):
    """The extensions that the server supports."""

    official: list[ExtensionBody]
    experimental: list[ExtensionBody]


class EndpointsBody(Struct):
    """Addresses of the server."""

    manifest: str
    health: str
    openapi: str
    metrics: str


class ManifestAnswer(Struct):
    """What the server is and can do.

    Spec: ojs-http-binding 21
    """

    specversion: str
    ojs_version: str
    implementation: ImplementationBody
    conformance_level: int
    conformance_tier: Literal["parser", "runtime", "full"]
    unique_job_strength: Literal["strong", "best_effort"]
    event_delivery: Literal["at-least-once", "best-effort"]
    protocols: list[str]
    backend: str
    capabilities: dict[str, bool]
    capability_details: dict[str, Json]
    extensions: list[str]
    extension_details: ExtensionsBody
    features: list[str]
    endpoints: EndpointsBody


class TaskRunsAnswer(Single[list[TaskRun]]):
    """Recorded runs of tasks, latest first."""

    runs: list[TaskRun]


class TaskStatisticsAnswer(Single[list[TaskStatistics]]):
    """Statistics of tasks."""

    statistics: list[TaskStatistics]


class FacetValueBody(Struct):
    """A value of a facet, and the number of jobs that have it."""

    value: str
    jobs: Count


class FacetsAnswer(Whole):
    """Numbers of jobs by state, queue, type and error type, the most frequent values first.

    If ``is_complete`` is false, jobs were counted among the ``examined`` newest, and the numbers of facets that are not
    ``exact`` are lower bounds.
    """

    facets: dict[str, list[FacetValueBody]]
    examined: Count
    is_complete: bool
    exact: Sequence[Facet]


class AttentionAnswer(Single[list[Finding]]):
    """What needs the attention of an operator, the worst first."""

    findings: list[Finding]

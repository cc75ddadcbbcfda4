"""Prometheus metrics: jobs by queue and state, events, and HTTP requests.

Spec: ojs-observability
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ojster.core.events import Event
from ojster.core.states import JobState
from ojster.core.tenant import NOBODY, shown_tenant
from ojster.insight.overview import ExtensionMetrics
from ojster.queues.backpressure import Pressure
from ojster.queues.queues import QueueStatistics
from ojster.tenancy.quotas import DEPTH_STATES
from ojster.tenancy.tenants import MAX_TENANTS_IN_METRICS, TenantOverview
from ojster.workflows.views import WorkflowCounts

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


MAX_SERIES: Final = 1_000
"""Maximum number of series of an event counter; further label values are counted as ``_other``."""


class _EventCounter(NamedTuple):
    """The counter of a type of event: metric name, help text and labels."""

    name: str
    help: str
    labels: tuple[str, ...]


_EVENT_COUNTERS: Final = {
    "backpressure.rejected": _EventCounter("ojs_backpressure_rejected", "Jobs rejected by a full queue.", ("queue",)),
    "backpressure.dropped": _EventCounter("ojs_backpressure_dropped", "Jobs dropped by a full queue.", ("queue",)),
    "batch.enqueued": _EventCounter("ojs_bulk_enqueue_requests", "Bulk enqueue operations.", ()),
    "batch.cancelled": _EventCounter("ojs_bulk_cancel_requests", "Bulk cancel operations.", ()),
    "batch.retried": _EventCounter("ojs_bulk_retry_requests", "Bulk retry operations.", ()),
    "batch.deleted": _EventCounter("ojs_bulk_delete_requests", "Bulk delete operations.", ()),
    "dead_letter.added": _EventCounter(
        "ojs_dead_letter_added", "Jobs that became dead letters.", ("queue", "job_type")
    ),
    "dead_letter.retried": _EventCounter("ojs_dead_letter_retried", "Dead letters retried.", ("queue",)),
    "job.progress": _EventCounter("ojs_progress_updates", "Progress reports.", ("queue", "job_type")),
    "rate_limit.exceeded": _EventCounter("ojs_rate_limit_exceeded", "Rate limits exceeded.", ("key", "strategy")),
    "rate_limit.dropped": _EventCounter("ojs_rate_limit_dropped", "Jobs dropped by a rate limit.", ("queue",)),
    "scheduling.queue_starved": _EventCounter(
        "ojs_scheduling_starvation_events", "Starvations of a queue.", ("queue",)
    ),
    "tenant.limit_exceeded": _EventCounter("ojs_tenant_limit_exceeded", "Tenant limits exceeded.", ("limit",)),
    "webhook.delivered": _EventCounter("ojs_webhook_delivered", "Webhook deliveries accepted.", ("event_type",)),
    "webhook.failed": _EventCounter("ojs_webhook_failed", "Webhook deliveries to be retried.", ("event_type",)),
    "webhook.dead": _EventCounter("ojs_webhook_dead", "Webhook deliveries given up.", ("event_type",)),
}
"""The counter of each type of event, for events in transactions of this server."""


class _Requests:
    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(_BUCKETS) + 1)


class Seen(NamedTuple):
    """The database values to report."""

    counts: Mapping[str, Mapping[str, int]]
    statistics: Iterable[QueueStatistics]
    workers: Mapping[str, int]
    workflows: WorkflowCounts
    tenants: Sequence[TenantOverview]
    pressures: Mapping[str, Pressure]
    state: ExtensionMetrics
    uptime: float


class Metrics:
    """Metrics of this server's requests and events. Jobs are counted in the database."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], _Requests] = defaultdict(_Requests)
        self._events: dict[str, dict[tuple[str, ...], int]] = {type: {} for type in _EVENT_COUNTERS}
        self._lock = threading.Lock()

    def count_events(self, events: Sequence[Event]) -> None:
        """Count the events of a committed transaction. Any thread may call this."""
        for type, _, subject, queue, job_type, data, _ in events:
            if type not in _EVENT_COUNTERS:
                continue
            known = {"queue": queue, "job_type": job_type, "key": subject} | data
            labels = tuple([str(known.get(name) or "") for name in _EVENT_COUNTERS[type].labels])
            with self._lock:
                series = self._events[type]
                if labels not in series and len(series) >= MAX_SERIES:
                    labels = ("_other",) * len(labels)
                series[labels] = series.get(labels, 0) + 1

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        requests = self._requests[endpoint, status]
        requests.count += 1
        requests.seconds += seconds
        requests.buckets[bisect_left(_BUCKETS, seconds)] += 1

    def render(self, seen: Seen) -> bytes:
        """Return the metrics in the Prometheus text format."""
        registry = CollectorRegistry()
        registry.register(_Snapshot(self._families(seen)))
        return generate_latest(registry)

    def _families(self, seen: Seen) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("ojs_jobs", "Jobs by queue and state.", labels=["queue", "state"])
        for queue, states in seen.counts.items():
            for state in JobState:
                jobs.add_metric([queue, state.value], states.get(state.value, 0))
        yield jobs
        paused = GaugeMetricFamily("ojs_queue_paused", "Whether a queue is paused.", labels=["queue"])
        done = GaugeMetricFamily(
            "ojs_queue_last_hour", "Jobs enqueued, completed and failed in the last hour.", labels=["queue", "what"]
        )
        for one in seen.statistics:
            paused.add_metric([one.queue.name], float(one.queue.paused_at is not None))
            for what in ("enqueued", "completed", "failed"):
                done.add_metric([one.queue.name, what], getattr(one, what))
        yield paused
        yield done
        gauge = GaugeMetricFamily("ojs_workers", "Workers by state.", labels=["state"])
        for name, number in seen.workers.items():
            gauge.add_metric([name], number)
        yield gauge
        under_way = GaugeMetricFamily("ojs_workflows", "Workflows that have not ended, by state.", labels=["state"])
        ended = GaugeMetricFamily("ojs_workflows_last_hour", "Workflows ended in the last hour.", labels=["state"])
        for family, numbers in ((under_way, seen.workflows.unfinished), (ended, seen.workflows.last_hour)):
            for name, number in numbers.items():
                family.add_metric([name], number)
            yield family
        if any(one.tenant.id != NOBODY for one in seen.tenants):
            yield from _tenant_metrics(seen.tenants)
        yield from _extension_metrics(seen.pressures, seen.state)
        yield from self._event_metrics()
        requests = CounterMetricFamily("ojs_http_requests", "Requests answered.", labels=["endpoint", "status"])
        duration = HistogramMetricFamily("ojs_http_request_seconds", "Response time.", labels=["endpoint", "status"])
        for (endpoint, status), answered in self._requests.items():
            labels = [endpoint, str(status)]
            requests.add_metric(labels, answered.count)
            total, buckets = 0, []
            for bound, number in zip(_BUCKETS, answered.buckets, strict=False):  # the last counts all slower ones
                total += number
                buckets.append((str(bound), float(total)))
            duration.add_metric(labels, [*buckets, ("+Inf", float(answered.count))], answered.seconds)
        yield requests
        yield duration
        yield GaugeMetricFamily("ojs_uptime_seconds", "Time since the server started.", value=seen.uptime)

    def _event_metrics(self) -> Iterator[Metric]:
        """Yield the event counters of this server."""
        with self._lock:
            counted = {type: dict(series) for type, series in self._events.items()}
        for type, (name, help, labels) in _EVENT_COUNTERS.items():
            family = CounterMetricFamily(name, help, labels=labels)
            for values, number in counted[type].items():
                family.add_metric(values, number)
            yield family


def _extension_metrics(pressures: Mapping[str, Pressure], state: ExtensionMetrics) -> Iterator[Metric]:
    """Yield gauges for backpressure, pools, dead letters and webhook subscriptions."""
    full = GaugeMetricFamily("ojs_backpressure_pressure", "Fill level of a queue, from 0 to 1.", labels=["queue"])
    for queue, pressure in pressures.items():
        full.add_metric([queue], pressure.share)
    yield full
    used = GaugeMetricFamily("ojs_scheduling_pool_utilization", "Share of concurrency in use.", labels=["pool"])
    for pool, share in state.pools.items():
        used.add_metric([pool], share)
    yield used
    dead = GaugeMetricFamily("ojs_dead_letters", "Dead letters of a queue.", labels=["queue"])
    for queue, number in state.dead_letters.items():
        dead.add_metric([queue], number)
    yield dead
    webhooks = GaugeMetricFamily("ojs_webhook_subscriptions", "Active webhook subscriptions.")
    webhooks.add_metric([], state.subscriptions)
    yield webhooks


def _tenant_metrics(tenants: Sequence[TenantOverview]) -> Iterator[Metric]:
    """Yield gauges by tenant. Tenants after the first ``MAX_TENANTS_IN_METRICS`` are summed up as ``_other``.

    Spec: ojs-multi-tenancy 15.4
    """
    names = ["tenant_id", "queue"]
    families = {
        "active": GaugeMetricFamily("ojs_tenant_jobs_active", "Active jobs of a tenant.", labels=names),
        "depth": GaugeMetricFamily("ojs_tenant_queue_depth", "Waiting jobs of a tenant in a queue.", labels=names),
        "share": GaugeMetricFamily("ojs_tenant_fairness_share", "A tenant's share of starts.", labels=["tenant_id"]),
        "day": GaugeMetricFamily("ojs_tenant_last_day", "Jobs of a tenant in a day.", labels=["tenant_id", "what"]),
    }
    numbers: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for place, one in enumerate(tenants):
        name = shown_tenant(one.tenant.id) if place < MAX_TENANTS_IN_METRICS else "_other"
        for queue, states in one.queues.items():
            numbers["active", (name, queue)] += states.get("active", 0)
            numbers["depth", (name, queue)] += sum(states.get(state, 0) for state in DEPTH_STATES)
        numbers["share", (name,)] += one.actual_share
        for what in ("enqueued", "completed", "failed"):
            numbers["day", (name, what)] += getattr(one.day, what)
    for (family, labels), number in numbers.items():
        families[family].add_metric(labels, number)
    yield from families.values()


class _Snapshot(Collector):
    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families

"""What does Prometheus see? Jobs by queue and state, what was done, and requests. (ojs-observability.md)"""

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
from ojster.insight.overview import StateOfExtensions
from ojster.queues.backpressure import Pressure
from ojster.queues.queues import QueueStatistics
from ojster.tenancy.quotas import DEPTH
from ojster.tenancy.tenants import TENANTS_SHOWN, TenantOverview
from ojster.workflows.views import WorkflowCounts

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


MOST_SERIES: Final = 1_000
"""How many series a counter of events has at most; what comes later is counted as ``_other``."""


class _Counted(NamedTuple):
    """How events are counted: under which name, and what tells them apart."""

    name: str
    help: str
    labels: tuple[str, ...]


_COUNTED: Final = {
    "backpressure.rejected": _Counted("ojs_backpressure_rejected", "Jobs refused by a full queue.", ("queue",)),
    "backpressure.dropped": _Counted("ojs_backpressure_dropped", "Jobs dropped by a full queue.", ("queue",)),
    "batch.enqueued": _Counted("ojs_bulk_enqueue_requests", "Bulk operations that enqueued.", ()),
    "batch.cancelled": _Counted("ojs_bulk_cancel_requests", "Bulk operations that cancelled.", ()),
    "batch.retried": _Counted("ojs_bulk_retry_requests", "Bulk operations that retried.", ()),
    "batch.deleted": _Counted("ojs_bulk_delete_requests", "Bulk operations that deleted.", ()),
    "dead_letter.added": _Counted("ojs_dead_letter_added", "Jobs that became dead letters.", ("queue", "job_type")),
    "dead_letter.retried": _Counted("ojs_dead_letter_retried", "Dead letters that were run again.", ("queue",)),
    "job.progress": _Counted("ojs_progress_updates", "Reports of progress.", ("queue", "job_type")),
    "rate_limit.exceeded": _Counted("ojs_rate_limit_exceeded", "Times that a limit was hit.", ("key", "strategy")),
    "rate_limit.dropped": _Counted("ojs_rate_limit_dropped", "Jobs dropped by a limit.", ("queue",)),
    "scheduling.queue_starved": _Counted("ojs_scheduling_starvation_events", "Times that a queue starved.", ("queue",)),
    "tenant.limit_exceeded": _Counted("ojs_tenant_limit_exceeded", "Times that a tenant's limit was hit.", ("limit",)),
    "webhook.delivered": _Counted("ojs_webhook_delivered", "Deliveries that arrived.", ("event_type",)),
    "webhook.failed": _Counted("ojs_webhook_failed", "Deliveries that failed and are made again.", ("event_type",)),
    "webhook.dead": _Counted("ojs_webhook_dead", "Deliveries that were given up.", ("event_type",)),
}
"""Of which events is told how often there were some, as this server's transactions brought them about."""


class _Requests:
    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(_BUCKETS) + 1)


class Seen(NamedTuple):
    """What is to be told of, as it stands in the database."""

    counts: Mapping[str, Mapping[str, int]]
    statistics: Iterable[QueueStatistics]
    workers: Mapping[str, int]
    workflows: WorkflowCounts
    tenants: Sequence[TenantOverview]
    pressures: Mapping[str, Pressure]
    state: StateOfExtensions
    uptime: float


class Metrics:
    """The requests that this server has answered; jobs are counted in the database."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], _Requests] = defaultdict(_Requests)
        self._events: dict[str, dict[tuple[str, ...], int]] = {type: {} for type in _COUNTED}
        self._lock = threading.Lock()

    def count_events(self, events: Sequence[Event]) -> None:
        """Count what a transaction has brought about, once it is committed. Called from any thread."""
        for type, _, subject, queue, job_type, data, _ in events:
            if type not in _COUNTED:
                continue
            known = {"queue": queue, "job_type": job_type, "key": subject} | data
            labels = tuple([str(known.get(name) or "") for name in _COUNTED[type].labels])
            with self._lock:
                series = self._events[type]
                if labels not in series and len(series) >= MOST_SERIES:
                    labels = ("_other",) * len(labels)
                series[labels] = series.get(labels, 0) + 1

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        requests = self._requests[endpoint, status]
        requests.count += 1
        requests.seconds += seconds
        requests.buckets[bisect_left(_BUCKETS, seconds)] += 1

    def render(self, seen: Seen) -> bytes:
        """Return the text that Prometheus reads."""
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
            "ojs_queue_last_hour", "What happened to a queue's jobs in the last hour.", labels=["queue", "what"]
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
        ended = GaugeMetricFamily("ojs_workflows_last_hour", "How workflows of the last hour ended.", labels=["state"])
        for family, numbers in ((under_way, seen.workflows.unfinished), (ended, seen.workflows.last_hour)):
            for name, number in numbers.items():
                family.add_metric([name], number)
            yield family
        if any(one.tenant.id != NOBODY for one in seen.tenants):
            yield from _of_tenants(seen.tenants)
        yield from _of_what_is_set(seen.pressures, seen.state)
        yield from self._of_events()
        requests = CounterMetricFamily("ojs_http_requests", "Requests answered.", labels=["endpoint", "status"])
        duration = HistogramMetricFamily("ojs_http_request_seconds", "Time to answer.", labels=["endpoint", "status"])
        for (endpoint, status), answered in self._requests.items():
            labels = [endpoint, str(status)]
            requests.add_metric(labels, answered.count)
            total, buckets = 0, []
            for bound, number in zip(_BUCKETS, answered.buckets, strict=False):  # the last is all that is slower
                total += number
                buckets.append((str(bound), float(total)))
            duration.add_metric(labels, [*buckets, ("+Inf", float(answered.count))], answered.seconds)
        yield requests
        yield duration
        yield GaugeMetricFamily("ojs_uptime_seconds", "Time since the server started.", value=seen.uptime)

    def _of_events(self) -> Iterator[Metric]:
        """How often this server has seen what the extensions want to be counted."""
        with self._lock:
            counted = {type: dict(series) for type, series in self._events.items()}
        for type, (name, help, labels) in _COUNTED.items():
            family = CounterMetricFamily(name, help, labels=labels)
            for values, number in counted[type].items():
                family.add_metric(values, number)
            yield family


def _of_what_is_set(pressures: Mapping[str, Pressure], state: StateOfExtensions) -> Iterator[Metric]:
    """How it stands with what operators have set: bounds, pools, webhooks, and with dead letters."""
    full = GaugeMetricFamily("ojs_backpressure_pressure", "How full a bounded queue is, from 0 to 1.", labels=["queue"])
    for queue, pressure in pressures.items():
        full.add_metric([queue], pressure.share)
    yield full
    used = GaugeMetricFamily("ojs_scheduling_pool_utilization", "Active jobs as a share of the room.", labels=["pool"])
    for pool, share in state.pools.items():
        used.add_metric([pool], share)
    yield used
    dead = GaugeMetricFamily("ojs_dead_letters", "Dead letters of a queue.", labels=["queue"])
    for queue, number in state.dead_letters.items():
        dead.add_metric([queue], number)
    yield dead
    webhooks = GaugeMetricFamily("ojs_webhook_subscriptions", "Active subscriptions.")
    webhooks.add_metric([], state.subscriptions)
    yield webhooks


def _of_tenants(tenants: Sequence[TenantOverview]) -> Iterator[Metric]:
    """What tenants have and do; those beyond the first ``TENANTS_SHOWN`` are told of together (multi-tenancy 15.4)."""
    names = ["tenant_id", "queue"]
    families = {
        "active": GaugeMetricFamily("ojs_tenant_jobs_active", "Active jobs of a tenant.", labels=names),
        "depth": GaugeMetricFamily("ojs_tenant_queue_depth", "Jobs of a tenant that wait in a queue.", labels=names),
        "share": GaugeMetricFamily("ojs_tenant_fairness_share", "A tenant's share of the work.", labels=["tenant_id"]),
        "day": GaugeMetricFamily("ojs_tenant_last_day", "What a tenant did in a day.", labels=["tenant_id", "what"]),
    }
    numbers: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for place, one in enumerate(tenants):
        name = shown_tenant(one.tenant.id) if place < TENANTS_SHOWN else "_other"
        for queue, states in one.queues.items():
            numbers["active", (name, queue)] += states.get("active", 0)
            numbers["depth", (name, queue)] += sum(states.get(state, 0) for state in DEPTH)
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

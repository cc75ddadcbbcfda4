"""What does Prometheus see? Jobs by queue and state, what was done, and requests. (ojs-observability.md)"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ojster.engine.queues import QueueStatistics
from ojster.engine.tenant_admin import TENANTS_SHOWN, TenantOverview
from ojster.engine.tenants import DEPTH
from ojster.engine.workflow_views import WorkflowCounts
from ojster.model.states import JobState
from ojster.model.tenant import NOBODY, shown_tenant

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)


class _Requests:
    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(_BUCKETS) + 1)


class Metrics:
    """The requests that this server has answered; jobs are counted in the database."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], _Requests] = defaultdict(_Requests)

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        requests = self._requests[endpoint, status]
        requests.count += 1
        requests.seconds += seconds
        requests.buckets[bisect_left(_BUCKETS, seconds)] += 1

    def render(
        self,
        counts: Mapping[str, Mapping[str, int]],
        statistics: Iterable[QueueStatistics],
        workers: Mapping[str, int],
        workflows: WorkflowCounts,
        tenants: Sequence[TenantOverview],
        uptime: float,
    ) -> bytes:
        """Return the text that Prometheus reads."""
        registry = CollectorRegistry()
        registry.register(_Snapshot(self._families(counts, statistics, workers, workflows, tenants, uptime)))
        return generate_latest(registry)

    def _families(
        self,
        counts: Mapping[str, Mapping[str, int]],
        statistics: Iterable[QueueStatistics],
        workers: Mapping[str, int],
        workflows: WorkflowCounts,
        tenants: Sequence[TenantOverview],
        uptime: float,
    ) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("ojs_jobs", "Jobs by queue and state.", labels=["queue", "state"])
        for queue, states in counts.items():
            for state in JobState:
                jobs.add_metric([queue, state.value], states.get(state.value, 0))
        yield jobs
        paused = GaugeMetricFamily("ojs_queue_paused", "Whether a queue is paused.", labels=["queue"])
        done = GaugeMetricFamily(
            "ojs_queue_last_hour", "What happened to a queue's jobs in the last hour.", labels=["queue", "what"]
        )
        for one in statistics:
            paused.add_metric([one.queue.name], float(one.queue.paused_at is not None))
            for what in ("enqueued", "completed", "failed"):
                done.add_metric([one.queue.name, what], getattr(one, what))
        yield paused
        yield done
        gauge = GaugeMetricFamily("ojs_workers", "Workers by state.", labels=["state"])
        for name, number in workers.items():
            gauge.add_metric([name], number)
        yield gauge
        under_way = GaugeMetricFamily("ojs_workflows", "Workflows that have not ended, by state.", labels=["state"])
        ended = GaugeMetricFamily("ojs_workflows_last_hour", "How workflows of the last hour ended.", labels=["state"])
        for family, numbers in ((under_way, workflows.unfinished), (ended, workflows.last_hour)):
            for name, number in numbers.items():
                family.add_metric([name], number)
            yield family
        if any(one.tenant.id != NOBODY for one in tenants):
            yield from _of_tenants(tenants)
        requests = CounterMetricFamily("ojs_http_requests", "Requests answered.", labels=["endpoint", "status"])
        duration = HistogramMetricFamily("ojs_http_request_seconds", "Time to answer.", labels=["endpoint", "status"])
        for (endpoint, status), seen in self._requests.items():
            labels = [endpoint, str(status)]
            requests.add_metric(labels, seen.count)
            total, buckets = 0, []
            for bound, number in zip(_BUCKETS, seen.buckets, strict=False):  # the last is all that is slower
                total += number
                buckets.append((str(bound), float(total)))
            duration.add_metric(labels, [*buckets, ("+Inf", float(seen.count))], seen.seconds)
        yield requests
        yield duration
        yield GaugeMetricFamily("ojs_uptime_seconds", "Time since the server started.", value=uptime)


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

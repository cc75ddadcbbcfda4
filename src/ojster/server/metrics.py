"""What does Prometheus see? Jobs by queue and state, what was done, and requests. (ojs-observability.md)"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ojster.engine.queues import QueueStatistics
from ojster.engine.workflow_views import WorkflowCounts
from ojster.model.states import JobState

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
        uptime: float,
    ) -> bytes:
        """Return the text that Prometheus reads."""
        registry = CollectorRegistry()
        registry.register(_Snapshot(self._families(counts, statistics, workers, workflows, uptime)))
        return generate_latest(registry)

    def _families(
        self,
        counts: Mapping[str, Mapping[str, int]],
        statistics: Iterable[QueueStatistics],
        workers: Mapping[str, int],
        workflows: WorkflowCounts,
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


class _Snapshot(Collector):
    def __init__(self, families: Iterator[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families

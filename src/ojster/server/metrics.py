"""Prometheus metrics: what capabilities report, events, and HTTP requests.

Spec: ojs-observability
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ojster.capabilities import CAPABILITIES, Capability
from ojster.core.event_metrics import EventMetric, EventMetrics
from ojster.core.events import Event
from ojster.service import Service

_LABELS: Final = ("endpoint", "status")

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of response times, in seconds."""

MAX_SERIES: Final = 1_000
"""Maximum number of series of a metric of events; further label values are counted as ``_other``."""


class Metrics:
    """Metrics of this server's requests and events, and of what its capabilities report."""

    def __init__(self, capabilities: Sequence[Capability] = CAPABILITIES) -> None:
        self._modules = [one.module(one.metrics) for one in capabilities if one.metrics is not None]
        self._started = time.monotonic()
        self._registry = CollectorRegistry()
        self._of_events = EventMetrics(module.EVENT_METRICS for module in self._modules)
        self._collectors = {metric.name: _collector(metric, self._registry) for metric in self._of_events.all()}
        self._series: dict[str, dict[tuple[str, ...], Counter | Histogram]] = {name: {} for name in self._collectors}
        self._duration = Histogram(
            "ojs_http_request_seconds", "Response time.", _LABELS, buckets=_BUCKETS, registry=self._registry
        )
        self._known: dict[tuple[str, int], Histogram] = {}

    def count_events(self, events: Sequence[Event]) -> None:
        """Count the events of a committed transaction. Any thread may call this."""
        counted: dict[Counter, float] = {}
        for metric, labels, value in self._of_events.measure(events):
            series = self._series[metric.name].get(labels) or self._add_series(metric, labels)
            if isinstance(series, Counter):
                counted[series] = counted.get(series, 0.0) + value
            else:
                series.observe(value)
        for counter, number in counted.items():
            counter.inc(number)

    def _add_series(self, metric: EventMetric, labels: tuple[str, ...]) -> Counter | Histogram:
        known = self._series[metric.name]
        if len(known) >= MAX_SERIES:
            labels = ("_other",) * len(labels)
        collector = self._collectors[metric.name]
        series = known[labels] = collector.labels(*labels) if labels else collector
        return series

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        known = self._known.get((endpoint, status))
        if known is None:
            known = self._known[endpoint, status] = self._duration.labels(endpoint, str(status))
        known.observe(seconds)

    async def render(self, service: Service) -> bytes:
        """Return the metrics in the Prometheus text format."""
        reported: list[Metric] = []
        for module in self._modules:
            reported += await module.families(service)
        reported.append(self._requests())
        reported.append(
            GaugeMetricFamily(
                "ojs_uptime_seconds", "Time since the server started.", value=time.monotonic() - self._started
            )
        )
        registry = CollectorRegistry()
        registry.register(_Snapshot(reported))
        return generate_latest(registry) + generate_latest(self._registry)

    def _requests(self) -> Metric:
        """Return the number of requests; it is kept once, in the histogram of their durations."""
        family = CounterMetricFamily("ojs_http_requests", "Requests answered.", labels=_LABELS)
        for metric in self._duration.collect():
            for sample in metric.samples:
                if sample.name.endswith("_count"):
                    family.add_metric([sample.labels[label] for label in _LABELS], sample.value)
        return family


def _collector(metric: EventMetric, registry: CollectorRegistry) -> Counter | Histogram:
    name = metric.name.replace(".", "_")
    if metric.milliseconds is None:
        return Counter(name, metric.help, metric.labels, registry=registry)
    return Histogram(f"{name}_seconds", metric.help, metric.labels, buckets=metric.buckets, registry=registry)


class _Snapshot(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._families

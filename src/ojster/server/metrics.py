"""Prometheus metrics: what capabilities report, events, and HTTP requests.

Events and requests are counted in plain numbers, because every transaction counts its events before it answers;
prometheus_client renders them.

Spec: ojs-observability
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
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


class _Series:
    """The numbers of a metric by label values: a total, and for a histogram the observations in each bucket.

    Parameters
    ----------
    bounds:
        Upper bounds of the buckets of a histogram; empty for a counter.
    """

    __slots__ = ("_bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[float] = ()) -> None:
        self._bounds = bounds
        self.total = 0.0
        self.buckets = [0] * (len(bounds) + 1 if bounds else 0)

    def add(self, value: float) -> None:
        """Add to a counter, or observe a value of a histogram."""
        self.total += value
        if self.buckets:
            self.buckets[bisect_left(self._bounds, value)] += 1

    def cumulated(self) -> list[tuple[str, int]]:
        """Return the buckets as Prometheus has them: each with the observations up to its upper bound."""
        return list(zip((*map(str, self._bounds), "+Inf"), accumulate(self.buckets), strict=True))


class Metrics:
    """Metrics of this server's requests and events, and of what its capabilities report."""

    def __init__(self, capabilities: Sequence[Capability] = CAPABILITIES) -> None:
        self._modules = [one.module(one.metrics) for one in capabilities if one.metrics is not None]
        self._started = time.monotonic()
        self._of_events = EventMetrics(module.EVENT_METRICS for module in self._modules)
        self._metrics = {metric.name: metric for metric in self._of_events.all()}
        self._series: dict[str, dict[tuple[str, ...], _Series]] = {
            name: {} if metric.labels else {(): _Series(metric.buckets)} for name, metric in self._metrics.items()
        }
        self._counting = threading.Lock()
        self._requests: dict[tuple[str, int], _Series] = {}

    def count_events(self, events: Sequence[Event]) -> None:
        """Count the events of a committed transaction. Any thread may call this."""
        with self._counting:
            for metric, labels, values in self._of_events.measure(events):
                series = self._series[metric.name].get(labels)
                if series is None:
                    series = self._add_series(metric, labels)
                for value in values:
                    series.add(value)

    def _add_series(self, metric: EventMetric, labels: tuple[str, ...]) -> _Series:
        known = self._series[metric.name]
        if len(known) >= MAX_SERIES:
            labels = ("_other",) * len(labels)
        return known.setdefault(labels, _Series(metric.buckets))

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request. Only the server's event loop may call this."""
        series = self._requests.get((endpoint, status))
        if series is None:
            series = self._requests[endpoint, status] = _Series(_BUCKETS)
        series.add(seconds)

    async def render(self, service: Service) -> bytes:
        """Return the metrics in the Prometheus text format."""
        reported: list[Metric] = []
        for module in self._modules:
            reported += await module.families(service)
        reported += self._counted_events()
        reported += self._counted_requests()
        reported.append(
            GaugeMetricFamily(
                "ojs_uptime_seconds", "Time since the server started.", value=time.monotonic() - self._started
            )
        )
        registry = CollectorRegistry()
        registry.register(_Snapshot(reported))
        return generate_latest(registry)

    def _counted_events(self) -> Iterator[Metric]:
        with self._counting:
            for name, by_labels in self._series.items():
                metric = self._metrics[name]
                shown = name.replace(".", "_")
                if metric.milliseconds is None:
                    counter = CounterMetricFamily(shown, metric.help, labels=metric.labels)
                    for labels, series in by_labels.items():
                        counter.add_metric(labels, series.total)
                    yield counter
                else:
                    histogram = HistogramMetricFamily(f"{shown}_seconds", metric.help, labels=metric.labels)
                    for labels, series in by_labels.items():
                        histogram.add_metric(labels, series.cumulated(), series.total)
                    yield histogram

    def _counted_requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("ojs_http_requests", "Requests answered.", labels=_LABELS)
        durations = HistogramMetricFamily("ojs_http_request_seconds", "Response time.", labels=_LABELS)
        for (endpoint, status), series in self._requests.items():
            labels = (endpoint, str(status))
            requests.add_metric(labels, sum(series.buckets))
            durations.add_metric(labels, series.cumulated(), series.total)
        yield requests
        yield durations


class _Snapshot(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._families

"""Prometheus metrics: what capabilities report, events, and HTTP requests.

Events and requests are counted in plain numbers, because every transaction counts its events before it answers;
prometheus_client renders them.

Spec: ojs-observability
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ojster.capabilities import CAPABILITIES, Capability, event_metrics
from ojster.core.event_metrics import EventMetric
from ojster.core.events import Event
from ojster.server.counts import Counts, Series, SharedCounts, add_up
from ojster.server.gauges import GAUGES
from ojster.service import Service

_LABELS: Final = ("endpoint", "status")

_REQUESTS: Final = "ojs_http_requests"

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of response times, in seconds."""

MAX_SERIES: Final = 1_000
"""Maximum number of series of a metric of events; further label values are counted as ``_other``."""


class Metrics:
    """Metrics of this server's requests and events, and of what its capabilities report.

    Parameters
    ----------
    capabilities:
        The capabilities that report.
    shared:
        The numbers of the other processes that share its port; ``None``: it is the only one.
    """

    def __init__(self, capabilities: Sequence[Capability] = CAPABILITIES, shared: SharedCounts | None = None) -> None:
        self._shared = shared
        self.gauges = [GAUGES[capability.name] for capability in capabilities if capability.name in GAUGES]
        self._started = time.monotonic()
        self._of_events = event_metrics(capabilities)
        self._metrics = {metric.name: metric for metric in self._of_events.all()}
        self._series: dict[str, dict[tuple[str, ...], Series]] = {
            name: {} if metric.labels else {(): _series(metric.buckets)} for name, metric in self._metrics.items()
        }
        self._counting = threading.Lock()
        self._requests: dict[tuple[str, int], Series] = {}

    def count_events(self, events: Sequence[Event]) -> None:
        """Count the events of a committed transaction. Any thread may call this."""
        with self._counting:
            for metric, labels, values in self._of_events.measure(events):
                series = self._series[metric.name].get(labels)
                if series is None:
                    series = self._add_series(metric, labels)
                for value in values:
                    _observe(series, metric.buckets, value)

    def _add_series(self, metric: EventMetric, labels: tuple[str, ...]) -> Series:
        known = self._series[metric.name]
        if len(known) >= MAX_SERIES:
            labels = ("_other",) * len(labels)
        return known.setdefault(labels, _series(metric.buckets))

    def count_request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request. Only the server's event loop may call this."""
        series = self._requests.get((endpoint, status))
        if series is None:
            series = self._requests[endpoint, status] = _series(_BUCKETS)
        _observe(series, _BUCKETS, seconds)

    def counts(self) -> Counts:
        """Return what this process has counted."""
        with self._counting:
            counted = {name: list(by_labels.items()) for name, by_labels in self._series.items()}
        requests: list[tuple[tuple[str, ...], Series]] = [
            ((endpoint, str(status)), series) for (endpoint, status), series in self._requests.items()
        ]
        return Counts(counted | {_REQUESTS: requests})

    def shared(self) -> AbstractAsyncContextManager[None]:
        """Let the processes that share the port see the numbers of this one while the block runs."""
        return nullcontext() if self._shared is None else self._shared.written(self.counts)

    async def render(self, service: Service) -> bytes:
        """Return the metrics in the Prometheus text format."""
        reported: list[Metric] = []
        for gauges in self.gauges:
            reported += await gauges(service)
        sums = add_up([self.counts(), *([] if self._shared is None else self._shared.others())])
        reported += self._requests_of(sums.pop(_REQUESTS, {}))
        reported += self._events_of(sums)
        reported.append(
            GaugeMetricFamily(
                "ojs_uptime_seconds", "Time since the server started.", value=time.monotonic() - self._started
            )
        )
        replica = service.database.replica
        if replica is not None and replica.lag is not None:
            words = "How far the replica that answers lists is behind."
            reported.append(GaugeMetricFamily("ojs_replica_lag_seconds", words, value=replica.lag))
        registry = CollectorRegistry()
        registry.register(_Snapshot(reported))
        return generate_latest(registry)

    def _events_of(self, sums: Mapping[str, Mapping[tuple[str, ...], Series]]) -> Iterator[Metric]:
        for name, metric in self._metrics.items():
            shown, sums_by_labels = name.replace(".", "_"), sums.get(name, {})
            if metric.milliseconds is None:
                counter = CounterMetricFamily(shown, metric.help, labels=metric.labels)
                for labels, series in sums_by_labels.items():
                    counter.add_metric(labels, series.total)
                yield counter
            else:
                histogram = HistogramMetricFamily(f"{shown}_seconds", metric.help, labels=metric.labels)
                for labels, series in sums_by_labels.items():
                    histogram.add_metric(labels, series.cumulated(metric.buckets), series.total)
                yield histogram

    @staticmethod
    def _requests_of(sums: Mapping[tuple[str, ...], Series]) -> Iterator[Metric]:
        requests = CounterMetricFamily(_REQUESTS, "Requests answered.", labels=_LABELS)
        durations = HistogramMetricFamily("ojs_http_request_seconds", "Response time.", labels=_LABELS)
        for labels, series in sums.items():
            requests.add_metric(labels, sum(series.buckets))
            durations.add_metric(labels, series.cumulated(_BUCKETS), series.total)
        yield requests
        yield durations


def _series(bounds: Sequence[float]) -> Series:
    """Return the series of a histogram with buckets up to these bounds, or of a counter if there are none."""
    return Series(0.0, [0] * (len(bounds) + 1 if bounds else 0))


def _observe(series: Series, bounds: Sequence[float], value: float) -> None:
    """Add to a counter, or observe a value of a histogram."""
    series.total += value
    if series.buckets:
        series.buckets[bisect_left(bounds, value)] += 1


class _Snapshot(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families

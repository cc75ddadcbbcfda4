"""Prometheus metrics: what capabilities report, events, and HTTP requests.

Spec: ojs-observability
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ojster.capabilities import CAPABILITIES, Capability
from ojster.core.event_counters import EventCounter
from ojster.core.events import Event
from ojster.service import Service

_LABELS: Final = ("endpoint", "status")

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of response times, in seconds."""

MAX_SERIES: Final = 1_000
"""Maximum number of series of an event counter; further label values are counted as ``_other``."""


class Metrics:
    """Metrics of this server's requests and events, and of what its capabilities report."""

    def __init__(self, capabilities: Sequence[Capability] = CAPABILITIES) -> None:
        self._modules = [one.module(one.metrics) for one in capabilities if one.metrics is not None]
        self._counters: Mapping[str, EventCounter] = {
            type: counter for module in self._modules for type, counter in module.EVENT_COUNTERS.items()
        }
        self._events: dict[str, dict[tuple[str, ...], int]] = {type: {} for type in self._counters}
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._registry = CollectorRegistry()
        self._duration = Histogram(
            "ojs_http_request_seconds", "Response time.", _LABELS, buckets=_BUCKETS, registry=self._registry
        )
        self._known: dict[tuple[str, int], Histogram] = {}

    def count_events(self, events: Sequence[Event]) -> None:
        """Count the events of a committed transaction. Any thread may call this."""
        for type, _, subject, queue, job_type, data, _ in events:
            if type not in self._counters:
                continue
            known = {"queue": queue, "job_type": job_type, "key": subject} | data
            labels = tuple([str(known.get(name) or "") for name in self._counters[type].labels])
            with self._lock:
                series = self._events[type]
                if labels not in series and len(series) >= MAX_SERIES:
                    labels = ("_other",) * len(labels)
                series[labels] = series.get(labels, 0) + 1

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
        reported += self._event_metrics()
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

    def _event_metrics(self) -> Iterator[Metric]:
        """Yield the event counters of this server."""
        with self._lock:
            counted = {type: dict(series) for type, series in self._events.items()}
        for type, (name, help, labels) in self._counters.items():
            family = CounterMetricFamily(name, help, labels=labels)
            for values, number in counted[type].items():
                family.add_metric(values, number)
            yield family


class _Snapshot(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        return self._families

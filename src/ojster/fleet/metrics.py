"""Metrics of workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.event_metrics import EventMetric

if TYPE_CHECKING:
    from ojster.service import Service

EVENT_METRICS: Final[dict[str, tuple[EventMetric, ...]]] = {}


async def families(service: Service) -> Iterator[Metric]:
    """Return gauges of workers by state, and of those that take jobs."""
    gauge = GaugeMetricFamily("ojs_workers", "Workers by state.", labels=["state"])
    active = GaugeMetricFamily("ojs_workers_active", "Workers that take jobs.")
    states = Counter(worker.state for worker in await service.fleet.all())
    for state, number in states.items():
        gauge.add_metric([state], number)
    active.add_metric([], states["running"])
    return iter((gauge, active))

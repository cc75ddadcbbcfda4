"""Metrics of workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.event_counters import EventCounter

if TYPE_CHECKING:
    from ojster.service import Service

EVENT_COUNTERS: Final[dict[str, EventCounter]] = {}


async def families(service: Service) -> Iterator[Metric]:
    """Return a gauge of workers by state."""
    gauge = GaugeMetricFamily("ojs_workers", "Workers by state.", labels=["state"])
    for state, number in Counter(worker.state for worker in await service.fleet.all()).items():
        gauge.add_metric([state], number)
    return iter((gauge,))

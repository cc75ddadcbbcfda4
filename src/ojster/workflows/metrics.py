"""Metrics of workflows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.event_metrics import EventMetric

if TYPE_CHECKING:
    from ojster.service import Service

EVENT_METRICS: Final[dict[str, tuple[EventMetric, ...]]] = {}


async def families(service: Service) -> Iterator[Metric]:
    """Return gauges of workflows that have not ended, and of those that ended in the last hour."""
    counts = await service.workflows.count()
    under_way = GaugeMetricFamily("ojs_workflows", "Workflows that have not ended, by state.", labels=["state"])
    ended = GaugeMetricFamily("ojs_workflows_last_hour", "Workflows ended in the last hour.", labels=["state"])
    for family, numbers in ((under_way, counts.unfinished), (ended, counts.last_hour)):
        for state, number in numbers.items():
            family.add_metric([state], number)
    return iter((under_way, ended))

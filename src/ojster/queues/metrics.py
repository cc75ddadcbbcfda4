"""Metrics of queues and pools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.event_metrics import EventMetric
from ojster.queues.backpressure import bounded_pressures
from ojster.queues.pools import list_pools

if TYPE_CHECKING:
    from ojster.service import Service

EVENT_METRICS: Final = {
    "backpressure.rejected": (EventMetric("ojs_backpressure_rejected", "Jobs rejected by a full queue.", ("queue",)),),
    "backpressure.dropped": (EventMetric("ojs_backpressure_dropped", "Jobs dropped by a full queue.", ("queue",)),),
    "rate_limit.exceeded": (EventMetric("ojs_rate_limit_exceeded", "Rate limits exceeded.", ("key", "strategy")),),
    "rate_limit.dropped": (EventMetric("ojs_rate_limit_dropped", "Jobs dropped by a rate limit.", ("queue",)),),
    "scheduling.queue_starved": (
        EventMetric("ojs_scheduling_starvation_events", "Starvations of a queue.", ("queue",)),
    ),
}


async def families(service: Service) -> Iterator[Metric]:
    """Return gauges of queues: paused, work of the last hour, fill level, and use of pools."""
    queues = await service.queues.all()
    statistics = await asyncio.gather(*(service.queues.statistics(queue.name) for queue in queues))
    paused = GaugeMetricFamily("ojs_queue_paused", "Whether a queue is paused.", labels=["queue"])
    done = GaugeMetricFamily(
        "ojs_queue_last_hour", "Jobs enqueued, completed and failed in the last hour.", labels=["queue", "what"]
    )
    for one in statistics:
        paused.add_metric([one.queue.name], float(one.queue.paused_at is not None))
        for what in ("enqueued", "completed", "failed"):
            done.add_metric([one.queue.name, what], getattr(one, what))
    full = GaugeMetricFamily("ojs_backpressure_pressure", "Fill level of a queue, from 0 to 1.", labels=["queue"])
    for queue, pressure in (await service.database.read(bounded_pressures, None)).items():
        full.add_metric([queue], pressure.share)
    used = GaugeMetricFamily("ojs_scheduling_pool_utilization", "Share of concurrency in use.", labels=["pool"])
    for pool in await service.database.read(list_pools, None):
        if pool.pool.concurrency:
            used.add_metric([pool.pool.name], pool.active_jobs / pool.pool.concurrency)
    return iter((paused, done, full, used))

"""Metrics that events change: those of queues and pools."""

from __future__ import annotations

from typing import Final

from ojster.core.event_metrics import EventMetric

EVENT_METRICS: Final = {
    "backpressure.rejected": (EventMetric("ojs_backpressure_rejected", "Jobs rejected by a full queue.", ("queue",)),),
    "backpressure.dropped": (EventMetric("ojs_backpressure_dropped", "Jobs dropped by a full queue.", ("queue",)),),
    "rate_limit.exceeded": (EventMetric("ojs_rate_limit_exceeded", "Rate limits exceeded.", ("key", "strategy")),),
    "rate_limit.dropped": (EventMetric("ojs_rate_limit_dropped", "Jobs dropped by a rate limit.", ("queue",)),),
    "scheduling.queue_starved": (
        EventMetric("ojs_scheduling_starvation_events", "Starvations of a queue.", ("queue",)),
    ),
}

"""Metrics that events change: those of push endpoints."""

from __future__ import annotations

from typing import Final

from ojster.core.event_metrics import EventMetric

EVENT_METRICS: Final = {
    "push.endpoint.suspended": (EventMetric("ojs_push_suspended", "Pauses of push endpoints.", ("key",)),),
    "push.endpoint.disabled": (EventMetric("ojs_push_disabled", "Push endpoints turned off by a server.", ("key",)),),
}

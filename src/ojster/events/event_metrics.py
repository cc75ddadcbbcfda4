"""Metrics that events change: those of webhooks."""

from __future__ import annotations

from typing import Final

from ojster.core.event_metrics import EventMetric

EVENT_METRICS: Final = {
    "webhook.delivered": (EventMetric("ojs_webhook_delivered", "Webhook deliveries accepted.", ("event_type",)),),
    "webhook.failed": (EventMetric("ojs_webhook_failed", "Webhook deliveries to be retried.", ("event_type",)),),
    "webhook.dead": (EventMetric("ojs_webhook_dead", "Webhook deliveries given up.", ("event_type",)),),
}

"""Metrics of webhooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.event_metrics import EventMetric
from ojster.events.webhooks import count_active

if TYPE_CHECKING:
    from ojster.service import Service

EVENT_METRICS: Final = {
    "webhook.delivered": (EventMetric("ojs_webhook_delivered", "Webhook deliveries accepted.", ("event_type",)),),
    "webhook.failed": (EventMetric("ojs_webhook_failed", "Webhook deliveries to be retried.", ("event_type",)),),
    "webhook.dead": (EventMetric("ojs_webhook_dead", "Webhook deliveries given up.", ("event_type",)),),
}


async def families(service: Service) -> Iterator[Metric]:
    """Return a gauge of active subscriptions."""
    webhooks = GaugeMetricFamily("ojs_webhook_subscriptions", "Active webhook subscriptions.")
    webhooks.add_metric([], await service.database.read(count_active, None))
    return iter((webhooks,))

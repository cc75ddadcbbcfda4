"""Metrics that events change: those of tenants."""

from __future__ import annotations

from typing import Final

from ojster.core.event_metrics import EventMetric

EVENT_METRICS: Final = {
    "tenant.limit_exceeded": (EventMetric("ojs_tenant_limit_exceeded", "Tenant limits exceeded.", ("limit",)),),
}

"""Metrics of tenants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.event_metrics import EventMetric
from ojster.core.tenant import NOBODY, shown_tenant
from ojster.tenancy.quotas import DEPTH_STATES
from ojster.tenancy.tenants import MAX_TENANTS_IN_METRICS, TenantOverview, list_tenants

if TYPE_CHECKING:
    from ojster.service import Service

EVENT_METRICS: Final = {
    "tenant.limit_exceeded": (EventMetric("ojs_tenant_limit_exceeded", "Tenant limits exceeded.", ("limit",)),),
}


async def families(service: Service) -> Iterator[Metric]:
    """Return gauges by tenant, if there are any."""
    tenants = await service.database.read(list_tenants, None)
    return _tenant_metrics(tenants) if any(one.tenant.id != NOBODY for one in tenants) else iter(())


def _tenant_metrics(tenants: Sequence[TenantOverview]) -> Iterator[Metric]:
    """Yield gauges by tenant. Tenants after the first ``MAX_TENANTS_IN_METRICS`` are summed up as ``_other``.

    Spec: ojs-multi-tenancy 15.4
    """
    names = ["tenant_id", "queue"]
    families = {
        "active": GaugeMetricFamily("ojs_tenant_jobs_active", "Active jobs of a tenant.", labels=names),
        "depth": GaugeMetricFamily("ojs_tenant_queue_depth", "Waiting jobs of a tenant in a queue.", labels=names),
        "share": GaugeMetricFamily("ojs_tenant_fairness_share", "A tenant's share of starts.", labels=["tenant_id"]),
        "day": GaugeMetricFamily("ojs_tenant_last_day", "Jobs of a tenant in a day.", labels=["tenant_id", "what"]),
    }
    numbers: dict[tuple[str, tuple[str, ...]], float] = defaultdict(float)
    for place, one in enumerate(tenants):
        name = shown_tenant(one.tenant.id) if place < MAX_TENANTS_IN_METRICS else "_other"
        for queue, states in one.queues.items():
            numbers["active", (name, queue)] += states.get("active", 0)
            numbers["depth", (name, queue)] += sum(states.get(state, 0) for state in DEPTH_STATES)
        numbers["share", (name,)] += one.actual_share
        for what in ("enqueued", "completed", "failed"):
            numbers["day", (name, what)] += getattr(one.day, what)
    for (family, labels), number in numbers.items():
        families[family].add_metric(labels, number)
    yield from families.values()

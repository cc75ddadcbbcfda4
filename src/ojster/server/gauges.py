"""Gauges: what capabilities report when metrics are read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from ojster.core.states import JobState
from ojster.core.tenant import NOBODY, shown_tenant
from ojster.events.webhooks import count_active
from ojster.insight.flow_troubles import find_flow_troubles
from ojster.jobs.queries import count_dead_letters
from ojster.jobs.waiting import count_waits
from ojster.queues.backpressure import bounded_pressures
from ojster.queues.overview import OverviewRequest, list_overviews
from ojster.queues.pools import list_pools
from ojster.service import Service
from ojster.tenancy.quotas import DEPTH_STATES
from ojster.tenancy.tenants import MAX_TENANTS_IN_METRICS, TenantOverview, list_tenants


async def _jobs(service: Service) -> Iterator[Metric]:
    """Return gauges of jobs by queue and state, of running jobs, and of dead letters."""
    counts = await service.jobs.count()
    jobs = GaugeMetricFamily("ojs_queue_depth", "Jobs by queue and state.", labels=["queue", "state"])
    busy = GaugeMetricFamily("ojs_workers_busy", "Jobs that run.", labels=["queue"])
    for queue, states in counts.items():
        busy.add_metric([queue], states.get(JobState.ACTIVE, 0))
        for state in JobState:
            jobs.add_metric([queue, state.value], states.get(state.value, 0))
    dead = GaugeMetricFamily("ojs_dead_letters", "Dead letters of a queue.", labels=["queue"])
    dead_letters = await service.database.read(count_dead_letters, None)
    for queue, number in (dict.fromkeys(counts, 0) | dead_letters).items():  # growth is seen from 0 on
        dead.add_metric([queue], number)
    oldest = GaugeMetricFamily(
        "ojs_queue_oldest_seconds", "Time for which the next job of a queue has been available.", labels=["queue"]
    )
    waiting = tuple(queue for queue, states in counts.items() if states.get(JobState.AVAILABLE, 0))
    for queue, seconds in (await service.database.read(count_waits, waiting)).items():
        oldest.add_metric([queue], seconds)
    return iter((jobs, busy, dead, oldest))


async def _tenants(service: Service) -> Iterator[Metric]:
    """Return gauges by tenant, if there are any."""
    tenants = await service.database.read(list_tenants, None)
    return _of_tenants(tenants) if any(overview.tenant.id != NOBODY for overview in tenants) else iter(())


def _of_tenants(tenants: Sequence[TenantOverview]) -> Iterator[Metric]:
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
    for place, overview in enumerate(tenants):
        name = shown_tenant(overview.tenant.id) if place < MAX_TENANTS_IN_METRICS else "_other"
        for queue, states in overview.queues.items():
            numbers["active", (name, queue)] += states.get("active", 0)
            numbers["depth", (name, queue)] += sum(states.get(state, 0) for state in DEPTH_STATES)
        numbers["share", (name,)] += overview.actual_share
        for what in ("enqueued", "completed", "failed"):
            numbers["day", (name, what)] += getattr(overview.day, what)
    for (family, labels), number in numbers.items():
        families[family].add_metric(labels, number)
    yield from families.values()


async def _workers(service: Service) -> Iterator[Metric]:
    """Return gauges of workers by state, and of those that take jobs."""
    gauge = GaugeMetricFamily("ojs_workers", "Workers by state.", labels=["state"])
    active = GaugeMetricFamily("ojs_workers_active", "Workers that take jobs.")
    states = Counter(worker.state for worker in await service.fleet.all())
    for state, number in states.items():
        gauge.add_metric([state], number)
    active.add_metric([], states["running"])
    return iter((gauge, active))


async def _queues(service: Service) -> Iterator[Metric]:
    """Return gauges of queues: paused, work of the last hour, fill level, and use of pools."""
    overviews = await service.database.read(list_overviews, OverviewRequest(internal=True, is_aged=False))
    paused = GaugeMetricFamily("ojs_queue_paused", "Whether a queue is paused.", labels=["queue"])
    done = GaugeMetricFamily(
        "ojs_queue_last_hour", "Jobs enqueued, completed and failed in the last hour.", labels=["queue", "what"]
    )
    for overview in overviews:
        paused.add_metric([overview.queue.name], float(overview.queue.paused_at is not None))
        for what in ("enqueued", "completed", "failed"):
            done.add_metric([overview.queue.name, what], getattr(overview.hour, what))
    full = GaugeMetricFamily("ojs_backpressure_pressure", "Fill level of a queue, from 0 to 1.", labels=["queue"])
    for queue, pressure in (await service.database.read(bounded_pressures, None)).items():
        full.add_metric([queue], pressure.share)
    used = GaugeMetricFamily("ojs_scheduling_pool_utilization", "Share of concurrency in use.", labels=["pool"])
    for pool in await service.database.read(list_pools, None):
        if pool.pool.concurrency:
            used.add_metric([pool.pool.name], pool.active_jobs / pool.pool.concurrency)
    return iter((paused, done, full, used))


async def _workflows(service: Service) -> Iterator[Metric]:
    """Return gauges of workflows that have not ended, and of those that ended in the last hour."""
    counts = await service.workflows.count()
    under_way = GaugeMetricFamily("ojs_workflows", "Workflows that have not ended, by state.", labels=["state"])
    ended = GaugeMetricFamily("ojs_workflows_last_hour", "Workflows ended in the last hour.", labels=["state"])
    for family, numbers in ((under_way, counts.unfinished), (ended, counts.last_hour)):
        for state, number in numbers.items():
            family.add_metric([state], number)
    return iter((under_way, ended))


async def _flows(service: Service) -> Iterator[Metric]:
    """Return a gauge of flows that do not go on, by reason."""
    gauge = GaugeMetricFamily(
        "ojs_flows_in_trouble", "Flows that do not go on, by reason and name.", labels=["reason", "name"]
    )
    for trouble in await service.database.survey(find_flow_troubles, None):
        gauge.add_metric([trouble.kind, trouble.name], trouble.count)
    return iter((gauge,))


async def _webhooks(service: Service) -> Iterator[Metric]:
    """Return a gauge of active subscriptions."""
    webhooks = GaugeMetricFamily("ojs_webhook_subscriptions", "Active webhook subscriptions.")
    webhooks.add_metric([], await service.database.read(count_active, None))
    return iter((webhooks,))


GAUGES: Final[dict[str, Callable[[Service], Awaitable[Iterator[Metric]]]]] = {
    "jobs": _jobs,
    "tenancy": _tenants,
    "fleet": _workers,
    "queues": _queues,
    "workflows": _workflows,
    "insight": _flows,
    "events": _webhooks,
}
"""The gauges of each capability that has any, by its name."""

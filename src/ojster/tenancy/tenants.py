"""Administration of tenants: their configuration, and overviews of their work.

Spec: ojs-multi-tenancy 8-10
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, Final

import msgspec

from ojster.core.errors import NotFound, OjsterError
from ojster.core.tenant import NOBODY, TENANT_NAMES_RANGE, shown_tenant, split
from ojster.jobs.statistics import Work, work_by_queue, work_of_names
from ojster.queues.overview import THROUGHPUT_MINUTES
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction
from ojster.tenancy.quotas import DEPTH_STATES, invalidate_tenant
from ojster.tenancy.tenant import Tenant, decode_tenant, tenants_by_id

A_DAY: Final = 24 * 60
"""One day, in minutes."""

MAX_TENANTS_IN_METRICS: Final = 1_000
"""Maximum number of tenants that have metrics of their own. Spec: ojs-multi-tenancy 15.4"""

_DEEP, _FAST, _BUSY, _FAULTY = 10, 5, 0.5, 3


class TenantOverview(msgspec.Struct, frozen=True):
    """A tenant, its configuration and its work.

    Spec: ojs-multi-tenancy 9.1

    Parameters
    ----------
    is_configured:
        Whether an operator has configured the tenant.
    queues:
        Number of its jobs by queue and state.
    recent, day:
        Its work in the last ``THROUGHPUT_MINUTES`` minutes, and in the last day.
    effective_share, actual_share:
        Share of all work that its weight entitles it to while all tenants have jobs, and its share of the recent work.
    file_bytes:
        Size of its files, in bytes.
    noise:
        Measures by which the tenant stands out from the others.
    """

    tenant: Tenant
    is_configured: bool
    queues: dict[str, dict[str, int]]
    recent: Work = Work()
    day: Work = Work()
    effective_share: float = 0.0
    actual_share: float = 0.0
    noise: tuple[str, ...] = ()
    file_bytes: int = 0

    def count(self, *states: str) -> int:
        """Return the number of its jobs in these states, or in all states if none is given."""
        return sum(
            jobs for counts in self.queues.values() for state, jobs in counts.items() if not states or state in states
        )

    @property
    def depth(self) -> int:
        """Number of its available and scheduled jobs."""
        return self.count(*DEPTH_STATES)


def list_tenants(tx: Transaction, requests: Sequence[None]) -> list[list[TenantOverview]]:
    """Return all tenants that are configured or have jobs, ordered by name, for each request."""
    configured = tenants_by_id(tx)
    queues = {tenant: _Counts() for tenant in (NOBODY, *configured)}
    for name, state, jobs in tx.execute("SELECT queue, state, jobs FROM job_counts"):
        tenant, queue = split(name)
        queues.setdefault(tenant, _Counts()).add(queue, state, jobs)
        if tenant != NOBODY:
            queues[NOBODY].add(queue, state, -jobs)  # the counts of the queue include them
    if NOBODY not in configured and not queues[NOBODY].total:
        del queues[NOBODY]
    file_bytes: dict[str, int] = dict(tx.execute("SELECT tenant, bytes FROM file_usage"))
    recent, day = (_by_tenant(tx, minutes) for minutes in (THROUGHPUT_MINUTES, A_DAY))
    plain = [
        TenantOverview(
            configured.get(tenant, Tenant(tenant)),
            tenant in configured,
            queues[tenant].queues,
            recent.get(tenant, Work()),
            day.get(tenant, Work()),
            file_bytes=file_bytes.get(tenant, 0),
        )
        for tenant in sorted(queues)
    ]
    compared = _compared(plain)
    return [compared for _ in requests]


class _Counts:
    """The jobs of a tenant by queue and state."""

    def __init__(self) -> None:
        self.queues: dict[str, dict[str, int]] = {}
        self.total = 0

    def add(self, queue: str, state: str, jobs: int) -> None:
        states = self.queues.setdefault(queue, {})
        states[state] = states.get(state, 0) + jobs
        self.total += jobs


def _by_tenant(tx: Transaction, minutes: int) -> dict[str, Work]:
    sums = {NOBODY: sum(work_by_queue(tx, minutes).values(), Work())}
    for name, done in work_of_names(tx, minutes, TENANT_NAMES_RANGE).items():
        tenant = split(name)[0]
        sums[tenant] = sums.get(tenant, Work()) + done
        sums[NOBODY] -= done  # the totals of the queue include it
    return sums


def _compared(tenants: Sequence[TenantOverview]) -> list[TenantOverview]:
    """Add to each tenant the figures that depend on the other tenants."""
    weights = sum(overview.tenant.weight for overview in tenants)
    started = sum(overview.recent.started for overview in tenants)
    return [
        msgspec.structs.replace(
            overview,
            effective_share=overview.tenant.weight / weights if weights else 0.0,
            actual_share=overview.recent.started / started if started else 0.0,
            noise=tuple(_noise(overview, tenants)),
        )
        for overview in tenants
    ]


def _noise(overview: TenantOverview, others: Sequence[TenantOverview]) -> Iterable[str]:
    if len(others) < 2:
        return
    if overview.depth > _DEEP * max(1.0, median(other.depth for other in others)):
        yield "queue_depth_ratio"
    if overview.recent.enqueued > _FAST * max(1.0, _average(others, lambda other: other.recent.enqueued)):
        yield "enqueue_rate_ratio"
    if overview.count("active") > max(1.0, _BUSY * sum(other.count("active") for other in others)):
        yield "active_job_ratio"
    if _error_rate(overview) > _FAULTY * max(0.01, _average(others, _error_rate)):
        yield "error_rate"


def _average(others: Sequence[TenantOverview], of: Callable[[TenantOverview], float]) -> float:
    return sum(map(of, others)) / len(others)


def _error_rate(overview: TenantOverview) -> float:
    return overview.recent.failed / overview.recent.processed if overview.recent.processed else 0.0


def show_tenants(tx: Transaction, ids: Sequence[str]) -> list[TenantOverview | OjsterError]:
    """Return each tenant, or ``NotFound``."""
    (known,) = list_tenants(tx, (None,))
    by_id = {overview.tenant.id: overview for overview in known}
    return [by_id.get(id) or no_tenant(id) for id in ids]


class TenantChange(msgspec.Struct, frozen=True):
    """A change of a tenant's configuration, with a reason. ``anew``: members that are left out get their defaults."""

    id: str
    members: dict[str, Any]
    anew: bool = True
    reason: str | None = None


@for_each
def put_tenants(tx: Transaction, change: TenantChange) -> bool:
    """Configure tenants, effective at once; return for each whether it had no configuration before."""
    # Two changes of different members must both last: they are merged into one value and written back.
    rows = tx.execute("SELECT body FROM tenants WHERE id = :id" + tx.for_update, {"id": change.id})
    known = decode_tenant(rows[0][0]) if rows else None
    before = Tenant(change.id) if known is None or change.anew else known
    tenant = msgspec.structs.replace(
        before, **change.members, created_at=known.created_at if known else tx.now, updated_at=tx.now
    )
    tx.execute(
        "INSERT INTO tenants (id, body) VALUES (:id, :body) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
        {"id": tenant.id, "body": msgspec.json.encode(tenant)},
    )
    event = "tenant.created" if known is None else "tenant.changed"
    tx.emit_about(event, shown_tenant(tenant.id), tenant=tenant.id, reason=change.reason)
    invalidate_tenant(tx, tenant.id)
    return known is None


def introduce_tenants(tx: Transaction, changes: Sequence[TenantChange]) -> list[bool]:
    """Configure tenants that have no configuration; return for each whether it was configured now."""
    known = tenants_by_id(tx)
    fresh = [change for change in changes if change.id not in known]
    put_tenants(tx, fresh)
    return [change in fresh for change in changes]


@for_each
def delete_tenants(tx: Transaction, id: str) -> OjsterError | None:
    """Delete the configuration of tenants; their jobs stay."""
    rows = tx.execute("DELETE FROM tenants WHERE id = :id RETURNING id", {"id": id})
    if rows:
        tx.emit_about("tenant.deleted", shown_tenant(id), tenant=id)
        invalidate_tenant(tx, id)
    return None if rows else no_tenant(id)


def no_tenant(id: str) -> NotFound:
    """Return the error for an unknown tenant."""
    return NotFound(f"There is no tenant {shown_tenant(id)!r}.", resource_type="tenant", resource_id=shown_tenant(id))

"""Which tenants are there, what may they do, and how do they do? (ojs-multi-tenancy.md sections 8 to 10)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, Final

import msgspec

from ojster.core.errors import NotFound, OjsterError
from ojster.core.tenant import ALL_NAMES, NOBODY, shown_tenant, split
from ojster.insight.overview import RECENT
from ojster.insight.statistics import Work, work_by_queue, work_of_names
from ojster.storage.transaction import Transaction
from ojster.tenancy.quotas import DEPTH, forget_what_is_said
from ojster.tenancy.tenant import Tenant, decode_tenant, tenants_by_id

A_DAY: Final = 24 * 60

TENANTS_SHOWN: Final = 1_000
"""Of how many tenants the metrics tell each by itself (section 15.4)."""

_DEEP, _FAST, _BUSY, _FAULTY = 10, 5, 0.5, 3


class TenantOverview(msgspec.Struct, frozen=True):
    """A tenant, and how it does.

    Parameters
    ----------
    is_configured:
        Whether an operator has said what it may do.
    queues:
        Its jobs by queue and state.
    recent, day:
        What it did lately, and in a day.
    effective_share, actual_share:
        Which share of the work of all tenants is its by weight, as long as all have jobs; and which it had lately.
    noise:
        By what it stands out from the other tenants (section 9.1).
    """

    tenant: Tenant
    is_configured: bool
    queues: dict[str, dict[str, int]]
    recent: Work = Work()
    day: Work = Work()
    effective_share: float = 0.0
    actual_share: float = 0.0
    noise: tuple[str, ...] = ()

    def count(self, *states: str) -> int:
        """Return how many of its jobs are in these states; without any: how many there are."""
        return sum(
            jobs for counts in self.queues.values() for state, jobs in counts.items() if not states or state in states
        )

    @property
    def depth(self) -> int:
        """How many of its jobs wait."""
        return self.count(*DEPTH)


def list_tenants(tx: Transaction, requests: Sequence[None]) -> list[list[TenantOverview]]:
    """Return all tenants who are configured or have jobs, by name, for each request."""
    configured = tenants_by_id(tx)
    queues = {tenant: _Counts() for tenant in (NOBODY, *configured)}
    for name, state, jobs in tx.execute("SELECT queue, state, jobs FROM job_counts"):
        tenant, queue = split(name)
        queues.setdefault(tenant, _Counts()).add(queue, state, jobs)
        if tenant != NOBODY:
            queues[NOBODY].add(queue, state, -jobs)  # they are counted for the queue too
    if NOBODY not in configured and not queues[NOBODY].total:
        del queues[NOBODY]
    recent, day = (_by_tenant(tx, minutes) for minutes in (RECENT, A_DAY))
    plain = [
        TenantOverview(
            configured.get(tenant, Tenant(tenant)),
            tenant in configured,
            queues[tenant].queues,
            recent.get(tenant, Work()),
            day.get(tenant, Work()),
        )
        for tenant in sorted(queues)
    ]
    found = _compared(plain)
    return [found for _ in requests]


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
    for name, done in work_of_names(tx, minutes, ALL_NAMES).items():
        tenant = split(name)[0]
        sums[tenant] = sums.get(tenant, Work()) + done
        sums[NOBODY] -= done  # it is counted for the queue too
    return sums


def _compared(tenants: Sequence[TenantOverview]) -> list[TenantOverview]:
    """Say of each tenant what can only be said beside the others."""
    weights = sum(one.tenant.weight for one in tenants)
    started = sum(one.recent.started for one in tenants)
    return [
        msgspec.structs.replace(
            one,
            effective_share=one.tenant.weight / weights if weights else 0.0,
            actual_share=one.recent.started / started if started else 0.0,
            noise=tuple(_noise(one, tenants)),
        )
        for one in tenants
    ]


def _noise(one: TenantOverview, others: Sequence[TenantOverview]) -> Iterable[str]:
    if len(others) < 2:
        return
    if one.depth > _DEEP * max(1.0, median(other.depth for other in others)):
        yield "queue_depth_ratio"
    if one.recent.enqueued > _FAST * max(1.0, _average(others, lambda other: other.recent.enqueued)):
        yield "enqueue_rate_ratio"
    if one.count("active") > max(1.0, _BUSY * sum(other.count("active") for other in others)):
        yield "active_job_ratio"
    if _error_rate(one) > _FAULTY * max(0.01, _average(others, _error_rate)):
        yield "error_rate"


def _average(others: Sequence[TenantOverview], of: Callable[[TenantOverview], float]) -> float:
    return sum(map(of, others)) / len(others)


def _error_rate(one: TenantOverview) -> float:
    return one.recent.failed / one.recent.processed if one.recent.processed else 0.0


def show_tenants(tx: Transaction, ids: Sequence[str]) -> list[TenantOverview | OjsterError]:
    """Return each tenant, or that there is none."""
    (known,) = list_tenants(tx, (None,))
    by_id = {one.tenant.id: one for one in known}
    return [by_id.get(id) or no_tenant(id) for id in ids]


class TenantChange(msgspec.Struct, frozen=True):
    """What is to be said of a tenant: all of it anew, or some members of it; and why."""

    id: str
    members: dict[str, Any]
    anew: bool = True
    reason: str | None = None


def put_tenants(tx: Transaction, changes: Sequence[TenantChange]) -> list[bool]:
    """Say what tenants may do; it holds at once. For each tell whether nothing was said before."""
    results = []
    for change in changes:
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
        forget_what_is_said(tx, tenant.id)
        results.append(known is None)
    return results


def introduce_tenants(tx: Transaction, changes: Sequence[TenantChange]) -> list[bool]:
    """Say what tenants may do of whom nothing is said yet; for each tell whether that was so."""
    known = tenants_by_id(tx)
    fresh = [change for change in changes if change.id not in known]
    put_tenants(tx, fresh)
    return [change in fresh for change in changes]


def delete_tenants(tx: Transaction, ids: Sequence[str]) -> list[OjsterError | None]:
    """Forget what was said of tenants; their jobs stay."""
    results: list[OjsterError | None] = []
    for id in ids:
        rows = tx.execute("DELETE FROM tenants WHERE id = :id RETURNING id", {"id": id})
        if rows:
            tx.emit_about("tenant.deleted", shown_tenant(id), tenant=id)
            forget_what_is_said(tx, id)
        results.append(None if rows else no_tenant(id))
    return results


def no_tenant(id: str) -> NotFound:
    """Return the refusal for a tenant of whom nothing is known."""
    return NotFound(f"There is no tenant {shown_tenant(id)!r}.", resource_type="tenant", resource_id=shown_tenant(id))

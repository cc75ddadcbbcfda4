"""Limits of tenants: concurrency, push rate, depth.

All tenants share the queues. A worker without a tenant takes jobs from all tenants, in turn, by weight; a worker of a
tenant takes only that tenant's jobs. Each process remembers the limits that operators set (``ojster.storage.memory``),
so tenants without limits cost nothing.

Spec: ojs-multi-tenancy
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, Protocol

from ojster.core.durations import format_duration
from ojster.core.errors import TenantLimitExceeded
from ojster.core.states import JobState
from ojster.core.tenant import called, shown_tenant
from ojster.jobs.extension import hooks
from ojster.jobs.limit_locks import held_by_others, lock_limits
from ojster.jobs.queries import counts_of_tenant
from ojster.jobs.reason import LimitUse
from ojster.storage.effects import PerTransaction
from ojster.storage.transaction import Later, Transaction
from ojster.tenancy.tenant import Tenant, tenants_by_id

_ANNOUNCED: Final = PerTransaction[Counter[str]](Counter)
"""Number of jobs by tenant that this transaction is about to push, and that count towards its limits already."""

DEPTH_STATES: Final = (JobState.AVAILABLE.value, JobState.SCHEDULED.value)
"""States of the jobs that count towards ``max_queue_depth``. Spec: ojs-multi-tenancy 8.1"""


# Claims


def tenant_capacities(tx: Transaction, tenants: Set[str]) -> dict[str, int | None]:
    """Return the number of jobs that may still start for each tenant with a concurrency limit.

    Tenants with free capacity stay locked for claims until the transaction ends; ``None``: another transaction has
    locked the tenant.
    """
    limits = {tenant: tenants_by_id(tx)[tenant].max_concurrency for tenant in tenants & tenants_by_id(tx).keys()}
    rooms: dict[str, int | None] = {
        tenant: _room(tx, tenant, most) for tenant, most in limits.items() if most is not None
    }
    # A tenant at its limit is not locked. One with room is: claims that count at the same time would all take the last
    # place. Counted again, because others may have committed meanwhile. The lock is tried, not awaited, as those of
    # limits are (`Gate.enter`), and is not that of pushes: these hold it, and would wait for each other and for claims.
    keys = {f"claims of {tenant}": tenant for tenant, room in rooms.items() if room}
    held = tx.lock_keys(keys)
    for key, tenant in keys.items() if tx.for_update else ():
        rooms[tenant] = None if key in held else _room(tx, tenant, limits[tenant] or 0)
    return rooms


def is_busy(tx: Transaction, tenant: str) -> bool:
    """Return whether as many jobs of a tenant run as may run at once. Nothing is locked."""
    limits = tenants_by_id(tx).get(tenant)
    return limits is not None and limits.max_concurrency is not None and not _room(tx, tenant, limits.max_concurrency)


def _room(tx: Transaction, tenant: str, most: int) -> int:
    return max(0, most - _count(counts_of_tenant(tx, tenant), (JobState.ACTIVE.value,)))


def free_tenants(tx: Transaction, tenants: Set[str]) -> None:
    """Wake the queues in which these tenants have available jobs, because some of their jobs are no longer active."""
    for tenant in tenants & tenants_by_id(tx).keys():
        tx.effects.opened.update(_waiting_queues(tx, tenant))


def _waiting_queues(tx: Transaction, tenant: str) -> list[str]:
    return [called(name) for name, states in counts_of_tenant(tx, tenant).items() if states.get("available", 0) > 0]


def quota_uses(tx: Transaction, id: str) -> Iterator[LimitUse]:
    """Yield the limits of a tenant on its jobs, with their use."""
    if (tenant := tenants_by_id(tx).get(id)) is None:
        return
    counts, name = counts_of_tenant(tx, id), shown_tenant(id)
    if tenant.max_concurrency is not None:
        yield LimitUse("concurrency", tenant.max_concurrency, _count(counts, (JobState.ACTIVE.value,)), tenant=name)
    if tenant.max_queue_depth is not None:
        yield LimitUse("depth", tenant.max_queue_depth, _count(counts, DEPTH_STATES), tenant=name)
    if tenant.max_scheduled is not None:
        yield LimitUse("scheduled", tenant.max_scheduled, _count(counts, ("scheduled",)), tenant=name)
    if (rate := tenant.max_enqueue_rate) is not None:
        rows = tx.execute("SELECT window_started_at, window_used FROM tenants WHERE id = :id", {"id": id})
        used = sum(used for started_at, used in rows if tx.now - started_at < rate.period)
        yield LimitUse("pushes", rate.limit, used, period=format_duration(rate.period), tenant=name)


def _count(counts: Mapping[str, Mapping[str, int]], states: Sequence[str]) -> int:
    return sum(of_queue.get(state, 0) for of_queue in counts.values() for state in states)


def invalidate_tenant(tx: Transaction, tenant: str) -> None:
    """Make all processes reload the configuration of a tenant, and wake the queues with its available jobs."""
    tx.effects.configured = True
    if tenant:
        tx.effects.opened.update(_waiting_queues(tx, tenant))


# Pushes


class Counted(Protocol):
    """A job that counts towards the limits of its tenant."""

    @property
    def tenant(self) -> str:
        """The tenant whose limits count it."""

    @property
    def scheduled_at(self) -> int | None:
        """When it is to run, in microseconds since the epoch; ``None``: now."""


def check_tenant_limits(
    tx: Transaction, groups: Sequence[Sequence[Counted]]
) -> list[TenantLimitExceeded | Later | None]:
    """Return the error for each group of jobs that exceeds a limit of its tenants, else ``None``.

    A group must wait if another transaction holds one of its tenants: see ``lock_limits``.

    Spec: ojs-multi-tenancy 8.2
    """
    configured = tenants_by_id(tx)
    if not configured:
        return [None for _ in groups]
    concerned = {job.tenant for group in groups for job in group} & configured.keys()
    held = lock_tenants(tx, concerned)
    allowances = {tenant: _Allowance(tx, configured[tenant]) for tenant in concerned - held}
    results: list[TenantLimitExceeded | Later | None] = []
    for group in groups:
        if held and any(job.tenant in held for job in group):
            results.append(held_by_others())
            continue
        wanted = Counter(job.tenant for job in group if job.tenant in allowances)
        later = Counter(job.tenant for job in group if (job.scheduled_at or 0) > tx.now)
        refusal = next(
            (too_many for tenant in wanted if (too_many := allowances[tenant].refusal(wanted[tenant], later[tenant]))),
            None,
        )
        if refusal is None:
            for tenant in wanted:
                allowances[tenant].use(wanted[tenant], later[tenant])
        results.append(refusal)
    for allowance in allowances.values():
        allowance.close()
    return results


def lock_tenants(tx: Transaction, tenants: Set[str]) -> Set[str]:
    """Lock those of the tenants whose pushes are limited; return those that other transactions hold."""
    # Pushes that count at the same time would all take the last place, or the rest of the window.
    configured = tenants_by_id(tx)
    return lock_limits(tx, "tenants", [id for id in tenants & configured.keys() if configured[id].limits_pushes])


def charge_growth(tx: Transaction, tenant: str, jobs: int, at_once: int) -> None:
    """Count the jobs that a running workflow adds to itself towards the limits of its tenant.

    They use up the pushes of the window, but are not refused for it: a workflow cannot be told to come again later.

    Parameters
    ----------
    at_once:
        How many of the jobs this transaction creates. Extensions know the others: see ``Extension.announced``.

    Raises
    ------
    TenantLimitExceeded
        The tenant would have more waiting jobs than it may.
    """
    if (limits := tenants_by_id(tx).get(tenant)) is None or not jobs:
        return
    held = lock_tenants(tx, {tenant})
    allowance = _Allowance(tx, limits, tx.for_update if held else "")  # the workflow cannot be postponed, so it waits
    if refusal := allowance.refusal(jobs, 0, can_wait=False):
        raise refusal
    _ANNOUNCED(tx)[tenant] += at_once
    allowance.use(jobs, 0)
    allowance.close()


def forget_announced(tx: Transaction) -> None:
    """Count no announced job any more: those of this transaction exist by now, or extensions know of them."""
    _ANNOUNCED.put(tx, Counter())


class _Allowance:
    """Jobs that a tenant may still push. ``lock``: the locking clause, unless its row is locked already."""

    def __init__(self, tx: Transaction, tenant: Tenant, lock: str = "") -> None:
        self._tx = tx
        self._tenant = tenant
        self._pushed = 0
        self._window = (0, 0)
        if not tenant.limits_pushes:
            return
        rate = tenant.max_enqueue_rate
        query = "SELECT window_started_at, window_used FROM tenants WHERE id = :id" + lock
        rows = tx.execute(query, {"id": tenant.id})
        if rate is not None:
            started_at, used = rows[0] if rows else (0, 0)
            self._window = (tx.now, 0) if tx.now - started_at >= rate.period else (started_at, used)
        counts = counts_of_tenant(tx, tenant.id)
        self._depth, self._scheduled = _count(counts, DEPTH_STATES), _count(counts, ("scheduled",))
        self._depth += _ANNOUNCED(tx)[tenant.id]
        self._depth += sum(announced(tx, tenant.id) for announced in hooks(tx).announced)

    def refusal(self, jobs: int, scheduled: int, *, can_wait: bool = True) -> TenantLimitExceeded | None:
        """Return the error if ``jobs`` more jobs, ``scheduled`` of them for later, exceed a limit; else ``None``.

        A tenant with a soft quota only causes the event ``tenant.limit_exceeded``. Jobs that cannot wait for the next
        window are not refused for their rate.
        """
        tenant, now = self._tenant, self._tx.now
        if not tenant.limits_pushes:
            return None
        rate = tenant.max_enqueue_rate if can_wait else None
        opens_in = 0 if rate is None else self._window[0] + rate.period - now
        for name, current, wanted, most, wait in (
            ("max_queue_depth", self._depth, jobs, tenant.max_queue_depth, None),
            ("max_scheduled", self._scheduled, scheduled, tenant.max_scheduled, None),
            ("max_enqueue_rate", self._window[1], jobs, None if rate is None else rate.limit, opens_in),
        ):
            if most is None or not wanted or current + wanted <= most:
                continue
            self._tx.emit_about(
                "tenant.limit_exceeded", tenant.id, tenant=tenant.id, limit=name, current=current, maximum=most
            )
            if tenant.quota == "hard":
                return TenantLimitExceeded(
                    f"Tenant {shown_tenant(tenant.id)!r} has exceeded {name} ({most}).",
                    wait_micros=wait,
                    tenant_id=shown_tenant(tenant.id),
                    limit=name,
                    current=current,
                    maximum=most,
                )
        return None

    def use(self, jobs: int, scheduled: int) -> None:
        """Count jobs as pushed."""
        if self._tenant.limits_pushes:
            self._depth += jobs
            self._scheduled += scheduled
            self._window = (self._window[0], self._window[1] + jobs)
            self._pushed += jobs

    def close(self) -> None:
        """Write the usage of the rate window."""
        if self._pushed and self._tenant.max_enqueue_rate is not None:
            started_at, used = self._window
            self._tx.execute(
                "UPDATE tenants SET window_started_at = :started_at, window_used = :used WHERE id = :id",
                {"id": self._tenant.id, "started_at": started_at, "used": used},
            )

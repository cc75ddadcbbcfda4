"""What tenants add to the life of a job: their limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.core.tenant import shown_tenant
from ojster.jobs.claim_policy import ClaimPolicy, UsageProbes
from ojster.jobs.extension import Extension, Group
from ojster.jobs.queries import find_owners
from ojster.jobs.reason import LimitUse, Reason
from ojster.storage.transaction import Transaction
from ojster.tenancy.claim_policy import TENANTS_WAIT, TenantPolicy
from ojster.tenancy.quotas import check_tenant_limits, free_tenants, is_busy, lock_tenants, quota_uses
from ojster.tenancy.tenant import tenants_by_id


class TenancyExtension(Extension):
    """Limits on what tenants push and run, and their turns."""

    def refuse_push(self, tx: Transaction, groups: Sequence[Group]) -> Sequence[OjsterError | None]:
        """Refuse jobs beyond the limits of their tenants."""
        return check_tenant_limits(tx, groups)

    def before_growth(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Lock the tenants of jobs, as a push does before it comes to workflows."""
        if tx.for_update and ids and any(tenant.limits_pushes for tenant in tenants_by_id(tx).values()):
            (owners,) = find_owners(tx, [tuple(ids)])
            lock_tenants(tx, {tenant for tenant, _ in owners.values()})

    def freed(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Wake fetches for tenants that have room again."""
        if tenants := {job.tenant for job in jobs if job.tenant}:
            free_tenants(tx, tenants)

    def why_waiting(self, tx: Transaction, job: Job) -> Iterable[Reason]:
        """Return whether as many jobs of the tenant run as may run at once."""
        if job.tenant and is_busy(tx, job.tenant):
            most = tenants_by_id(tx)[job.tenant].max_concurrency
            yield Reason(
                "tenant", f"As many jobs of the tenant {shown_tenant(job.tenant)!r} run as may run at once: {most}."
            )

    def limits_on(self, tx: Transaction, job: Job) -> Iterable[LimitUse]:
        """Return the limits of the job's tenant."""
        return quota_uses(tx, job.tenant)

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], UsageProbes]]:
        """Serve tenants in turn, each within its limit."""
        return ((TenantPolicy, TENANTS_WAIT),)

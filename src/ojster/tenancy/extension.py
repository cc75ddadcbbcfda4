"""What tenants add to the life of a job: their limits."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.core.errors import OjsterError
from ojster.core.job import Job
from ojster.jobs.claim_policy import ClaimPolicy, Obstacles
from ojster.jobs.extension import Extension, Group
from ojster.storage.transaction import Transaction
from ojster.tenancy.claim_policy import TENANTS_WAIT, TenantPolicy
from ojster.tenancy.quotas import check_tenant_limits, free_tenants


class TenancyExtension(Extension):
    """Limits on what tenants push and run, and their turns."""

    def refuse_push(self, tx: Transaction, groups: Sequence[Group]) -> Sequence[OjsterError | None]:
        """Refuse jobs beyond the limits of their tenants."""
        return check_tenant_limits(tx, groups)

    def freed(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Wake fetches for tenants that have room again."""
        if tenants := {job.tenant for job in jobs if job.tenant}:
            free_tenants(tx, tenants)

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], Obstacles]]:
        """Serve tenants in turn, each within its limit."""
        return ((TenantPolicy, TENANTS_WAIT),)

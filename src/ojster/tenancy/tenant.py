"""A tenant's limits, weight and retention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from ojster.core.rate_limit import Rate
from ojster.storage.memory import Remembered
from ojster.storage.transaction import Transaction


class Tenant(msgspec.Struct, frozen=True):
    """Limits and settings of a tenant. Times are microseconds since the epoch.

    Parameters
    ----------
    max_concurrency:
        Maximum number of active jobs, over all queues.
    max_enqueue_rate:
        Maximum number of pushed jobs in a window, which begins with its first push.
    max_queue_depth:
        Maximum number of available and scheduled jobs, over all queues.
    max_scheduled:
        Maximum number of scheduled jobs.
    max_file_bytes:
        Maximum size of all its files, in bytes; ``None``: the server's default.
    weight:
        Share of the workers, relative to the weights of other tenants.
    boost:
        Tenants with a greater boost are served before all others.
    quota:
        Treatment of pushes beyond a limit: ``hard`` refuses them, ``soft`` only reports them.
    public:
        Whether every caller with a token may read the tenant's data.
    retention:
        Retention of finished jobs and workflows, in microseconds; 0: unlimited; ``None``: the server's default.

    Spec: ojs-multi-tenancy 8.1
    """

    id: str
    max_concurrency: int | None = None
    max_enqueue_rate: Rate | None = None
    max_queue_depth: int | None = None
    max_scheduled: int | None = None
    max_file_bytes: int | None = None
    weight: float = 1
    boost: int = 0
    quota: Literal["hard", "soft"] = "hard"
    public: bool = False
    retention: int | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def limits_pushes(self) -> bool:
        """Whether the tenant's pushes must be counted."""
        return (self.max_enqueue_rate, self.max_queue_depth, self.max_scheduled) != (None, None, None)


decode_tenant: Final = msgspec.json.Decoder(Tenant).decode


def _read_tenants(tx: Transaction) -> Mapping[str, Tenant]:
    rows = tx.execute("SELECT body FROM tenants")
    return {tenant.id: tenant for (body,) in rows if (tenant := decode_tenant(body))}


tenants_by_id: Final = Remembered[Mapping[str, Tenant]](_read_tenants, in_callers={})
"""The tenants that have settings, by id."""


def tenants_retention(tx: Transaction) -> dict[str, int]:
    """Return the retention of the tenants that set it, in microseconds; 0 keeps everything forever."""
    return {tenant.id: tenant.retention for tenant in tenants_by_id(tx).values() if tenant.retention is not None}

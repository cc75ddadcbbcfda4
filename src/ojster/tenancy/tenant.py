"""A tenant's limits, weight and retention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from ojster.queues.rate_limit import Rate
from ojster.storage.memory import Remembered
from ojster.storage.transaction import Transaction


class Tenant(msgspec.Struct, frozen=True):
    """What a tenant may do (ojs-multi-tenancy.md section 8.1). Times are microseconds since the epoch.

    Parameters
    ----------
    max_concurrency:
        How many of its jobs may be active at a time, in all queues together.
    max_enqueue_rate:
        How many it may push in a window, which begins with the first of them.
    max_queue_depth:
        How many of its jobs may be available or scheduled, in all queues together.
    max_scheduled:
        How many may be scheduled.
    weight:
        Its share of those who work, beside the weights of others.
    boost:
        Tenants with a greater one go before those with a smaller one.
    quota:
        What becomes of a push that is too much: ``hard`` refuses it, ``soft`` only tells of it.
    public:
        Whether everybody who has a token may look at what is its.
    retention:
        How long finished jobs and workflows are kept, in microseconds; 0: for ever; ``None``: as the server has it.
    """

    id: str
    max_concurrency: int | None = None
    max_enqueue_rate: Rate | None = None
    max_queue_depth: int | None = None
    max_scheduled: int | None = None
    weight: float = 1
    boost: int = 0
    quota: Literal["hard", "soft"] = "hard"
    public: bool = False
    retention: int | None = None
    created_at: int = 0
    updated_at: int = 0

    @property
    def limits_pushes(self) -> bool:
        """Whether it must be counted what it pushes."""
        return (self.max_enqueue_rate, self.max_queue_depth, self.max_scheduled) != (None, None, None)


decode_tenant: Final = msgspec.json.Decoder(Tenant).decode


def _read_tenants(tx: Transaction) -> Mapping[str, Tenant]:
    rows = tx.execute("SELECT body FROM tenants")
    return {tenant.id: tenant for (body,) in rows if (tenant := decode_tenant(body))}


tenants_by_id: Final = Remembered[Mapping[str, Tenant]](_read_tenants, in_callers={})
"""The tenants that have settings, by id."""


def tenants_retention(tx: Transaction) -> dict[str, int]:
    """Return the retention of the tenants that set it, in microseconds; 0 keeps everything forever."""
    return {one.id: one.retention for one in tenants_by_id(tx).values() if one.retention is not None}

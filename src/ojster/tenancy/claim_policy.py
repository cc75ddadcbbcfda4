"""How tenants decide which jobs are claimed: they take turns, each within its limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence, Set
from typing import Final

from ojster.core.job import Job
from ojster.core.queue_names import names_opened
from ojster.core.tenant import NOBODY
from ojster.jobs.claim_policy import ClaimPolicy, Pipeline, Share, TakeOfTenant, UsageProbes
from ojster.jobs.claim_position import last_places
from ojster.jobs.waiting import MAX_TENANTS, waiting_tenants
from ojster.queues.fairness import FairnessState, Sharing
from ojster.queues.turns import turns_of
from ojster.tenancy.quotas import tenant_capacities
from ojster.tenancy.tenant import tenants_by_id

TENANTS_WAIT: Final[UsageProbes] = {
    "tenants": "'' WHERE EXISTS (SELECT 1 FROM jobs WHERE state = 'available' AND tenant <> '')"
}
"""Available jobs of tenants."""

MAX_TURNS: Final = 10_000
"""Maximum number of tenants whose turns are remembered."""

_TENANTS: Final = ("tenants",)


class TenantPolicy(ClaimPolicy):
    """Claims for all tenants serve them in turn, by weight (ojs-multi-tenancy 7)."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._rooms: dict[str, int] = {}
        self._exhausted: set[tuple[str, str]] = set()
        self._waiting: dict[str, list[str]] = {}

    def enter(self, shares: Collection[Share]) -> None:
        """Count how many more jobs may run of each tenant that is limited."""
        if not tenants_by_id(self.tx):
            return
        tenants = {share.tenant for share in shares if share.tenant}
        for share in shares:
            if share.tenant is None:
                tenants |= {tenant for queue in share.queues for tenant in self._tenants_in(queue)}
        rooms = tenant_capacities(self.tx, tenants)
        self._rooms = {tenant: room or 0 for tenant, room in rooms.items()}
        if None in rooms.values():
            queues = {queue for share in shares for queue in share.queues}
            self.tx.effects.skipped.update(name for queue in queues for name in names_opened(queue))

    def serve_tenants(self, queue: str, wanted: int, take: TakeOfTenant) -> list[Job]:
        """Find jobs of a queue for all tenants, in turn.

        Each tenant is asked once, for as many as are its turn, so more may be left.
        """
        turns = self._turns()
        jobs: list[Job] = []
        asked: set[str] = set()
        while len(jobs) < wanted and (tenants := self._next_tenants(queue, asked)):
            sharing = self._weights_of(tenants)
            plan = turns.plan(tenants, wanted - len(jobs), sharing, {})
            left = {}
            for tenant, part in Counter(plan).items():
                taken = take(tenant, part)
                left[tenant] = iter(taken)
                if len(taken) < part:
                    self._exhausted.add((queue, tenant))
            asked |= left.keys()
            chosen = [job for tenant in plan if (job := next(left[tenant], None)) is not None]
            for job in chosen:
                turns.note(job.tenant, sharing, self.tx.now)
            jobs += chosen
        return jobs

    def room_of_tenant(self, tenant: str, wanted: int) -> int:
        """Return how many more jobs of a tenant may run."""
        return min(wanted, self._rooms.get(tenant, wanted))

    def taken(self, tenant: str, jobs: Sequence[Job]) -> None:
        """Count jobs of a tenant."""
        if tenant in self._rooms:
            self._rooms[tenant] -= len(jobs)

    def _turns(self) -> FairnessState:
        turns = turns_of(self.tx, _TENANTS)
        turns.forget_old(MAX_TURNS)
        return turns

    def _next_tenants(self, queue: str, asked: Set[str]) -> list[str]:
        """Return the tenants that may have more jobs in a queue, of those with the greatest boost."""
        tenants = [
            tenant
            for tenant in self._tenants_in(queue)
            if tenant not in asked and (queue, tenant) not in self._exhausted
        ]
        known = tenants_by_id(self.tx)
        boosts = {tenant: known[tenant].boost if tenant in known else 0 for tenant in tenants}
        return [tenant for tenant in tenants if boosts[tenant] == max(boosts.values())]

    def _tenants_in(self, queue: str) -> list[str]:
        """Return the tenants that may have available jobs in a queue; jobs without a tenant are one of them."""
        if queue not in self._waiting:
            self._waiting[queue] = [NOBODY, *self._find_tenants(queue)]
        return self._waiting[queue]

    def _find_tenants(self, queue: str) -> list[str]:
        """Return some tenants that have jobs in a queue; where there are many, from where the last claim ended."""
        places, here = last_places(self.tx), (_TENANTS, queue)
        start = places.pop(here, "")
        waiting = waiting_tenants(self.tx, queue, start)
        if len(waiting) == MAX_TENANTS:
            places[here] = waiting[-1]
        elif start:
            known = set(waiting)
            more = waiting_tenants(self.tx, queue, "", MAX_TENANTS - len(waiting))
            waiting += [tenant for tenant in more if tenant not in known]
        return waiting

    def _weights_of(self, tenants: Sequence[str]) -> Sharing:
        known = tenants_by_id(self.tx)
        return Sharing("weighted", tuple((tenant, known[tenant].weight) for tenant in tenants if tenant in known))

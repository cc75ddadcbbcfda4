"""What push endpoints add to the life of a job."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.core.job import Job
from ojster.jobs.claim_policy import NO_USAGE_PROBES, ClaimPolicy, UsageProbes
from ojster.jobs.extension import Extension
from ojster.push.claim_policy import EndpointPolicy
from ojster.push.endpoint import endpoints_by_worker
from ojster.storage.transaction import Transaction


class PushExtension(Extension):
    """The limits of push endpoints."""

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], UsageProbes]]:
        """Keep to the limits of endpoints."""
        return ((EndpointPolicy, NO_USAGE_PROBES),)

    def freed(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Wake the servers that wait for room at an endpoint."""
        if endpoints := endpoints_by_worker(tx):
            for worker_id in {job.worker_id or "" for job in jobs} & endpoints.keys():
                tx.effects.opened.update(endpoints[worker_id].queues)

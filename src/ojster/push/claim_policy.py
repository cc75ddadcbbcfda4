"""How push endpoints decide which jobs are claimed: each gets no more than its limits allow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from ojster.core.job import Job
from ojster.jobs.claim_policy import Claim, ClaimPolicy, Pipeline, Share
from ojster.push.endpoint import endpoints_by_worker
from ojster.queues.gates import Gate
from ojster.queues.limits import Limit, count_active, find_limit

ENDPOINT: Final = "push"
"""Trait of a share: the worker of the push endpoint that gets its jobs."""


class EndpointPolicy(ClaimPolicy):
    """Push endpoints get no more jobs than their limits allow, whichever servers claim for them."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._endpoints = endpoints_by_worker(self.tx)
        self.is_used = bool(self._endpoints)
        self._gates: dict[str, Gate] = {}

    def answer(self, request: Claim) -> list[Job] | None:
        """Return no jobs to an endpoint that is off, from the transaction on that has turned it off."""
        endpoint = self._endpoints.get(request.worker_id or "")
        return None if endpoint is None or endpoint.active else []

    def join(self, share: Share, request: Claim) -> Share:
        """Keep the claims of an endpoint apart from others."""
        return share.with_trait(ENDPOINT, request.worker_id) if request.worker_id in self._endpoints else share

    def enter(self, shares: Collection[Share]) -> None:
        """Look at the limits of the endpoints, and lock those that have room, in one order: claims wait for them."""
        for worker_id in sorted({name for share in shares if (name := share.trait(ENDPOINT)) is not None}):
            key = self._endpoints[worker_id].limit_key
            limit, active = find_limit(self.tx, key) or Limit(key), count_active(self.tx, key)
            self._gates[worker_id] = gate = Gate(self.tx, limit, active, waits=True)
            gate.enter()

    def room(self, share: Share, wanted: int) -> int:
        """Return how many more jobs an endpoint may get."""
        gate = self._gates.get(share.trait(ENDPOINT))
        return wanted if gate is None else min(wanted, gate.room)

    def started(self, share: Share, jobs: Sequence[Job]) -> None:
        """Count the jobs that an endpoint gets."""
        if (gate := self._gates.get(share.trait(ENDPOINT))) is not None:
            gate.start(jobs)

    def close(self) -> None:
        """Write what was used."""
        for gate in self._gates.values():
            gate.close()

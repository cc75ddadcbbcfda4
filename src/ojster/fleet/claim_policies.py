"""How workers and their abilities decide which jobs are claimed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.job_table import WITH_NEEDS
from ojster.fleet.abilities import PLAIN, abilities_by_worker, worker_rules_by_id
from ojster.fleet.matching import Budget, Match
from ojster.fleet.requirements import NOTHING
from ojster.jobs.available import one_of_each, pass_over, select_available
from ojster.jobs.claim import NoJobsAllowed
from ojster.jobs.claim_policy import Claim, ClaimPolicy, Pipeline, Share, UsageProbes

IDLE_WORKERS: Final[UsageProbes] = {
    "worker": "id FROM workers WHERE state <> 'running' OR directive <> 'running'",
    "disabled": "id FROM worker_rules WHERE enabled = 0",
}
"""Workers that get no jobs."""

REQUIREMENTS_WAIT: Final[UsageProbes] = {
    "needs": "'' WHERE EXISTS (SELECT 1 FROM jobs WHERE state = 'available' AND needs IS NOT NULL)"
}
"""Available jobs with requirements."""

WORKER: Final = "worker"
PROVIDED: Final = "provided"
"""Traits of a share: the worker that has resources of its own, and these."""


class IdlePolicy(ClaimPolicy):
    """Workers that are quiet, terminating or disabled get no jobs."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self._idle: set[str | None] = set()

    def note_use(self, kind: str, name: str) -> None:
        """Note a worker."""
        self.is_used = True
        self._idle.add(name)

    def answer(self, request: Claim) -> list[Job] | None:
        """Return no jobs to such a worker."""
        return NoJobsAllowed() if request.worker_id in self._idle else None


class AbilityPolicy(ClaimPolicy):
    """Workers get only job types and versions that they handle."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.is_used = True
        self._known = abilities_by_worker(self.tx)

    def join(self, share: Share, request: Claim) -> Share:
        """Add what the worker can run, and what it provides."""
        abilities = self._known.get(request.worker_id or "", PLAIN)
        if request.provided is not None:
            abilities = msgspec.structs.replace(abilities, provided=request.provided)
            abilities = abilities.under(worker_rules_by_id(self.tx).get(request.worker_id or ""))
        if request.types is not None:
            abilities = msgspec.structs.replace(abilities, runs=request.types)
        if abilities is PLAIN:
            return share
        condition, values = abilities.condition()
        share = msgspec.structs.replace(share, can_run=condition, values=values)
        if not abilities.provided.facts:
            return share
        return share.with_trait(WORKER, request.worker_id).with_trait(PROVIDED, abilities.provided)


class MatchingPolicy(ClaimPolicy):
    """Jobs with requirements go to workers that meet them, and that have room for them.

    Attributes
    ----------
    budgets:
        What jobs may use of a queue's resources, by queue.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.budgets: dict[str, Budget] = {}
        self._matches: dict[Share, Match] = {}

    def match(self, share: Share) -> Match:
        """Return which jobs fit the worker of a share."""
        if share not in self._matches:
            provided = share.trait(PROVIDED) or NOTHING
            self._matches[share] = Match(self.tx, share.trait(WORKER), provided, self.budgets)
        return self._matches[share]

    def find(self, share: Share, queue: str, tenant: str, room: int, available: list[Job]) -> list[Job]:
        """Add jobs whose requirements the worker meets."""
        match = self.match(share)
        jobs = list(available)
        for key, needs in match.kinds(queue, tenant):
            if fitting := match.room(queue, needs):
                jobs += select_available(self.tx, share, WITH_NEEDS, (queue, tenant, key), min(room, fitting))
        chosen = one_of_each(self.tx, queue, sorted(jobs, key=match.turn))[:room]
        pass_over(self.tx, queue, jobs, chosen)
        return chosen

    def met(self, share: Share, queue: str, tenant: str) -> Sequence[str]:
        """Return the keys of those requirements of waiting jobs that the worker meets."""
        return [key for key, _ in self.match(share).kinds(queue, tenant)]

    def fit(self, share: Share, queue: str, jobs: list[Job]) -> list[Job]:
        """Leave out jobs that require more of the worker than the jobs before them leave."""
        match = self.match(share)
        chosen = [job for job in jobs if match.take(job)]
        pass_over(self.tx, queue, jobs, chosen)
        return chosen

"""What the fleet adds to the life of a job: which workers get it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from ojster.core.job import Job
from ojster.fleet.abilities import kind_of
from ojster.fleet.claim_policies import IDLE_WORKERS, REQUIREMENTS_WAIT, AbilityPolicy, IdlePolicy, MatchingPolicy
from ojster.fleet.lost_workers import forget_lost, note_expired_lease
from ojster.fleet.unrunnable import why_unrunnable
from ojster.fleet.worker_starts import forget_starts
from ojster.fleet.workers import died_with_their_workers, reap_silent_workers
from ojster.jobs.claim_policy import NO_USAGE_PROBES, Claim, ClaimPolicy, UsageProbes
from ojster.jobs.extension import DeletedCounts, Due, Extension
from ojster.jobs.failure import Failure
from ojster.jobs.leases import LEASE_ERRORS
from ojster.jobs.reason import Reason
from ojster.storage.memory import Memory
from ojster.storage.transaction import Transaction


class FleetExtension(Extension):
    """Workers, their abilities, and what jobs require of them."""

    def freed(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Wake the fetches of workers whose resources are free again."""
        tx.effects.opened.update(job.queue for job in jobs if job.needs is not None)

    def failed(self, tx: Transaction, job: Job, failure: Failure) -> None:
        """Keep what a worker held that may be lost."""
        if job.worker_id and failure.type in LEASE_ERRORS:
            note_expired_lease(tx, job.worker_id, job)

    def died(self, tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
        """Return the jobs whose workers were silent for long when their leases expired."""
        return died_with_their_workers(tx, jobs)

    def due(self, tx: Transaction, *, in_maintenance: bool) -> Due:
        """Delete silent workers, and let their jobs run again."""
        return Due(reap_silent_workers(tx))

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete workers that were lost, and starts of workers, of long ago."""
        lost = forget_lost(tx, room)
        return DeletedCounts(rows=lost + forget_starts(tx, room - lost))

    def selects(self, memory: Memory, request: Claim) -> str | None:
        """Return a name for what a worker that provides something, or is limited to some types, can take."""
        return kind_of(memory, request)

    def why_waiting(self, tx: Transaction, job: Job) -> Iterable[Reason]:
        """Return what the present workers lack that a job requires, if none of them can run it."""
        if reasons := why_unrunnable(tx, job):
            yield Reason("no_worker", f"No worker can run it: {'; '.join(reasons)}.")

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], UsageProbes]]:
        """Leave out idle workers, and jobs that a worker cannot run."""
        return (
            (IdlePolicy, IDLE_WORKERS),
            (AbilityPolicy, NO_USAGE_PROBES),
            (MatchingPolicy, REQUIREMENTS_WAIT),
        )

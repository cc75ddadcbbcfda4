"""What the history of tasks adds to the life of a job."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.insight.claim_policy import SkipPolicy
from ojster.insight.task_history import erase_runs, forget_runs
from ojster.jobs.claim_policy import NO_USAGE_PROBES, ClaimPolicy, UsageProbes
from ojster.jobs.extension import DeletedCounts, Erasure, Extension
from ojster.jobs.statistics import roll_up_minutes
from ojster.storage.transaction import Transaction


class TaskHistoryExtension(Extension):
    """Jobs that need not run again."""

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete runs of tasks past their retention, and sum up the statistics of minutes."""
        roll_up_minutes(tx)
        return DeletedCounts(rows=forget_runs(tx, room))

    def erase(self, tx: Transaction, erasure: Erasure) -> int | None:
        """Delete runs of tasks that belong to what was deleted on request."""
        return erase_runs(tx, erasure)

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], UsageProbes]]:
        """Complete jobs that need not run when they are about to be handed out."""
        return ((SkipPolicy, NO_USAGE_PROBES),)

"""What the history of tasks adds to the life of a job."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.insight.claim_policy import SkipPolicy
from ojster.jobs.claim_policy import NO_OBSTACLES, ClaimPolicy, Obstacles
from ojster.jobs.extension import Extension


class TaskHistoryExtension(Extension):
    """Jobs that need not run again."""

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], Obstacles]]:
        """Complete jobs that need not run when they are about to be handed out."""
        return ((SkipPolicy, NO_OBSTACLES),)

"""How workflows decide which jobs are claimed: those of held or cancelled workflows do not start."""

from __future__ import annotations

from ojster.core.job import Job
from ojster.jobs.claim_policy import ClaimPolicy, Pipeline
from ojster.jobs.transitions import stop_jobs
from ojster.workflows.run.claimed_steps import claimed_steps


class StoppedWorkflowPolicy(ClaimPolicy):
    """Leaves out jobs whose workflow another transaction has held or cancelled since they were found."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.is_used = bool(self.tx.skip_locked)  # where transactions are one at a time, there is no other

    def can_start(self, jobs: list[Job]) -> list[Job]:
        """Leave out such jobs."""
        stopped = {step.node for step in claimed_steps(self.tx, jobs) if step.is_stopped}
        if not stopped:
            return jobs
        left_out = stop_jobs(self.tx, [job for job in jobs if job.node in stopped])
        self.pipeline.settle()
        return [job for job in jobs if job.id not in left_out]

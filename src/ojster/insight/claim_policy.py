"""How the history of a task decides which jobs are claimed: those that need not run are completed instead."""

from __future__ import annotations

from typing import Final

from ojster.collections.outputs import resolve_lookups
from ojster.core.job import Job
from ojster.core.job_flags import LOOKUP_BIT, SKIPS
from ojster.insight.task_history import adoption_of, skip
from ojster.jobs.claim_policy import ClaimPolicy, Pipeline
from ojster.workflows.run.claimed_steps import begin_workflows
from ojster.workflows.run.stopping import stopped_nodes

MAX_SKIPPED: Final = 100
"""Maximum number of jobs that need not run which a claim completes; the next claim completes those behind them."""

_LOOKS_AROUND: Final = SKIPS | LOOKUP_BIT


class SkipPolicy(ClaimPolicy):
    """Jobs whose reactions say that they need not run are completed; lookups in arguments are resolved."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.is_used = True
        self._skipped = 0

    def need_run(self, queue: str, jobs: list[Job]) -> tuple[list[Job], bool]:
        """Complete those of the jobs that need not run; return the others, and whether to look for more."""
        if not any(job.flags & _LOOKS_AROUND for job in jobs):
            return jobs, False
        before = self._skipped
        needed = [job for job in jobs if self._needs_run(queue, job)]
        if self._skipped == before:
            return needed, False
        self.pipeline.settle()  # what follows from them may be what the worker gets
        return needed, self._skipped < MAX_SKIPPED

    def _needs_run(self, queue: str, job: Job) -> bool:
        """Whether a job is handed out.

        A job whose workflow another transaction changes is left for later; one whose lookups find nothing has failed.
        """
        if job.flags & SKIPS:
            if self._skipped >= MAX_SKIPPED or not self._is_free(job):
                self.tx.effects.opened.add(queue)  # it, or what is behind it, is looked at in another transaction
                return False
            if (adopted := adoption_of(self.tx, job)) is not None:
                begin_workflows(self.tx, [] if job.workflow is None else [job.workflow])
                skip(self.tx, job, adopted)
                self._skipped += 1
                return False
        if job.flags & LOOKUP_BIT and not resolve_lookups(self.tx, job):
            self._skipped += 1
            return False
        return True

    def _is_free(self, job: Job) -> bool:
        """Whether a job has no workflow, or one that can be locked now, is not held, and has not given up the job."""
        if job.node is None:
            return True
        # A claim has locked its jobs, and must not wait for a workflow while others may wait for these jobs.
        rows = self.tx.execute(
            f"SELECT held_at FROM workflows WHERE seq = :seq{self.tx.skip_locked}", {"seq": job.workflow}
        )
        return bool(rows) and rows[0][0] is None and not stopped_nodes(self.tx, [job.node])

"""What workflows add to the life of a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from ojster.core.errors import OjsterError
from ojster.core.job import NODE_BITS, Job
from ojster.jobs.claim_policy import NO_USAGE_PROBES, ClaimPolicy, UsageProbes
from ojster.jobs.deadlines import total_deadline
from ojster.jobs.ending_attempts import confirm_overdue_ends, forget_ends
from ojster.jobs.extension import DeletedCounts, Due, Extension, Foresight
from ojster.jobs.messages import Acknowledgement, EndWithoutSuccess, Release
from ojster.jobs.names import WAIT_TYPE
from ojster.jobs.new_job import NewJob
from ojster.jobs.transitions import complete_job, write_completed
from ojster.storage.transaction import Transaction
from ojster.workflows.claim_policy import StoppedWorkflowPolicy
from ojster.workflows.orchestrator_request import ORCHESTRATE_TYPE
from ojster.workflows.properties import refusal_of_changes
from ojster.workflows.run.advance import advance
from ojster.workflows.run.broadcasts import deliver_overdue, forget_broadcasts
from ojster.workflows.run.cancellation import cancel_left, cancel_with_worker, skip_rest
from ojster.workflows.run.claimed_steps import begin_workflows, claimed_steps
from ojster.workflows.run.due import process_due_workflows
from ojster.workflows.run.early_answers import hasten_answered_waits, take_early_answer
from ojster.workflows.run.expansion import expand_maps, start_deferred
from ojster.workflows.run.flow_starts import lift_limits_of_starts, recorded_since_start
from ojster.workflows.run.foresight import foresee
from ojster.workflows.run.growth import grow_all
from ojster.workflows.run.maps import count_announced
from ojster.workflows.run.results import add_parent_results, foresee_inputs
from ojster.workflows.run.retention import count_deletable, forget_workflows
from ojster.workflows.run.starting import retry_as_new
from ojster.workflows.run.stopping import lock_workflows, stop_steps
from ojster.workflows.run.suspensions import add_resume_data, end_suspension, suspend_jobs
from ojster.workflows.suspension import SUSPENDED, SuspensionKind


class WorkflowExtension(Extension):
    """Steps of workflows: their order, their results, and their suspension."""

    def announced(self, tx: Transaction, tenant: str) -> int:
        """Return the number of jobs that the elements of a tenant's maps become later."""
        return count_announced(tx, tenant)

    def admit(self, tx: Transaction, new: Sequence[NewJob], jobs: Sequence[Job]) -> None:
        """Let one orchestrator at a time run in each workflow; end wait steps at once whose answer has come before."""
        waits = []
        for job in jobs:
            if job.node is not None and job.type == ORCHESTRATE_TYPE:
                job.exclusive_key = f"orchestrate:{job.workflow}"
            elif job.node is not None and job.type == WAIT_TYPE:
                waits.append(job)
        if waits:
            hasten_answered_waits(tx, waits)

    def stop(self, tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
        """Suspend steps of held workflows; cancel those that their workflow has given up."""
        return stop_steps(tx, jobs)

    def lock(self, tx: Transaction, jobs: Iterable[Job]) -> None:
        """Lock the workflows of jobs."""
        lock_workflows(tx, jobs)

    def succeeded_late(self, tx: Transaction, job: Job, result: bytes) -> None:
        """Keep the result of a step that was stopped: what it did is undone, and its compensation may refer to it."""
        lock_workflows(tx, [job])
        tx.execute(
            "UPDATE nodes SET result = :result WHERE id = :node AND job_id = :id",
            {"result": result, "node": job.node, "id": job.id},
        )

    def progressed(self, tx: Transaction, jobs: Sequence[Job]) -> Set[str]:
        """Return the ids of jobs that run flows and have recorded local steps since they started."""
        return recorded_since_start(tx, jobs)

    def lose(self, tx: Transaction, job: Job) -> None:
        """Cancel the workflow of a job if it wants that when a worker is lost."""
        cancel_with_worker(tx, job)

    def settle(self, tx: Transaction) -> None:
        """Advance the workflows whose jobs have ended."""
        advance(tx)
        cancel_left(tx)

    def due(self, tx: Transaction, *, in_maintenance: bool) -> Due:
        """Start and end workflows that are due, advance those whose steps were stopped, deliver broadcasts."""
        ends = Due(*confirm_overdue_ends(tx))
        self.settle(tx)
        return _earliest(ends, process_due_workflows(tx), self.go_on(tx), deliver_overdue(tx))

    def go_on(self, tx: Transaction) -> Due:
        """Create more elements of a large map, and start more children of a large container."""
        return _earliest(expand_maps(tx), start_deferred(tx))

    def end_wait(self, tx: Transaction, job: Job) -> bool:
        """End a suspension that is due, unless the job has exceeded its total timeout."""
        if job.suspension not in SUSPENDED or (total_deadline(tx, job) or tx.now + 1) <= tx.now:
            return False
        end_suspension(tx, job)
        return True

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete workflows past their retention, and broadcasts that no flow can look back to."""
        counts = forget_workflows(tx, room)
        return counts + forget_broadcasts(tx, room - counts["rows"])

    def forgettable(self, tx: Transaction) -> DeletedCounts:
        """Return the numbers of workflows and of their jobs past their retention."""
        return count_deletable(tx)

    def revived(self, tx: Transaction, job: Job) -> None:
        """Delete an answer that the job has not waited for: what it asks for now is another question."""
        take_early_answer(tx, job)

    def deleted(self, tx: Transaction, jobs: Sequence[int]) -> None:
        """Delete notes, inputs, resumptions and early answers of jobs, and what says that they were steps."""
        forget_ends(tx, jobs)
        for table in ("resumptions", "early_answers", "notes", "job_inputs", "former_steps"):
            tx.execute_many(f"DELETE FROM {table} WHERE seq = ?", [(seq,) for seq in jobs])

    def foresee(self, tx: Transaction, nodes: Sequence[int]) -> Foresight:
        """Read what surrounds the steps that are reported."""
        return foresee(tx, nodes)

    def acknowledge(self, tx: Transaction, job: Job, report: Acknowledgement) -> None:
        """Change the properties of the workflow of a job, and add steps to it."""
        if report.changes is None and not report.append:
            return
        lock_workflows(tx, [job])
        if refusal := refusal_of_changes(tx, job, report.changes):
            raise refusal
        if report.append:
            grow_all(tx, [(job, report.append, None)])

    def refuse_end(self, tx: Transaction, job: Job, report: EndWithoutSuccess) -> OjsterError | None:
        """Change the properties of the workflow of a job whose attempt ends, or return why that is refused."""
        return refusal_of_changes(tx, job, report.changes)

    def release(self, tx: Transaction, job: Job, report: Release) -> bool:
        """Suspend a job, retry its workflow, or skip the rest of it."""
        match report.then:
            case "wait":
                deadline = report.deadline if report.wait is None else tx.now + report.wait
                kind = SuspensionKind.AGAIN if report.again else SuspensionKind.COMPLETE
                suspend_jobs(tx, [(job, deadline)], kind)
            case "retry":
                retry_as_new(tx, job)
            case "skip":
                skip_rest(tx, job)
                complete_job(tx, job, report.result, tx.now - (job.started_at or tx.now))
                write_completed(tx, [job])
            case _:
                return False
        return True

    def claim_policies(self) -> Sequence[tuple[type[ClaimPolicy], UsageProbes]]:
        """Leave out jobs of workflows that were stopped meanwhile."""
        return ((StoppedWorkflowPolicy, NO_USAGE_PROBES),)

    def foresee_start(self, tx: Transaction, limit: int) -> Foresight | None:
        """Read what the steps receive that this transaction has started."""
        return foresee_inputs(tx, limit)

    def start(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Note what has begun; give jobs the results that they ask for, and what resumed them."""
        if any(job.node is not None for job in jobs):
            steps = claimed_steps(tx, jobs)
            begin_workflows(tx, {step.node >> NODE_BITS for step in steps if not step.has_begun})
            add_parent_results(tx, jobs, steps)
        add_resume_data(tx, jobs)
        lift_limits_of_starts(tx, jobs)


def _earliest(*dues: Due) -> Due:
    """Return what is due first, and whether any of it is due already."""
    moments = (due.at for due in dues if due.at is not None)
    return Due(min(moments, default=None), any(due.has_more for due in dues))

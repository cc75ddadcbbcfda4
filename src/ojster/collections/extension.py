"""What collections and files add to the life of a job."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.collections.contents import delete_items, empty
from ojster.collections.items import key_of_job
from ojster.collections.named import count_removed_items, forget_removed_items
from ojster.collections.outputs import broken_promise
from ojster.collections.result_files import keep_result
from ojster.core.errors import OjsterError, PromiseBroken
from ojster.core.job import Job
from ojster.jobs.extension import DeletedCounts, Extension, lock_with
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.transitions import fail_attempt
from ojster.storage.transaction import Transaction


class CollectionExtension(Extension):
    """Artifacts of jobs, and results that are files."""

    def deleted(self, tx: Transaction, jobs: Sequence[int]) -> None:
        """Delete the items of jobs."""
        delete_items(tx, [key_of_job(seq) for seq in jobs])

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete removed items of named collections past their retention."""
        return DeletedCounts(rows=forget_removed_items(tx, room))

    def forgettable(self, tx: Transaction) -> DeletedCounts:
        """Return the number of removed items past their retention."""
        return DeletedCounts(rows=count_removed_items(tx))

    def refuse_result(self, tx: Transaction, job: Job, report: Acknowledgement) -> OjsterError | None:
        """Fail an attempt that does not provide what its step promises."""
        reason = broken_promise(tx, job, report.result)
        if reason is None:
            return None
        message = f"The job does not provide what its step promises: {reason}"
        lock_with(tx, [job])
        fail_attempt(tx, job, Failure("PromiseBroken", message, PromiseBroken.code))
        return PromiseBroken(message, job_id=job.id, current_state=job.state)

    def result_of(self, tx: Transaction, job: Job, report: Acknowledgement) -> bytes | None:
        """Return what refers to a result that was uploaded as a file."""
        return keep_result(tx, job, report)

    def start(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Remove the artifacts of attempts before."""
        again = [job.seq for job in jobs if job.attempt > 1 and not job.checkpoint_number and job.suspension is None]
        if again:
            empty(tx, [key_of_job(seq) for seq in again])

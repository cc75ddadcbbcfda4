"""What collections and files add to the life of a job."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.collections.collect import collects_of
from ojster.collections.contents import delete_items, empty
from ojster.collections.items import INTERNAL, key_of_job
from ojster.collections.named import count_removed_items, forget_removed_items
from ojster.collections.outputs import broken_promise
from ojster.collections.places import which_exist
from ojster.collections.result_files import keep_result, let_go
from ojster.core.errors import InvalidRequest, OjsterError, PromiseBroken
from ojster.core.job import Job
from ojster.core.tenant import qualify
from ojster.jobs.extension import DeletedCounts, Extension, lock_with
from ojster.jobs.failure import Failure
from ojster.jobs.messages import Acknowledgement
from ojster.jobs.new_job import NewJob
from ojster.jobs.transitions import fail_attempt
from ojster.storage.transaction import Transaction


class CollectionExtension(Extension):
    """Artifacts of jobs, results that are files, and the collections of reactions."""

    def check(self, tx: Transaction, new: NewJob) -> None:
        """Check the collections that the reactions of a job put items into.

        Raises
        ------
        InvalidRequest
            A collection does not exist.
        """
        if b'"collect"' not in new.envelope:
            return
        names = sorted({action.collection for action in collects_of(new.envelope, None)} - {INTERNAL})
        if not names:
            return
        exist = which_exist(tx, [qualify(new.tenant, name) for name in names])
        missing = [name for name, is_there in zip(names, exist, strict=True) if not is_there]
        if missing:
            raise InvalidRequest(
                f"There is no collection {missing[0]!r}, into which a reaction of the job puts an item. Create it: "
                f"ojster collections create {missing[0]}.",
                field="event_reactions",
            )

    def deleted(self, tx: Transaction, jobs: Sequence[int]) -> None:
        """Delete the items of jobs."""
        delete_items(tx, [key_of_job(seq) for seq in jobs])

    def results_deleted(self, tx: Transaction, jobs: Sequence[int]) -> None:
        """Let go of the files in which results were kept."""
        let_go(tx, jobs)

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

    def revived(self, tx: Transaction, job: Job) -> None:
        """Remove the artifacts of a job that runs again as if it were new, unless it goes on from a checkpoint."""
        if not job.checkpoint_number:
            empty(tx, [key_of_job(job.seq)])

    def start(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Remove the artifacts of earlier attempts, unless the job goes on from a checkpoint or a suspension."""
        again = [job.seq for job in jobs if job.attempt > 1 and not job.checkpoint_number and job.suspension is None]
        if again:
            empty(tx, [key_of_job(seq) for seq in again])

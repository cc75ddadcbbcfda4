"""What schedules add to the life of a job: cron jobs that fire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ojster.core.job import Job
from ojster.jobs.extension import DeletedCounts, Due, Extension
from ojster.schedules.firing import fire_due
from ojster.schedules.misses import count_expired_misses, forget_misses
from ojster.schedules.runs import queues_of_next
from ojster.storage.transaction import Transaction


class ScheduleExtension(Extension):
    """Cron jobs."""

    def freed(self, tx: Transaction, jobs: Sequence[Job]) -> None:
        """Wake the fetches that wait for the end of the run before: the next one may be in another queue."""
        for job in jobs:
            if job.exclusive_key is not None:
                tx.effects.opened.update(queues_of_next(tx, job))

    def due(self, tx: Transaction, *, in_maintenance: bool) -> Due:
        """Fire the cron jobs that are due, except during maintenance."""
        return Due(None) if in_maintenance else fire_due(tx)

    def forget(self, tx: Transaction, room: int) -> DeletedCounts:
        """Delete missed runs past their retention."""
        return forget_misses(tx, room)

    def forgettable(self, tx: Transaction) -> DeletedCounts:
        """Return the number of missed runs past their retention."""
        return Counter(cron_misses=count_expired_misses(tx))

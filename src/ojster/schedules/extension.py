"""What schedules add to the life of a job: cron jobs that fire."""

from __future__ import annotations

from ojster.jobs.extension import Due, Extension
from ojster.schedules.firing import fire_due
from ojster.storage.transaction import Transaction


class ScheduleExtension(Extension):
    """Cron jobs."""

    def due(self, tx: Transaction, *, in_maintenance: bool) -> Due:
        """Fire the cron jobs that are due, except during maintenance."""
        return Due(None) if in_maintenance else fire_due(tx)

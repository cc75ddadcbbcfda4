"""Which events of a job its history keeps, and what it adds to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ojster.core.job import Job
from ojster.core.tenant import called

NOT_IN_HISTORY: Final = frozenset(
    {
        "job.started",
        "job.completed",
        "job.heartbeat",
        "job.progress",
        "job.checkpointed",
        "job.noted",
        "dead_letter.added",
        "dead_letter.deleted",
    }
)
"""Job events that are not kept in the history: they show in the job's row, are too frequent, or end with the job."""


def is_ordinary(data: Mapping[str, Any]) -> bool:
    """Return whether a change of state is left out of the history: of a new job, or of a scheduled one that is due."""
    before = data.get("from", "")
    return before is None or (before == "scheduled" and data["to"] == "available")


def circumstances(job: Job, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return attempt, start time and worker for the history of an event that ends an attempt; else an empty dict."""
    if job.started_at is None or not (job.state == "active" or data.get("from") == "active"):
        return {}
    worker_id = None if job.worker_id is None else called(job.worker_id)
    return {"attempt": data.get("attempt", job.attempt), "started_at": job.started_at, "worker_id": worker_id}

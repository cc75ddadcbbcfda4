"""Jobs as rows of a file."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.json_objects import read_members

JOB_ROW: Final = (
    "id", "type", "queue", "state", "priority", "attempt", "max_attempts", "created_at", "enqueued_at", "scheduled_at",
    "started_at", "completed_at", "cancelled_at", "discarded_at", "error_type", "error_message", "worker_id",
    "workflow_id", "tags", "args", "meta",
)  # fmt: skip
"""Columns of jobs in CSV."""


def row_of(shown: bytes) -> dict[str, Any]:
    """Return the members of a job as an answer shows it, with the type and the message of its last error beside it."""
    row: dict[str, Any] = dict(read_members(shown, "The job"))
    error = msgspec.json.decode(row["error"]) if "error" in row else None
    if isinstance(error, dict):
        row |= {"error_type": error.get("type"), "error_message": error.get("message")}
    return row

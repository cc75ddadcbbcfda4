"""Workflows and their steps as rows of a file."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.core.json_objects import read_members
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.step_pages import StepRow

WORKFLOW_ROW: Final = (
    "id", "name", "type", "state", "definition", "definition_version", "target", "created_at", "scheduled_at",
    "started_at", "completed_at", "cancelled_at", "created_by", "cancelled_by", "job_count", "completed_count",
    "failed_count", "retries", "forked_from", "params",
)  # fmt: skip
"""Columns of workflows in CSV."""

STEP_ROW: Final = (
    "path", "kind", "type", "display_name", "state", "enqueued_at", "started_at", "stop_requested_at", "completed_at",
    "queue", "job_id", "attempt", "superseded_job_ids", "error_type", "error_message", "because", "reviews",
)  # fmt: skip
"""Columns of the history of a workflow in CSV."""


def workflow_row(workflow: WorkflowInfo) -> dict[str, Any]:
    """Return the members of a workflow, with its counts of jobs beside it."""
    counts = {name: workflow.metadata.get(name) for name in ("job_count", "completed_count", "failed_count")}
    return _row(workflow) | counts


def step_row(step: StepRow) -> dict[str, Any]:
    """Return the members of a step, with the type and the message of its error beside it."""
    row = _row(step)
    error = msgspec.json.decode(row["error"]) if "error" in row else None
    if isinstance(error, dict):
        row |= {"error_type": error.get("type"), "error_message": error.get("message")}
    return row


def _row(shown: msgspec.Struct) -> dict[str, Any]:
    return dict(read_members(msgspec.json.encode(shown), "The row"))

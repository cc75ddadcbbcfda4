"""The error of a workflow that is shown without its steps: the steps that failed first, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ojster.storage.transaction import Transaction
from ojster.workflows.read.info import WorkflowError
from ojster.workflows.read.node_view import SELECT_NODES, NodeViews
from ojster.workflows.stored_workflow import StoredWorkflow

MAX_FAILED_STEPS: Final = 10
"""Maximum number of failed steps in the error of a workflow that is shown without its steps."""

MAX_MESSAGE: Final = 500
"""Maximum length of what is cited of the error of a step, in characters."""


def failed_steps(tx: Transaction, workflow: StoredWorkflow, cause: WorkflowError | None) -> WorkflowError:
    """Return the error of a failed workflow with the steps that failed first.

    Parameters
    ----------
    cause:
        What is stored of the workflow's own failure, such as its timeout.
    """
    views = NodeViews(
        tx.execute(
            f"""
            {SELECT_NODES}
            WHERE n.id BETWEEN :first AND :last
                AND n.state = 'failed'
                AND n.tolerated = 0
                AND (n.kind = 'job' OR n.error IS NOT NULL)
            ORDER BY n.finished_at, n.id
            LIMIT :most
            """,
            {"first": workflow.numbers[0], "last": workflow.numbers[1], "most": MAX_FAILED_STEPS},
        )
    )
    failed = list(views.nodes.values())
    views.read_containers(tx)
    views.read_specs(tx, tx.among, (tx.integers(sorted(views.nodes)),))
    error = cause or WorkflowError("step_failed", "A step failed.")
    for node in failed:
        view = views.view(node)
        known = {} if isinstance(view.error, msgspec.UnsetType) else msgspec.json.decode(view.error)
        members = error_members(known)
        if node.job_id is not None:
            error.failed_job_ids.append(node.job_id)
        error.errors.append({"job_id": node.job_id, "step": view.id or view.path, "path": view.path, **members})
    if error.errors and cause is None:
        first = error.errors[0]
        error.failed_step = first["path"]
        why = ": ".join(filter(None, (first["type"], first["message"])))
        error.message = f"The step {first['path']!r} failed: {why}"[:MAX_MESSAGE]
    return error


def error_members(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of the error of a step."""
    return {
        "code": known.get("code", "discarded"),
        "type": known.get("type"),
        "message": known.get("message", "The job was discarded, and no error was recorded."),
        "attempt": known.get("attempt", 0),
    }

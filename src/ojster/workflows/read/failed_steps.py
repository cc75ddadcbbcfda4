"""The error of a workflow that is shown without its steps: the steps that failed first, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ojster.core.job import NODE_BITS
from ojster.storage.transaction import Transaction
from ojster.workflows.read.info import WorkflowError
from ojster.workflows.read.node_view import SELECT_NODES, NodeView, NodeViews
from ojster.workflows.run.results import unhandled_failures
from ojster.workflows.stored_workflow import StoredWorkflow

MAX_FAILED_STEPS: Final = 10
"""Maximum number of failed steps in the error of a workflow that is shown without its steps."""

MAX_MESSAGE: Final = 500
"""Maximum length of what is cited of the error of a step, in characters."""


MAX_LOOKED_AT: Final = 10_000
"""Maximum number of nodes of a workflow of which a list says which one failed first."""

MAX_LOOKED_AT_IN_ALL: Final = 50_000
"""Maximum number of nodes of the workflows of a page of which a list says it."""


def failed_steps(tx: Transaction, workflow: StoredWorkflow, cause: WorkflowError | None) -> WorkflowError:
    """Return the error of a failed workflow with the steps that failed first.

    Parameters
    ----------
    cause:
        What is stored of the workflow's own failure, such as its timeout.
    """
    rows = tx.execute(f"{unhandled_failures(':root')} LIMIT {MAX_FAILED_STEPS}", {"root": workflow.root})
    ids = [id for (id,) in rows]
    views = NodeViews(tx.execute(f"{SELECT_NODES} WHERE n.id {tx.among}", (tx.integers(sorted(ids)),)))
    failed = [views.nodes[id] for id in ids]
    _prepare(tx, views)
    error = cause or WorkflowError("step_failed", "A step failed.")
    for node in failed:
        _add(error, views.view(node), node.job_id)
    if error.errors and cause is None:
        _name(error)
    return error


def first_failures(tx: Transaction, workflows: Sequence[StoredWorkflow]) -> dict[int, WorkflowError]:
    """Return the error of each failed workflow with the step that failed first, by the ``seq`` of the workflow.

    There are as many statements for one workflow as for a page of them. Workflows with more nodes than
    ``MAX_LOOKED_AT``, and those at the end of a page with more than ``MAX_LOOKED_AT_IN_ALL``, are left out: no index
    has the failed nodes.
    """
    few, nodes = [], 0
    for workflow in workflows:
        nodes += min(workflow.nodes, MAX_LOOKED_AT)
        if workflow.nodes <= MAX_LOOKED_AT and nodes <= MAX_LOOKED_AT_IN_ALL:
            few.append(workflow.seq)
    if not few:
        return {}
    rows = tx.execute(
        f"""
        SELECT ({unhandled_failures(f"(w.seq << {NODE_BITS})")} LIMIT 1)
        FROM workflows AS w
        WHERE w.seq {tx.among}
        """,
        (tx.integers(few),),
    )
    ids = sorted(id for (id,) in rows if id is not None)
    if not ids:
        return {}
    views = NodeViews(tx.execute(f"{SELECT_NODES} WHERE n.id {tx.among}", (tx.integers(ids),)))
    failed = list(views.nodes.values())
    _prepare(tx, views)
    errors = {}
    for node in failed:
        error = errors[node.workflow] = WorkflowError("step_failed", "A step failed.")
        _add(error, views.view(node), node.job_id)
        _name(error)
    return errors


def _prepare(tx: Transaction, views: NodeViews) -> None:
    """Read what views of nodes need besides."""
    views.read_containers(tx)
    views.read_specs(tx, tx.among, (tx.integers(sorted(views.nodes)),))


def _add(error: WorkflowError, view: NodeView, job_id: str | None) -> None:
    """Add a step that failed."""
    known = {} if isinstance(view.error, msgspec.UnsetType) else msgspec.json.decode(view.error)
    if job_id is not None:
        error.failed_job_ids.append(job_id)
    error.errors.append({"job_id": job_id, "step": view.id or view.path, "path": view.path, **error_members(known)})


def _name(error: WorkflowError) -> None:
    """Let an error say which step failed first, and why."""
    first = error.errors[0]
    error.failed_step = first["path"]
    why = ": ".join(filter(None, (first["type"], first["message"])))
    error.message = f"The step {first['path']!r} failed: {why}"[:MAX_MESSAGE]


def error_members(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of the error of a step."""
    return {
        "code": known.get("code", "discarded"),
        "type": known.get("type"),
        "message": known.get("message", "The job was discarded, and no error was recorded."),
        "attempt": known.get("attempt", 0),
    }

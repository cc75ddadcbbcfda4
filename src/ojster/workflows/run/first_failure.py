"""The step whose failure made a workflow fail."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ojster.workflows.run.graph import Graph
from ojster.workflows.stored_workflow import Workflow

_decode: Final = msgspec.json.decode

_FIRST_FAILURE: Final = """
    SELECT
        CASE WHEN c.kind = 'fallback' THEN c.name ELSE n.name END,
        CASE WHEN c.kind = 'fallback' THEN c.position ELSE n.position END,
        n.job_id, n.error, j.type, j.errors
    FROM nodes AS n
    JOIN nodes AS c ON c.id = n.parent
    LEFT JOIN jobs AS j ON j.id = n.job_id
    WHERE n.id BETWEEN ? AND ? AND n.state = 'failed' AND n.kind = 'job' AND n.tolerated = 0
    ORDER BY n.finished_at, n.id
    LIMIT 1
"""
"""Selects the job step that failed first. A step with a fallback, and the fallback, have the id of both together."""


def why_failed(graph: Graph, workflow: Workflow) -> dict[str, Any]:
    """Return the cause of a failed workflow, for its event."""
    if workflow.error is not None:
        return {"error": _decode(workflow.error)}
    graph.write_nodes()
    rows = graph.tx.execute(_FIRST_FAILURE, workflow.numbers)
    for name, position, job_id, error, type, errors in rows:
        return {
            "failed_step_id": name or str(position),
            "failed_step_type": type,
            "failed_job_id": job_id,
            "error": _decode(error) if error is not None else errors and _decode(errors)[-1],
        }
    return {}

"""The start of workflows, with the first of their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.core.job import NODE_BITS, Job
from ojster.storage.transaction import Transaction
from ojster.workflows.advance import emit
from ojster.workflows.graph import WORKFLOW_COLUMNS, Workflow


def begin_workflows(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Set the start time of workflows that have their first active job."""
    seqs = {job.node >> NODE_BITS for job in jobs if job.node is not None}
    if not seqs:
        return
    # Skip locked workflows, because a claim must not wait: the end of the job records their start.
    waiting = tx.execute(
        f"SELECT seq FROM workflows WHERE seq {tx.among} AND started_at IS NULL ORDER BY seq{tx.skip_locked}",
        (tx.integers(sorted(seqs)),),
    )
    for (seq,) in waiting:
        begun = tx.execute(
            "UPDATE workflows SET started_at = :now, version = version + 1 WHERE seq = :seq AND started_at IS NULL "
            f"RETURNING {WORKFLOW_COLUMNS}",
            {"now": tx.now, "seq": seq},
        )
        for row in begun:
            workflow = Workflow(*row)
            tx.effects.workflows[workflow.id] = None
            emit(tx, "workflow.started", workflow, total_steps=workflow.jobs)

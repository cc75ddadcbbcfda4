"""The start of workflows, with the first of their jobs."""

from __future__ import annotations

from collections.abc import Collection

from ojster.storage.transaction import Transaction
from ojster.workflows.stored_workflow import WORKFLOW_COLUMNS, Workflow, emit
from ojster.workflows.topics import wake_followers


def begin_workflows(tx: Transaction, seqs: Collection[int]) -> None:
    """Set the start time of those workflows, given by ``seq``, that have none yet: their first job is active."""
    if not seqs:
        return
    chosen = sorted(seqs)
    if tx.skip_locked:  # because a claim must not wait: for a locked workflow, the end of the job records the start
        rows = tx.execute(
            f"SELECT seq FROM workflows WHERE seq {tx.among} AND started_at IS NULL ORDER BY seq{tx.skip_locked}",
            (tx.integers(chosen),),
        )
        chosen = [seq for (seq,) in rows]
    if not chosen:
        return
    begun = tx.execute(
        f"""
        UPDATE workflows
        SET started_at = ?, version = version + 1
        WHERE seq {tx.among} AND started_at IS NULL
        RETURNING {WORKFLOW_COLUMNS}
        """,
        (tx.now, tx.integers(chosen)),
    )
    for row in begun:
        workflow = Workflow(*row)
        wake_followers(tx, workflow.id)
        emit(tx, "workflow.started", workflow, total_steps=workflow.jobs)

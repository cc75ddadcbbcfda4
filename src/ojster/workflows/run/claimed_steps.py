"""Facts about claimed steps, read in one statement for everything that needs them, and the start of their workflows.

The facts about steps that started in the same transaction are known already.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ojster.core.job import NODE_BITS, Job
from ojster.storage.transaction import Transaction
from ojster.workflows.node import Inputs, Node
from ojster.workflows.stored_workflow import WORKFLOW_COLUMNS, StoredWorkflow, emit
from ojster.workflows.topics import wake_followers


class ClaimedStep(NamedTuple):
    """A step whose job is handed out."""

    node: int
    source: int | None
    """The node with the ``inputs`` that apply to its job: see ``ojster.workflows.node.Node``."""
    inputs: Inputs | None
    is_stopped: bool
    """Whether its workflow is held, or has given it up."""
    has_begun: bool
    """Whether its workflow had a job that started."""


_STEPS: Final = f"""
    SELECT n.id, n.source, s.inputs, n.verdict IS NOT NULL OR w.held_at IS NOT NULL, w.started_at IS NOT NULL
    FROM nodes AS n
    JOIN workflows AS w ON w.seq = n.id >> {NODE_BITS}
    LEFT JOIN nodes AS s ON s.id = n.source
    WHERE n.id
"""


STARTED: Final = "steps that have started in this transaction"
"""What is known in a transaction: the ids of these steps, each with its source and inputs."""


def note_step(tx: Transaction, node: Node, source: Node | None, workflow: StoredWorkflow) -> None:
    """Note the facts about a step that starts in this transaction, which has locked its workflow."""
    is_stopped = node.verdict is not None or workflow.held_at is not None
    inputs = None if source is None else source.inputs
    tx.known[_STEPS][node.id] = (node.id, node.source, inputs, is_stopped, workflow.started_at is not None)
    tx.known[STARTED][node.id] = (node.source, inputs)


def claimed_steps(tx: Transaction, jobs: Sequence[Job]) -> list[ClaimedStep]:
    """Return the steps of jobs. What is known of them in this transaction is not read again."""
    known = tx.known[_STEPS]
    nodes = [job.node for job in jobs if job.node is not None]
    if missing := [node for node in nodes if node not in known]:
        for row in tx.execute(_STEPS + tx.among, (tx.integers(missing),)):
            known[row[0]] = row
    return [ClaimedStep(*known[node]) for node in nodes if node in known]


def begin_workflows(tx: Transaction, seqs: Collection[int]) -> None:
    """Set the start time of those workflows, given by ``seq``, that have none yet: their first job is active."""
    if not seqs:
        return
    # SKIP LOCKED because a claim must not wait: for a locked workflow, the end of the job records the start.
    free = f"SELECT seq FROM workflows WHERE seq {tx.among} AND started_at IS NULL ORDER BY seq{tx.skip_locked}"
    begun = tx.execute(
        f"""
        UPDATE workflows
        SET started_at = ?, version = version + 1
        WHERE seq {tx.among_rows(free)}
        RETURNING {WORKFLOW_COLUMNS}
        """,
        (tx.now, tx.integers(sorted(seqs))),
    )
    for row in begun:
        workflow = StoredWorkflow(*row)
        wake_followers(tx, workflow.id)
        emit(tx, "workflow.started", workflow, total_steps=workflow.jobs)

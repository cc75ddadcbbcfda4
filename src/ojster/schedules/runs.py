"""Unfinished runs of cron jobs: what keeps the next one from starting, and what it cancels.

Runs of a backfill are not among them: however long it takes, the schedule goes on.
"""

from __future__ import annotations

from typing import Any

from ojster.core.job import Job
from ojster.core.job_table import JOB_COLUMNS
from ojster.jobs.authorship import creators_of
from ojster.jobs.extension import settle
from ojster.jobs.transitions import cancel_job
from ojster.storage.transaction import Transaction
from ojster.workflows.run.cancellation import WorkflowCancellation, cancel_workflows
from ojster.workflows.run.turns import SCHEDULED_LINE
from ojster.workflows.stored_workflow import FINAL_STATES


def unfinished_run(tx: Transaction, name: str) -> dict[str, Any]:
    """Return what the event of a skipped occurrence says about the run that has not finished; empty: there is none.

    Also of the other kind: the cron job may have started jobs before it started workflows.
    """
    for job in unfinished_jobs(tx, name):
        return {"active_job_id": job.id, "existing_job_id": job.id}
    for id, _ in unfinished_workflows(tx, name):
        return {"active_workflow_id": id, "existing_workflow_id": id}
    return {}


def cancel_unfinished(tx: Transaction, name: str) -> None:
    """Cancel the unfinished runs of a cron job. Workflows that clean up may do so to the end."""
    # Lock only jobs that are to be cancelled: a fetch skips locked jobs, and is not notified when they are free.
    for job in unfinished_jobs(tx, name, tx.for_update):
        cancel_job(tx, job)
    settle(tx)
    running = [id for id, state in unfinished_workflows(tx, name) if state not in FINAL_STATES]
    cancel_workflows(tx, [WorkflowCancellation(id, stop_active=True, stop_flows=False) for id in running])
    settle(tx)


def unfinished_jobs(tx: Transaction, name: str, lock: str = "") -> list[Job]:
    """Return the unfinished jobs of a cron job, the oldest first, without those of backfills.

    ``lock``: a clause that locks them.
    """
    rows = tx.execute(
        f"""
        SELECT {JOB_COLUMNS}
        FROM jobs
        WHERE cron_name = :name
            AND finished_at IS NULL
            AND (exclusive_key IS NULL OR exclusive_key = :key)
        ORDER BY seq{lock}
        """,
        {"name": name, "key": key_of_line(name, SCHEDULED_LINE)},
    )
    return [Job(*row) for row in rows]


def count_waiting(tx: Transaction, name: str, at_most: int) -> int:
    """Return how many runs of a schedule wait for their turn; at most so many of each kind are counted."""
    bounds = {"name": name, "at_most": at_most}
    jobs = tx.execute(
        """
        SELECT 1
        FROM jobs
        WHERE cron_name = :name AND finished_at IS NULL AND exclusive_key = :key AND state <> 'active'
        LIMIT :at_most
        """,
        bounds | {"key": key_of_line(name, SCHEDULED_LINE)},
    )
    # lower() keeps the planner from the index of all pending workflows.
    workflows = tx.execute(
        """
        SELECT 1
        FROM workflows
        WHERE cron_name = :name AND finished_at IS NULL AND turn_line = :line AND lower(state) = 'pending'
        LIMIT :at_most
        """,
        bounds | {"line": SCHEDULED_LINE},
    )
    return len(jobs) + len(workflows)


def queues_of_next(tx: Transaction, job: Job) -> list[str]:
    """Return the queues of the runs that wait until this run of the same cron job ends.

    They differ where the cron job was changed meanwhile, or a dead letter was moved.
    """
    rows = tx.execute(
        """
        SELECT DISTINCT queue
        FROM jobs
        WHERE cron_name = (SELECT cron_name FROM jobs WHERE seq = :seq)
            AND finished_at IS NULL
            AND state = 'available'
            AND exclusive_key = :key
        """,
        {"seq": job.seq, "key": job.exclusive_key},
    )
    return [queue for (queue,) in rows]


def unfinished_workflows(tx: Transaction, name: str) -> list[tuple[str, str]]:
    """Return the ids and the states of the unfinished workflows of a cron job, the oldest first, as for jobs."""
    rows = tx.execute(
        """
        SELECT id, state
        FROM workflows
        WHERE cron_name = :name AND finished_at IS NULL AND turn_line <= :line
        ORDER BY seq
        """,
        {"name": name, "line": SCHEDULED_LINE},
    )
    return [(id, state) for id, state in rows]


def creators_of_unfinished(tx: Transaction, name: str) -> set[str | None]:
    """Return who created the unfinished runs of a cron job."""
    jobs = unfinished_jobs(tx, name)
    tx.load_envelopes(jobs)
    rows = tx.execute(
        "SELECT DISTINCT created_by FROM workflows WHERE cron_name = :name AND finished_at IS NULL", {"name": name}
    )
    return {*creators_of(tx, jobs).values(), *(creator for (creator,) in rows)}


def key_of_line(name: str, line: int) -> str:
    """Return the exclusive key of the jobs of a cron job that run one after the other, in one of its lines."""
    return f"cron:{name}" if line == SCHEDULED_LINE else f"cron:{name}#{line}"

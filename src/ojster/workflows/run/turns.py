"""Turns of the workflows that one cron job starts: if its overlap policy is ``enqueue``, or they are backfilled.

A workflow that takes turns stays pending until the earlier ones in its line have finished. The end of each wakes the
next one. Its line is a number: 1 has the runs of the schedule, those above it have the runs of backfills, and 0 means
that it takes no turns.

Spec: ojs-cron 6
"""

from __future__ import annotations

from typing import Final

from ojster.core.durations import SECOND
from ojster.storage.transaction import Transaction
from ojster.workflows.stored_workflow import StoredWorkflow

TURN_CHECK_DELAY_US: Final = 10 * SECOND
"""Time after which a waiting workflow looks again whether it is its turn, in microseconds.

It is for the rare case that the earlier one finished in a transaction that could not see it.
"""

SCHEDULED_LINE: Final = 1
"""The line of the runs of the schedule."""


def waits_for_turn(tx: Transaction, workflow: StoredWorkflow) -> bool:
    """Return whether a pending workflow must wait for others; set when it looks again.

    The next attempt of one is ahead of those that have not begun.
    """
    if not workflow.turn_line:
        return False
    earlier = tx.execute(
        """
        SELECT 1
        FROM workflows
        WHERE cron_name = :cron_name
            AND finished_at IS NULL
            AND turn_line IN (:line, :other)
            AND seq <> :seq
            AND (state <> 'pending' OR (:is_first AND (seq < :seq OR previous_attempt IS NOT NULL)))
        LIMIT 1
        """,
        {
            "cron_name": workflow.cron_name,
            **_lines(workflow),
            "seq": workflow.seq,
            "is_first": workflow.previous_attempt is None,
        },
    )
    if not earlier:
        return False
    workflow.due_at = min(tx.now + TURN_CHECK_DELAY_US, workflow.expires_at or tx.now + TURN_CHECK_DELAY_US)
    return True


def runs_instead(tx: Transaction, workflow: StoredWorkflow) -> str | None:
    """Return the id of another run of the cron job that has begun and has not finished; ``None``: there is none."""
    rows = tx.execute(
        """
        SELECT id
        FROM workflows
        WHERE cron_name = :cron_name
            AND finished_at IS NULL
            AND turn_line IN (:line, :other)
            AND seq <> :seq
            AND state <> 'pending'
        LIMIT 1
        """,
        {"cron_name": workflow.cron_name, **_lines(workflow), "seq": workflow.seq},
    )
    return str(rows[0][0]) if rows else None


def wake_next(tx: Transaction, workflow: StoredWorkflow) -> None:
    """Let the next workflow of a cron job look whether it is its turn, because this one has finished."""
    if workflow.cron_name is None:
        return
    # A locked workflow changes anyway, and looks again by itself: this one is locked, and must not wait for a later
    # one that waits for it.
    query = f"""
        SELECT seq
        FROM workflows
        WHERE cron_name = :cron_name
            AND finished_at IS NULL
            AND turn_line = :line
            AND state = 'pending'
            AND (scheduled_at IS NULL OR scheduled_at <= :now)
        ORDER BY seq
        LIMIT 1{tx.skip_locked}
        """
    line = workflow.turn_line or SCHEDULED_LINE
    for (seq,) in tx.execute(query, {"cron_name": workflow.cron_name, "line": line, "now": tx.now}):
        tx.execute("UPDATE workflows SET due_at = :now WHERE seq = :seq", {"now": tx.now, "seq": seq})
        tx.expect(tx.now)


def _lines(workflow: StoredWorkflow) -> dict[str, int]:
    """Return the lines of the workflows ahead of one: its own; for a run of the schedule, also that of no turns."""
    return {"line": workflow.turn_line, "other": 0 if workflow.turn_line == SCHEDULED_LINE else workflow.turn_line}

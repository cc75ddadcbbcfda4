"""What holds of the tables after each transaction, whatever has happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction

_ORPHANS: Final = {
    "payloads of no job": ("payloads", "seq", "jobs", "seq"),
    "jobs without a payload": ("jobs", "seq", "payloads", "seq"),
    "checkpoints of no job": ("checkpoints", "seq", "jobs", "seq"),
    "history of no job": ("job_history", "seq", "jobs", "seq"),
    "answers for no job": ("resumptions", "seq", "jobs", "seq"),
    "ending attempts of no job": ("ending_attempts", "seq", "jobs", "seq"),
    "former steps of no job": ("former_steps", "seq", "jobs", "seq"),
    "nodes of no workflow": ("nodes", "id >> 20", "workflows", "seq"),
    "requests of no node": ("node_specs", "id", "nodes", "id"),
    "edges from no node": ("node_edges", "source", "nodes", "id"),
    "edges to no node": ("node_edges", "target", "nodes", "id"),
    "reviews of no node": ("node_reviews", "node", "nodes", "id"),
    "elements of no map": ("map_elements", "node", "nodes", "id"),
    "later starts of no container": ("deferred_starts", "node", "nodes", "id"),
    "properties of no workflow": ("workflow_properties", "workflow", "workflows", "seq"),
    "values of no workflow": ("shared_values", "workflow", "workflows", "seq"),
}
"""Rows, each with a column, that belong to a row of another table."""

_ENDED: Final = "state IN ('completed', 'cancelled', 'discarded')"

_RULES: Final = {
    "counts of jobs that are wrong": """
        SELECT queue, state, sum(number)
        FROM (
            SELECT queue, state, -jobs AS number FROM job_counts
            UNION ALL
            SELECT queue, state, 1 FROM jobs
            UNION ALL
            SELECT '/tenant/' || tenant || '/' || queue, state, 1 FROM jobs WHERE tenant <> ''
        ) AS counted
        GROUP BY queue, state HAVING sum(number) <> 0
    """,
    "jobs whose end is not as their state says": f"SELECT id FROM jobs WHERE (finished_at IS NOT NULL) <> ({_ENDED})",
    "active jobs without a lease": "SELECT id FROM jobs WHERE state = 'active' AND due_at IS NULL",
    "waiting jobs that nothing will wake": """
        SELECT id FROM jobs WHERE state IN ('scheduled', 'retryable') AND due_at IS NULL
    """,
    "dead letters that are not discarded": "SELECT id FROM jobs WHERE dead = 1 AND state <> 'discarded'",
    "containers that count their unfinished steps wrong": """
        SELECT container.id
        FROM nodes AS container
        JOIN nodes AS child ON child.parent = container.id
        GROUP BY container.id, container.total, container.unfinished
        HAVING container.total = count(*)
            AND container.unfinished <> sum(CASE WHEN child.finished_at IS NULL THEN 1 ELSE 0 END)
    """,
    "jobs that ended, but whose step goes on": """
        SELECT jobs.id
        FROM nodes
        JOIN jobs ON jobs.id = nodes.job_id
        WHERE nodes.state = 'started' AND jobs.finished_at IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM ending_attempts WHERE ending_attempts.seq = jobs.seq)
    """,
    "jobs that go on, but whose step has ended": """
        SELECT jobs.id
        FROM nodes
        JOIN jobs ON jobs.id = nodes.job_id
        WHERE nodes.finished_at IS NOT NULL AND jobs.finished_at IS NULL
    """,
    "workflows that have ended before their jobs": """
        SELECT workflows.id
        FROM workflows
        JOIN nodes ON nodes.id >> 20 = workflows.seq
        JOIN jobs ON jobs.node = nodes.id
        WHERE workflows.finished_at IS NOT NULL AND jobs.finished_at IS NULL
    """,
}

_LEFT: Final = tuple(
    dict.fromkeys([*(table for table, *_ in _ORPHANS.values()), "workflows", "notes", "early_answers", "rate_limits"])
)


@for_each
def broken(tx: Transaction, _: object) -> dict[str, Any]:
    """Return the rows that break a rule, by rule."""
    found: dict[str, Any] = {}
    for rule, (table, column, other, its) in _ORPHANS.items():
        text = f"SELECT {column} FROM {table} WHERE {column} NOT IN (SELECT {its} FROM {other})"
        found[rule] = tx.execute(text)
    for rule, text in _RULES.items():
        found[rule] = tx.execute(text)
    return {rule: rows for rule, rows in found.items() if rows}


@for_each
def unfinished(tx: Transaction, _: object) -> list[tuple[Any, ...]]:
    """Return the jobs and workflows that have not ended, with what tells why."""
    jobs = tx.execute(
        "SELECT id, state, queue, limit_key, suspension, node, due_at FROM jobs WHERE finished_at IS NULL"
    )
    return [*jobs, *tx.execute("SELECT id, state, held_at, due_at FROM workflows WHERE finished_at IS NULL")]


@for_each
def left(tx: Transaction, _: object) -> Sequence[str]:
    """Return the tables of jobs and workflows that have rows."""
    return [table for table in _LEFT if tx.execute(f"SELECT 1 FROM {table} LIMIT 1")]

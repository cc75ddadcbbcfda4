"""The table of jobs as SQL names it: its columns, and the conditions by which jobs are claimed."""

from __future__ import annotations

from typing import Final, Literal

JOB_COLUMNS = (
    "seq, id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, started_at, finished_at, "
    "expires_at, due_at, timeout, lease, retry_delay, worker_id, unique_key, cron_name, exclusive_key, dead, progress, "
    "result, errors, node, superseded_by, error_type, checkpoint_number, limit_key, tenant, version, "
    "needs, agent, suspension, flags, losses, trace_id"
)
"""The columns of ``jobs``, in the order of the fields of ``Job``."""

JOB_COLUMNS_OF_J: Final = ", ".join("j." + column.strip() for column in JOB_COLUMNS.split(","))
"""``JOB_COLUMNS``, qualified with the table alias ``j``."""

NEW_JOB: Final[dict[str, Literal["bigint", "text", "bytea", "uuid"]]] = {
    "id": "uuid",
    "type": "text",
    "queue": "text",
    "state": "text",
    "priority": "bigint",
    "max_attempts": "bigint",
    "created_at": "bigint",
    "enqueued_at": "bigint",
    "expires_at": "bigint",
    "due_at": "bigint",
    "timeout": "bigint",
    "lease": "bigint",
    "unique_key": "text",
    "cron_name": "text",
    "exclusive_key": "text",
    "node": "bigint",
    "limit_key": "text",
    "tenant": "text",
    "version": "bigint",
    "needs": "text",
    "agent": "bytea",
    "flags": "bigint",
    "suspension": "text",
    "trace_id": "text",
}
"""Columns of a new job and their types, without the envelope."""

STARTED: Final[dict[str, Literal["bigint", "text"]]] = {"started_at": "bigint", "due_at": "bigint", "worker_id": "text"}
"""Columns that a start changes beside the state and the number of attempts, and their types."""

AT_PLACE: Final = "j.queue = ? AND j.tenant = ?"
"""Condition for jobs of one tenant in one queue: the first columns of the indexes of available jobs."""

PLAIN: Final = "j.limit_key IS NULL AND j.needs IS NULL"
"""Condition for jobs without a rate limit and requirements, worded as the index of available jobs."""

WITH_NEEDS: Final = "j.needs = ? AND j.limit_key IS NULL"
"""Condition for jobs with given requirements and no rate limit, worded as the index of available jobs."""

WITH_LIMIT: Final = "j.limit_key = ?"
"""Condition for jobs of a rate-limit key, worded as the index of available jobs."""

AVAILABLE_HERE: Final = "FROM jobs WHERE queue = :queue AND tenant = :tenant AND state = 'available'"
"""FROM and WHERE for the available jobs of one tenant in one queue."""

HELD_BY_WORKER: Final = "FROM jobs WHERE state = 'active' AND due_at IS NOT NULL AND worker_id = :worker_id"
"""FROM and WHERE for the active jobs of a worker, worded as the index of leases."""


def next_values(column: str, waiting: str) -> str:
    """Return the query for the next values of a column, ``:most`` after ``:after``, each once, as ``name``.

    It looks up each value after the one before it, so that the cost depends on the number of values, not of jobs.

    Parameters
    ----------
    column:
        A column of ``jobs``, the last but one of an index.
    waiting:
        FROM and WHERE for the jobs with the first columns of that index.
    """
    return f"""
        SELECT name
        FROM (
            WITH RECURSIVE named(name) AS (
                SELECT (SELECT min({column}) {waiting} AND {column} > :after)
                UNION ALL
                SELECT (SELECT min({column}) {waiting} AND {column} > named.name)
                FROM named
                WHERE named.name IS NOT NULL
            )
            SELECT name
            FROM named
            WHERE name IS NOT NULL
            LIMIT :most
        ) AS named
    """


AVAILABLE_CONDITIONS: Final = (
    ("limit_key IS NULL AND needs IS NULL", "priority DESC"),
    ("limit_key IS NOT NULL", "limit_key"),
    ("needs IS NOT NULL AND limit_key IS NULL", "needs"),
)
"""Conditions that together cover all available jobs, each worded as its index, with the index's first sort column."""

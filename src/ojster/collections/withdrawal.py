"""Items of steps that run again: they are removed from the collection of their workflow, and promised anew."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.collections.contents import NAMES_PER_STATEMENT, release_references
from ojster.collections.items import key_of_workflow
from ojster.storage.transaction import Transaction


def withdraw_items(tx: Transaction, workflow: int, jobs: Sequence[str]) -> None:
    """Remove the items that jobs, given by their ids, have added to the collection of their workflow.

    The names that steps had promised are promised again. A name with references is not: its item shows it when the
    step succeeds.
    """
    key = key_of_workflow(workflow)
    for first in range(0, len(jobs), NAMES_PER_STATEMENT):
        some = jobs[first : first + NAMES_PER_STATEMENT]
        removed = tx.execute(
            f"""
            UPDATE collection_items
            SET removed_at = ?
            WHERE collection = ? AND removed_at IS NULL AND job_id IN ({", ".join("?" * len(some))})
            RETURNING name, job_id, file_id
            """,
            (tx.now, key, *some),
        )
        release_references(tx, [row[1:] for row in removed])
        _promise_again(tx, key, [name for name, *_ in removed])


def _promise_again(tx: Transaction, key: str, names: Sequence[str]) -> None:
    for first in range(0, len(names), NAMES_PER_STATEMENT):
        some = names[first : first + NAMES_PER_STATEMENT]
        tx.execute(
            f"""
            INSERT INTO collection_items (collection, name, kind, category, data, created_at, created_by)
            SELECT collection, name, kind, category, data, created_at, created_by
            FROM collection_items
            WHERE collection = ? AND removed_at IS NOT NULL AND kind = 'promise'
                AND name IN ({", ".join("?" * len(some))})
            ORDER BY id DESC
            ON CONFLICT (collection, name)
            WHERE removed_at IS NULL DO NOTHING
            """,
            (key, *some),
        )

"""Items of steps that run again: they are removed from the collection of their workflow, and promised anew."""

from __future__ import annotations

from collections.abc import Sequence

from ojster.collections.contents import release_references
from ojster.collections.items import key_of_workflow
from ojster.storage.transaction import Transaction


def withdraw_items(tx: Transaction, workflow: int, jobs: Sequence[str]) -> None:
    """Remove the items that jobs, given by their ids, have added to the collection of their workflow.

    The names that steps had promised are promised again. A name with references is not: its item shows it when the
    step succeeds.
    """
    if not jobs:
        return
    key = key_of_workflow(workflow)
    removed = tx.execute(
        f"""
        UPDATE collection_items
        SET removed_at = ?
        WHERE collection = ? AND removed_at IS NULL AND CAST(job_id AS text) {tx.among_texts}
        RETURNING name, job_id, file_id
        """,
        (tx.now, key, tx.texts(jobs)),
    )
    release_references(tx, [row[1:] for row in removed])
    if names := [name for name, *_ in removed]:
        tx.execute(
            f"""
            INSERT INTO collection_items (collection, name, kind, category, data, created_at, created_by)
            SELECT collection, name, kind, category, data, created_at, created_by
            FROM collection_items
            WHERE collection = ? AND removed_at IS NOT NULL AND kind = 'promise' AND name {tx.among_texts}
            ORDER BY id DESC
            ON CONFLICT (collection, name)
            WHERE removed_at IS NULL DO NOTHING
            """,
            (key, tx.texts(names)),
        )

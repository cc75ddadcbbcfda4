"""Targets of workflows, and locks on the targets of other workflows."""

from __future__ import annotations

from ojster.core.errors import Conflict, Duplicate, OjsterError
from ojster.storage.transaction import Later, Transaction
from ojster.workflows.locks import compile_lock


def refuse_target(
    tx: Transaction,
    tenant: str,
    target: str | None,
    key: str | None,
    locks: str | None,
    *,
    replaces_holder: bool = False,
) -> OjsterError | None:
    """Return the error if a workflow cannot have its target, else ``None``.

    Parameters
    ----------
    key:
        Key that no other unfinished workflow may have.
    locks:
        Targets that the workflow itself locks.
    replaces_holder:
        Whether the workflow replaces one that had the target. Locks that other workflows hold on it are then ignored.
    """
    if target is None:
        return None
    if locks is not None and tx.lock_keys({f"locks of {tenant}"}):  # else two transactions could miss each other's lock
        return Later("Another transaction is locking targets. Retry later.")
    # The duplicate first: a workflow may lock its own target, and a repeated start is not refused because of that lock.
    rows = tx.execute("SELECT id FROM workflows WHERE target_key = :key AND finished_at IS NULL", {"key": key})
    for (existing,) in rows:
        message = f"Another workflow with the same definition, target and params has not finished: {existing}."
        return Duplicate(message, existing_workflow_id=str(existing), target=target)
    if not replaces_holder:
        rows = tx.execute(
            "SELECT id, locks FROM workflows WHERE tenant = :tenant AND locks IS NOT NULL AND finished_at IS NULL",
            {"tenant": tenant},
        )
        other = next((str(id) for id, expression in rows if compile_lock(expression)(target)), None)
        if other is not None:
            message = f"The target is currently locked by another workflow: {other}."
            return Conflict(message, existing_workflow_id=other, target=target)
    return None

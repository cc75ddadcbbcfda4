"""May a workflow have its target? Not while another has the same, or keeps all others from it. (seed 002)"""

from __future__ import annotations

from ojster.core.errors import Conflict, Duplicate, OjsterError
from ojster.storage.transaction import Later, Transaction
from ojster.workflows.locks import compile_lock


def refuse_target(
    tx: Transaction, tenant: str, target: str | None, key: str | None, locks: str | None, *, has_it: bool = False
) -> OjsterError | None:
    """Return why a workflow cannot have a target, if so ("Job properties" and "Locking other jobs").

    Parameters
    ----------
    key:
        What no other unfinished workflow may have.
    locks:
        What it locks itself.
    has_it:
        Whether it takes the place of a workflow that had the target: then it does not matter who has locked it since.
    """
    if target is None:
        return None
    if locks is not None and tx.lock_keys({f"locks of {tenant}"}):  # two that do both could else pass each other
        return Later("Another transaction that locks targets does not end.")
    if not has_it and (other := _holder_of_lock(tx, tenant, target)) is not None:
        message = f"The target is currently locked by another workflow: {other}."
        return Conflict(message, existing_workflow_id=other, target=target)
    rows = tx.execute("SELECT id FROM workflows WHERE target_key = :key AND finished_at IS NULL", {"key": key})
    for (other,) in rows:
        message = f"Another workflow with the same definition, target and params has not finished: {other}."
        return Duplicate(message, existing_workflow_id=str(other), target=target)
    return None


def _holder_of_lock(tx: Transaction, tenant: str, target: str) -> str | None:
    """Return an unfinished workflow that keeps others from a target, if there is one."""
    rows = tx.execute(
        "SELECT id, locks FROM workflows WHERE tenant = :tenant AND locks IS NOT NULL AND finished_at IS NULL",
        {"tenant": tenant},
    )
    return next((str(id) for id, locks in rows if compile_lock(locks)(target)), None)

"""Locks on queues and tenants whose limits a push must count: they come before all other locks of a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final, Literal

from ojster.storage.effects import PerTransaction
from ojster.storage.transaction import Later, Transaction

_KEYS: Final = {"queues": "name", "tenants": "id"}

_LOCKED: Final = PerTransaction[set[tuple[str, str]]](set)
"""Rows that this transaction has locked, each by its table and key."""


def lock_limits(tx: Transaction, table: Literal["queues", "tenants"], keys: Iterable[str]) -> Set[str]:
    """Lock queues or tenants until the transaction ends; return those that another transaction has locked.

    Queues come before tenants, and each in the order of its keys. A call waits for locks that come after all that the
    transaction has; else it tries them, so that no two transactions wait for each other, and what others hold is
    refused with ``held_by_others``.
    """
    locked, key = _LOCKED(tx), _KEYS[table]
    wanted = sorted({name for name in keys if (table, name) not in locked})
    if not tx.for_update or not wanted:
        return frozenset()
    waits = not locked or max(locked) < (table, wanted[0])
    lock = tx.for_update if waits else tx.skip_locked
    query = f"SELECT {key} FROM {table} WHERE {key} {tx.among_texts} ORDER BY {key}{lock}"
    rows = tx.execute(query, (tx.texts(wanted),))
    names = {name for (name,) in rows}
    locked.update((table, name) for name in names)
    return frozenset() if waits else set(wanted) - names


def held_by_others() -> Later:
    """Return the refusal of a push whose queue or tenant another transaction has locked."""
    return Later("Another open transaction pushes jobs to the same queue, or of the same tenant. Retry later.")

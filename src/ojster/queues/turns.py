"""What queues and tenants that share workers have received so far, in this process."""

from __future__ import annotations

from typing import Final

from ojster.queues.fairness import FairnessState
from ojster.storage.memory import Local
from ojster.storage.transaction import Transaction

MAX_REMEMBERED: Final = 1_000
"""Maximum number of groups of queues whose turns are remembered."""

_known: Final = Local[dict[object, FairnessState]](dict)


def turns_of(tx: Transaction, group: object) -> FairnessState:
    """Return what the members of a group have received: a pool, a share, or all tenants."""
    known = _known(tx)
    if group not in known:
        while len(known) >= MAX_REMEMBERED:
            del known[next(iter(known))]
        known[group] = FairnessState()
    return known[group]

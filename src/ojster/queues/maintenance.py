"""The maintenance mode: while it is on, no job is handed out or promoted, and time creates none.

Spec: ojs-admin-api 12
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.storage.system import drop, note, recall
from ojster.storage.transaction import Transaction

MAINTENANCE: Final = "maintenance"
"""Name of the stored value, and of the subject of events. While its row exists, the maintenance mode is on."""

LAST_MAINTENANCE: Final = "last_maintenance"
"""Name of the stored value that says when the last maintenance mode began and ended."""


class Maintenance(msgspec.Struct, frozen=True):
    """Maintenance mode: its reason, start and estimated end. Times are microseconds since the epoch."""

    enabled_at: int
    reason: str | None = None
    estimated_end: int | None = None


class PastMaintenance(msgspec.Struct, frozen=True):
    """When a maintenance mode began and ended, in microseconds since the epoch."""

    enabled_at: int
    ended_at: int


def last_maintenance(tx: Transaction) -> PastMaintenance | None:
    """Return the last maintenance mode that has ended, or ``None``: whether it is why something is late."""
    known = recall(tx, LAST_MAINTENANCE)
    return None if known is None else msgspec.json.decode(known, type=PastMaintenance)


def find_maintenance(tx: Transaction, requests: Sequence[None]) -> list[Maintenance | None]:
    """Return the maintenance mode, or ``None`` if it is off, for each request."""
    known = recall(tx, MAINTENANCE)
    maintenance = None if known is None else msgspec.json.decode(known, type=Maintenance)
    return [maintenance for _ in requests]


def switch_maintenance(tx: Transaction, wishes: Sequence[Maintenance | None]) -> list[Maintenance | None]:
    """Turn the maintenance mode on, or off (``None``). If it is already on, ``enabled_at`` stays unchanged."""
    for wish in wishes:
        (known,) = find_maintenance(tx, (None,))
        if wish is None:
            drop(tx, MAINTENANCE)
            if known is not None:
                note(tx, LAST_MAINTENANCE, PastMaintenance(known.enabled_at, tx.now))
            tx.effects.opened.update(name for (name,) in tx.execute("SELECT name FROM queues"))
            tx.expect(tx.now)
        else:
            if known is not None:
                wish = msgspec.structs.replace(wish, enabled_at=known.enabled_at)
            note(tx, MAINTENANCE, wish)
        if (wish is None) != (known is None):
            event = "system.maintenance_ended" if wish is None else "system.maintenance_started"
            tx.emit_about(event, MAINTENANCE, reason=wish.reason if wish else None)
    return find_maintenance(tx, [None for _ in wishes])

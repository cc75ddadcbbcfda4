"""Values stored for the whole system, by name; above all the maintenance mode.

Spec: ojs-admin-api 12
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.storage.transaction import Transaction

MAINTENANCE: Final = "maintenance"
"""Name of the maintenance mode. While its row exists, no job is handed out or promoted, and none is created by time."""

FOLLOWED_UNTIL: Final = "followed"
"""Name of the time until which callers follow the event log."""

RETENTION_POSITION: Final = "retention"
"""Name of the position of the retention scan, by kind of finished job."""


class Maintenance(msgspec.Struct, frozen=True):
    """Maintenance mode: its reason, start and estimated end. Times are microseconds since the epoch."""

    enabled_at: int
    reason: str | None = None
    estimated_end: int | None = None


def recall(tx: Transaction, name: str) -> bytes | None:
    """Return the value stored under a name, as JSON; ``None``: there is none."""
    rows = tx.execute("SELECT value FROM system WHERE name = :name", {"name": name})
    return rows[0][0] if rows else None


def note(tx: Transaction, name: str, value: Any) -> None:
    """Store a value under a name, in place of the previous one."""
    tx.execute(
        """
        INSERT INTO system (name, value)
        VALUES (:name, :value)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value
        """,
        {"name": name, "value": msgspec.json.encode(value)},
    )


def drop(tx: Transaction, name: str) -> None:
    """Delete the value stored under a name."""
    tx.execute("DELETE FROM system WHERE name = :name", {"name": name})


def find_maintenance(tx: Transaction, requests: Sequence[None]) -> list[Maintenance | None]:
    """Return the maintenance mode, or ``None`` if it is off, for each request."""
    known = recall(tx, MAINTENANCE)
    maintenance = None if known is None else msgspec.json.decode(known, type=Maintenance)
    return [maintenance for _ in requests]


def maintain(tx: Transaction, wishes: Sequence[Maintenance | None]) -> list[Maintenance | None]:
    """Turn the maintenance mode on, or off (``None``). If it is already on, ``enabled_at`` stays unchanged."""
    for wish in wishes:
        (known,) = find_maintenance(tx, (None,))
        if wish is None:
            drop(tx, MAINTENANCE)
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

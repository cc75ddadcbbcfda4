"""What is noted of the whole system, by name? Above all, whether it stands still (ojs-admin-api.md section 12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.storage.transaction import Transaction

MAINTENANCE: Final = "maintenance"
"""The name of its row: while there is one, no job is handed out and none is made by the clock."""

FOLLOWED: Final = "followed"
"""The name under which it is noted until when somebody wants to know what happens."""

FORGOTTEN: Final = "retention"
"""The name under which it is noted up to when jobs of queues without periods of their own are forgotten, by state."""


class Maintenance(msgspec.Struct, frozen=True):
    """Why the system stands still, since when, and until about when. Times are microseconds since the epoch."""

    enabled_at: int
    reason: str | None = None
    estimated_end: int | None = None


def recall(tx: Transaction, name: str) -> bytes | None:
    """Return what is noted under a name, as JSON."""
    rows = tx.execute("SELECT value FROM system WHERE name = :name", {"name": name})
    return rows[0][0] if rows else None


def note(tx: Transaction, name: str, value: Any) -> None:
    """Note something under a name, in the place of what was there."""
    tx.execute(
        "INSERT INTO system (name, value) VALUES (:name, :value) "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        {"name": name, "value": msgspec.json.encode(value)},
    )


def drop(tx: Transaction, name: str) -> None:
    """Forget what is noted under a name."""
    tx.execute("DELETE FROM system WHERE name = :name", {"name": name})


def find_maintenance(tx: Transaction, requests: Sequence[None]) -> list[Maintenance | None]:
    """Return why the system stands still, or ``None`` if it does not, for each request."""
    known = recall(tx, MAINTENANCE)
    found = None if known is None else msgspec.json.decode(known, type=Maintenance)
    return [found for _ in requests]


def maintain(tx: Transaction, wishes: Sequence[Maintenance | None]) -> list[Maintenance | None]:
    """Let the system stand still, or (``None``) go on. One that stands still already keeps the time since when."""
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

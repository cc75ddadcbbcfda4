"""Values stored for the whole system, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

FOLLOWED_UNTIL: Final = "followed"
"""Name of the time until which callers follow the event log."""

RETENTION_POSITION: Final = "retention"
"""Name of the position of the retention scan, by kind of finished job."""


class Executing(Protocol):
    """A transaction, as far as these values are concerned."""

    def execute(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""


def recall(tx: Executing, name: str) -> bytes | None:
    """Return the value stored under a name, as JSON; ``None``: there is none."""
    rows = tx.execute("SELECT value FROM system WHERE name = :name", {"name": name})
    return rows[0][0] if rows else None


def note(tx: Executing, name: str, value: Any) -> None:
    """Store a value under a name, in place of the previous one."""
    tx.execute(
        """
        INSERT INTO system (name, value)
        VALUES (:name, :value)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value
        """,
        {"name": name, "value": msgspec.json.encode(value)},
    )


def drop(tx: Executing, name: str) -> None:
    """Delete the value stored under a name."""
    tx.execute("DELETE FROM system WHERE name = :name", {"name": name})

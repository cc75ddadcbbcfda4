"""Where flows wait, and for how long they have slept: kept for people. Workers get only when it last did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.storage.transaction import Transaction
from ojster.workflows.flow import POSITION, FlowPosition

_encode: Final = msgspec.json.Encoder().encode


def keep_positions(tx: Transaction, positions: Sequence[tuple[int, FlowPosition]]) -> None:
    """Keep where flows wait, in the place of where they waited before; and each of their sleeps, once."""
    tx.execute_many(
        f"""
        INSERT INTO flow_records (flow, key, kind, name, asked_at, result)
        VALUES (?, '{POSITION}', 'position', ?, ?, ?)
        ON CONFLICT (flow, key) DO UPDATE SET
            name = excluded.name,
            asked_at = excluded.asked_at,
            result = excluded.result
        """,
        [(flow, position.version, tx.now, _encode(position.waits)) for flow, position in positions],
    )
    tx.execute_many(
        """
        INSERT INTO flow_records (flow, key, kind, name, asked_at, ended_at)
        VALUES (?, ?, 'sleep', ?, ?, ?)
        ON CONFLICT (flow, key) DO NOTHING
        """,
        [
            (flow, wait.key, wait.name, wait.since, wait.until)
            for flow, position in positions
            for wait in position.waits
            if wait.kind == "sleep" and wait.until is not None
        ],
    )

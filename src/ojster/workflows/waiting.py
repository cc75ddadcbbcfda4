"""What workflows wait for: approvals, answers of people, times, and resumptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final, get_args

from ojster.core.job import NODE_BITS
from ojster.storage.transaction import Transaction
from ojster.workflows.wait import WAIT_TYPE, WaitingFor

WAITING_FOR: Final[tuple[WaitingFor, ...]] = get_args(WaitingFor)

_SUSPENDED: Final = "state = 'pending' AND hold IS NOT NULL AND node IS NOT NULL AND hold <> 'resumed'"

_CONDITIONS: Final[dict[WaitingFor, str]] = {
    "form": f"type = '{WAIT_TYPE}' AND hold <> 'delay'",
    "delay": f"type = '{WAIT_TYPE}' AND hold = 'delay'",
    "suspension": f"type <> '{WAIT_TYPE}'",
}


def waits_for(what: WaitingFor) -> str:
    """Return the SQL condition that a workflow has a step which waits for something."""
    if what == "gate":
        return f"seq IN (SELECT id >> {NODE_BITS} FROM nodes WHERE state = 'blocked')"
    return f"seq IN (SELECT node >> {NODE_BITS} FROM jobs WHERE {_SUSPENDED} AND {_CONDITIONS[what]})"


def find_waits(tx: Transaction, seqs: Collection[int]) -> dict[int, list[WaitingFor]]:
    """Return what workflows wait for, by their ``seq``; those that wait for nothing are left out."""
    found: dict[int, list[WaitingFor]] = defaultdict(list)
    given = (tx.integers(sorted(seqs)),)
    gate = _exists("nodes AS n", "n.id", "n.state = 'blocked'")
    for (seq,) in tx.execute(f"SELECT w.seq FROM workflows AS w WHERE w.seq {tx.among} AND {gate}", given):
        found[seq].append("gate")
    held = _exists("jobs", "node", _SUSPENDED)
    waiting = [
        seq for (seq,) in tx.execute(f"SELECT w.seq FROM workflows AS w WHERE w.seq {tx.among} AND {held}", given)
    ]
    for what, condition in _CONDITIONS.items() if waiting else ():
        held = _exists("jobs", "node", f"{_SUSPENDED} AND {condition}")
        query = f"SELECT w.seq FROM workflows AS w WHERE w.seq {tx.among} AND {held}"
        for (seq,) in tx.execute(query, (tx.integers(sorted(waiting)),)):
            found[seq].append(what)
    return found


def _exists(table: str, node: str, condition: str) -> str:
    """Return the SQL condition that a row of a node of the workflow ``w`` fulfils a condition."""
    first, end = f"(w.seq << {NODE_BITS})", f"((w.seq + 1) << {NODE_BITS})"
    return f"EXISTS (SELECT 1 FROM {table} WHERE {condition} AND {node} >= {first} AND {node} < {end})"

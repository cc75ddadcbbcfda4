"""What workflows wait for: approvals, answers of people, times, promised items, and resumptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import PurePath
from typing import Any, Final, get_args

import msgspec

from ojster.core.job import NODE_BITS
from ojster.core.timestamps import format_optional, format_timestamp
from ojster.jobs.names import WAIT_TYPE
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import POSITION, FlowWait
from ojster.workflows.read.flow_info import WaitInfo
from ojster.workflows.wait import WaitingFor

WAITING_FOR: Final[tuple[WaitingFor, ...]] = get_args(WaitingFor)

IS_SUSPENDED: Final = "state = 'pending' AND suspension IS NOT NULL AND node IS NOT NULL AND suspension <> 'resumed'"
"""SQL condition of jobs of steps that wait for an answer, a time or a resumption."""

_BLOCKED: Final = "n.manual = 1 AND n.approved = 0 AND n.state = 'blocked'"
"""SQL condition of nodes that wait for their approval, worded as the index of what is not approved.

No index has the state of nodes: PostgreSQL would have to change every index whenever it changes.
"""

_CONDITIONS: Final[dict[WaitingFor, str]] = {
    "form": f"type = '{WAIT_TYPE}' AND suspension <> 'delay'",
    "delay": f"type = '{WAIT_TYPE}' AND suspension = 'delay'",
    "suspension": f"type <> '{WAIT_TYPE}' AND suspension <> 'flow'",
}

_PROMISED: Final = """
    node_edges AS e
    JOIN nodes AS s ON s.id = e.source
    JOIN nodes AS n ON n.id = e.target
    JOIN nodes AS c ON c.id = n.parent
"""
_WAITS_FOR_PROMISED: Final = """
    e.promised = 1
    AND n.state = 'waiting'
    AND c.state = 'started'
    AND s.state IN ('waiting', 'blocked', 'ready', 'started')
"""
"""A step could start if others had provided the items that they promised."""


def waits_for(what: WaitingFor) -> str:
    """Return the SQL condition that a workflow has a step which waits for something."""
    if what == "gate":
        return f"seq IN (SELECT n.id >> {NODE_BITS} FROM nodes AS n WHERE {_BLOCKED})"
    if what == "promise":
        return f"finished_at IS NULL AND {_exists(_PROMISED, 'e.target', _WAITS_FOR_PROMISED, 'workflows.seq')}"
    return f"seq IN (SELECT node >> {NODE_BITS} FROM jobs WHERE {IS_SUSPENDED} AND {_CONDITIONS[what]})"


_WAITS: Final[dict[WaitingFor, tuple[str, str, str]]] = {
    "gate": ("nodes AS n", "n.id", _BLOCKED),
    **{what: ("jobs", "node", f"{IS_SUSPENDED} AND {condition}") for what, condition in _CONDITIONS.items()},
    "promise": (_PROMISED, "e.target", _WAITS_FOR_PROMISED),
}
"""The table, the column with the id of a node, and the SQL condition of what waits for each."""


def find_waits(tx: Transaction, seqs: Collection[int]) -> dict[int, list[WaitingFor]]:
    """Return what unfinished workflows wait for, by their ``seq``; those that wait for nothing are left out."""
    waits_by_workflow: dict[int, list[WaitingFor]] = defaultdict(list)
    suspended = _waiting(tx, seqs, "jobs", "node", IS_SUSPENDED)
    for what, (table, node, condition) in _WAITS.items():
        for seq in _waiting(tx, suspended if table == "jobs" else seqs, table, node, condition):
            waits_by_workflow[seq].append(what)
    return waits_by_workflow


def _waiting(tx: Transaction, seqs: Collection[int], table: str, node: str, condition: str) -> list[int]:
    """Return which of some workflows have a row of a node that fulfils a condition."""
    if not seqs:
        return []
    query = f"SELECT w.seq FROM workflows AS w WHERE w.seq {tx.among} AND {_exists(table, node, condition)}"
    return [seq for (seq,) in tx.execute(query, (tx.integers(sorted(seqs)),))]


_WAITS_OF_ONE: Final = ", ".join(
    f"EXISTS (SELECT 1 FROM {table} WHERE {condition} AND {node} BETWEEN :first AND :last)"
    for table, node, condition in _WAITS.values()
)


def waits_of(tx: Transaction, numbers: tuple[int, int]) -> list[WaitingFor]:
    """Return what one workflow waits for, in one statement; ``numbers``: the first and last id of its nodes."""
    ((*counts,),) = tx.execute(f"SELECT {_WAITS_OF_ONE}", {"first": numbers[0], "last": numbers[1]})
    return [what for what, waits in zip(_WAITS, counts, strict=True) if waits]


def nodes_that_wait_for_items(tx: Transaction, numbers: tuple[int, int]) -> set[int]:
    """Return the ids of the nodes of a workflow that wait for promised items; ``numbers``: its first and last id."""
    rows = tx.execute(
        f"SELECT e.target FROM {_PROMISED} WHERE e.target BETWEEN ? AND ? AND {_WAITS_FOR_PROMISED}", numbers
    )
    return {id for (id,) in rows}


def _exists(table: str, node: str, condition: str, seq: str = "w.seq") -> str:
    """Return the SQL condition that a row of a node of a workflow, by default ``w``, fulfils a condition."""
    first, end = f"({seq} << {NODE_BITS})", f"(({seq} + 1) << {NODE_BITS})"
    return f"EXISTS (SELECT 1 FROM {table} WHERE {condition} AND {node} >= {first} AND {node} < {end})"


# Flows

decode_waits: Final = msgspec.json.Decoder(tuple[FlowWait, ...]).decode
"""Reads what a flow awaits, as its worker has noted it."""


def shown_wait(wait: FlowWait) -> WaitInfo:
    """Return something that a flow awaits as people see it."""
    kind: Any = wait.kind
    return WaitInfo(
        kind,
        wait.name,
        format_timestamp(wait.since),
        wait.key,
        format_optional(wait.until),
        None if wait.file is None else f"{PurePath(wait.file).name}:{wait.line} in {wait.function}",
        wait.code,
        wait.form,
    )


def waits_of_flows(tx: Transaction, flows: Collection[int]) -> dict[int, list[WaitInfo]]:
    """Return what flows wait for that no worker runs, by the node of the job that runs their function."""
    if not flows:
        return {}
    rows = tx.execute(
        f"""
        SELECT r.flow, r.result
        FROM flow_records AS r
        JOIN jobs AS j ON j.node = r.flow
        WHERE r.flow {tx.among} AND r.key = '{POSITION}' AND j.state = 'pending' AND j.suspension = 'flow'
        """,
        (tx.integers(sorted(flows)),),
    )
    return {flow: [shown_wait(wait) for wait in decode_waits(waits) if wait.kind != "update"] for flow, waits in rows}

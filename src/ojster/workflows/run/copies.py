"""Copies of workflows, with what their steps have come to: new workflows that go on from there."""

from __future__ import annotations

from typing import Any, Final

from ojster.collections.contents import copy_items_of_workflow
from ojster.core.ids import new_id
from ojster.storage.transaction import Transaction
from ojster.workflows.node import ENDED_STATES, Node
from ojster.workflows.stored_workflow import IS_VISIBLE, StoredWorkflow

# What has not ended is to run again in the copy. Ended steps keep their jobs: those have the results.
_NODE: Final = {name: name for name in Node.__struct_fields__} | {
    "id": "id + :by",
    "parent": "parent + :by",
    "source": "source + :by",
    "state": f"CASE WHEN state IN ({ENDED_STATES}) THEN state ELSE 'waiting' END",
    **{
        name: f"CASE WHEN state IN ({ENDED_STATES}) THEN {name} END"
        for name in ("verdict", "started_at", "finished_at", "job_id", "result", "error")
    },
}

_TABLES: Final[dict[str, tuple[dict[str, str], str]]] = {
    "nodes": (_NODE, "id"),
    "node_specs": ({"id": "id + :by", "spec": "spec"}, "id"),
    "node_edges": ({"source": "source + :by", "target": "target + :by", "promised": "promised"}, "source"),
    # A map that begins again creates what it has not created before.
    "map_elements": (
        {"node": "node + :by", "parked": "1"}
        | {name: name for name in ("start", "number", "tenant", "jobs", "elements")},
        "node",
    ),
    # Without the digests: the function of a flow that runs again may be corrected, and asks with the id of the copy.
    "flow_records": (
        {"flow": "flow + :by", "node": "node + :by"}
        | {
            name: name
            for name in ("key", "kind", "name", "asked_at", "ended_at", "place", "seen_at", "result", "error")
        },
        "flow",
    ),
    # What a flow has received of a broadcast does not come again.
    "broadcast_receivers": (
        {"flow": "flow + :by", "waits": "0"} | {name: name for name in ("key", "topic", "since", "taken")},
        "flow",
    ),
}
"""The tables with the parts of a workflow: an expression for each column, and the column that says which part it is."""

_MESSAGE_COLUMNS: Final = "name, idempotency_key, sent_at, sent_by, taken_by, data, answered_at, answer, error"


MAX_FORKS: Final = 100
"""Maximum number of forks that are shown with a workflow."""


def copy_of(
    tx: Transaction, source: StoredWorkflow, seq: int, id: str | None, step: str | None, by: str | None
) -> StoredWorkflow:
    """Return a workflow that begins as a copy of another, without its parts.

    Parameters
    ----------
    seq, id:
        The number and the id of the copy; ``None``: a new id.
    step:
        Name of the step from which it runs again.
    by:
        Name of its creator, if it is known.
    """
    kept: dict[str, Any] = {name: getattr(source, name) for name in _KEPT}
    made = StoredWorkflow(**kept, seq=seq, id=id or new_id(), created_at=tx.now)
    made.created_by, made.forked_from, made.forked_step = by, source.id, step
    return made


_KEPT: Final = (
    *("type", "name", "timeout", "nodes", "params", "metadata", "tenant", "definition", "definition_version", "target"),
    *("target_key", "start", "locks", "on_lost_worker", "expiration_delay", "others"),
)


def copy_parts(tx: Transaction, source: StoredWorkflow, copy: StoredWorkflow) -> None:
    """Copy the steps of a workflow, and what they have come to, into another."""
    first, last = source.numbers
    numbers: dict[str, Any] = {"by": copy.root - source.root, "first": first, "last": last}
    for table, (columns, key) in _TABLES.items():
        tx.execute(
            f"""
            INSERT INTO {table} ({", ".join(columns)})
            SELECT {", ".join(columns.values())}
            FROM {table}
            WHERE {key} BETWEEN :first AND :last
            """,
            numbers,
        )
    tx.execute(
        f"""
        INSERT INTO flow_messages (flow, {_MESSAGE_COLUMNS})
        SELECT flow + :by, {_MESSAGE_COLUMNS}
        FROM flow_messages
        WHERE flow BETWEEN :first AND :last
        ORDER BY number
        """,
        numbers,
    )
    _keep_seeds(tx, source, numbers)
    tx.execute(
        """
        INSERT INTO workflow_properties (workflow, name, value, version)
        SELECT :copy, name, value, version
        FROM workflow_properties
        WHERE workflow = :source
        """,
        {"copy": copy.seq, "source": source.seq},
    )
    copy_items_of_workflow(tx, source.seq, copy.seq)


def _keep_seeds(tx: Transaction, source: StoredWorkflow, numbers: dict[str, Any]) -> None:
    """Let the flows of a copy draw the same random numbers: what is recorded of them was asked for with those."""
    rows = tx.execute(
        """
        SELECT flow, min(asked_at), max(CASE WHEN kind = 'begin' THEN name END)
        FROM flow_records
        WHERE flow BETWEEN :first AND :last
        GROUP BY flow
        """,
        numbers,
    )
    seeds = [(flow + numbers["by"], began_at, seed or f"{source.id} {flow}") for flow, began_at, seed in rows]
    tx.execute_many(
        """
        INSERT INTO flow_records (flow, key, kind, name, asked_at)
        VALUES (?, '!begin', 'begin', ?, ?)
        ON CONFLICT (flow, key) DO UPDATE SET name = excluded.name
        """,
        [(flow, seed, began_at) for flow, began_at, seed in seeds],
    )


def copy_reviews(tx: Transaction, source: StoredWorkflow, copy: StoredWorkflow) -> None:
    """Copy what people have said of the steps that a copy keeps."""
    tx.execute(
        """
        INSERT INTO node_reviews (node, at, author, action, notes, answer)
        SELECT n.id, r.at, r.author, r.action, r.notes, r.answer
        FROM node_reviews AS r
        JOIN nodes AS n ON n.id = r.node + :by
        WHERE r.node BETWEEN :first AND :last AND n.state = 'completed'
        ORDER BY r.seq
        """,
        {"by": copy.root - source.root, "first": source.numbers[0], "last": source.numbers[1]},
    )


def find_forks(tx: Transaction, workflow: StoredWorkflow) -> list[str]:
    """Return the ids of the last workflows as which a workflow runs again, the newest first."""
    rows = tx.execute(
        f"SELECT id FROM workflows WHERE forked_from = :id AND {IS_VISIBLE} ORDER BY seq DESC LIMIT :most",
        {"id": workflow.id, "most": MAX_FORKS},
    )
    return [str(id) for (id,) in rows]

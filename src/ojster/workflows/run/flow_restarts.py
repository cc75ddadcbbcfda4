"""Restarts of flows: the function begins anew in the same run, and what it has done before is forgotten.

So a flow can go on for ever: its records, its steps and the messages that it has received stay few.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from msgspec import UNSET

from ojster.core.errors import InvalidRequest, PayloadTooLarge
from ojster.core.job import Job
from ojster.core.refusals import size_details
from ojster.jobs.history import trim_history
from ojster.storage.transaction import Transaction
from ojster.workflows.broadcast import MAX_LOOK_BACK
from ojster.workflows.flow import BEGIN, RESTARTED, NewRecord
from ojster.workflows.node import ENDED_STATES, MAX_NODES, Kind, Node, NodeState, body_of
from ojster.workflows.run.flow_files import forget_files
from ojster.workflows.run.flow_messages import insert_records, known_already
from ojster.workflows.run.flow_wakeups import note_changes
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.streams import keep_chunks
from ojster.workflows.stored_workflow import StoredWorkflow, delete_nodes

MAX_REMEMBERED: Final = 1_000
"""Number of received messages of earlier rounds of a flow whose idempotency keys, and answers, are remembered."""

_STEPS: Final = f"""
    SELECT id, kind, state
    FROM (
        WITH RECURSIVE inside (id, kind, state) AS (
            SELECT id, kind, state
            FROM nodes
            WHERE parent = :flow AND position > 0 AND state IN ({ENDED_STATES})
            UNION ALL
            SELECT n.id, n.kind, n.state
            FROM nodes AS n
            JOIN inside AS i ON n.parent = i.id
        )
        SELECT id, kind, state
        FROM inside
    ) AS steps
"""

# A cancellation that the function has seen is over: kept, it would come again in each round, without end.
_FORGET_RECORDS: Final = """
    DELETE FROM flow_records
    WHERE flow = :flow
        AND kind <> 'published'
        AND NOT (kind = 'cancel' AND place IS NULL AND seen_at IS NULL)
"""


_IS_BEGUN: Final = f"""
    SELECT 1
    FROM flow_records
    WHERE flow = :flow AND key = '{BEGIN}' AND asked_at = :asked_at AND result = :result
"""


def waiting_keys(tx: Transaction, flow: int) -> list[str]:
    """Return the keys of what a flow waits for."""
    rows = tx.execute("SELECT key FROM flow_records WHERE flow = :flow AND ended_at IS NULL", {"flow": flow})
    return [key for (key,) in rows if key != BEGIN]


def restart(tx: Transaction, job: Job, records: Sequence[NewRecord]) -> None:
    """Let a flow begin anew, with the arguments in the last record of its beginning. It waits for nothing any more.

    What it has published stays, and a cancellation that it has not seen.

    Raises
    ------
    InvalidRequest, PayloadTooLarge
        The arguments are missing, or too large.
    Conflict
        It has begun so already: the worker says it again, because it got no answer.
    """
    begin = records[-1] if records else NewRecord(BEGIN, "begin", "", tx.now)
    if begin.result is UNSET or not bytes(begin.result).lstrip().startswith(b"["):
        raise InvalidRequest("A restart needs a record of the kind 'begin' with the arguments as its 'result'.")
    if (size := len(bytes(begin.result))) > (most := tx.settings.largest_job):
        message = f"The arguments of the restart take {size} bytes (limit {most})."
        raise PayloadTooLarge(message, **size_details(most, size, "result"))
    flow = job.node or 0
    if tx.execute(_IS_BEGUN, {"flow": flow, "asked_at": begin.asked_at, "result": bytes(begin.result)}):
        raise known_already(BEGIN)
    graph = LoadedGraph(tx)
    graph.lock([job.workflow or 0])
    graph.load([flow])
    container = graph.container_of(graph.nodes[flow])
    workflow = graph.workflow_of(container)
    _forget_steps(graph, workflow, container)
    graph.write()
    tx.execute(_FORGET_RECORDS, {"flow": flow})
    forget_files(tx, job)
    name = f"{workflow.id} {flow} {workflow.version}"  # other random numbers than in the round before
    insert_records(tx, [(flow, NewRecord(BEGIN, "begin", name, begin.asked_at, result=begin.result), None)])
    _forget_messages(tx, flow)
    _forget_broadcasts(tx, flow)
    trim_history(tx, job.seq)
    note_changes(tx, [job])


def _forget_steps(graph: LoadedGraph, workflow: StoredWorkflow, container: Node) -> None:
    """Delete the steps of the graph that have ended. Others may still end.

    Their jobs stay for their own retention, or until the workflow is deleted.
    """
    tx = graph.tx
    steps = tx.execute(_STEPS, {"flow": container.id})
    ids = [id for id, _, _ in steps]
    keep_chunks(tx, workflow.seq, [body_of(container), *ids])
    former = tx.execute(f"UPDATE jobs SET node = NULL WHERE node {tx.among} RETURNING seq", (tx.integers(ids),))
    rows = [(seq, workflow.seq) for (seq,) in former]
    tx.execute_many("INSERT INTO former_steps (seq, workflow) VALUES (?, ?)", rows)
    delete_nodes(tx, ids)
    left = tx.execute(
        "SELECT id FROM nodes WHERE parent = :flow AND position > 0 ORDER BY position", {"flow": container.id}
    )
    tx.execute_many("UPDATE nodes SET position = ? WHERE id = ?", [(place, id) for place, (id,) in enumerate(left, 1)])
    container.total = container.unfinished = 1 + len(left)
    container.completed = container.failed = container.cancelled = container.broken = container.lost = 0
    graph.touch(container)
    jobs = [state for _, kind, state in steps if kind == Kind.JOB]
    workflow.jobs -= len(jobs)
    workflow.completed -= jobs.count(NodeState.COMPLETED)
    workflow.failed -= jobs.count(NodeState.FAILED)
    workflow.cancelled -= jobs.count(NodeState.CANCELLED)
    workflow.resolved_bytes = 0
    ((last,),) = tx.execute("SELECT max(id) FROM nodes WHERE id BETWEEN ? AND ?", workflow.numbers)
    workflow.nodes = (last & (MAX_NODES - 1)) + 1  # else a flow that never ends would run out of numbers
    graph.change(workflow)


def _forget_messages(tx: Transaction, flow: int) -> None:
    """Delete the messages that a flow has received, but the last ones; updates without an answer come again."""
    at = {"flow": flow, "restarted": RESTARTED}
    tx.execute(
        """
        UPDATE flow_messages
        SET taken_by = NULL
        WHERE flow = :flow AND taken_by <> :restarted AND answered_at IS NULL AND name LIKE '!%'
        """,
        at,
    )
    tx.execute(
        """
        UPDATE flow_messages
        SET taken_by = :restarted, data = :nothing
        WHERE flow = :flow AND taken_by <> :restarted
        """,
        at | {"nothing": b"null"},
    )
    tx.execute(
        """
        DELETE FROM flow_messages
        WHERE flow = :flow AND taken_by = :restarted AND number <= (
            SELECT number
            FROM flow_messages
            WHERE flow = :flow AND taken_by = :restarted
            ORDER BY number DESC
            LIMIT 1 OFFSET :most
        )
        """,
        at | {"most": MAX_REMEMBERED},
    )


def _forget_broadcasts(tx: Transaction, flow: int) -> None:
    """Keep of each topic that a flow has waited for only where it has stopped, so that it gets what came since then."""
    query = "SELECT topic, since, taken FROM broadcast_receivers WHERE flow = :flow ORDER BY topic, abs(taken), taken"
    rows = tx.execute(query, {"flow": flow})
    tx.execute("DELETE FROM broadcast_receivers WHERE flow = :flow", {"flow": flow})
    left: list[tuple[int, str, str, int, int | None]] = []
    for topic, of_topic in itertools.groupby(rows, key=itemgetter(0)):
        parts = list(of_topic)
        since = min(since for _, since, _ in parts)
        if since < tx.now - MAX_LOOK_BACK and not tx.execute(
            "SELECT 1 FROM broadcasts WHERE topic = ? LIMIT 1", (topic,)
        ):
            continue
        ends: list[int | None] = []
        for taken in (taken for _, _, taken in parts if taken is not None):
            if ends and ((ends[-1] or 0) > 0) == (taken > 0):  # the parts of two records become one
                ends.pop()
            ends.append(taken)
        left += [
            (flow, f"{RESTARTED}{place or ''} {topic}", topic, since, taken)
            for place, taken in enumerate(ends or [None])
        ]
    tx.execute_many(
        "INSERT INTO broadcast_receivers (flow, key, topic, since, waits, taken) VALUES (?, ?, ?, ?, 0, ?)", left
    )

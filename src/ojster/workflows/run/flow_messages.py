"""What flows and others say to each other: messages, updates, which a flow answers, and what it publishes.

Whoever says something holds the lock of the workflow, and so does a flow that is about to suspend.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ojster.core.errors import Conflict, NotFound, PayloadTooLarge
from ojster.core.job import Job
from ojster.core.refusals import size_details
from ojster.jobs.queries import no_workflow
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import ColumnType, RunningAttempt, Transaction
from ojster.workflows.flow import (
    CANCELLATION,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGES,
    MAX_MESSAGES_AT_ONCE,
    PUBLISHED,
    RESERVED,
    FlowAddress,
    FlowMessage,
    FlowUpdate,
    NewRecord,
    UpdateAddress,
    key_of_update,
    message_of,
)
from ojster.workflows.node import Kind, Node, body_number, body_of
from ojster.workflows.run.flow_wakeups import note_changes, note_ends, wake_flows
from ojster.workflows.run.graph import LoadedGraph
from ojster.workflows.run.steps import find_step
from ojster.workflows.stored_workflow import StoredWorkflow, find_workflow

_encode: Final = msgspec.json.Encoder().encode

_NEW: Final[dict[str, ColumnType]] = {
    "flow": "bigint",
    "key": "text",
    "kind": "text",
    "name": "text",
    "input": "text",
    "node": "bigint",
    "asked_at": "bigint",
    "ended_at": "bigint",
    "result": "bytea",
    "error": "bytea",
}


# The kind of the node is no EXISTS, for which PostgreSQL may read all nodes into a hash table.
_INSERTED: Final = f"""
    flow,
    key,
    EXISTS (SELECT 1 FROM flow_records AS c WHERE c.flow = flow_records.flow AND c.key = '{CANCELLATION}'),
    coalesce((SELECT n.kind = '{Kind.FLOW}' FROM nodes AS n WHERE n.id = flow_records.flow - {body_number(0)}), false)
"""
"""What is read of inserted records: flow, key, whether the flow is to be cancelled, whether the node runs a flow."""


def insert_new_records(
    tx: Transaction, records: Sequence[tuple[int, NewRecord, int | None]]
) -> list[tuple[int, str, bool, bool]]:
    """Insert records of flows, each with the node that it waits for, unless there is one with the same key.

    Return flow and key of those that were inserted, whether the flow is to be cancelled, and whether the node runs the
    function of a flow, which the caller may know.
    """
    rows = [(flow, *_values(record, node)) for flow, record, node in records]
    return [(*row,) for row in tx.insert_new_rows("flow_records", _NEW, rows, _INSERTED)]


def insert_records_of_attempts(
    tx: Transaction, records: Sequence[tuple[RunningAttempt, NewRecord]]
) -> list[tuple[int, str, bool, bool]]:
    """Insert records of flows, as ``insert_new_records`` does, if these attempts run."""
    rows = [(attempt, _values(record, None)) for attempt, record in records]
    return [(*row,) for row in tx.insert_of_attempts("flow_records", _NEW, rows, _INSERTED)]


def _values(record: NewRecord, node: int | None) -> tuple[Any, ...]:
    return (
        record.key,
        record.kind,
        record.name,
        record.input,
        node,
        record.asked_at,
        record.ended_at,
        stored(record.result),
        stored(record.error),
    )


def insert_records(tx: Transaction, records: Sequence[tuple[int, NewRecord, int | None]]) -> None:
    """Insert records of flows, each with the node that it waits for.

    Raises
    ------
    Conflict
        A flow has one with this key: another worker has run it meanwhile.
    """
    inserted = {(flow, key) for flow, key, *_ in insert_new_records(tx, records)} if records else set()
    for flow, record, _ in records:
        if (flow, record.key) not in inserted:
            raise known_already(record.key)


def known_already(key: str) -> Conflict:
    """Return the refusal of a record with a key that the flow has already."""
    return Conflict(f"The flow has a record {key!r} already. Another worker has run it meanwhile.", key=key)


def stored(value: Raw | UnsetType) -> bytes | None:
    """Return a value as it is stored."""
    return None if value is UNSET else bytes(value)


@for_each
@returns_refusal
def send(tx: Transaction, message: FlowMessage) -> int:
    """Keep a message for a flow, and give it to the flow if it waits for it; return its number, or a refusal."""
    # Whoever suspends the flow has the same lock, so that it either sees the message or is woken by it.
    workflow = _workflow_of(tx, message, lock=True)
    node = _flow_of(LoadedGraph(tx), workflow, message.step)
    flow = body_of(node)
    if (number := _sent_before(tx, flow, message)) is not None:
        return number
    if workflow.finished_at is not None:  # one that was cancelled may receive some while it cleans up
        raise Conflict(
            f"The workflow {workflow.id} is {workflow.state}, and receives no messages.",
            workflow_id=workflow.id,
            current_state=workflow.state,
        )
    if node.has_ended:
        raise Conflict("The flow has ended, and receives no messages.", workflow_id=workflow.id)
    ((waiting,),) = tx.execute(
        f"""
        SELECT count(*)
        FROM flow_messages
        WHERE flow = :flow AND taken_by IS NULL AND name {"" if _is_update(message.name) else "NOT "}LIKE '!%'
        """,
        {"flow": flow},
    )
    if waiting >= MAX_MESSAGES:
        raise Conflict(f"{waiting} messages wait for the flow; the maximum is {MAX_MESSAGES}.", workflow_id=workflow.id)
    ((number,),) = tx.execute(
        """
        INSERT INTO flow_messages (flow, name, idempotency_key, sent_at, sent_by, data)
        VALUES (:flow, :name, :key, :now, :by, :data)
        RETURNING number
        """,
        {
            "flow": flow,
            "name": message.name,
            "key": message.idempotency_key,
            "now": tx.now,
            "by": message.by,
            "data": message.data,
        },
    )
    if receive(tx, flow):
        wake_flows(tx, [flow])
    return int(number)


def _is_update(name: str) -> bool:
    return name.startswith(RESERVED)


def _sent_before(tx: Transaction, flow: int, message: FlowMessage) -> int | None:
    """Return the number of the message or the update that has the same idempotency key.

    Raises
    ------
    Conflict
        It is an update of another name.
    """
    if message.idempotency_key is None:
        return None
    rows = tx.execute(
        "SELECT number, name FROM flow_messages WHERE flow = :flow AND idempotency_key = :key",
        {"flow": flow, "key": message.idempotency_key},
    )
    for number, name in rows:
        if _is_update(name) and _is_update(message.name) and name != message.name:
            raise Conflict(f"The idempotency key {message.idempotency_key!r} belongs to the update {name[1:]!r}.")
        if _is_update(name) == _is_update(message.name):
            return int(number)
    return None


def _workflow_of(
    tx: Transaction, asked: FlowMessage | FlowAddress | UpdateAddress, *, lock: bool = False
) -> StoredWorkflow:
    workflow = find_workflow(tx, asked.workflow_id, lock=lock)
    if workflow is None or asked.tenant not in (None, workflow.tenant):
        raise no_workflow(asked.workflow_id)
    return workflow


def flow_of(tx: Transaction, address: FlowAddress) -> tuple[StoredWorkflow, Node]:
    """Return the workflow and the node of a flow.

    Raises
    ------
    NotFound, Conflict
        There is no such workflow or step, or it is no flow.
    """
    workflow = _workflow_of(tx, address)
    return workflow, _flow_of(LoadedGraph(tx), workflow, address.step)


def _flow_of(graph: LoadedGraph, workflow: StoredWorkflow, step: str | None) -> Node:
    """Return the node of the flow that a workflow, or a step of it, is.

    Raises
    ------
    Conflict
        It is no flow.
    """
    graph.workflows[workflow.seq] = workflow
    node = graph.parts_of(workflow)[0] if step is None else find_step(graph, workflow, step)
    if node.kind != Kind.FLOW:
        what = f"The workflow {workflow.id}" if step is None else f"The step {step!r}"
        raise Conflict(f"{what} is no flow.", workflow_id=workflow.id)
    return node


def receive_all(tx: Transaction, flows: Collection[int]) -> set[int]:
    """Give messages to the records of flows that wait for them; return the flows that have got some."""
    # The messages first: a flow may have thousands of records, and most have no messages.
    rows = tx.execute(
        f"SELECT DISTINCT flow FROM flow_messages WHERE flow {tx.among} AND taken_by IS NULL",
        (tx.integers(sorted(flows)),),
    )
    return {flow for (flow,) in rows if receive(tx, flow)}


def receive(tx: Transaction, flow: int) -> bool:
    """Give messages to the records that wait for them, both in their order; return whether there were any."""
    waiting = tx.execute(
        """
        SELECT key, name, kind, asked_at
        FROM flow_records
        WHERE flow = :flow AND kind IN ('receive', 'receive_many') AND ended_at IS NULL
        ORDER BY asked_at, length(key), key
        """,
        {"flow": flow},
    )
    messages = [_give(tx, flow, record) for record in waiting if not _is_update(record[1])]
    updates = [record for record in waiting if _is_update(record[1])]
    # One update at a time, the oldest: its handler begins before the next one is given, whatever their names.
    is_given = _give_oldest(tx, flow, updates) if updates else False
    return is_given or any(messages)


def _give_oldest(tx: Transaction, flow: int, waiting: Sequence[tuple[Any, ...]]) -> bool:
    """Give the oldest update that the flow handles to the record that waits for it, if one does at the moment."""
    by_name = {record[1]: record for record in reversed(waiting)}
    unknown = [message_of("")]
    while True:
        oldest = tx.execute(
            f"""
            SELECT name
            FROM flow_messages
            WHERE flow = ? AND taken_by IS NULL AND name LIKE '!%' AND NOT name {tx.among_texts}
            ORDER BY number
            LIMIT 1
            """,
            (flow, tx.texts(unknown)),
        )
        if not oldest:
            return False
        ((name,),) = oldest
        if name in by_name:
            return _give(tx, flow, by_name[name])
        if tx.execute("SELECT 1 FROM flow_records WHERE flow = ? AND key = ?", (flow, key_of_update(name))):
            return False  # its handler is about to begin with the one before
        unknown.append(name)


def _give(tx: Transaction, flow: int, record: tuple[Any, ...]) -> bool:
    """Give messages to a record that waits for them; return whether there were any."""
    key, name, kind, asked_at = record
    messages = tx.execute(
        """
        SELECT number, data
        FROM flow_messages
        WHERE flow = :flow AND name = :name AND taken_by IS NULL
        ORDER BY number
        LIMIT :most
        """,
        {"flow": flow, "name": name, "most": 1 if kind == "receive" else MAX_MESSAGES_AT_ONCE},
    )
    if not messages:
        return False
    tx.execute_many("UPDATE flow_messages SET taken_by = ? WHERE number = ?", [(key, number) for number, _ in messages])
    data = messages[0][1] if kind == "receive" else b"[" + b",".join(bytes(data) for _, data in messages) + b"]"
    note_ends(tx, [(flow, key, asked_at, data, None)])
    return True


# What the flow says


def tell(tx: Transaction, job: Job, records: Sequence[NewRecord]) -> None:
    """Keep what a flow has published, and give its answers to the updates that it has received.

    Raises
    ------
    PayloadTooLarge
        A value is too large.
    """
    if not records:
        return
    assert job.node is not None
    for record in records:
        size = len(stored(record.result) or b"")
        if size > MAX_MESSAGE_BYTES:
            text = f"What the flow says takes {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed."
            raise PayloadTooLarge(text, **size_details(MAX_MESSAGE_BYTES, size, "result"))
    answers = [record for record in records if record.kind == "answer"]
    insert_records(tx, [(job.node, record, None) for record in answers])
    tx.execute_many(
        """
        UPDATE flow_messages
        SET answered_at = ?, answer = ?, error = ?
        WHERE flow = ? AND taken_by = ? AND answered_at IS NULL
        """,
        [(tx.now, stored(record.result), stored(record.error), job.node, record.name) for record in answers],
    )
    for record in records:
        if record.kind == "published":
            tx.execute(
                """
                INSERT INTO flow_records (flow, key, kind, name, asked_at, ended_at, result)
                VALUES (:flow, :key, 'published', '', :asked_at, :now, :value)
                ON CONFLICT (flow, key) DO UPDATE SET ended_at = excluded.ended_at, result = excluded.result
                """,
                {
                    "flow": job.node,
                    "key": PUBLISHED,
                    "asked_at": record.asked_at,
                    "now": tx.now,
                    "value": stored(record.result),
                },
            )
    note_changes(tx, [job])  # wakes those that wait for an answer


# What is read


@for_each
@returns_refusal
def find_published(tx: Transaction, address: FlowAddress) -> Raw | None:
    """Return what a flow has published last; ``None``: nothing."""
    _, node = flow_of(tx, address)
    rows = tx.execute(
        "SELECT result FROM flow_records WHERE flow = :flow AND key = :key", {"flow": body_of(node), "key": PUBLISHED}
    )
    return Raw(rows[0][0]) if rows else None


@for_each
@returns_refusal
def find_update(tx: Transaction, address: UpdateAddress) -> FlowUpdate:
    """Return an update, with the answer if there is one; that of a flow that has ended without one has failed."""
    workflow = _workflow_of(tx, address)
    rows = tx.execute(
        """
        SELECT m.answered_at, m.answer, m.error, n.finished_at
        FROM flow_messages AS m
        JOIN nodes AS n ON n.id = m.flow
        WHERE m.number = ? AND m.flow BETWEEN ? AND ? AND m.name LIKE '!%'
        """,
        (address.number, *workflow.numbers),
    )
    if not rows:
        raise NotFound(f"The workflow {workflow.id} has no update {address.number}.", update_id=address.number)
    ((answered_at, answer, error, finished_at),) = rows
    if answered_at is None and finished_at is None and workflow.finished_at is None:
        return FlowUpdate(address.number, "waiting")
    if answered_at is None:
        error = _encode({"type": "FlowEnded", "message": "The flow has ended without an answer."})
    if error is not None:
        return FlowUpdate(address.number, "failed", error=Raw(error))
    return FlowUpdate(address.number, "completed", Raw(answer or b"null"))

"""Reads what people see of flows: where they wait, what they have published, and their messages."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType

from ojster.core.timestamps import format_optional, format_timestamp
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import BEGIN, CANCELLATION, POSITION, PUBLISHED, RESERVED, FlowAddress
from ojster.workflows.node import body_of
from ojster.workflows.plan.values import read_spec
from ojster.workflows.read.flow_info import (
    MOST_SHOWN_BYTES,
    FlowInfo,
    MessageFilter,
    MessageInfo,
    MessagePage,
    UpdateInfo,
)
from ojster.workflows.read.node_view import job_type_of
from ojster.workflows.read.waiting import decode_waits, shown_wait
from ojster.workflows.run.flow_messages import flow_of


@for_each
@returns_refusal
def show_flow(tx: Transaction, address: FlowAddress) -> FlowInfo:
    """Return how a flow is, or the reason why there is none."""
    workflow, node = flow_of(tx, address)
    body = body_of(node)
    ((spec,),) = tx.execute("SELECT spec FROM node_specs WHERE id = ?", (body,))
    jobs = tx.execute(
        """
        SELECT j.id, j.state, j.suspension
        FROM nodes AS n
        JOIN jobs AS j ON j.id = n.job_id
        WHERE n.id = ? AND n.started_at IS NOT NULL
        """,
        (body,),
    )
    id, state, suspension = jobs[0] if jobs else (None, node.state, None)
    is_waiting = state == "pending" and suspension == "flow"
    records = {
        key: row
        for key, *row in tx.execute(
            """
            SELECT key, name, asked_at, ended_at, result, input
            FROM flow_records
            WHERE flow = ? AND key IN (?, ?, ?, ?)
            """,
            (body, BEGIN, POSITION, PUBLISHED, CANCELLATION),
        )
    }
    began, position, published = (records.get(key) for key in (BEGIN, POSITION, PUBLISHED))
    waits = () if position is None else decode_waits(position[3])
    messages, updates = _waiting(tx, body)
    return FlowInfo(
        name=job_type_of(read_spec(spec)),
        state="waiting" if is_waiting else state,
        job_id=None if id is None else str(id),
        began_at=None if began is None else format_timestamp(began[1]),
        code_version=None if began is None else began[4],
        latest_code_version=None if position is None else position[0] or None,
        waits=[shown_wait(wait) for wait in waits if wait.kind != "update"] if is_waiting else [],
        updates=[UpdateInfo(wait.name, wait.form) for wait in waits if wait.kind == "update"],
        published=UNSET if published is None else Raw(published[3]),
        published_at=None if published is None else format_optional(published[2]),
        messages_waiting=messages,
        updates_waiting=updates,
        cancelling=CANCELLATION in records and workflow.finished_at is None and not node.has_ended,
    )


def _waiting(tx: Transaction, flow: int) -> tuple[int, int]:
    """Return the numbers of messages that a flow has not received, and of updates that it has not answered."""
    ((messages, updates),) = tx.execute(
        """
        SELECT
            coalesce(sum(CASE WHEN name NOT LIKE '!%' AND taken_by IS NULL THEN 1 ELSE 0 END), 0),
            coalesce(sum(CASE WHEN name LIKE '!%' AND answered_at IS NULL THEN 1 ELSE 0 END), 0)
        FROM flow_messages
        WHERE flow = ?
        """,
        (flow,),
    )
    return int(messages), int(updates)


_STATES: Final = {
    None: "",
    "waiting": "AND (taken_by IS NULL OR (name LIKE '!%' AND answered_at IS NULL))",
    "received": "AND taken_by IS NOT NULL AND (name NOT LIKE '!%' OR answered_at IS NOT NULL)",
}


@for_each
@returns_refusal
def list_messages(tx: Transaction, chosen: MessageFilter) -> MessagePage:
    """Return a page of the messages and updates of a flow, the latest first, or the reason why there is none."""
    _, node = flow_of(tx, FlowAddress(chosen.workflow_id, chosen.step, chosen.tenant))
    rows = tx.execute(
        f"""
        SELECT
            number, name, sent_at, sent_by, taken_by, answered_at, length(data),
            CASE WHEN length(data) <= :most THEN data END,
            CASE WHEN length(answer) <= :most THEN answer END,
            error IS NOT NULL,
            CASE WHEN length(error) <= :most THEN error END
        FROM flow_messages
        WHERE flow = :flow AND number < :before {_STATES[chosen.state]}
        ORDER BY number DESC
        LIMIT :limit
        """,
        {
            "flow": body_of(node),
            "before": chosen.before or (1 << 63) - 1,
            "limit": chosen.limit + 1,
            "most": MOST_SHOWN_BYTES,
        },
    )
    messages = [_message(row) for row in rows[: chosen.limit]]
    return MessagePage(messages, messages[-1].number if len(rows) > chosen.limit else None)


def _message(row: tuple[Any, ...]) -> MessageInfo:
    number, name, sent_at, sent_by, taken_by, answered_at, size, data, answer, has_failed, error = row
    state: Any = "waiting" if taken_by is None else "received"
    if answered_at is not None:
        state = "failed" if has_failed else "completed"
    return MessageInfo(
        number,
        name.removeprefix(RESERVED),
        "update" if name.startswith(RESERVED) else "message",
        state,
        format_timestamp(sent_at),
        size,
        sent_by,
        taken_by,
        format_optional(answered_at),
        _raw(data),
        _raw(answer),
        _raw(error),
    )


def _raw(value: bytes | None) -> Raw | UnsetType:
    return UNSET if value is None else Raw(value)

"""Deletion of finished workflows on request, with all that they have left, also in the log of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.core.errors import Conflict
from ojster.core.events import Event
from ojster.core.job import NODE_BITS
from ojster.storage.transaction import Transaction
from ojster.workflows.run.retention import forget_workflows
from ojster.workflows.run.states import change_workflow
from ojster.workflows.stored_workflow import HIDDEN, StoredWorkflow

BATCHES_AT_ONCE: Final = 200
"""Number of batches of events that one transaction looks at."""

_decode: Final = msgspec.json.Decoder(list[Event]).decode
_encode: Final = msgspec.json.Encoder().encode


def refuse_deletion(tx: Transaction, workflow: StoredWorkflow) -> Conflict | None:
    """Return why a workflow cannot be deleted now, or ``None``."""
    if workflow.finished_at is None:
        return Conflict(f"The workflow {workflow.id} is {workflow.state}. Cancel it, or wait for its end.")
    query = "SELECT 1 FROM workflows WHERE id = :next AND finished_at IS NULL"
    if workflow.next_attempt is not None and tx.execute(query, {"next": workflow.next_attempt}):
        return Conflict(
            f"The next attempt of the workflow {workflow.id} runs: {workflow.next_attempt}. Cancel it first."
        )
    query = f"SELECT id FROM workflows WHERE forked_from = :id AND state <> '{HIDDEN}' LIMIT 1"
    if forks := tx.execute(query, {"id": workflow.id}):
        return Conflict(f"The workflow {workflow.id} has results that its fork {forks[0][0]} uses. Delete that first.")
    query = "SELECT 1 FROM collection_items WHERE workflow = :seq AND removed_at IS NULL LIMIT 1"
    if tx.execute(query, {"seq": workflow.seq}):
        return Conflict(f"A collection has items of the workflow {workflow.id}. Remove them first.")
    return None


def hide_now(tx: Transaction, workflow: StoredWorkflow) -> None:
    """Hide a workflow from everybody: ``delete_hidden`` deletes it.

    Raises
    ------
    Conflict
        See ``refuse_deletion``.
    """
    if (refusal := refuse_deletion(tx, workflow)) is not None:
        raise refusal
    change_workflow(workflow, HIDDEN)
    tx.execute("UPDATE workflows SET state = :state WHERE seq = :seq", {"state": HIDDEN, "seq": workflow.seq})


def delete_hidden(tx: Transaction, rooms: Sequence[int]) -> list[int]:
    """Delete about as many rows of hidden workflows as there is room for; return how many, for each call."""
    return [forget_workflows(tx, room)["rows"] for room in rooms]


def find_hidden(tx: Transaction, requests: Sequence[None]) -> list[frozenset[str]]:
    """Return the ids of hidden workflows and of their jobs, for each request."""
    rows = tx.execute(f"SELECT id FROM workflows WHERE state = '{HIDDEN}' AND finished_at IS NOT NULL")
    ids = frozenset(subjects_of(tx, [str(id) for (id,) in rows]))
    return [ids for _ in requests]


def subjects_of(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """Return the ids of workflows and of their jobs, which events are about."""
    subjects = list(ids)
    for id in ids:
        rows = tx.execute(
            f"""
            SELECT j.id
            FROM workflows AS w
            JOIN jobs AS j ON j.node BETWEEN (w.seq << {NODE_BITS}) AND ((w.seq + 1) << {NODE_BITS}) - 1
            WHERE w.id = :id
            """,
            {"id": id},
        )
        subjects += [str(job_id) for (job_id,) in rows]
    return subjects


class EventWalk(msgspec.Struct, frozen=True):
    """A part of the log of events, from a position on, from which the data about some subjects are removed."""

    position: int
    subjects: frozenset[str]


def blank_events(tx: Transaction, walks: Sequence[EventWalk]) -> list[int | None]:
    """Remove the data of events about some subjects; their types, times and ids stay. Return where each walk goes on.

    Those who follow the log count its events: so none of them is deleted.
    """
    results: list[int | None] = []
    for walk in walks:
        batches = tx.event_batches(walk.position, BATCHES_AT_ONCE)
        for position, body in batches:
            events = _decode(body)
            blanked = [_blank(event) if _is_about(event, walk.subjects) else event for event in events]
            if blanked != events:
                statement = f"UPDATE event_batches SET events = ? WHERE {tx.event_position} = ?"
                tx.execute(statement, (_encode(blanked), position))
        results.append(batches[-1][0] + 1 if len(batches) == BATCHES_AT_ONCE else None)
    return results


def _is_about(event: Event, subjects: frozenset[str]) -> bool:
    data: dict[str, Any] = event[5]
    return event[2] in subjects or any(isinstance(value, str) and value in subjects for value in data.values())


def _blank(event: Event) -> Event:
    type, at, subject, queue, job_type, _, tenant = event
    return type, at, subject, queue, job_type, {}, tenant

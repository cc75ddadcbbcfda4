"""Deletion of finished workflows on request, with all that they have left, also in the log of events and in files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ojster.collections.items import key_of_job, key_of_kept_files, key_of_workflow
from ojster.core.errors import Conflict
from ojster.core.events import Event
from ojster.core.job import NODE_BITS
from ojster.files.records import end_grace
from ojster.jobs.extension import Erasure, hooks
from ojster.storage.call import for_each
from ojster.storage.transaction import Transaction
from ojster.workflows.run.retention import forget_workflows
from ojster.workflows.run.start_reply import StartReply, id_alone
from ojster.workflows.run.states import change_workflow
from ojster.workflows.stored_workflow import HIDDEN, StoredWorkflow

BATCHES_AT_ONCE: Final = 200
"""Number of batches of events that one transaction looks at."""

REPLIES_AT_ONCE: Final = 500
"""Number of kept answers that one transaction looks at."""

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
    query = f"""
        SELECT id
        FROM jobs
        WHERE seq {tx.among_rows("SELECT seq FROM former_steps WHERE workflow = :seq")} AND finished_at IS NULL
        LIMIT 1
    """
    if jobs := tx.execute(query, {"seq": workflow.seq}):
        return Conflict(
            f"The job {jobs[0][0]} of an earlier round of the workflow {workflow.id} runs. Cancel it first."
        )
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
    """Return the ids of hidden workflows, and of their jobs and files, for each request."""
    rows = tx.execute(f"SELECT id FROM workflows WHERE state = '{HIDDEN}' AND finished_at IS NOT NULL")
    ids = frozenset(subjects_of(tx, [str(id) for (id,) in rows]))
    return [ids for _ in requests]


def subjects_of(tx: Transaction, ids: Sequence[str]) -> list[str]:
    """Return the ids of workflows, and of their jobs and files."""
    subjects = list(ids)
    for id in ids:
        rows = tx.execute(
            f"""
            SELECT w.seq, j.seq, j.id
            FROM workflows AS w
            JOIN jobs AS j ON j.node BETWEEN (w.seq << {NODE_BITS}) AND ((w.seq + 1) << {NODE_BITS}) - 1
            WHERE w.id = :id
            UNION ALL
            SELECT w.seq, j.seq, j.id
            FROM workflows AS w
            JOIN former_steps AS f ON f.workflow = w.seq
            JOIN jobs AS j ON j.seq = f.seq
            WHERE w.id = :id
            """,
            {"id": id},
        )
        subjects += [str(job_id) for *_, job_id in rows]
        keys = [key_of_job(seq) for _, seq, _ in rows]
        for workflow in {workflow for workflow, *_ in rows}:
            keys += [key_of_workflow(workflow), key_of_kept_files(workflow)]
        subjects += _files_of(tx, keys)
    return subjects


def _files_of(tx: Transaction, keys: Sequence[str]) -> list[str]:
    """Return the ids of the files that the items of collections refer to."""
    rows = tx.execute(
        f"""
        SELECT file_id
        FROM collection_items
        WHERE collection {tx.among_texts} AND removed_at IS NULL AND file_id IS NOT NULL
        """,
        (tx.texts(keys),),
    )
    return [file_id for (file_id,) in rows]


@for_each
def erase(tx: Transaction, erasure: Erasure) -> Erasure | None:
    """Erase a part of what is left of deleted workflows; return how it goes on, or ``None`` at the end."""
    erasers = (_blank_events, _blank_replies, _release_files, *hooks(tx).erase)
    if (position := erasers[erasure.eraser](tx, erasure)) is not None:
        return msgspec.structs.replace(erasure, position=position)
    following = erasure.eraser + 1
    return msgspec.structs.replace(erasure, eraser=following, position=0) if following < len(erasers) else None


def _blank_events(tx: Transaction, erasure: Erasure) -> int | None:
    """Remove the data of events; their types, times and ids stay.

    Those who follow the log count its events: so none of them is deleted.
    """
    batches = tx.event_batches(erasure.position, BATCHES_AT_ONCE)
    for position, body in batches:
        events = _decode(body)
        blanked = [_blank(event) if _is_about(event, erasure.subjects) else event for event in events]
        if blanked != events:
            statement = f"UPDATE event_batches SET events = ? WHERE {tx.event_position} = ?"
            tx.execute(statement, (_encode(blanked), position))
    return batches[-1][0] + 1 if len(batches) == BATCHES_AT_ONCE else None


def _blank_replies(tx: Transaction, erasure: Erasure) -> int | None:
    """Leave of the kept answers to requests that started workflows only the ids, for those who repeat them."""
    bounds = {"after": erasure.position, "window": REPLIES_AT_ONCE}
    ((last,),) = tx.execute(_LAST_REPLY, bounds)
    if last is None:
        return None
    for operation, key, body in tx.execute(_REPLIES, {"after": erasure.position, "last": last}):
        started = msgspec.json.decode(body, type=StartReply).workflow
        if started.id in erasure.subjects:
            tx.execute(
                "UPDATE idempotency_keys SET body = :body WHERE operation = :operation AND key = :key",
                {"operation": operation, "key": key, "body": id_alone(started.id).body},
            )
    return int(last)


_LAST_REPLY: Final = """
    SELECT max(created_at)
    FROM (
        SELECT created_at FROM idempotency_keys WHERE created_at > :after ORDER BY created_at LIMIT :window
    ) AS examined
"""

_REPLIES: Final = """
    SELECT operation, key, body
    FROM idempotency_keys
    WHERE created_at > :after
        AND created_at <= :last
        AND (operation = 'workflow' OR operation LIKE '%/workflow')
        AND status = 201
"""


def _release_files(tx: Transaction, erasure: Erasure) -> None:
    """Let retention delete the files now. Another job may just have uploaded the same bytes: such a file stays."""
    end_grace(tx, sorted(erasure.subjects), erasure.deleted_at)


def _is_about(event: Event, subjects: frozenset[str]) -> bool:
    data: dict[str, Any] = event[5]
    return event[2] in subjects or any(isinstance(value, str) and value in subjects for value in data.values())


def _blank(event: Event) -> Event:
    type, at, subject, queue, job_type, _, tenant = event
    return type, at, subject, queue, job_type, {}, tenant

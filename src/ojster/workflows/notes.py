"""Notes on jobs and workflows, kept in order."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.errors import Conflict, PayloadTooLarge
from ojster.core.parsing import read_value
from ojster.core.property_values import MAX_NOTE_BYTES
from ojster.core.refusals import size_details
from ojster.core.timestamps import format_timestamp
from ojster.jobs.leases import check_holder
from ojster.jobs.messages import Holder
from ojster.jobs.queries import no_job
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.stored_workflow import get_workflow

MAX_NOTES: Final = 1_000
"""Maximum number of notes on a job, and on a workflow without those on its jobs."""


class NewNote(msgspec.Struct, frozen=True):
    """A note to add to a job or to a workflow; any JSON value."""

    note: bytes
    job_id: str | None = None
    workflow_id: str | None = None
    holder: Holder | None = None
    """The attempt in which a worker adds the note to its job."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored note, its RFC 3339 time, and the id of its job.

    ``step``: it tells who approved, rejected or answered the step with this path, in words.
    """

    note: msgspec.Raw
    at: str
    job_id: str | None = None
    step: str | None = None


@for_each
@returns_refusal
def add(tx: Transaction, item: NewNote) -> Note:
    """Add notes; return each note, or the reason why it was refused."""
    read_value(item.note, "note")
    if len(item.note) > MAX_NOTE_BYTES:
        message = f"The note takes {len(item.note)} bytes; at most {MAX_NOTE_BYTES} are allowed."
        raise PayloadTooLarge(message, **size_details(MAX_NOTE_BYTES, len(item.note), "note"))
    workflow, seq = _subject(tx, item)
    where = "workflow = :workflow AND seq IS NULL" if seq is None else "seq = :seq"
    subject = {"workflow": workflow, "seq": seq}
    ((count,),) = tx.execute(f"SELECT count(*) FROM notes WHERE {where}", subject)
    if count >= MAX_NOTES:
        raise Conflict(f"There are {count} notes; the maximum is {MAX_NOTES}. Record fewer, larger notes.")
    tx.execute(
        "INSERT INTO notes (workflow, seq, at, note) VALUES (:workflow, :seq, :at, :note)",
        subject | {"at": tx.now, "note": item.note},
    )
    return Note(msgspec.Raw(item.note), format_timestamp(tx.now), item.job_id)


def _subject(tx: Transaction, item: NewNote) -> tuple[int | None, int | None]:
    """Lock the job or the workflow of a note; return the numbers of its workflow and of its job."""
    if item.job_id is not None:
        job = tx.lock_jobs([item.job_id]).get(item.job_id)
        if job is None:
            raise no_job(item.job_id)
        check_holder(tx, item.holder)
        tx.emit("job.noted", job)
        return job.workflow, job.seq
    # Notes that are added at the same time would pass the maximum, which is counted.
    return get_workflow(tx, item.workflow_id or "", lock=True).seq, None

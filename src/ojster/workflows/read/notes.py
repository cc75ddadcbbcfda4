"""Notes on jobs and workflows, to be read beside what people said of the steps."""

from __future__ import annotations

from typing import Final

import msgspec

from ojster.core.job import Job
from ojster.core.timestamps import format_timestamp
from ojster.jobs.queries import for_each_job
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.notes import Note
from ojster.workflows.read.reviews import reviews_in_words
from ojster.workflows.stored_workflow import get_workflow

MAX_NOTES_RETURNED: Final = 1_000
"""Maximum number of notes returned for a workflow: the newest ones."""


@for_each_job
def of_jobs(tx: Transaction, job: Job) -> list[Note]:
    """Return the notes of each job, the oldest first."""
    rows = tx.execute("SELECT at, note FROM notes WHERE seq = :seq ORDER BY number", {"seq": job.seq})
    return [Note(msgspec.Raw(note), format_timestamp(at), job.id) for at, note in rows]


@for_each
@returns_refusal
def of_workflows(tx: Transaction, id: str) -> list[Note]:
    """Return the notes of each workflow and of its jobs, and what people said of its steps, the oldest first."""
    workflow = get_workflow(tx, id)
    rows = tx.execute(
        """
        SELECT at, note, (SELECT j.id FROM jobs AS j WHERE j.seq = notes.seq)
        FROM notes
        WHERE workflow = :workflow
        ORDER BY number DESC
        LIMIT :most
        """,
        {"workflow": workflow.seq, "most": MAX_NOTES_RETURNED},
    )
    shown = [Note(msgspec.Raw(note), format_timestamp(at), None if job is None else str(job)) for at, note, job in rows]
    told = [
        Note(msgspec.Raw(msgspec.json.encode(words)), at, None, step)
        for at, step, words in reviews_in_words(tx, workflow.numbers)
    ]
    return sorted(shown[::-1] + told, key=lambda note: note.at)

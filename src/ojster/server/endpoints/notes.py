"""Endpoints for notes of jobs and workflows."""

from __future__ import annotations

from typing import Final

from ojster.core.access import CANCEL_OR_DEQUEUE
from ojster.core.parsing import read_value
from ojster.jobs.messages import Holder
from ojster.server.answer import Answer, encode
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route
from ojster.workflows.answer_wire import (
    NoteAnswer,
    NotesAnswer,
)
from ojster.workflows.notes import NewNote
from ojster.workflows.wire import (
    NOTE,
    NoteBody,
)


async def note_job(request: HttpRequest) -> Answer:
    """Add a note to a job: any JSON value."""
    job_id, body = request.path["id"], await read_note(request)
    holder = Holder(job_id, body.worker_id, body.attempt)
    made = await request.service.workflows.add_note(NewNote(bytes(body.note), job_id=job_id, holder=holder))
    return Answer(encode(NoteAnswer(made)), 201)


async def read_note(request: HttpRequest) -> NoteBody:
    """Return the body with a note, which is valid JSON."""
    body = await request.read(NOTE)
    read_value(body.note, "note")
    return body


async def list_job_notes(request: HttpRequest) -> Answer:
    """List the notes of a job, oldest first."""
    return Answer(encode(NotesAnswer(await request.service.workflows.notes_of_job(request.path["id"]))))


async def note_workflow(request: HttpRequest) -> Answer:
    """Add a note to a workflow: any JSON value."""
    item = NewNote(bytes((await read_note(request)).note), workflow_id=request.path["id"])
    return Answer(encode(NoteAnswer(await request.service.workflows.add_note(item))), 201)


async def list_workflow_notes(request: HttpRequest) -> Answer:
    """List the notes of a workflow and its jobs, oldest first."""
    return Answer(encode(NotesAnswer(await request.service.workflows.notes(request.path["id"]))))


ROUTES: Final = (
    Route(
        "POST",
        f"{BASE}/jobs/{{id}}/info",
        note_job,
        "Jobs",
        NoteBody,
        NoteAnswer,
        status=201,
        needs=CANCEL_OR_DEQUEUE,
    ),
    Route("GET", f"{BASE}/jobs/{{id}}/info", list_job_notes, "Jobs", answer=NotesAnswer),
    Route("GET", f"{BASE}/workflows/{{id}}/info", list_workflow_notes, "Workflows", answer=NotesAnswer),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/info",
        note_workflow,
        "Workflows",
        NoteBody,
        NoteAnswer,
        status=201,
        needs=CANCEL_OR_DEQUEUE,
    ),
)

"""How are workflows created, looked at and steered? (ojs-workflows.md section 11)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ojster.core.errors import InvalidRequest
from ojster.jobs.routes import note_of, resumption_of
from ojster.server import wire
from ojster.server.request import Answer, Exchange, encode, page_of, pagination, wait_ms, whole
from ojster.server.route import BASE, PAGE, Route
from ojster.workflows.graph import WORKFLOW_STATES
from ojster.workflows.info import WorkflowInfo
from ojster.workflows.notes import NewNote
from ojster.workflows.properties import PropertyChange
from ojster.workflows.property_values import Changes
from ojster.workflows.suspensions import WorkflowResumption
from ojster.workflows.views import WorkflowFilter
from ojster.workflows.workflows import Review, StepAddress


async def create_workflow(exchange: Exchange) -> Answer:
    """Create a workflow: a chain, a group, a batch, a saga, a graph or a map, nested as one likes."""
    info = await exchange.engine.create_workflow(await exchange.members())
    return _workflow(info, 201, ((b"location", f"{BASE}/workflows/{info.id}".encode()),))


async def show_workflow(exchange: Exchange) -> Answer:
    """Show a workflow with all its steps, or, with ``steps=false``, without.

    With ``wait_ms``, answer when it has finished, or after that time; with ``version`` too, as soon as it has another.
    """
    query = exchange.query
    info = await exchange.engine.show_workflow(
        exchange.path["id"],
        wait=wait_ms(query),
        version=whole(query, "version", 0, 0) if "version" in query else None,
        steps=query.get("steps") != "false",
    )
    return _workflow(info)


async def list_workflows(exchange: Exchange) -> Answer:
    """List workflows without their steps, newest first: of a state, type, name, definition or target."""
    query = exchange.query
    state = query.get("state")
    if state is not None and state not in WORKFLOW_STATES:
        raise InvalidRequest(
            f"There is no state {state[:40]!r} of workflows; there are {', '.join(WORKFLOW_STATES)}.", field="state"
        )
    limit, offset, before = page_of(query)
    page = await exchange.engine.list_workflows(
        WorkflowFilter(
            state,
            query.get("type"),
            query.get("name"),
            before,
            limit,
            offset,
            definition=query.get("definition"),
            target=query.get("target"),
        )
    )
    shown = pagination(page.total, limit, offset, page.next_before)
    return Answer(encode({"workflows": page.workflows, "pagination": shown}))


async def cancel_workflow(exchange: Exchange) -> Answer:
    """Cancel a workflow: what has not started never does, active jobs may finish."""
    return _workflow(await exchange.engine.cancel_workflow(exchange.path["id"]))


async def retry_workflow(exchange: Exchange) -> Answer:
    """Run again what did not succeed of a workflow that has finished."""
    return _workflow(await exchange.engine.retry_workflow(exchange.path["id"]))


async def hold_workflow(exchange: Exchange) -> Answer:
    """Let nothing of a workflow start until it is released."""
    return _workflow(await exchange.engine.hold_workflow(exchange.path["id"]))


async def release_workflow(exchange: Exchange) -> Answer:
    """Let a workflow go on that is held."""
    return _workflow(await exchange.engine.release_workflow(exchange.path["id"]))


async def resume_workflow(exchange: Exchange) -> Answer:
    """Let the job of a workflow go on that waits, with what it waits for."""
    data, failure, step = await resumption_of(exchange)
    item = WorkflowResumption(exchange.path["id"], step, data, failure)
    return _workflow(await exchange.engine.resume_workflow(item))


async def show_status(exchange: Exchange) -> Answer:
    """Show what became of each step so far, by branch and in order, and what is under way."""
    status = await exchange.engine.workflow_status(exchange.path["id"])
    return Answer(encode({"status": status}))


async def show_statistics(exchange: Exchange) -> Answer:
    """Count workflows by state, and by when they were created: each is in one of four spans of time."""
    return Answer(encode({"statistics": await exchange.engine.workflow_statistics(exchange.query.get("definition"))}))


async def show_properties(exchange: Exchange) -> Answer:
    """Show what the tasks of a workflow share, each value with its version."""
    return Answer(encode({"properties": await exchange.engine.properties(exchange.path["id"])}))


async def change_properties(exchange: Exchange) -> Answer:
    """Change what the tasks of a workflow share: all that is asked for, or, if a version is another, nothing (409)."""
    body = await exchange.read(wire.PROPERTIES)
    changes = Changes(body.set, tuple(body.delete), body.expected)
    item = PropertyChange(exchange.path["id"], changes, body.job_id, body.worker_id, body.attempt)
    return Answer(encode({"properties": await exchange.engine.change_properties(item)}))


async def note_workflow(exchange: Exchange) -> Answer:
    """Note something of a workflow: any JSON value."""
    item = NewNote(await note_of(exchange), workflow_id=exchange.path["id"])
    return Answer(encode({"note": await exchange.engine.add_note(item)}), 201)


async def list_workflow_notes(exchange: Exchange) -> Answer:
    """List what was noted of a workflow and of its jobs, the oldest first."""
    return Answer(encode({"notes": await exchange.engine.workflow_notes(exchange.path["id"])}))


async def review_step(exchange: Exchange) -> Answer:
    """Approve or reject a step that waits for it, or note what is said of it."""
    body = await exchange.read(wire.REVIEW)
    path = exchange.path
    return _workflow(
        await exchange.engine.review_step(Review(path["id"], path["step"], body.action, body.notes, body.author))
    )


async def cancel_step(exchange: Exchange) -> Answer:
    """Cancel a step and all that is inside it, active jobs too."""
    return _workflow(await exchange.engine.cancel_step(StepAddress(exchange.path["id"], exchange.path["step"])))


def _workflow(info: WorkflowInfo, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> Answer:
    return Answer(b'{"workflow":%b}' % info.to_json(), status, headers)


ROUTES: Final = (
    Route(
        "POST",
        f"{BASE}/workflows",
        create_workflow,
        "Workflows",
        wire.WorkflowBody,
        wire.WorkflowAnswer,
        201,
        large=True,
    ),
    Route(
        "GET",
        f"{BASE}/workflows",
        list_workflows,
        "Workflows",
        query=("state", "type", "name", "definition", "target", *PAGE),
    ),
    Route("GET", f"{BASE}/workflows/statistics", show_statistics, "Workflows", query=("definition",)),
    Route("GET", f"{BASE}/workflows/{{id}}/status", show_status, "Workflows"),
    Route("GET", f"{BASE}/workflows/{{id}}/properties", show_properties, "Workflows"),
    Route(
        "POST", f"{BASE}/workflows/{{id}}/properties", change_properties, "Workflows", wire.PropertiesBody, large=True
    ),
    Route("GET", f"{BASE}/workflows/{{id}}/info", list_workflow_notes, "Workflows"),
    Route("POST", f"{BASE}/workflows/{{id}}/info", note_workflow, "Workflows", wire.NoteBody, status=201),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/resume",
        resume_workflow,
        "Workflows",
        wire.ResumeBody,
        wire.WorkflowAnswer,
        large=True,
    ),
    Route(
        "GET",
        f"{BASE}/workflows/{{id}}",
        show_workflow,
        "Workflows",
        None,
        wire.WorkflowAnswer,
        query=("wait_ms", "version", "steps"),
    ),
    Route("DELETE", f"{BASE}/workflows/{{id}}", cancel_workflow, "Workflows", None, wire.WorkflowAnswer),
    Route("POST", f"{BASE}/workflows/{{id}}/retry", retry_workflow, "Workflows", None, wire.WorkflowAnswer),
    Route("POST", f"{BASE}/workflows/{{id}}/hold", hold_workflow, "Workflows", None, wire.WorkflowAnswer),
    Route("POST", f"{BASE}/workflows/{{id}}/release", release_workflow, "Workflows", None, wire.WorkflowAnswer),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/steps/{{step}}/review",
        review_step,
        "Workflows",
        wire.ReviewBody,
        wire.WorkflowAnswer,
    ),
    Route(
        "POST", f"{BASE}/workflows/{{id}}/steps/{{step}}/cancel", cancel_step, "Workflows", None, wire.WorkflowAnswer
    ),
)

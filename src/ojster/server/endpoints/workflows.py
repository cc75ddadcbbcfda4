"""Endpoints for workflows: create, show and control them.

Spec: ojs-workflows 11
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from ojster.core.access import CANCEL, ENQUEUE
from ojster.core.errors import InvalidRequest, NotFound
from ojster.jobs.idempotency import StoredReply
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.endpoints.bulk import key_of
from ojster.server.pages import flag, object_of, page_of, pagination, wait_ms, whole
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, PAGE, Route, location
from ojster.workflows.answer_wire import (
    CancelledWorkflowAnswer,
    WorkflowAnswer,
    WorkflowProgressAnswer,
    WorkflowsAnswer,
    show_cancelled,
    show_progress,
)
from ojster.workflows.calls import NoteCalls, WorkflowCalls
from ojster.workflows.filters import WORKFLOW_FILTER_PARAMETERS, workflow_filter_of
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.selection import WorkflowConditions, WorkflowFilter
from ojster.workflows.read.views import MOST_SHOWN_STEPS
from ojster.workflows.run.start_reply import StartReply, id_alone
from ojster.workflows.wire import (
    WorkflowBody,
)


async def create_workflow(request: HttpRequest) -> Answer:
    """Create a workflow: a chain, a group, a batch, a saga, a graph or a map, with arbitrary nesting.

    With the header ``Idempotency-Key``, a repeated request gets the first answer again, for a day.
    """
    workflows, bulk = request.service.workflows, request.service.bulk
    members = await request.members()
    key = key_of(request, "workflow", request.known_body)

    async def create() -> StoredReply:
        new = await workflows.prepare(members)
        new.key = bulk.own_key(key)
        (workflow_id,) = await workflows.create_many([new])
        body = _workflow(await workflows.show(workflow_id, most_steps=MOST_SHOWN_STEPS)).body
        return StoredReply(201, b'%b,"warnings":%b}' % (body[:-1], encode(new.warnings)) if new.warnings else body)

    reply = await bulk.answer_once(key, create)
    workflow_id, body = msgspec.json.decode(reply.body, type=StartReply).workflow.id, reply.body
    if reply == id_alone(workflow_id):
        with suppress(NotFound):  # it was deleted; else its server did not get as far as the answer
            body = _workflow(await workflows.show(workflow_id, most_steps=MOST_SHOWN_STEPS)).body
    return Answer(body, reply.status, (location("workflows", workflow_id),))


async def show_workflow(request: HttpRequest) -> Answer:
    """Show a workflow with its steps; without them if it has more than 1,000, or if ``steps=false``.

    With ``wait_ms``, answer when the workflow has finished or the time has passed. With ``version`` too, answer as soon
    as its version differs.
    """
    query = request.query
    workflow = await request.service.workflows.show(
        request.path["id"],
        wait=wait_ms(query),
        version=whole(query, "version", 0, 0) if "version" in query else None,
        steps=flag(query, "steps", otherwise=True),
        most_steps=MOST_SHOWN_STEPS,
    )
    return _workflow(workflow)


async def list_workflows(request: HttpRequest) -> Answer:
    """List workflows without their steps, newest first, by state, id, type, name, definition, target, cron job or age.

    ``state`` and ``id`` may name several, with commas. With ``params`` or ``metadata``, JSON objects, only those whose
    parameters, or whose metadata, have their members. ``total`` then counts this page.
    """
    limit, offset, before = page_of(request.query)
    chosen = conditions_in(request.query)
    filter = WorkflowFilter(**msgspec.structs.asdict(chosen), before=before, limit=limit, offset=offset)
    page = await request.service.workflows.select(filter)
    shown = pagination(page.total, limit, offset, page.next_before)
    return Answer(encode(WorkflowsAnswer(page.workflows, shown)))


def conditions_in(query: Mapping[str, str]) -> WorkflowConditions:
    """Return the conditions in a query.

    Raises
    ------
    InvalidRequest
        A condition is malformed.
    """
    members: dict[str, Any] = {name: query.get(name) for name in WORKFLOW_FILTER_PARAMETERS}
    return workflow_filter_of(members | {name: object_of(query, name) or None for name in ("params", "metadata")})


async def cancel_workflow(request: HttpRequest) -> Answer:
    """Cancel a workflow. Steps that have not started never start; active jobs may finish.

    With ``active=cancel``, active jobs are cancelled, too; ``active=finish`` is the default.
    """
    active = request.query.get("active", "finish")
    if active not in ("finish", "cancel"):
        raise InvalidRequest("The parameter 'active' must be 'finish' or 'cancel'.", field="active")
    workflow = await request.service.workflows.cancel(request.path["id"], stop_active=active == "cancel")
    return Answer(encode(CancelledWorkflowAnswer(show_cancelled(workflow))))


async def show_workflow_progress(request: HttpRequest) -> Answer:
    """Show the progress of a workflow, from 0 to 1, and of its jobs."""
    workflow = await request.service.workflows.show(request.path["id"])
    return Answer(encode(show_progress(workflow)), headers=((b"cache-control", b"no-cache"),))


def _workflow(workflow: WorkflowInfo, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> Answer:
    return Answer(b'{"workflow":%b}' % workflow.to_json(), status, headers)


ROUTES: Final = (
    Route(
        "POST",
        f"{BASE}/workflows",
        create_workflow,
        "Workflows",
        WorkflowBody,
        WorkflowAnswer,
        201,
        large=True,
        needs=ENQUEUE,
    ),
    Route(
        "GET",
        f"{BASE}/workflows",
        list_workflows,
        "Workflows",
        answer=WorkflowsAnswer,
        query=(*WORKFLOW_FILTER_PARAMETERS, *PAGE),
    ),
    *endpoints_of(WorkflowCalls, lambda service: service.workflows),
    *endpoints_of(NoteCalls, lambda service: service.notes),
    Route(
        "GET",
        f"{BASE}/workflows/{{id}}",
        show_workflow,
        "Workflows",
        None,
        WorkflowAnswer,
        query=("wait_ms", "version", "steps"),
    ),
    *(
        Route(
            method,
            f"{BASE}/workflows/{{id}}{end}",
            cancel_workflow,
            "Workflows",
            None,
            CancelledWorkflowAnswer,
            query=("active",),
            needs=CANCEL,
        )
        for method, end in (("DELETE", ""), ("POST", "/cancel"))
    ),
    Route(
        "GET", f"{BASE}/workflows/{{id}}/progress", show_workflow_progress, "Workflows", answer=WorkflowProgressAnswer
    ),
)

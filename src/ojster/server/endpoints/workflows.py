"""Endpoints for workflows: create, show and control them.

Spec: ojs-workflows 11
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ojster.core.access import CANCEL, CANCEL_OR_DEQUEUE, ENQUEUE
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.property_values import Changes
from ojster.jobs.idempotency import Reply
from ojster.server.answer import Answer, encode
from ojster.server.endpoints.bulk import key_of
from ojster.server.endpoints.jobs import read_resumption
from ojster.server.pages import object_of, page_of, pagination, wait_ms, whole
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, PAGE, Route, location
from ojster.workflows.answer_wire import (
    CancelledWorkflowAnswer,
    LevelAnswer,
    PropertiesAnswer,
    StepsAnswer,
    WorkflowAnswer,
    WorkflowProgressAnswer,
    WorkflowsAnswer,
    WorkflowStatisticsAnswer,
    WorkflowStatusAnswer,
    show_cancelled,
    show_progress,
)
from ojster.workflows.properties import PropertyChange
from ojster.workflows.read.info import WorkflowInfo
from ojster.workflows.read.levels import DEFAULT_LEVEL_STEPS, MOST_LEVEL_STEPS, LevelRequest, show_levels
from ojster.workflows.read.selection import WorkflowFilter
from ojster.workflows.read.step_pages import DEFAULT_STEPS, MAX_SEARCH_CHARS, MOST_STEPS, STEP_STATES, StepFilter
from ojster.workflows.read.views import MOST_SHOWN_STEPS
from ojster.workflows.read.waiting import WAITING_FOR
from ojster.workflows.run.control import Review
from ojster.workflows.run.dependencies import NewDependencies
from ojster.workflows.run.steps import StepAddress
from ojster.workflows.run.suspensions import WorkflowResumption
from ojster.workflows.stored_workflow import ALL_STATES
from ojster.workflows.wire import (
    DEPENDENCIES,
    PROPERTIES,
    REVIEW,
    DependenciesBody,
    PropertiesBody,
    ResumeBody,
    ReviewBody,
    WorkflowBody,
)


async def create_workflow(request: HttpRequest) -> Answer:
    """Create a workflow: a chain, a group, a batch, a saga, a graph or a map, with arbitrary nesting.

    With the header ``Idempotency-Key``, a repeated request gets the first answer again, for a day.
    """
    workflows = request.service.workflows
    members = await request.members()

    async def create() -> Reply:
        new = await workflows.prepare(members)
        (workflow_id,) = await workflows.create_many([new])
        body = _workflow(await workflows.show(workflow_id, most_steps=MOST_SHOWN_STEPS)).body
        return Reply(201, b'%b,"warnings":%b}' % (body[:-1], encode(new.warnings)) if new.unknown else body)

    reply = await request.service.bulk.answer_once(key_of(request, "workflow", request.known_body), create)
    workflow_id = msgspec.json.decode(reply.body, type=_Created).workflow.id
    return Answer(reply.body, reply.status, (location("workflows", workflow_id),))


class _Identified(msgspec.Struct):
    id: str


class _Created(msgspec.Struct):
    """What an answer says of the workflow that was created."""

    workflow: _Identified


async def show_workflow(request: HttpRequest) -> Answer:
    """Show a workflow with its steps; without them if it has more than 1,000, or if ``steps=false``.

    With ``wait_ms``, answer when the workflow has finished or the time has passed. With ``version`` too, answer as soon
    as its version differs.
    """
    query = request.query
    info = await request.service.workflows.show(
        request.path["id"],
        wait=wait_ms(query),
        version=whole(query, "version", 0, 0) if "version" in query else None,
        steps=query.get("steps") != "false",
        most_steps=MOST_SHOWN_STEPS,
    )
    return _workflow(info)


async def list_steps(request: HttpRequest) -> Answer:
    """List the steps of a workflow as a flat list, containers among them.

    ``state`` leaves those in one state, ``held=true`` those that wait for an answer, a time or a resumption, ``search``
    those with a text in their name or type, or at the end of their path. A workflow of more than 1,000 steps is shown
    without them; this list has them in pages. A search examines 10,000 steps at a time: its page may be short, and have
    a next one.
    """
    query = request.query
    state = query.get("state")
    if state is not None and state not in STEP_STATES:
        raise InvalidRequest(
            f"Unknown step state {state[:40]!r}. Use one of {', '.join(sorted(STEP_STATES))}.", field="state"
        )
    limit, _, after = page_of(query, default=DEFAULT_STEPS, largest=MOST_STEPS)
    search = query.get("search", "")
    if len(search) > MAX_SEARCH_CHARS:
        raise InvalidRequest(f"'search' has at most {MAX_SEARCH_CHARS} characters.", field="search")
    chosen = StepFilter(
        request.path["id"], state, after or 0, limit, is_held=query.get("held") == "true", search=search
    )
    page = await request.service.workflows.steps(chosen)
    return Answer(encode(StepsAnswer(page.steps, None if page.next_after is None else str(page.next_after))))


async def show_level(request: HttpRequest) -> Answer:
    """Show one level of a workflow's graph: the steps in the container with the number ``of``, by default the workflow.

    Each step says which others of the page it follows. Containers are shown without what is in them, so that a picture
    of any workflow begins at once.
    """
    query = request.query
    limit = min(whole(query, "limit", DEFAULT_LEVEL_STEPS, 1), MOST_LEVEL_STEPS)
    asked = LevelRequest(
        request.path["id"], whole(query, "of", 0, 0), whole(query, "cursor", -1, 0), limit, request.service.scope.tenant
    )
    level = await request.service.scope.look(show_levels, asked)
    if level is None:
        raise NotFound(
            f"There is no workflow {request.path['id']} with a container {asked.number}.", resource_type="workflow"
        )
    cursor = None if level.next_after is None else str(level.next_after)
    return Answer(encode(LevelAnswer(level.steps, level.total, cursor)))


async def list_workflows(request: HttpRequest) -> Answer:
    """List workflows without their steps, newest first, optionally by state, type, name, definition or target.

    With ``params``, a JSON object, only those whose parameters have its members. ``total`` then counts this page.
    """
    query = request.query
    state = query.get("state")
    if state is not None and state not in ALL_STATES:
        raise InvalidRequest(
            f"Unknown workflow state {state[:40]!r}. Use one of {', '.join(ALL_STATES)}.", field="state"
        )
    waits = query.get("waiting_for")
    if waits is not None and waits not in WAITING_FOR:
        message = f"A workflow does not wait for {waits[:40]!r}. Use one of {', '.join(WAITING_FOR)}."
        raise InvalidRequest(message, field="waiting_for")
    limit, offset, before = page_of(query)
    params = object_of(query, "params")
    if params and offset:
        raise InvalidRequest("A list by 'params' has no offset. Go on with its 'next_cursor'.", field="offset")
    page = await request.service.workflows.select(
        WorkflowFilter(
            state,
            query.get("type"),
            query.get("name"),
            before,
            limit,
            offset,
            definition=query.get("definition"),
            target=query.get("target"),
            waiting_for=waits,
            params=params,
        )
    )
    shown = pagination(page.total, limit, offset, page.next_before)
    return Answer(encode(WorkflowsAnswer(page.workflows, shown)))


async def cancel_workflow(request: HttpRequest) -> Answer:
    """Cancel a workflow. Steps that have not started never start; active jobs may finish.

    With ``active=cancel``, active jobs are cancelled, too; ``active=finish`` is the default.
    """
    active = request.query.get("active", "finish")
    if active not in ("finish", "cancel"):
        raise InvalidRequest("The parameter 'active' must be 'finish' or 'cancel'.", field="active")
    info = await request.service.workflows.cancel(request.path["id"], stop_active=active == "cancel")
    return Answer(encode(CancelledWorkflowAnswer(show_cancelled(info))))


async def retry_workflow(request: HttpRequest) -> Answer:
    """Retry the unsuccessful steps of a finished workflow."""
    return _workflow(await request.service.workflows.retry(request.path["id"]))


async def hold_workflow(request: HttpRequest) -> Answer:
    """Hold a workflow: none of its steps starts until it is released."""
    return _workflow(await request.service.workflows.hold(request.path["id"]))


async def release_workflow(request: HttpRequest) -> Answer:
    """Release a held workflow."""
    return _workflow(await request.service.workflows.release(request.path["id"]))


async def resume_workflow(request: HttpRequest) -> Answer:
    """Resume the suspended job of a workflow with a ``result`` or an ``error``."""
    data, failure, step = await read_resumption(request)
    item = WorkflowResumption(request.path["id"], step, data, failure)
    return _workflow(await request.service.workflows.resume(item))


async def show_status(request: HttpRequest) -> Answer:
    """Show the results of ended steps, by branch and in the order in which they ended, and the current steps."""
    status = await request.service.workflows.status(request.path["id"])
    return Answer(encode(WorkflowStatusAnswer(status)))


async def show_workflow_progress(request: HttpRequest) -> Answer:
    """Show the progress of a workflow, from 0 to 1, and of its jobs."""
    info = await request.service.workflows.show(request.path["id"])
    return Answer(encode(show_progress(info)), headers=((b"cache-control", b"no-cache"),))


async def show_statistics(request: HttpRequest) -> Answer:
    """Count workflows by state and by age, in four disjoint time ranges."""
    statistics = await request.service.workflows.statistics(request.query.get("definition"))
    return Answer(encode(WorkflowStatisticsAnswer(statistics)))


async def show_properties(request: HttpRequest) -> Answer:
    """Show the shared properties of a workflow, each with its version."""
    return Answer(encode(PropertiesAnswer(await request.service.workflows.properties(request.path["id"]))))


async def change_properties(request: HttpRequest) -> Answer:
    """Change the shared properties of a workflow, all or none. Answers 409 if an ``expected`` version differs."""
    body = await request.read(PROPERTIES)
    changes = Changes(body.set, tuple(body.delete), body.expected)
    item = PropertyChange(request.path["id"], changes, body.job_id, body.worker_id, body.attempt)
    return Answer(encode(PropertiesAnswer(await request.service.workflows.change_properties(item))))


async def review_step(request: HttpRequest) -> Answer:
    """Approve or reject a step that waits for an approval, or add a note to it."""
    body = await request.read(REVIEW)
    path = request.path
    return _workflow(
        await request.service.workflows.review_step(
            Review(path["id"], path["step"], body.action, body.notes, body.author)
        )
    )


async def cancel_step(request: HttpRequest) -> Answer:
    """Cancel a step with all steps inside it, including active jobs."""
    return _workflow(await request.service.workflows.cancel_step(StepAddress(request.path["id"], request.path["step"])))


async def add_dependencies(request: HttpRequest) -> Answer:
    """Let a step of a graph that has not started wait for others of the graph, too."""
    body = await request.read(DEPENDENCIES)
    path = request.path
    item = NewDependencies(path["id"], path["step"], tuple(body.depends_on))
    return _workflow(await request.service.workflows.add_dependencies(item))


async def retry_step(request: HttpRequest) -> Answer:
    """Run a failed or cancelled step again, with everything after it; the other steps go on."""
    return _workflow(await request.service.workflows.retry_step(StepAddress(request.path["id"], request.path["step"])))


def _workflow(info: WorkflowInfo, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> Answer:
    return Answer(b'{"workflow":%b}' % info.to_json(), status, headers)


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
        query=("state", "type", "name", "definition", "target", "waiting_for", "params", *PAGE),
    ),
    Route(
        "GET",
        f"{BASE}/workflows/statistics",
        show_statistics,
        "Workflows",
        answer=WorkflowStatisticsAnswer,
        query=("definition",),
    ),
    Route(
        "GET",
        f"{BASE}/workflows/{{id}}/graph",
        show_level,
        "Workflows",
        answer=LevelAnswer,
        query=("of", "limit", "cursor"),
    ),
    Route(
        "GET",
        f"{BASE}/workflows/{{id}}/steps",
        list_steps,
        "Workflows",
        answer=StepsAnswer,
        query=("state", "held", "search", "limit", "cursor"),
    ),
    Route("GET", f"{BASE}/workflows/{{id}}/status", show_status, "Workflows", answer=WorkflowStatusAnswer),
    Route("GET", f"{BASE}/workflows/{{id}}/properties", show_properties, "Workflows", answer=PropertiesAnswer),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/properties",
        change_properties,
        "Workflows",
        PropertiesBody,
        PropertiesAnswer,
        large=True,
        needs=CANCEL_OR_DEQUEUE,
    ),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/resume",
        resume_workflow,
        "Workflows",
        ResumeBody,
        WorkflowAnswer,
        large=True,
        needs=CANCEL,
    ),
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
    Route("POST", f"{BASE}/workflows/{{id}}/retry", retry_workflow, "Workflows", None, WorkflowAnswer, needs=CANCEL),
    Route("POST", f"{BASE}/workflows/{{id}}/hold", hold_workflow, "Workflows", None, WorkflowAnswer, needs=CANCEL),
    Route(
        "POST", f"{BASE}/workflows/{{id}}/release", release_workflow, "Workflows", None, WorkflowAnswer, needs=CANCEL
    ),
    Route(
        "POST", f"{BASE}/workflows/{{id}}/steps/{{step}}/review", review_step, "Workflows", ReviewBody, WorkflowAnswer
    ),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/steps/{{step}}/dependencies",
        add_dependencies,
        "Workflows",
        DependenciesBody,
        WorkflowAnswer,
        needs=CANCEL,
    ),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/steps/{{step}}/retry",
        retry_step,
        "Workflows",
        None,
        WorkflowAnswer,
        needs=CANCEL,
    ),
    Route(
        "POST",
        f"{BASE}/workflows/{{id}}/steps/{{step}}/cancel",
        cancel_step,
        "Workflows",
        None,
        WorkflowAnswer,
        needs=CANCEL,
    ),
)
